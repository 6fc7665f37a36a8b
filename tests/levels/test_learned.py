"""A learned schedule: gates decide who writes, and their derivative is the difference of a write."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

import tape
from atlas_ref.levels import block as cms
from atlas_ref.levels import learned
from tape.check import complex_step
from tape.nested import flatten
from tests.support.blocks import COUNTING, MIXED, block, pieces
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs, reordered
from tests.support.learned_blocks import (
    AFFINE,
    combined,
    learnt,
    levels_in_loops,
    mask_in_loops,
)

Array = np.ndarray[Any, Any]

LOOPS = reordered(1, amplification=1e7)  # Newton-Schulz, as in tests/rules/test_literal.py


@pytest.mark.clause("CMS-20")
def test_a_block_with_gates_is_its_definition_in_loops() -> None:
    config, params, x, context = learnt(MIXED)
    reset = np.isin(np.arange(9), [4])
    active = mask_in_loops(params, x, 0.45, fastest=0)
    assert [active[..., i].all() for i in range(5)] == [True, False, False, False, False]
    assert active[..., 1:].any(axis=(0, 1)).all()
    assert (active[0] != active[1]).any()  # each row decides for itself
    assert_close(
        "active", learned.decided(config, params, x, context).active, active.astype(float), EXACT
    )
    for documents in (None, reset):
        want = levels_in_loops(MIXED, params.block, x, context, active, documents)
        after, y = learned.run(config, params, x, context, reset=documents)
        assert_close("y", y, combined(want, params.block.logits), LOOPS)
        for i, state in enumerate(after.states):
            for b in range(2):
                assert_close(f"M of {i}", state.M[b], want[i][b]["out/M"][0], LOOPS)
        assert after.conductor.step == 9


@pytest.mark.clause("CMS-20", "CMS-22")
def test_a_level_with_a_learned_residual_writes_as_in_its_block() -> None:
    spec = {"rule": "delta", "period": 1, "d_in": 3, "convention": {"reference": "surrogate"}}
    config, params, x, context = learnt([spec, MIXED[2]], tokens=6)
    open_gates = params.replaced(W=0 * params.W, b=np.full(2, 9.0))
    plain = block([spec, {**MIXED[2], "period": 1}])
    _, y = learned.run(config, open_gates, x, context)
    here = context.replaced(conductor=plain.conductor())
    _, want = cms.run(plain, params.block, x, here)
    assert_close("y", y, want, LOOPS)


@pytest.mark.clause("CMS-21")
def test_the_derivative_of_a_gate_is_the_difference_that_its_write_makes() -> None:
    """Loops run twice for each gate, with its write and without; no line of ours is in them."""
    config, params, x, context = learnt(AFFINE, tokens=5, batch=1)
    bar = np.random.default_rng(5).standard_normal((1, 2, 5, 3))
    fastest = 1
    active = mask_in_loops(params, x, 0.45, fastest)
    W_bar, b_bar = np.zeros_like(params.W), np.zeros_like(params.b)
    for i in range(len(AFFINE)):
        for t in range(5):
            if i == fastest:
                continue
            losses = []
            for writes in (True, False):
                flipped = active.copy()
                flipped[0, t, i] = writes
                y = combined(
                    levels_in_loops(AFFINE, params.block, x, context, flipped), params.block.logits
                )
                losses.append(np.sum(bar * y))
            g = 1.0 / (1.0 + math.exp(-(params.W[i] @ x[0, t] + params.b[i])))
            slope = (losses[0] - losses[1]) * g * (1.0 - g)
            W_bar[i] += slope * x[0, t]
            b_bar[i] += slope
    got = tape.grad(lambda p: tape.ops.sum(learned.run(config, p, x, context)[1] * bar))(params)
    assert_close("W", got.W, W_bar, ANALYTIC)
    assert_close("b", got.b, b_bar, ANALYTIC)
    assert got.b[fastest] == 0.0
    assert (np.abs(np.delete(got.b, fastest)) > 1e-6).all()


@pytest.mark.clause("CMS-15", "CMS-21")
def test_every_parameter_and_token_has_the_gradient_of_the_complex_step() -> None:
    config, params, x, context = learnt(MIXED, tokens=6, batch=1, d_model=2, d_out=2, heads=1)
    bar = np.random.default_rng(4).standard_normal((1, 1, 6, 2))

    def loss(at: dict[str, Any]) -> Any:
        _, y = learned.run(config, at["params"], at["x"], context)
        return tape.ops.sum(y * bar)

    at = {"params": params, "x": x}
    got, want = tape.grad(loss)(at), complex_step(loss, at)
    leaves, paths, _ = flatten(got, "gradient")
    for path, leaf, truth in zip(paths, leaves, flatten(want, "gradient")[0], strict=True):
        assert_close(path, leaf, truth, ANALYTIC)
    assert np.linalg.norm(got["params"].W) > 0


@pytest.mark.clause("CMS-20")
def test_before_the_first_step_of_the_gates_the_periods_decide() -> None:
    config, params, x, context = learnt(MIXED, until=6)
    _, y = learned.run(config, params, x, context)
    _, by_period = cms.run(config.block, params.block, x, context)
    assert_close("six tokens", y[:, :, :6], by_period[:, :, :6], LOOPS)
    assert_differs("then gates", y[:, :, 6:], by_period[:, :, 6:], 1e-6)
    early = tape.grad(lambda p: tape.ops.sum(learned.run(config, p, x[:, :6], context)[1]))(params)
    assert not early.W.any()
    assert not early.b.any()


@pytest.mark.clause("CMS-22")
def test_gates_that_agree_with_the_periods_make_what_the_block_makes() -> None:
    """Never asked, always open, and open at the tokens of the periods alone."""
    config, params, x, context = learnt([*MIXED[:2], {**MIXED[2], "period": 4}], tokens=8)
    marked = x.copy()  # one entry of a token says whether the second and the third level write
    marked[..., 0] = np.where(np.arange(8) % 2 == 0, 1.0, -1.0)
    marked[..., 1] = np.where(np.arange(8) % 4 == 0, 1.0, -1.0)
    W = np.zeros_like(params.W)
    W[1, 0] = W[2, 1] = 3.0
    every = [each.replaced(period=1) for each in config.block.levels]
    for own, gates, tokens in (
        (config.replaced(until=100), params, x),
        (config, params.replaced(W=0 * W, b=np.full(3, 9.0)), x),
        (config, params.replaced(W=W, b=np.zeros(3)), marked),
    ):
        opened = not gates.W.any()
        plain = config.block.replaced(levels=tuple(every)) if opened else config.block
        here = context.replaced(conductor=plain.conductor())
        asked = own.replaced(block=plain.replaced(levels=config.block.levels))
        after, y = learned.run(asked, gates, tokens, context)
        whole, want = cms.run(plain, params.block, tokens, here)
        assert_close("y", y, want, LOOPS)
        for i, state in enumerate(after.states):
            assert_close(f"M of level {i}", state.M, whole.states[i].M, LOOPS)


@pytest.mark.clause("CMS-20", "CMS-8")
def test_calls_of_any_length_give_what_one_call_gives() -> None:
    config, params, x, context = learnt(MIXED, tokens=12, until=3)
    reset = np.isin(np.arange(12), [7])
    whole, y = learned.run(config, params, x, context, reset=reset)
    for cuts in ([4], [1, 2, 7, 8], [*range(1, 12)]):
        at, reads = pieces(learned.run, config, params, x, context, cuts, reset)
        assert_close("y", reads, y, LOOPS)
        assert at.conductor == whole.conductor
        for state, want in zip(at.states, whole.states, strict=True):
            assert_close("M", state.M, want.M, LOOPS)


@pytest.mark.clause("CMS-20")
def test_with_steps_per_call_one_gate_decides_from_the_mean_of_the_tokens() -> None:
    config, params, x, context = learnt(MIXED[:3])
    config = config.replaced(block=config.block.replaced(per="call"))
    context = learned.start(config, 2)
    found = learned.decided(config, params, x, context)
    for b in range(2):
        for i in range(3):
            z = params.b[i] + sum(params.W[i, n] * sum(x[b, :, n]) / 9 for n in range(x.shape[-1]))
            gate = 1.0 / (1.0 + math.exp(-z))
            assert_close(
                f"row {b}, level {i}", found.gates[b, :, i], np.full(9, gate), reordered(16)
            )
            want = np.full(9, float(i == 0 or gate > 0.45))
            assert_close(f"row {b}, level {i}", found.active[b, :, i], want, EXACT)
    after, _ = learned.run(config, params, x, context)
    assert after.conductor.step == 1


@pytest.mark.clause("CMS-20")
def test_gates_start_more_shut_the_slower_their_level() -> None:
    config, _, x, _ = learnt([MIXED[2], MIXED[0], MIXED[1]])
    params = learned.init(config, 3)
    assert params.b.tolist() == [-2.0, 0.0, -1.0]
    assert params.W.shape == (3, x.shape[-1])
    assert params == learned.init(config, 3)
    assert params.block == cms.init(config.block, 3)
    assert learned.init(config, 3, dtype=np.float32).W.dtype == np.float32
    _, y = learned.run(config, params, x, learned.start(config, 2))
    assert np.isfinite(y).all()


@pytest.mark.clause("CMS-20")
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (
            lambda: learned.Config(block=block(MIXED, combine="masked")),
            "masked, a learned schedule combines all by softmax",
        ),
        (
            lambda: learned.Config(block=block(COUNTING[:1])),
            "level 0: a write must change memories alone: a rule of the family, a running",
        ),
        (
            lambda: learned.Config(block=block([MIXED[0], COUNTING[2]])),
            "level 1: a write must change memories alone",
        ),
        (lambda: learned.Config(block=block(MIXED), threshold=1.0), "threshold"),
        (lambda: learned.Config(block=block(MIXED), until=-1), "until"),
    ],
)
def test_a_schedule_that_gates_cannot_make_is_refused(wrong: Any, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        wrong()


def with_b(params: Any, last: float) -> Any:
    return params.replaced(b=np.array([0.0, last]))


@pytest.mark.clause("CMS-20")
def test_gates_of_another_block_are_refused() -> None:
    config, params, x, context = learnt(MIXED[:2])
    for wrong, words in [
        (params.replaced(W=params.W[:1]), r"W of shape \(1, 5\) and b of shape \(2,\), expected"),
        (params.replaced(W=params.W.astype(np.float32)), "W is float32, but x is float64"),
        (with_b(params, np.nan), r"params: b: every entry must be finite, found nan at \(1,\)"),
        (params.block, "params: those of a learned schedule are needed, found Params"),
    ]:
        with pytest.raises(ValueError, match=words):
            learned.run(config, wrong, x, context)
