"""Biases and retentions in a layer: they travel with its rule, and its start has logarithms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref.layers import neural_memory
from atlas_ref.rules import deep_memory
from tape import grad, ops
from tests.support.close import assert_close, assert_differs, reordered

D, T = 4, 6


def layer(name: str) -> neural_memory.Config:
    """The layer of titans-pytorch with the bias and the retention of a preset."""
    plain = neural_memory.configured(D, heads=2, chunk=2)
    own = deep_memory.PRESETS.get(name, {})
    rule = deep_memory.Config(**plain.rule.model_dump(mode="json") | own)
    return neural_memory.Config(**dict(plain) | {"rule": rule})


def read(config: Any, params: Any, x: Any, cuts: Any = ()) -> Any:
    state, reads = neural_memory.start(config, 2), []
    for tokens in np.split(x, cuts, axis=1) if len(cuts) else [x]:
        state, y = neural_memory.apply(config, params, state, tokens)
        reads.append(y)
    return reads[0] if len(reads) == 1 else ops.concatenate(reads, axis=1)


@pytest.mark.clause("DEEP-30", "DEEP-32", "DEEP-34")
@pytest.mark.parametrize("name", deep_memory.PRESETS)
def test_a_layer_takes_the_bias_and_the_retention_of_its_rule(name: str) -> None:
    config, x = layer(name), np.random.default_rng(0).standard_normal((2, T, D))
    again = neural_memory.Config.model_validate_json(config.model_dump_json())
    assert again == config
    params = neural_memory.init(config, 3)
    y = read(config, params, x)
    assert_close("in two calls", read(config, params, x, [3]), y, reordered(64))
    other = layer("titans-pytorch")
    assert_differs("y", y, read(other, neural_memory.init(other, 3), x), 1e-6)
    bars = grad(lambda at: ops.sum(read(config, at, x)))(params)
    for label, each in bars.memory.items():
        assert np.isfinite(each).all(), label
        assert np.any(each), label
    if name == "memora":
        for label in ("W_1", "W_2"):
            sums = params.memory[label].sum(axis=(-2, -1))
            assert_close(label, sums, np.ones(2), reordered(16))


@pytest.mark.clause("DEEP-37")
def test_a_layer_takes_a_network_in_the_place_of_its_momentum() -> None:
    plain = neural_memory.configured(D, heads=2, chunk=2)
    network = {"function": {"kind": "mlp", "activation": "silu", "expansion": 0.1}}
    rule = deep_memory.Config(**plain.rule.model_dump(mode="json") | {"deep_momentum": network})
    config = neural_memory.Config(**dict(plain) | {"rule": rule})
    assert neural_memory.Config.model_validate_json(config.model_dump_json()) == config
    params, x = neural_memory.init(config, 3), np.random.default_rng(0).standard_normal((2, T, D))
    y = read(config, params, x)
    assert_close("in two calls", read(config, params, x, [3]), y, reordered(64))
    assert_differs("y", y, read(plain, neural_memory.init(plain, 3), x), 1e-6)
    bars = grad(lambda at: ops.sum(read(config, at, x)))(params)
    for label in ("momentum/W_1", "momentum/W_2"):
        assert np.isfinite(bars.memory[label]).all()
        assert np.any(bars.memory[label]), label
