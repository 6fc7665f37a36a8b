"""Settings that cannot be told apart by reparametrisations and reads; CONV-56 to CONV-61.

The first token, reads, places of a norm.
"""

import numpy as np
import pytest

from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs, reordered
from tests.support.sequences import drawn, earlier, results, without

BARE = {"newton_schulz": "none"}
PLAIN = reordered(72)
MASKS = {"active": np.array([1, 1, 0, 1, 1, 1], bool), "reset": np.array([0, 0, 0, 0, 1, 0], bool)}


def sequence(**more):
    """A window of three, an inactive token and a reset."""
    return drawn(window=3, **more) | MASKS


def same(one, other, tolerance, *names):
    for name in names or ("y", "M"):
        assert_close(name, other[name], one[name], tolerance)


def differ(one, other, least=1e-3):
    assert_differs("y", other["y"], one["y"], least)


def pair(p, first, second, *, base=BARE, rule="omega", other=None, **header):
    """Results under two settings, the second on `other` inputs where given."""
    header = {"window": 3, "span": 2, **header} if rule == "omega" else {"span": 2, **header}
    return results(rule, p, {**base, **first}, **header), results(
        rule, p if other is None else other, {**base, **second}, **header
    )


@pytest.mark.clause("CONV-56")
@pytest.mark.parametrize(
    "settings",
    ["none", {}, {"argument": "nesterov", "eps": 0.0}, {"argument": "accumulated"}],
    ids=str,
)
def test_the_first_token_from_zero_hides_retain_momentum_decay_reference_boundary_and_sign(
    settings,
):
    base = {"newton_schulz": settings}
    p = without(drawn(T=1, window=3, seed=18), "M0", "S0")
    want = results("omega", p, base, window=3, span=2)
    for axes, more in (
        ({}, {"retain": np.array([0.1])}),
        ({"gate": "forget"}, {}),
        ({}, {"momentum": np.array([0.9])}),
        ({"decay": "before_error"}, {}),
        ({"reference": "zero"}, {}),
        ({"reference": "call_start"}, {}),
        ({"reference": "chunk_start", "window_at_boundary": "cut"}, {}),
        (
            {"reference": "chunk_start", "window_at_boundary": "carry", "span_origin": "multiple"},
            {},
        ),
        ({"momentum_sign": "minus"}, {}),
    ):
        same(
            want,
            results("omega", p | more, base | axes, window=3, span=2),
            reordered(12, amplification=500),
        )
    assert not results("omega", p, base | {"read": "before"}, window=3)["y"].any()
    assert_differs("y", want["y"], 0 * want["y"], 0.0)


@pytest.mark.clause("CONV-56")
def test_the_first_token_hides_written_back_and_shows_nesterov_through_eps_alone():
    p = without(drawn(T=1, window=3, seed=18), "M0", "S0")
    found = {
        (argument, eps, momentum): results(
            "omega",
            p | {"momentum": np.array([momentum])},
            {"newton_schulz": {"argument": argument, "eps": eps}},
            window=3,
        )["y"]
        for argument in ("S", "written_back", "nesterov")
        for eps in (0.0, 0.1)
        for momentum in (0.2, 0.9)
    }
    for eps in (0.0, 0.1):
        assert_close("written_back", found["written_back", eps, 0.9], found["S", eps, 0.9], EXACT)
        assert_close("momentum", found["S", eps, 0.9], found["S", eps, 0.2], EXACT)
    assert_close(
        "nesterov",
        found["nesterov", 0.0, 0.9],
        found["nesterov", 0.0, 0.2],
        reordered(12, amplification=500),
    )
    assert_differs("nesterov, eps", found["nesterov", 0.1, 0.9], found["nesterov", 0.1, 0.2], 1e-4)


@pytest.mark.clause("CONV-57")
@pytest.mark.parametrize("rule", ["omega", "titans_lmm", "delta", "hebbian"])
@pytest.mark.parametrize("reference", ["running", "chunk_start", "zero"])
def test_with_spans_of_one_token_the_start_is_the_memory_before(rule, reference):
    base = {**(BARE if rule == "omega" else {}), "reference": reference}
    p = drawn(rule, seed=19) | MASKS
    header = {"window": 1} if rule == "omega" else {}
    same(
        *pair(
            p, {"read": "chunk_start"}, {"read": "before"}, base=base, rule=rule, span=1, **header
        ),
        EXACT,
    )
    differ(
        *pair(
            p, {"read": "chunk_start"}, {"read": "before"}, base=base, rule=rule, span=2, **header
        )
    )
    call = {**base, "reference": "call_start"}
    differ(
        *pair(
            p, {"read": "chunk_start"}, {"read": "before"}, base=call, rule=rule, span=1, **header
        )
    )


@pytest.mark.clause("CONV-57")
@pytest.mark.parametrize("rule", ["omega", "titans_lmm", "delta", "hebbian"])
def test_for_sequences_of_one_token_the_end_is_the_memory_after(rule):
    p = drawn(rule, seed=20)
    packed = p | {"reset": np.ones(6, bool)}
    header = {"window": 1} if rule == "omega" else {}
    same(
        *pair(packed, {"read": "call_end"}, {"read": "after"}, base={}, rule=rule, **header), EXACT
    )
    differ(*pair(p, {"read": "call_end"}, {"read": "after"}, base={}, rule=rule, **header))


@pytest.mark.clause("CONV-58")
def test_the_place_of_a_norm_is_invisible_for_the_identity_map():
    p = drawn(seed=21)
    base = {**BARE, "k_norm": "l2", "q_norm": "rms"}
    before, after = {"norm_place": "before_phi"}, {"norm_place": "after_phi"}
    same(*pair(p, before, after, base=base, window=1), EXACT)
    differ(*pair(p, before, after, base=base, window=1, feature_map={"kind": "elementwise"}))


