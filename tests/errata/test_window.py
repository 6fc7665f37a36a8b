"""Errata of the window: crossing of boundaries, carried state, count of tokens."""

import numpy as np
import pytest

import atlas_ref
from tests.truth.frozen_loops import call_start, constant, omega, ours
from tests.truth.running_loops import near, relative, tokens


@pytest.mark.clause("E-A14")
def test_e_a14_window_tokens_of_the_previous_span():
    _, keys, values = tokens(count=32, d_in=8, d_out=8)
    gates = constant(32, 0.98, 0.0, 0.4)
    difference, dropped = {}, {}
    for span in (1, 8):
        for boundary in ("recompute", "carry", "cut"):
            literal = omega(keys, values, *gates, 4, span, boundary)[0][-1]
            assert relative(ours(keys, values, *gates, 4, span, boundary)["M"], literal) < 1e-12
        recompute, carry, cut = (
            omega(keys, values, *gates, 4, span, boundary)[0][-1]
            for boundary in ("recompute", "carry", "cut")
        )
        difference[span] = relative(carry, recompute)
        dropped[span] = relative(cut, recompute)
    assert (difference[1], difference[8]) == near((0.186, 0.082), 0.01)
    assert (dropped[1], dropped[8]) == near((0.642, 0.268), 0.01)
    sequential = np.zeros((8, 8))
    for t in range(32):
        seen = range(max(0, t - 3), t + 1)
        sequential = 0.98 * sequential - 0.1 * sum(
            np.outer(sequential @ keys[i] - values[i], keys[i]) for i in seen
        )
    recompute, carry = (
        omega(keys, values, *gates, 4, 1, boundary)[0][-1] for boundary in ("recompute", "carry")
    )
    running = atlas_ref.evaluate(
        atlas_ref.make(
            {"schema": 1, "rule": "omega", "window": 4, "convention": {"newton_schulz": "none"}},
            {
                "in/k": keys,
                "in/v": values,
                "in/q": keys,
                "in/retain": gates[0],
                "in/step_size": gates[2],
            },
        )
    )
    assert relative(running.tensors["out/M"], sequential) < 1e-12
    # at span 1 only recomputing is the sequential form
    assert relative(recompute, sequential) < 1e-12
    assert relative(carry, sequential) == near(0.186, 0.01)


@pytest.mark.clause("E-A15")
def test_e_a15_every_window_above_one_crosses_the_chunk_boundary():
    _, keys, values = tokens(count=32, d_in=8, d_out=8)
    gates = constant(32, 0.98, 0.0, 0.3)
    for window, number in ((1, 0.0), (2, 0.135), (4, 0.255), (8, 0.444)):
        carried, cut = (
            omega(keys, values, *gates, window, 8, boundary)[0][-1]
            for boundary in ("recompute", "cut")
        )
        # "c <= C: fits within one chunk"
        assert relative(cut, carried) == pytest.approx(number, rel=0.01, abs=1e-12)
        first = ours(keys[:8], values[:8], *constant(8, 0.98, 0.0, 0.3), window, 8)
        state = {"M0": first["M"], "S0": first["S"]}
        if window > 1:
            state |= {name: first[name] for name in ("window_k", "window_v")}
        second = ours(keys[8:], values[8:], *constant(24, 0.98, 0.0, 0.3), window, 8, **state)
        # a call that ends at the boundary hands its window on
        assert relative(second["M"], carried) < 1e-12


@pytest.mark.clause("E-A29")
def test_e_a29_a_frozen_level_still_fills_its_window():
    _, keys, values = tokens()

    def level(pushes_while_frozen, period=8, width=4):
        memory, window = np.zeros((5, 6)), []
        for t in range(32):
            active = t % period == 0
            if active or pushes_while_frozen:
                window = [*window, t][-width:]
            if active:
                memory = (
                    0.99 * memory
                    - 0.3
                    * sum(np.outer(memory @ keys[i] - values[i], keys[i]) for i in window)
                    / width
                )
        return memory, window

    (pushed, seen), (held, active_only) = level(True), level(False)
    assert (seen, active_only) == ([28, 29, 30, 31], [0, 8, 16, 24])
    assert relative(held, pushed) == near(1.27)
    active = np.arange(32) % 8 == 0
    assert (
        relative(
            ours(keys, values, *constant(32, 0.99, 0.0, 0.3), 4, masks={"active": active})["M"],
            pushed,
        )
        < 1e-12
    )
    alone = ours(keys[active], values[active], *constant(4, 0.99, 0.0, 0.3), 4)
    assert relative(alone["M"], held) < 1e-12  # not pushing is running the active tokens alone


