"""Settings that Newton-Schulz hides, and others that it does not: CONV-52 to CONV-55."""

import numpy as np
import pytest

from atlas_ref.parts.newton_schulz import NewtonSchulz, newton_schulz
from tests.support.close import (
    ANALYTIC,
    EXACT,
    assert_close,
    assert_differs,
    relative_error,
    reordered,
)
from tests.support.sequences import drawn, results, without

ORDERS = ("window_then_momentum", "momentum_then_window")
HIDDEN = reordered(72, amplification=500)
MASKS = {"active": np.array([1, 1, 0, 1, 1, 1], bool), "reset": np.array([0, 0, 0, 0, 1, 0], bool)}
SCALED = [
    (order, argument, with_momentum)
    for order in ORDERS
    for argument in ("S", "nesterov")
    for with_momentum in (True, False)
]
SCALED.append(("window_then_momentum", "written_back", False))


def muon(**keys):
    return {"newton_schulz": {"eps": 0.0, **keys}}


def still(p):
    return p | {"momentum": 0 * p["momentum"]}


def pair(p, first, second, *, base, other=None):
    return results("omega", p, {**base, **first}, window=3), results(
        "omega", p if other is None else other, {**base, **second}, window=3
    )


def same(one, other):
    for name in ("y", "M"):
        assert_close(name, other[name], one[name], HIDDEN)


def differ(one, other, least=1e-3):
    assert_differs("y", other["y"], one["y"], least)


def quintic(x, rows):
    for a, b, c in rows:
        x = a * x + b * x**3 + c * x**5
    return x


MUON, CUBIC = [(3.4445, -4.7750, 2.0315)] * 5, [(1.5, -0.5, 0.0)] * 5


@pytest.mark.clause("CONV-52")
def test_on_rank_one_cubic_steps_are_invisible_and_muon_is_a_multiple():
    p = without(drawn(seed=1), "momentum", "S0")  # c = 1 and no momentum: every S_t has rank one
    found = {}
    for name in ("cubic", "muon"):
        for steps in (1, 5):
            axes = {
                **muon(coefficients=name, steps=steps),
                "reference": "zero",
                "gate": "none",
                "rate": "none",
            }
            found[name, steps] = results("omega", without(p, "retain", "step_size", "M0"), axes)[
                "y"
            ]
    assert_close("cubic", found["cubic", 5], found["cubic", 1], ANALYTIC)
    factor = quintic(1.0, MUON)
    assert abs(factor - 0.696436) < 5e-7
    assert_close("muon", found["muon", 5], factor * found["cubic", 5], ANALYTIC)
    assert_differs("muon, one step", found["muon", 1], factor * found["cubic", 1], 1e-3)


@pytest.mark.clause("CONV-52")
def test_eps_moves_the_start_of_a_rank_one_matrix():
    u = np.array([[0.6], [0.8]]) @ np.array([[0.0, 1.0, 0.0]])
    for size, ratio in ((1e-7, 0.765), (1e3, 0.696436)):
        cubic, other = (
            newton_schulz(size * u, NewtonSchulz(coefficients=name)) for name in ("cubic", "muon")
        )
        start = size / (size + 1e-7)
        assert_close("cubic", cubic, quintic(start, CUBIC) * u, ANALYTIC)
        assert_close("muon", other, quintic(start, MUON) * u, ANALYTIC)
        assert abs(np.sum(other * u) / np.sum(cubic * u) - ratio) < 6e-4


@pytest.mark.clause("CONV-52")
def test_on_higher_rank_muon_is_no_multiple_of_the_cubic():
    S = np.random.default_rng(2).standard_normal((3, 4))
    cubic, other = (
        newton_schulz(S, NewtonSchulz(coefficients=name, eps=0.0)) for name in ("cubic", "muon")
    )
    assert relative_error(other, cubic * np.sum(other * cubic) / np.sum(cubic * cubic)) > 1e-2


