"""Settings and parameters of a memory that shares attention's queries, keys and values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref import backend
from atlas_ref.layers import memory, shared_memory
from atlas_ref.layers.shared_memory.config import Rates
from atlas_ref.parts.memory_functions import MemoryFunction
from tests.support.close import ANALYTIC, assert_close
from tests.support.memories import layer, rule

D = 4
MEMORY = MemoryFunction(kind="mlp", activation="gelu_tanh")


def settings(**changes: Any) -> shared_memory.Config:
    return shared_memory.configured("causal", d_model=D, memory=MEMORY, **changes)


@pytest.mark.clause("SHARED-1")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"projection": None}, "projection: missing, but memory_input is q_projected"),
        ({"memory_input": "q"}, "projection: present, but memory_input is q and write_key k"),
        ({"gate_hidden": None}, "gate_hidden: missing, but some of the weights take the gate"),
        ({"rates": Rates(retain=0.9)}, "rates.step_size: missing, gates of deep_memory are"),
        ({"step_size": "tanh"}, "sigmoid"),
    ],
    ids=str,
)
def test_settings_that_contradict_each_other(changes: dict[str, Any], words: str) -> None:
    own = settings()
    fields = {name: getattr(own, name) for name in type(own).model_fields}
    with pytest.raises(ValueError, match=words):
        shared_memory.Config(**fields | changes)


@pytest.mark.clause("SHARED-1", "SHARED-9")
@pytest.mark.parametrize(
    ("changes", "words"),
    [({"colour": "red"}, "colour: no axis of a preset"), ({"chunk": 0}, "chunk")],
    ids=str,
)
def test_axes_that_no_preset_has(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        settings(**changes)


@pytest.mark.clause("SHARED-7")
def test_parameters_start_with_half_a_gate_and_a_drawn_memory() -> None:
    own = settings()
    params = shared_memory.init(own, 3)
    assert params.gate is not None
    assert not np.any(backend.host(params.gate.W_out))  # sigmoid(0)
    assert set(params.phi) == set(own.level.rule.tensors(own.level.config))
    assert params.projection is not None
    other = shared_memory.init(own, 4)
    for name, tensor in params.phi.items():
        assert tensor.shape == own.level.rule.tensors(own.level.config)[name]
        assert not np.array_equal(backend.host(tensor), backend.host(other.phi[name]))


@pytest.mark.clause("MEMORY-9", "DEEP-5")
def test_a_memory_layer_goes_on_with_a_memory_that_rows_share() -> None:
    """Its calls cut in two, and refusal of the memory of other rows."""
    own = layer(rule("deep_memory", coupling="batch_shared"), kernel=None)
    params, x = memory.init(own), np.random.default_rng(0).standard_normal((2, 8, 6))
    _, whole = memory.apply(own, params, memory.start(own, 2), x)
    state, first = memory.apply(own, params, memory.start(own, 2), x[:, :4])
    _, second = memory.apply(own, params, state, x[:, 4:])
    assert_close("cut", np.concatenate([first, second], axis=1), whole, ANALYTIC)
    alone = layer(rule("deep_memory"), kernel=None)
    with pytest.raises(ValueError, match=r"state.weights\.W_1: shape \(1, 2, 12, 3\), expected"):
        memory.apply(alone, params, state, x[:, 4:])