@pytest.mark.clause("E-R05")
def test_e_r05_one_gradient_buffer_is_exact_only_inside_a_call():
    _, keys, values = tokens(count=16, d_in=8, d_out=8)
    gates = constant(16, 0.98, 0.88, 0.2)
    # one call of 16, two calls of 8 that carry the buffer
    for span, number in (
        (16, 0.0),
        (8, 0.139),
    ):
        rebuilt, buffered = (
            omega(keys, values, *gates, 4, span, boundary)[0] for boundary in ("recompute", "carry")
        )
        assert relative(buffered, rebuilt) == pytest.approx(number, rel=0.02, abs=1e-12)
        for boundary, literal in (("recompute", rebuilt), ("carry", buffered)):
            assert relative(ours(keys, values, *gates, 4, span, boundary)["M"], literal[-1]) < 1e-12


@pytest.mark.clause("E-R13")
def test_e_r13_a_window_that_restarts_with_the_call_is_not_one_call():
    _, keys, values = tokens(count=32, d_in=8, d_out=8)

    def two_calls(carries_the_window):
        memory, trace, window = np.zeros((8, 8)), np.zeros((8, 8)), []
        for t in range(32):
            if t == 16 and not carries_the_window:
                window = []
            # reference 0, as on a fresh sequence
            window = [*window, np.outer(-values[t], keys[t])][-16:]
            trace = 0.88 * trace + sum(window)
            memory = 0.982 * memory - 0.018 * trace
        return memory

    one_call = omega(keys, values, *constant(32, 0.982, 0.88, 0.018 * 16), 16, 32)[0][-1]
    assert relative(two_calls(False), one_call) == near(0.43, 0.02)
    assert relative(two_calls(True), one_call) < 1e-12
    gates, sums = constant(16, 0.982, 0.88, 0.018), {"window_weights": np.ones((16, 16))}
    first = call_start(keys[:16], values[:16], *gates, 16, **sums)
    carried = {"M0": first["M"], "S0": first["S"], "M_ref": first["M_ref"]}
    lost = call_start(keys[16:], values[16:], *gates, 16, **sums, **carried)
    kept = call_start(
        keys[16:],
        values[16:],
        *gates,
        16,
        **sums,
        **carried,
        window_k=first["window_k"],
        window_v=first["window_v"],
    )
    assert relative(lost["M"], two_calls(False)) < 1e-12
    assert relative(kept["M"], one_call) < 1e-12


@pytest.mark.clause("E-R14")
def test_e_r14_a_sum_over_the_window_is_a_larger_rate():
    random, keys, values = tokens()
    key, value, memory = keys[0], values[0], random.standard_normal((5, 6))

    def gradient(width, weight):
        return sum(weight * np.outer(memory @ key - value, key) for _ in range(width))

    single = gradient(1, 1.0)
    assert relative(gradient(16, 1.0), 16 * single) < 1e-12  # atlas-rnn sums; 16 equal tokens
    assert relative(gradient(16, 0.5), 8 * single) < 1e-12  # with its gate at the start
    assert relative(gradient(16, 1 / 16), single) < 1e-12  # the Omega seed's uniform weight
    gates = constant(32, 0.982, 0.88, 0.018)
    mean, total = (
        omega(keys, values, *gates[:2], factor * gates[2], 16)[0][-1] for factor in (1, 16)
    )
    assert relative(total, mean) == near(3.70)
    # our default weights are 1/c
    assert relative(ours(keys, values, *gates, 16)["M"], mean) < 1e-12
    assert (
        relative(ours(keys, values, *gates, 16, window_weights=np.ones((32, 16)))["M"], total)
        < 1e-12
    )


@pytest.mark.clause("E-R15")
def test_e_r15_a_sliding_sum_by_differences_loses_precision():
    numbers = (np.random.default_rng(0).standard_normal(16384) + 1).astype(np.float32)
    running = np.cumsum(numbers, dtype=np.float32)
    truth = np.convolve(numbers.astype(np.float64), np.ones(16), "valid")[1:]
    direct = sum(numbers[i : 16384 - 15 + i] for i in range(16))[1:]
    assert np.abs(running[16:] - running[:-16] - truth).max() == near(5.2e-3, 0.1)
    assert np.abs(direct - truth).max() < 1e-5
    assert np.abs(running[16:] - running[:-16] - truth).max() > 500 * np.abs(direct - truth).max()