@pytest.mark.clause("CONV-53")
@pytest.mark.parametrize("scale", ["1", "sqrt"])
@pytest.mark.parametrize(("order", "argument", "momentum"), SCALED)
def test_a_positive_factor_of_every_gradient_is_invisible(argument, momentum, scale, order):
    p = drawn(window=3, d_in=3, d_out=4, seed=3) | MASKS
    p = without(p, "S0") if momentum else still(p)
    base = {**muon(argument=argument, scale=scale), "order": order}
    same(*pair(p, {"gradient_scale": 1}, {"gradient_scale": 2.5}, base=base))
    ones, uniform = pair(
        p | {"window_weights": np.ones((6, 3))},
        {},
        {},
        base=base,
        other=without(p, "window_weights"),
    )
    if argument == "nesterov" and order == "momentum_then_window" and momentum:
        # there the weights scale the momenta and not the gradient beside them
        differ(ones, uniform)
    else:
        same(ones, uniform)


@pytest.mark.clause("CONV-53", "OMEGA-11")
def test_a_silent_first_token_puts_the_first_momentum_into_the_window_of_momenta():
    p = still(drawn(window=3, seed=3)) | {"active": np.arange(6) > 0}
    one, two = {"gradient_scale": 1}, {"gradient_scale": 2.5}
    first = {**muon(), "order": "momentum_then_window"}
    differ(*pair(p, one, two, base=first))
    same(*pair(without(p, "S0"), one, two, base=first))
    same(*pair(p, one, two, base=muon()))


@pytest.mark.clause("CONV-53")
@pytest.mark.parametrize("argument", ["S", "nesterov", "written_back"])
def test_without_momentum_the_factor_may_change_from_token_to_token(argument):
    p, factors = (
        still(drawn(window=3, seed=4) | MASKS),
        np.random.default_rng(0).uniform(0.5, 2.0, 6),
    )
    scaled = p | {"window_weights": p["window_weights"] * factors[:, None]}
    same(*pair(p, {}, {}, base=muon(argument=argument), other=scaled))
    if argument != "written_back":
        first = {**muon(argument=argument), "order": "momentum_then_window", "rate": "momentum"}
        found = pair(p, {}, {}, base=first, other=p | {"step_size": p["step_size"] * factors})
        # nesterov's argument is then the single gradient
        same(*found) if argument == "nesterov" else differ(*found)
    with_momentum = drawn(window=3, seed=4) | MASKS
    scaled = with_momentum | {"window_weights": with_momentum["window_weights"] * factors[:, None]}
    differ(
        *pair(
            without(with_momentum, "S0"),
            {},
            {},
            base=muon(argument=argument),
            other=without(scaled, "S0"),
        )
    )


@pytest.mark.clause("CONV-53")
def test_a_factor_of_the_step_inside_is_invisible_for_argument_s_and_without_momentum_for_three():
    p = drawn(window=3, seed=5) | MASKS
    twice = {"step_size": 2.5 * p["step_size"]}
    from_zero = without(p, "S0")
    inside = {"rate": "momentum"}
    same(*pair(from_zero, {}, {}, base=muon() | inside, other=from_zero | twice))
    for argument in ("S", "nesterov", "written_back"):
        same(*pair(still(p), {}, {}, base=muon(argument=argument) | inside, other=still(p) | twice))
    for argument in ("nesterov", "written_back"):
        differ(
            *pair(from_zero, {}, {}, base=muon(argument=argument) | inside, other=from_zero | twice)
        )


@pytest.mark.clause("CONV-53", "CONV-19")
@pytest.mark.parametrize(
    "name", ["both", "written_back", "accumulated", "norm", "negative", "from S_0", "eps"]
)
def test_what_a_factor_of_the_gradient_does_change(name):
    p = without(drawn(window=3, seed=6) | MASKS, "S0")
    other, first, second, base = p, {"gradient_scale": 1}, {"gradient_scale": 2.5}, muon()
    if name == "both":
        other, second = p | {"step_size": 2.5 * p["step_size"]}, first  # b_t moves as well
    if name in ("written_back", "accumulated"):
        base = muon(argument=name)
    if name == "norm":
        base = muon(scale="norm")
    if name == "negative":
        second = {"gradient_scale": -2.5}
    if name == "from S_0":
        p = other = drawn(window=3, seed=6) | MASKS
    if name == "eps":
        base = {"newton_schulz": {"eps": 0.1}}
    differ(*pair(p, first, second, base=base, other=other))


@pytest.mark.clause("CONV-53")
def test_a_negative_factor_reverses_the_first_step():
    p = without(drawn(T=1, seed=7), "S0", "M0")
    one, other = (results("omega", p, {**muon(), "gradient_scale": s})["M"] for s in (1, -2.5))
    assert_close("M", other, -one, HIDDEN)


