"""Errata of the reference memory: the frozen part, and the state between two calls."""

import numpy as np
import pytest

from tests.truth.frozen_loops import call_start, constant, omega, ours
from tests.truth.running_loops import near, relative, tokens


@pytest.mark.clause("E-A11")
def test_e_a11_the_momentum_depends_on_the_memory():
    _, keys, values = tokens()
    gates, other = constant(32, 0.98, 0.8, 0.1), np.random.default_rng(9).standard_normal((5, 6))
    for span, number in ((1, 0.231), (4, 0.259), (32, 1.883)):
        zero, moved = (
            omega(keys, values, *gates, 4, span, memory=start)[1][-1] for start in (None, other)
        )
        assert relative(moved, zero) == near(number)  # "state-independent" would be 0
        assert relative(ours(keys, values, *gates, 4, span, M0=other)["S"], moved) < 1e-12
    # what does hold: given the memory at the span start, S is a linear recurrence in S
    decayed = 0.8**32 * other
    frozen = [omega(keys, values, *gates, 4, 32, trace=start)[1][-1] for start in (None, other)]
    running = [omega(keys, values, *gates, 4, 1, trace=start)[1][-1] for start in (None, other)]
    assert np.abs(frozen[1] - frozen[0] - decayed).max() < 1e-12
    package = [ours(keys, values, *gates, 4, 32, S0=start)["S"] for start in (None, other)]
    assert np.abs(package[1] - package[0] - decayed).max() < 1e-12
    assert np.abs(running[1] - running[0] - decayed).max() == near(0.152)
    # and it is not Omega's own: with window 1 it is the Titans momentum
    frozen = [omega(keys, values, *gates, 1, 32, trace=start)[1][-1] for start in (None, other)]
    assert np.abs(frozen[1] - frozen[0] - decayed).max() < 1e-12


@pytest.mark.clause("E-A13")
def test_e_a13_exact_means_exact_for_the_frozen_rule():
    _, keys, values = tokens(count=64, d_in=8, d_out=8)
    errors = {}
    for rate in (0.1, 0.05, 0.025):
        gates = constant(64, 0.99, 0.5, rate)
        truth = omega(keys, values, *gates, 4)[0]
        errors[rate] = np.array(
            [relative(omega(keys, values, *gates, 4, span)[0], truth) for span in (1, 2, 4, 8, 16)]
        )
    assert errors[0.1][0] == 0.0  # span 1 is the running rule
    assert errors[0.1][1:] == near(np.array([0.0236, 0.0637, 0.1346, 0.2297]), 0.01)
    assert errors[0.1][1:] / errors[0.05][1:] == near(2.0, 0.1)  # first order in the rate
    assert errors[0.05][1:] / errors[0.025][1:] == near(2.0, 0.1)
    # within a span the closed form of the two scans equals the loop with the frozen reference
    random, keys, values = tokens(count=16, d_in=8, d_out=8)
    retain, momentum, rate = (
        0.9 + 0.1 * random.random(16),
        0.5 + 0.4 * random.random(16),
        0.05 + 0.1 * random.random(16),
    )
    memory, trace = 0.3 * random.standard_normal((8, 8)), 0.1 * random.standard_normal((8, 8))
    memories, traces = omega(
        keys, values, retain, momentum, rate, 4, 16, memory=memory, trace=trace
    )
    single = [np.outer(memory @ key - value, key) for key, value in zip(keys, values, strict=True)]
    gradients = [sum(single[max(0, t - 3) : t + 1]) / 4 for t in range(16)]

    def closed_form(gate, inputs, start):
        return np.array(
            [
                np.prod(gate[: t + 1]) * start
                + sum(np.prod(gate[j + 1 : t + 1]) * inputs[j] for j in range(t + 1))
                for t in range(16)
            ]
        )

    scanned = closed_form(momentum, [rate[t] * gradients[t] for t in range(16)], trace)
    assert relative(scanned, traces) < 1e-12
    assert relative(closed_form(retain, -scanned, memory), memories) < 1e-12
    got = ours(keys, values, retain, momentum, rate, 4, 16, M0=memory, S0=trace)
    assert relative(got["M"], memories[-1]) < 1e-12
    assert relative(got["S"], scanned[-1]) < 1e-12


@pytest.mark.clause("E-P03")
def test_e_p03_the_chunk_pseudo_code_loses_the_momentum():
    random, keys, values = tokens(count=8)
    boundary, start = 0.1 * random.standard_normal((2, 5, 6)) * np.array([-1, 1])[:, None, None]
    gates, memory = constant(8, 0.98, 0.8, 0.1), start
    # S_t from the momentum at the boundary, at every t
    for key, value in zip(keys, values, strict=True):
        memory = 0.98 * memory - (0.8 * boundary + 0.1 * np.outer(start @ key - value, key))
    truth = omega(keys, values, *gates, 1, 8, memory=start, trace=boundary)
    assert relative(memory, truth[0][-1]) == near(0.88)
    got = ours(keys, values, *gates, 1, 8, rule="titans_lmm", M0=start, S0=boundary)
    assert relative(got["M"], truth[0][-1]) < 1e-12
    assert relative(got["S"], truth[1][-1]) < 1e-12  # the momentum is returned


