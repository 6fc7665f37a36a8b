"""Guarantees and cost of Omega, OMEGA-14 to OMEGA-18."""

import numpy as np
import pytest

from atlas_ref.parts.gates import Gates
from atlas_ref.parts.newton_schulz import NewtonSchulz, iterates
from atlas_ref.rules import omega, titans_lmm
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs, reordered
from tests.support.counting import counted, multiply_adds
from tests.support.sequences import drawn, results, without

BARE = {"newton_schulz": "none"}


@pytest.mark.clause("OMEGA-14")
@pytest.mark.parametrize("decay", ["after_error", "before_error"])
def test_the_gradient_is_the_derivative_of_half_the_weighted_squared_error(decay):
    p = without(drawn(T=3, window=4, seed=1), "momentum", "S0", "step_size") | {
        "active": np.array([False, False, True])
    }
    s = 1.7
    memory = results(
        "omega", p, {**BARE, "rate": "none", "gradient_scale": s, "decay": decay}, window=4
    )["M"]
    R = p["M0"] if decay == "after_error" else p["retain"][2] * p["M0"]

    def objective(R):
        present = [(p["window_weights"][2, j], R @ p["k"][2 - j] - p["v"][2 - j]) for j in range(3)]
        return s / 2 * sum(w * np.sum(e * e) for w, e in present)

    derivative = np.zeros((3, 4))
    for place in np.ndindex(3, 4):
        moved = R.astype(complex)
        moved[place] += 1e-30j
        derivative[place] = objective(moved).imag / 1e-30
    assert_close("g", p["retain"][2] * p["M0"] - memory, derivative, ANALYTIC)


@pytest.mark.clause("OMEGA-15")
@pytest.mark.parametrize("read", ["after", "before", "chunk_start", "call_end"])
@pytest.mark.parametrize("reference", ["running", "chunk_start"])
def test_later_tokens_leave_earlier_reads_unless_read_is_call_end(read, reference):
    p, other = drawn(window=3, seed=2), drawn(window=3, seed=3)
    mixed = {
        name: np.concatenate([p[name][:4], other[name][4:]]) if name[0] not in "MS" else p[name]
        for name in p
    }
    reads = [
        results("omega", each, {"read": read, "reference": reference}, window=3, span=2)["y"][:4]
        for each in (p, mixed)
    ]
    if read == "call_end":
        assert_differs("y", reads[1], reads[0], 1e-3)
    else:
        assert_close("y", reads[1], reads[0], EXACT)


@pytest.mark.clause("OMEGA-16")
@pytest.mark.parametrize("boundary", ["recompute", "cut"])
def test_momentum_is_a_linear_recurrence_within_a_span(boundary):
    p = drawn(window=3, seed=4)
    axes = {**BARE, "reference": "call_start", "window_at_boundary": boundary}
    S = np.prod(p["momentum"]) * p["S0"]
    for t in range(6):  # every g_t from the reference alone
        lags = range(min(3, t + 1))
        g = sum(
            p["window_weights"][t, j]
            * np.outer(p["M0"] @ p["k"][t - j] - p["v"][t - j], p["k"][t - j])
            for j in lags
        )
        S = S + np.prod(p["momentum"][t + 1 :]) * p["step_size"][t] * g
    assert_close("S", results("omega", p, axes, window=3)["S"], S, ANALYTIC)
    moved = p | {"retain": p["retain"] / 2}
    assert_close(
        "S, other memories",
        results("omega", moved, axes, window=3)["S"],
        results("omega", p, axes, window=3)["S"],
        EXACT,
    )


@pytest.mark.clause("OMEGA-16")
@pytest.mark.parametrize(
    "axes",
    [{"reference": "running"}, {"reference": "chunk_start"}],
    ids=["running", "across spans"],
)
def test_across_spans_momentum_depends_on_the_memory(axes):
    p = drawn(window=3, seed=4)
    want, momentum = (
        results("omega", each, BARE | axes, window=3, span=3)["S"]
        for each in (p, p | {"retain": p["retain"] / 2})
    )
    assert_differs("S", momentum, want, 1e-2)


def final(p, M, S, axes):
    out = results("omega", p | {"M0": M, "S0": S}, axes, window=3, span=3)
    return np.concatenate([out["M"], out["S"]])