def token_inputs(seed=22):
    random = np.random.default_rng(seed)
    p = {"x": random.standard_normal((1, 5, 4)), "M0": random.standard_normal((1, 1, 2, 3))}
    p |= {
        f"param/{W}": random.standard_normal((1, d, 4))
        for W, d in (("W_K", 3), ("W_V", 2), ("W_Q", 3))
    }
    for gate in ("retain", "step_size"):
        p |= {
            f"param/W_{gate}": random.standard_normal((1, 2, 5)) / 3,
            f"param/b_{gate}": random.standard_normal((1, 2)),
        }
    return p


@pytest.mark.clause("CONV-58", "CONV-24")
def test_at_level_token_a_gate_shows_the_place_of_the_norm():
    p = token_inputs()
    places = [{"k_norm": "l2", "norm_place": place} for place in ("before_phi", "after_phi")]
    differ(*(results("delta", p, axes, level="token") for axes in places))
    # gates of v alone
    blind = p | {
        name: np.where(np.arange(5) < 3, 0.0, p[name])
        for name in ("param/W_retain", "param/W_step_size")
    }
    same(*(results("delta", blind, axes, level="token") for axes in places), EXACT)


@pytest.mark.clause("CONV-59", "GATES-11")
def test_at_level_token_a_retain_gate_is_a_forget_gate_with_its_parameters_turned():
    p = token_inputs(seed=23)
    turned = p | {name: -p[name] for name in ("param/W_retain", "param/b_retain")}
    retain = results("delta", p, {"gate": "retain"}, level="token")
    same(retain, results("delta", turned, {"gate": "forget"}, level="token"), ANALYTIC)
    differ(retain, results("delta", p, {"gate": "forget"}, level="token"))


def rescaled(p):
    retain = np.reshape(p["retain"], (6, -1))
    gate = p["retain"] if p["retain"].ndim == p["step_size"].ndim else retain
    return p | {"step_size": gate * p["step_size"], "v": p["v"] / retain}


@pytest.mark.clause("CONV-60")
@pytest.mark.parametrize("per_dimension", [False, True])
@pytest.mark.parametrize("reference", ["running", "chunk_start"])
def test_before_error_is_after_error_with_other_steps_and_values(reference, per_dimension):
    base = {**BARE, "reference": reference}
    before, after = {"decay": "before_error"}, {"decay": "after_error"}
    one = without(drawn(seed=24, per_dimension=per_dimension) | MASKS, "window_weights")
    wide = sequence(seed=24, per_dimension=per_dimension)
    constant = wide | {"retain": np.broadcast_to(wide["retain"][0], wide["retain"].shape)}
    same(*pair(one, before, after, base=base, other=rescaled(one), window=1), PLAIN)
    same(*pair(constant, before, after, base=base, other=rescaled(constant)), PLAIN)
    differ(*pair(wide, before, after, base=base, other=rescaled(wide)))
    memory = {**base, "rate": "memory"}
    still = one | {"momentum": 0 * one["momentum"]}
    same(*pair(still, before, after, base=memory, other=rescaled(still), window=1), PLAIN)
    differ(*pair(one, before, after, base=memory, other=rescaled(one), window=1))
    differ(*pair(one, before, after, base={**base, "rate": "both"}, other=rescaled(one), window=1))


@pytest.mark.clause("CONV-60")
def test_a_stored_residual_has_to_be_divided_too_and_that_of_an_inactive_token_cannot():
    base = {**BARE, "reference": "chunk_start", "window_at_boundary": "carry"}
    before, after = {"decay": "before_error"}, {"decay": "after_error"}
    p = drawn(window=3, seed=25) | {"retain": np.full(6, 0.8)} | earlier(2, residual=True)
    divided = rescaled(p) | {name: p[name] / 0.8 for name in ("window_v", "window_residual")}
    same(*pair(p, before, after, base=base, other=divided), PLAIN)
    differ(
        *pair(
            p, before, after, base=base, other=divided | {"window_residual": p["window_residual"]}
        )
    )
    silent = {"active": MASKS["active"]}
    differ(*pair(p | silent, before, after, base=base, other=divided | silent))


@pytest.mark.clause("CONV-60")
def test_under_memory_momentum_is_allowed_for_a_constant_retain_from_zero():
    p = without(drawn(seed=26), "S0") | {"retain": np.full(6, 0.8)}
    base = {**BARE, "rate": "memory"}
    same(*pair(p, {"decay": "before_error"}, {}, base=base, other=rescaled(p), window=1), PLAIN)


@pytest.mark.clause("CONV-61")
@pytest.mark.parametrize(
    "axes",
    [
        {},
        {"order": "momentum_then_window"},
        {"reference": "chunk_start", "window_at_boundary": "carry"},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("rate", "step", "state"),
    [("momentum", 3.0, 1.0), ("memory", 3.0, 1 / 3), ("both", np.sqrt(3), 1 / np.sqrt(3))],
)
def test_the_scale_of_the_gradient_is_a_factor_of_the_step(rate, step, state, axes):
    p, base = sequence(seed=27), {**BARE, "rate": rate, **axes}
    other = p | {"step_size": step * p["step_size"], "S0": state * p["S0"]}
    same(*pair(p, {"gradient_scale": 3}, {"gradient_scale": 1}, base=base, other=other), ANALYTIC)
    if rate != "momentum":
        differ(
            *pair(
                p,
                {"gradient_scale": 3},
                {"gradient_scale": 1},
                base=base,
                other=other | {"S0": p["S0"]},
            )
        )