@pytest.mark.clause("E-P08")
def test_e_p08_a_chunk_form_that_runs_the_sequential_step_tests_nothing():
    _, keys, values = tokens(count=16)

    def published(momentum):  # sequential inside the chunk, momentum reset at every fourth token
        memory, trace = np.zeros((5, 6)), np.zeros((5, 6))
        for t in range(16):
            trace = (momentum if t % 4 else 0.0) * trace + 0.3 * np.outer(
                memory @ keys[t] - values[t], keys[t]
            )
            memory = 0.98 * memory - trace
        return memory

    for momentum, to_sequential, to_chunkwise in ((0.0, 0.0, 0.190), (0.8, 0.658, 0.684)):
        sequential, chunkwise = (
            ours(keys, values, *constant(16, 0.98, momentum, 0.3), 1, span)["M"] for span in (1, 4)
        )
        assert relative(published(momentum), sequential) == pytest.approx(
            to_sequential, rel=0.02, abs=1e-12
        )
        assert relative(published(momentum), chunkwise) == pytest.approx(
            to_chunkwise, rel=0.02, abs=1e-12
        )


@pytest.mark.clause("E-R01")
def test_e_r01_the_implemented_gradient_is_not_the_boxed_one():
    _, keys, values = tokens(count=64, d_in=8, d_out=8)
    gates = constant(64, 0.98, 0.0, 0.3)
    boxed, implemented = (omega(keys, values, *gates, 1, span)[0][-1] for span in (1, 64))
    assert relative(implemented, boxed) == near(0.76, 0.01)
    # the implemented one depends on how the tokens are split into calls, the boxed one does not
    for span, same in ((1, True), (64, False)):
        whole = omega(keys, values, *gates, 1, span)[0][-1]
        half = omega(keys[:32], values[:32], *constant(32, 0.98, 0.0, 0.3), 1, span)[0][-1]
        split = omega(keys[32:], values[32:], *constant(32, 0.98, 0.0, 0.3), 1, span, memory=half)[
            0
        ][-1]
        assert (relative(split, whole) < 1e-12) == same
        assert relative(ours(keys, values, *gates, 1, span)["M"], whole) < 1e-12
        half = ours(keys[:32], values[:32], *constant(32, 0.98, 0.0, 0.3), 1, span)
        resumed = {"M0": half["M"], "S0": half["S"], "M_ref": half["M_ref"]}
        resume = call_start if span > 1 else ours
        second = resume(keys[32:], values[32:], *constant(32, 0.98, 0.0, 0.3), window=1, **resumed)
        assert relative(second["M"], whole) < 1e-12  # a carried reference makes the split invisible


@pytest.mark.clause("E-R08")
def test_e_r08_a_fresh_call_without_refresh_corrects_no_error():
    _, keys, values = tokens(count=64, d_in=8, d_out=8)
    gates = constant(64, 0.982, 0.88, 0.2)
    attention, trace = np.zeros((8, 8)), np.zeros((8, 8))
    for key, value in zip(keys, values, strict=True):
        trace = 0.88 * trace + 0.2 * np.outer(value, key)
        attention = 0.982 * attention + trace
    one_span, refreshed = (omega(keys, values, *gates, 1, span)[0][-1] for span in (64, 8))
    assert relative(ours(keys, values, *gates, 1, 64, rule="titans_lmm")["M"], attention) < 1e-12
    assert relative(one_span, attention) < 1e-12  # decayed linear attention with momentum
    # Titans refreshes its reference every chunk
    assert relative(refreshed, attention) == near(1.49)
    started = [
        omega(keys, values, *gates, 1, span, memory=0.5 * np.eye(8))[0][-1] for span in (64, 1)
    ]
    assert relative(started[0], started[1]) == near(1.77)


@pytest.mark.clause("E-R12")
def test_e_r12_momentum_off_is_zero_and_not_one():
    gradient, sums = np.ones((2, 2)), {}
    for momentum in (0.0, 1.0):
        trace = np.zeros((2, 2))
        for _ in range(32):
            trace = momentum * trace + gradient
        sums[momentum] = trace[0, 0]
    assert sums == {0.0: 1.0, 1.0: 32.0}
    same, one = np.ones((32, 1)), np.ones(32)
    for (
        momentum,
        total,
    ) in sums.items():  # 32 equal gradients: the memory stays 0, so that each is -1
        got = ours(same, same, 0 * one, momentum * one, one, 1, 32, rule="titans_lmm")
        assert got["S"][0, 0] == -total