@pytest.mark.clause("OMEGA-17")
@pytest.mark.parametrize(
    "axes",
    [
        {},
        {"decay": "before_error"},
        {"reference": "chunk_start"},
        {"order": "momentum_then_window"},
    ],
    ids=str,
)
def test_without_newton_schulz_the_state_map_is_affine(axes):
    p, other = drawn(window=3, seed=5), drawn(seed=6)
    zero, first, second, both = (
        final(p, M, S, BARE | axes)
        for M, S in (
            (0 * p["M0"], 0 * p["S0"]),
            (p["M0"], p["S0"]),
            (other["M0"], other["S0"]),
            (p["M0"] + other["M0"], p["S0"] + other["S0"]),
        )
    )
    assert_close("f(x + y) + f(0)", both + zero, first + second, reordered(18))


@pytest.mark.clause("OMEGA-17")
def test_with_newton_schulz_the_state_map_is_not_affine():
    p, other = drawn(window=3, seed=5), drawn(seed=6)
    zero = final(p, 0 * p["M0"], 0 * p["S0"], {})
    both = final(p, p["M0"] + other["M0"], p["S0"] + other["S0"], {})
    assert_differs(
        "f",
        both + zero,
        final(p, p["M0"], p["S0"], {}) + final(p, other["M0"], other["S0"], {}),
        1e-2,
    )


def omega_write(d_in, d_out, c):
    """A write and a read of Omega on arrays that count."""
    config = omega.Config(d_in=d_in, d_out=d_out, window=c, convention=BARE)
    state = counted(omega.start(config))
    gates = Gates(
        retain=np.ones((1, 1)),
        momentum=np.ones((1, 1)),
        step_size=np.ones((1, 1)),
        window_weights=np.ones((c, 1)),
    )
    k, v = counted(np.ones(d_in)), counted(np.ones(d_out))
    return multiply_adds(lambda: omega.write(config, state, k, v, gates)), multiply_adds(
        lambda: omega.read(config, state, k)
    )


@pytest.mark.clause("OMEGA-18")
@pytest.mark.parametrize(("d_in", "d_out", "c"), [(4, 3, 1), (5, 7, 3), (2, 8, 4)])
@pytest.mark.host("counts products of NumPy arrays")
def test_the_window_gradient_and_the_read_cost_what_the_table_says(d_in, d_out, c):
    assert omega_write(d_in, d_out, c) == (2 * c * d_out * d_in, d_out * d_in)


@pytest.mark.clause("OMEGA-18", "NS-17")
@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 4)])
@pytest.mark.host("counts products of NumPy arrays")
def test_a_newton_schulz_step_costs_two_p_p_n_plus_p_cubed(shape):
    p, n = min(shape), max(shape)
    settings = NewtonSchulz(steps=3)
    assert multiply_adds(lambda: iterates(counted(np.ones(shape)), settings)) == 3 * (
        2 * p * p * n + p**3
    )


@pytest.mark.clause("OMEGA-18")
@pytest.mark.host("counts products of NumPy arrays")
def test_five_quintic_steps_cost_thirty_window_gradients_at_64_and_240_at_512():
    def ratio(d):
        steps = multiply_adds(lambda: iterates(counted(np.ones((d, d))), NewtonSchulz(steps=1))) * 5
        gradient = omega_write(d, d, 1)[0] * 16  # a gradient is linear in c
        return steps / gradient

    assert ratio(64) == 30
    assert ratio(64) * 512 / 64 == 240  # the ratio is linear in d, since:
    assert ratio(32) == 15


@pytest.mark.clause("OMEGA-18")
@pytest.mark.host("counts products of NumPy arrays")
def test_one_token_costs_what_titans_costs_without_newton_schulz():
    config = titans_lmm.Config(d_in=4, d_out=3, convention="spec")
    gates = Gates(retain=np.ones((1, 1)), momentum=np.ones((1, 1)), step_size=np.ones((1, 1)))
    state, k, v = counted(titans_lmm.start(config)), counted(np.ones(4)), counted(np.ones(3))
    assert (
        multiply_adds(lambda: titans_lmm.write(config, state, k, v, gates))
        == omega_write(4, 3, 1)[0]
    )


@pytest.mark.clause("OMEGA-18", "WINDOW-19")
@pytest.mark.parametrize("c", [1, 4])
def test_the_state_between_tokens_has_the_stated_size(c):
    result = results("omega", drawn(T=7, window=c), BARE, window=c)
    carried = sum(
        result[name].size for name in ("M", "S", "window_k", "window_v") if name in result
    )
    assert carried == 2 * 3 * 4 + (c - 1) * (4 + 3)
