"""Gradients of a block: logits, every parameter of every level, initial memories and tokens, by
complex step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tape
from atlas_ref.levels import block as cms
from tape.check import complex_step
from tape.nested import flatten
from tests.support.blocks import COUNTING, MIXED, block, drawn
from tests.support.close import ANALYTIC, assert_close

#: Four levels of one head and two dimensions: 112 parameters.
# five flatten 2 x 2
FOUR: tuple[dict[str, Any], ...] = (
    {"rule": "titans_lmm", "period": 1, "d_in": 2},
    {"rule": "delta", "period": 8, "d_in": 2},
    {
        "rule": "omega",
        "period": 64,
        "d_in": 2,
        "window": 3,
        "convention": {"newton_schulz": "none"},
    },
    {
        "rule": "omega",
        "period": 512,
        "d_in": 2,
        "window": 4,
        "convention": {"newton_schulz": {"steps": 2}},
    },
)


def weighed(config: cms.Config, x: Any, context: cms.Context, seed: int = 3) -> Any:
    """A linear function of every read and of the last memories, as a function of the parameters."""
    draw = np.random.default_rng(seed)
    bar = draw.standard_normal(
        (x.shape[0], config.heads, x.shape[1], config.levels[0].config.d_out)
    )
    bars = [draw.standard_normal(state.M.shape) for state in context.states]

    def loss(params: cms.Params) -> Any:
        after, y = cms.run(config, params, x, context)
        total = tape.ops.sum(y * bar)
        for state, each in zip(after.states, bars, strict=True):
            total = total + tape.ops.sum(state.M * each)
        return total

    return loss


def every_leaf_agrees(got: Any, want: Any) -> None:
    leaves, paths, _ = flatten(got, "gradient")
    truths, _, _ = flatten(want, "gradient")
    for path, leaf, truth in zip(paths, leaves, truths, strict=True):
        assert np.linalg.norm(truth) > 0, f"{path}: a gradient of zero proves nothing"
        assert_close(path, leaf, truth, ANALYTIC)


@pytest.mark.clause("CMS-15")
@pytest.mark.slow
@pytest.mark.parametrize("combine", ["softmax", "masked"])
def test_every_parameter_of_four_levels_through_600_tokens(combine: Any) -> None:
    config = block(FOUR, combine=combine, d_model=2, d_out=2, heads=1)
    params, x, context = drawn(config, tokens=600, batch=1)
    assert context.conductor.schedule(600).sum(0).tolist() == [600, 75, 10, 2]
    loss = weighed(config, x, context)
    got, want = tape.grad(loss)(params), complex_step(loss, params)
    every_leaf_agrees(got, want)


@pytest.mark.sample(1)
@pytest.mark.clause("CMS-15")
@pytest.mark.parametrize(
    ("specs", "combine"), [(MIXED, "softmax"), (MIXED, "masked"), (COUNTING, "softmax")]
)
def test_every_parameter_of_every_kind_of_level(specs: Any, combine: Any) -> None:
    config = block(specs, combine=combine, d_model=2, d_out=2, heads=1)
    params, x, context = drawn(config, tokens=9, batch=1)
    loss = weighed(config, x, context)
    every_leaf_agrees(tape.grad(loss)(params), complex_step(loss, params))


@pytest.mark.clause("CMS-15")
def test_tokens_and_first_memories_have_gradients_across_calls_and_documents() -> None:
    config = block(MIXED[:3], d_model=2, d_out=2, heads=1)
    params, x, context = drawn(config, tokens=9, batch=1)
    bar = np.random.default_rng(4).standard_normal((1, 1, 9, 2))
    reset = np.arange(9) == 7

    def loss(inputs: dict[str, Any]) -> Any:
        memories = [{"M": M} for M in inputs["M"]]
        here = cms.start(
            config,
            1,
            initial=memories,
            dtype=np.complex128 if np.iscomplexobj(tape.plain(inputs["M"][0])) else np.float64,
        )
        here, first = cms.run(config, params, inputs["x"][:, :4], here)
        _, second = cms.run(config, params, inputs["x"][:, 4:], here, reset=reset[4:])
        return tape.ops.sum(first * bar[:, :, :4]) + tape.ops.sum(second * bar[:, :, 4:])

    at = {"x": x, "M": [state.M for state in context.states]}
    every_leaf_agrees(tape.grad(loss)(at), complex_step(loss, at))