@pytest.mark.clause("CONV-53", "CONV-19")
def test_the_default_eps_leaves_a_trace():
    p = without(drawn(window=3, T=20, seed=8), "S0")
    one, other = pair(p, {"gradient_scale": 1}, {"gradient_scale": 2.5}, base={})
    assert 1e-9 < relative_error(other["y"], one["y"]) < 1e-6


@pytest.mark.clause("CONV-54")
@pytest.mark.parametrize("scale", ["1", "sqrt"])
def test_memory_is_both_for_a_constant_step_from_zero(scale):
    p = drawn(window=3, d_in=3, d_out=4, seed=9) | MASKS
    constant = p | {"step_size": np.full(6, 0.3)}
    memory, both = {"rate": "memory"}, {"rate": "both"}
    for order in ("window_then_momentum", "momentum_then_window"):
        same(
            *pair(without(constant, "S0"), memory, both, base={**muon(scale=scale), "order": order})
        )
    differ(*pair(constant, memory, both, base=muon(scale=scale)))
    differ(*pair(without(p, "S0"), memory, both, base=muon(scale=scale)))
    for argument in ("nesterov", "written_back", "accumulated"):
        differ(
            *pair(without(constant, "S0"), memory, both, base=muon(scale=scale, argument=argument))
        )
    differ(*pair(without(constant, "S0"), memory, both, base=muon(scale="norm")))


@pytest.mark.clause("CONV-54")
@pytest.mark.parametrize("argument", ["S", "nesterov", "written_back"])
def test_memory_is_both_for_any_step_without_momentum(argument):
    p = still(drawn(window=3, seed=10) | MASKS)
    p["step_size"][1] = 0.0
    memory, both = {"rate": "memory"}, {"rate": "both"}
    same(*pair(p, memory, both, base=muon(argument=argument)))
    if argument != "written_back":
        found = pair(
            p, memory, both, base={**muon(argument=argument), "order": "momentum_then_window"}
        )
        same(*found) if argument == "nesterov" else differ(*found)


@pytest.mark.clause("CONV-54")
def test_a_step_per_output_dimension_shows_where_it_stands():
    p = without(still(drawn(window=3, per_dimension=True, seed=11) | MASKS), "S0")
    constant = p | {"step_size": np.tile(p["step_size"][0], (6, 1))}
    differ(*pair(constant, {"rate": "memory"}, {"rate": "both"}, base=muon()))


@pytest.mark.clause("CONV-55", "CONV-15", "WINDOW-21")
@pytest.mark.parametrize("argument", ["S", "nesterov", "written_back"])
def test_the_edge_is_invisible_without_momentum_for_a_positive_factor_and_turns_the_step_for_a_negative_one(
    argument,
):
    p = still(drawn(window=3, seed=12) | MASKS)
    truncate, renormalise = {"window_edge": "truncate"}, {"window_edge": "renormalise"}
    same(*pair(p, truncate, renormalise, base=muon(argument=argument)))
    # factors 2.5 and -1.5 at the first token
    for signs, turned in (
        ([1.0, 2.0, -0.5], False),
        ([1.0, -2.0, -0.5], True),
    ):
        weighed = p | {"window_weights": np.tile(signs, (6, 1))}
        one, other = pair(weighed, truncate, renormalise, base=muon(argument=argument))
        first, second = (
            each["y"][0] - p["retain"][0] * p["M0"] @ p["q"][0] for each in (one, other)
        )
        assert_close(f"first step {signs}", second, -first if turned else first, HIDDEN)


@pytest.mark.clause("CONV-55")
def test_the_edge_shows_with_momentum():
    p = without(drawn(window=3, seed=12) | MASKS, "S0")
    differ(*pair(p, {"window_edge": "truncate"}, {"window_edge": "renormalise"}, base=muon()))


@pytest.mark.clause("CONV-39")
def test_agreement_is_exact_where_only_powers_of_two_differ():
    p = without(drawn(window=3, seed=13) | MASKS, "S0")
    one, other = pair(p, {"gradient_scale": 1}, {"gradient_scale": 4}, base=muon())
    assert_close("y", other["y"], one["y"], EXACT)
    assert_close("S", other["S"], 4 * one["S"], EXACT)
