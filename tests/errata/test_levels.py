"""Errata of frequency levels: the sum of stale gradients, when it is too large, and the step."""

import math
import warnings

import numpy as np
import pytest

import tape
from atlas_ref.levels import block as cms
from atlas_ref.levels import learned
from atlas_ref.levels.buffers import BufferWarning, add, buffers
from atlas_ref.levels.level import Level
from atlas_ref.levels.pulse import Conductor
from atlas_ref.rules import delta
from tests.truth.running_loops import relative


@pytest.mark.clause("E-P13")
def test_e_p13_a_sum_of_stale_gradients_is_not_the_same_total_gradient():
    curvature, rate = np.array([1.0, 0.1]), 0.3
    single, deferred, held = np.ones(2), np.ones(2), np.zeros(2)
    total, conductor = np.zeros(2), Conductor(periods=(8,), first_step=1)
    (buffer,) = buffers(conductor)
    ours = np.ones(2)
    for step in range(1, 9):
        total += curvature * single
        single = single - rate * curvature * single
        held += curvature * deferred
        if step % 8 == 0:
            deferred, sum_of_stale = deferred - rate * held, held
        buffer, applied, _ = add(buffer, curvature * ours, conductor.pulse, 0)
        conductor = conductor.tick()
        if applied is not None:
            ours = ours - rate * applied
    assert np.round(deferred, 2).tolist() == [-1.40, 0.76]
    assert np.round(single, 3).tolist() == [0.058, 0.784]
    assert np.round(sum_of_stale, 2).tolist() == [8.0, 0.8]  # against
    assert np.round(total, 2).tolist() == [3.14, 0.72]
    assert relative(ours, deferred) < 1e-12
    slow = [(1 - 8 * step * curvature) - (1 - step * curvature) ** 8 for step in (0.02, 0.01)]
    assert slow[0] / slow[1] == pytest.approx(4, rel=0.15)  # equal to first order in the step size


@pytest.mark.clause("E-P14")
def test_e_p14_independent_gradients_alone_exceed_ten_times_one_of_them():
    draw = np.random.default_rng(0)
    for period, number in ((8, 2.83), (64, 8.0), (512, 22.6)):
        ratios = [
            np.linalg.norm(draw.standard_normal((period, 64)).sum(0)) / math.sqrt(64)
            for _ in range(200)
        ]
        assert np.mean(ratios) == pytest.approx(number, rel=0.03)
        # a bound of ten warns of noise at the slowest level, always
        assert (np.mean(ratios) > 10) == (period == 512)
        assert max(ratios) < 10 * math.sqrt(period)
    conductor = Conductor(periods=(512,), first_step=1)
    (buffer,) = buffers(conductor)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BufferWarning)
        for _ in range(512):
            buffer, applied, health = add(
                buffer, {"W": draw.standard_normal(64)}, conductor.pulse, 0
            )
            conductor = conductor.tick()
    assert applied is not None
    assert health.ratio > 10
    assert health.bound == 10 * math.sqrt(512)


@pytest.mark.clause("E-A29")
def test_e_a29_a_pulse_per_token_is_another_schedule_than_one_per_call():
    config = delta.Config(d_in=4, d_out=3, d_model=5)
    x = np.random.default_rng(2).standard_normal((1, 64, 5))

    def memory(per, calls):
        block = cms.Config(levels=(Level(config=config, period=8),), per=per)
        params, context = cms.init(block, 0), cms.start(block)
        writes = 0
        for part in np.split(x, calls, axis=1):
            writes += int(context.conductor.schedule(part.shape[1]).sum())
            context, _ = cms.run(block, params, part, context)
        return context.states[0].M, writes

    token, call = memory("token", 16), memory("call", 16)
    # as many writes: 64 / 8 tokens, or 2 of 16 calls of 4 tokens
    assert (token[1], call[1]) == (
        8,
        8,
    )
    assert relative(call[0], token[0]) == pytest.approx(0.45, rel=0.02)
    assert relative(memory("token", 4)[0], token[0]) < 1e-12
    # only per token does the cut into calls not matter
    assert relative(memory("call", 4)[0], call[0]) > 0.5


def _descended(bias: float, gradient, steps: int) -> float:
    """The bias of a gate after steps of rate 1, given the gradient of the gate's value."""
    for _ in range(steps):
        gate = 1.0 / (1.0 + math.exp(-bias))
        bias -= gradient(gate) * gate * (1.0 - gate)
    return bias


@pytest.mark.clause("E-P28")
def test_e_p28_a_gate_that_raised_the_loss_opens():
    def loss(bias: float) -> float:
        return 0.5 / (1.0 + math.exp(-bias)) ** 2

    assert loss(0.0) == 0.125
    # read 1, y = gate: y_bar = gate, and the printed gradient of the gate is -y_bar * 1
    assert round(loss(_descended(0.0, lambda gate: -gate, 100)), 3) == 0.488
    assert round(loss(_descended(0.0, lambda gate: gate, 100)), 3) == 0.003
    assert round(_descended(-1.0, lambda _: 0.01, 5000), 2) == -3.84  # against


@pytest.mark.clause("E-P28", "CMS-21")
def test_e_p28_a_read_is_not_the_difference_that_a_write_makes():
    """Of one token: the frozen level reads its memory too, so that a write changes less than y."""
    rule = delta.Config(d_in=2, d_out=2, d_model=2, convention={"gate": "none"})
    own = cms.Config(levels=(Level(config=rule), Level(config=rule, period=2)))
    params = learned.Params(block=cms.init(own, 0), W=np.zeros((2, 2)), b=np.array([0.0, 1.0]))
    config, x = learned.Config(block=own), np.array([[[0.6, -0.8]]])
    memories = [{"M": np.eye(2)[None, None]} for _ in range(2)]
    context = learned.start(config, initial=memories)
    bar = np.array([0.3, 0.7])

    def loss(params, threshold=0.5):
        _, y = learned.run(config.replaced(threshold=threshold), params, x, context)
        return tape.ops.sum(y * bar)

    got = tape.grad(loss)(params).b[1]
    gate = 1.0 / (1.0 + math.exp(-1.0))
    difference = loss(params) - loss(params, threshold=0.9)  # a gate of 0.73 writes, or does not
    assert relative(got, difference * gate * (1.0 - gate)) < 1e-12
    _, read = learned.run(config, params, x, context)
    printed = -float(np.sum(read / 2 * bar)) * gate * (1.0 - gate)
    assert abs(printed) > 5 * abs(got)
