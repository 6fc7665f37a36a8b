"""Gates as inputs: roles, the two senses of decay, shapes, logarithms, derivatives (GATES-1 to
GATES-5, GATES-11, GATES-12).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import atlas_ref
from atlas_ref.parts import gates
from atlas_ref.parts.gates import Gates
from tests.support.close import (
    ANALYTIC,
    EXACT,
    FINITE_DIFFERENCE,
    assert_close,
    assert_differs,
    reordered,
)
from tests.support.gated import (
    D_IN,
    D_OUT,
    RULES,
    T,
    central,
    evaluated,
    gaussian,
    one_gate,
    refused,
    tensors,
    token_level,
    uniform,
)
from tests.support.sequences import drawn, results, split_call, without


def titans(retain: Any, momentum: Any, step: Any, given: dict[str, Any]) -> Any:
    """The last memory of Titans LMM with rows scaled by gates, token by token."""
    M = S = np.zeros((D_OUT, D_IN))
    for t in range(T):
        k, v = given["in/k"][t], given["in/v"][t]
        r, m, h = (np.broadcast_to(each[t], (D_OUT,)) for each in (retain, momentum, step))
        S = np.diag(m) @ S + np.diag(h) @ np.outer(M @ k - v, k)
        M = np.diag(r) @ M - S
    return M


# -- roles -----------------------------------------------------------------------------------------


@pytest.mark.clause("GATES-1", "GATES-3")
def test_what_each_role_multiplies() -> None:
    given = tensors("titans_lmm")
    want = titans(given["in/retain"], given["in/momentum"], given["in/step_size"], given)
    assert_close("Titans LMM", evaluated("titans_lmm")["out/M"], want, ANALYTIC)
    split = evaluated("omega", {"rate": "split"}, step_size_memory=0.2 * uniform(T, seed=6))[
        "out/M"
    ]
    both = evaluated("omega", {"rate": "split"}, step_size_memory=np.ones(T))["out/M"]
    assert_close("second rate 1", both, want, ANALYTIC)
    assert_differs("second rate", split, want, 0.1)
    assert tuple(Gates.model_fields) == (
        "retain",
        "momentum",
        "step_size",
        "step_size_memory",
        "window_weights",
    )


@pytest.mark.clause("GATES-1")
@pytest.mark.parametrize("rule", RULES)
def test_each_rule_takes_the_gates_of_its_row_and_no_other(rule: str) -> None:
    evaluated(rule)
    refused("in/retain: missing", rule, retain=None)
    if rule in ("delta", "hebbian"):
        refused(f"in/momentum: not part of this case: {rule} has none", rule, momentum=uniform(T))
    if rule == "hebbian":
        refused("in/step_size: not part of this case: hebbian has none", rule, step_size=uniform(T))
    else:
        refused("in/step_size: missing", rule, step_size=None)
        refused(
            "in/step_size_memory: not part of this case: rate", rule, step_size_memory=uniform(T)
        )
        refused("in/step_size_memory: missing", rule, {"rate": "split"})


@pytest.mark.clause("GATES-1")
def test_the_closed_bounds_are_legal_and_nothing_beyond_them() -> None:
    for name in ("retain", "momentum"):
        for value in (0.0, 1.0):
            assert np.isfinite(evaluated("omega", **{name: np.full(T, value)})["out/y"]).all()
        for value in (-1e-9, 1.0 + 1e-9, np.nan, np.inf):
            refused(f"in/{name}", "omega", **{name: np.full(T, value)})
    assert not evaluated("omega", step_size=np.zeros(T))["out/M"].any()
    assert np.isfinite(
        evaluated("omega", step_size=np.full(T, 1e3))["out/y"]
    ).all()  # no upper bound
    for value in (-1e-9, np.nan, np.inf):
        refused("in/step_size", "omega", step_size=np.full(T, value))


@pytest.mark.clause("GATES-4")
def test_gates_are_columns_within_their_ranges() -> None:
    """Shapes of gates: one number for the memory, or one per row; None for an absent gate."""
    gates.Gates(
        retain=np.ones((1, 1)),
        step_size=np.full((2, D_OUT, 1), 3.0),
        window_weights=-np.ones((4, 1)),
    )
    assert gates.Gates().momentum is None
    for name in ("retain", "momentum"):
        for value in (-1e-9, 1.0 + 1e-9):
            with pytest.raises(ValueError, match=name):
                gates.Gates(**{name: np.full((1, 1), value)})
    with pytest.raises(ValueError, match="step_size"):
        gates.Gates(step_size=np.full((1, 1), -1.0))
    with pytest.raises(ValueError, match=r"retain: shape \(3,\), expected a column"):
        gates.Gates(retain=np.ones(3))


# -- retain, forget, none --------------------------------------------------------------------------


@pytest.mark.clause("GATES-2")
@pytest.mark.parametrize("rule", RULES)
def test_forget_is_one_minus_retain(rule: str) -> None:
    u = uniform(T, seed=7)
    kept, forgotten = (
        evaluated(rule, {"gate": "retain"}, retain=u),
        evaluated(rule, {"gate": "forget"}, retain=1 - u),
    )
    for name in ("out/y", "out/M"):
        assert_close(name, forgotten[name], kept[name], reordered(T, amplification=10))
    assert_differs(
        "the same number",
        evaluated(rule, {"gate": "forget"}, retain=u)["out/M"],
        kept["out/M"],
        0.01,
    )
    assert_close(
        "none",
        evaluated(rule, {"gate": "none"}, retain=None)["out/M"],
        evaluated(rule, retain=np.ones(T))["out/M"],
        EXACT,
    )
    assert_close("default", evaluated(rule, retain=u)["out/M"], kept["out/M"], EXACT)
    refused(
        "in/retain: not part of this case: gate none has no retain gate", rule, {"gate": "none"}
    )


@pytest.mark.clause("GATES-2")
def test_the_multiplier() -> None:
    u = np.array([0.0, 0.25, 1.0])
    assert_close("retain", gates.multiplier(u, "retain"), u, EXACT)
    assert_close("forget", gates.multiplier(u, "forget"), np.array([1.0, 0.75, 0.0]), EXACT)


@pytest.mark.clause("GATES-2")
@pytest.mark.parametrize("rule", RULES)
def test_computed_gates_are_read_as_forget_save_by_omega(rule: str) -> None:
    got = token_level(rule)
    assert_close(
        "default",
        got["out/M"],
        token_level(rule, {"gate": "retain" if rule == "omega" else "forget"})["out/M"],
        EXACT,
    )
    assert_differs(
        "other",
        token_level(rule, {"gate": "forget" if rule == "omega" else "retain"})["out/M"],
        got["out/M"],
        0.01,
    )


# -- scalar or per output dimension ----------------------------------------------------------------


@pytest.mark.clause("GATES-3")
@pytest.mark.parametrize("wide", ["retain", "momentum", "step_size"])
def test_gates_may_differ_in_shape_and_scale_rows(wide: str) -> None:
    given = tensors("titans_lmm", **{wide: 0.4 * uniform(T, D_OUT, seed=8)})
    got = evaluated("titans_lmm", **{wide: given[f"in/{wide}"]})
    want = titans(*(given[f"in/{name}"] for name in ("retain", "momentum", "step_size")), given)
    assert_close(wide, got["out/M"], want, ANALYTIC)


@pytest.mark.clause("GATES-3")
@pytest.mark.parametrize("rule", RULES)
def test_equal_entries_give_the_bits_of_the_scalar(rule: str) -> None:
    scalar = evaluated(rule)
    for name in [
        each.removeprefix("in/") for each in tensors(rule) if each not in ("in/k", "in/v", "in/q")
    ]:
        row = np.repeat(tensors(rule)[f"in/{name}"][:, None], D_OUT, axis=1)
        assert_close(name, evaluated(rule, **{name: row})["out/y"], scalar["out/y"], EXACT)


@pytest.mark.clause("GATES-3")
@pytest.mark.parametrize("shape", [(T, D_OUT + 1), (T - 1,), (T, 1), (1,), (T, D_OUT, 1), ()])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    refused("in/momentum", "omega", momentum=np.full(shape, 0.5))


@pytest.mark.clause("GATES-3")
def test_a_gate_becomes_a_column_that_scales_rows() -> None:
    assert gates.as_column(np.ones((2, 5)), per_dimension=False).shape == (2, 5, 1, 1)
    assert gates.as_column(np.ones((2, 5, 3)), per_dimension=True).shape == (2, 5, 3, 1)
    M = gaussian(3, 4)
    rows = uniform(3)
    assert_close(
        "rows", gates.as_column(rows, per_dimension=True) * M, np.diag(rows) @ M, reordered(3)
    )


# -- momentum left out, logarithms -----------------------------------------------------------------


@pytest.mark.clause("GATES-4")
@pytest.mark.parametrize("rule", ["omega", "titans_lmm"])
def test_without_a_momentum_gate_there_is_no_momentum(rule: str) -> None:
    without, zero = evaluated(rule, momentum=None), evaluated(rule, momentum=np.zeros(T))
    assert_close("y", without["out/y"], zero["out/y"], EXACT)
    assert_close("M", without["out/M"], zero["out/M"], EXACT)
    assert "out/S" in zero
    assert "out/S" not in without
    refused("in/S0: not part of this case", rule, momentum=None, S0=np.zeros((D_OUT, D_IN)))
    bars = {"y_bar": np.ones((T, D_OUT)), "S_bar": np.ones((D_OUT, D_IN))}
    refused("in/S_bar: not part of this case", rule, momentum=None, **bars)


@pytest.mark.clause("GATES-4", "OMEGA-11", "CASE-12")
def test_without_a_momentum_gate_the_momenta_of_a_window_are_carried_all_the_same() -> None:
    p = drawn("omega", T=5, window=3, seed=4)
    axes = {"order": "momentum_then_window", "newton_schulz": "none"}
    still = without(p, "momentum", "S0")
    whole, two = (
        results("omega", still, axes, window=3),
        split_call("omega", still, axes, 2, window=3),
    )
    assert "S" not in whole
    assert whole["window_momentum"].shape == (2, 3, 4)
    for name in ("y", "M", "window_momentum"):
        assert_close(name, two[name], whole[name], ANALYTIC)


@pytest.mark.clause("GATES-4", "GATES-7")
@pytest.mark.parametrize("rule", ["omega", "titans_lmm"])
def test_a_computed_momentum_gate_is_left_out_by_leaving_out_its_parameters(rule: str) -> None:
    assert "out/S" in token_level(rule)
    assert "out/S" not in token_level(rule, param={"W_momentum": None, "b_momentum": None})
    with pytest.raises(atlas_ref.CaseError, match="in/param/b_momentum: missing"):
        token_level(rule, param={"b_momentum": None})
    with pytest.raises(atlas_ref.CaseError, match="in/param/W_momentum: missing"):
        token_level(rule, param={"W_momentum": None})


@pytest.mark.clause("GATES-4", "GATES-10")
def test_a_computed_momentum_gate_never_reaches_zero() -> None:
    values = gates.compute(
        one_gate("momentum", np.array([-700.0])), np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 1, 1))
    )
    assert values["momentum"].item() > 0
    far = gates.compute(
        one_gate("momentum", np.array([-746.0])), np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 1, 1))
    )
    assert far["momentum"].item() == 0.0  # float64 holds nothing smaller


@pytest.mark.clause("GATES-5")
@pytest.mark.parametrize("gate", ["retain", "forget"])
@pytest.mark.parametrize("shape", [(T,), (T, D_OUT)])
def test_a_logarithm_stands_for_its_gate(gate: str, shape: tuple[int, ...]) -> None:
    u, m = uniform(*shape, seed=9), uniform(*shape, seed=10)
    bars = {"y_bar": gaussian(T, D_OUT, seed=11)}
    plain = evaluated("omega", {"gate": gate}, grad=True, retain=u, momentum=m, **bars)
    logs = {"log_retain": np.log(u), "log_momentum": np.log(m)}
    got = evaluated("omega", {"gate": gate}, grad=True, retain=None, momentum=None, **logs, **bars)
    for name in ("out/y", "out/M", "out/S"):
        assert_close(name, got[name], plain[name], ANALYTIC)
    assert_close("retain", got["grad/log_retain"], u * plain["grad/retain"], ANALYTIC)
    assert_close("momentum", got["grad/log_momentum"], m * plain["grad/momentum"], ANALYTIC)
    assert "grad/retain" not in got


@pytest.mark.clause("GATES-5")
@pytest.mark.parametrize("name", ["retain", "momentum"])
def test_a_logarithm_is_at_most_zero_and_never_beside_its_gate(name: str) -> None:
    evaluated("omega", **{name: None, f"log_{name}": np.zeros(T)})
    refused(f"in/log_{name}", "omega", **{name: None, f"log_{name}": np.full(T, 1e-9)})
    refused(
        f"in/{name}: not part of this case: in/log_{name} stands in its place",
        "omega",
        **{f"log_{name}": np.full(T, -1.0)},
    )
    if name == "momentum":
        refused(
            "in/log_momentum: not part of this case: delta has none",
            "delta",
            log_momentum=np.full(T, -1.0),
        )


# -- reductions and derivatives --------------------------------------------------------------------


@pytest.mark.clause("GATES-11")
def test_given_numbers_agree_under_both_readings_at_one_half_only() -> None:
    for u in (0.5, 0.5001):
        kept, forgot = (
            evaluated("delta", {"gate": gate}, retain=np.full(T, u))["out/M"]
            for gate in ("retain", "forget")
        )
        assert (np.abs(kept - forgot).max() == 0) == (u == 0.5)


@pytest.mark.clause("GATES-12", "GATES-2")
@pytest.mark.parametrize("rule", RULES)
def test_a_given_gate_has_the_derivative_of_the_number_given(rule: str) -> None:
    bar = gaussian(T, D_OUT, seed=50)
    for gate in ("retain", "forget"):
        given = tensors(rule)
        found = evaluated(rule, {"gate": gate}, grad=True, y_bar=bar)
        for name in [
            each.removeprefix("in/") for each in given if each not in ("in/k", "in/v", "in/q")
        ]:

            def loss(value: Any, name: str = name, gate: str = gate) -> float:
                return float(
                    np.sum(bar * evaluated(rule, {"gate": gate}, **{name: value})["out/y"])
                )

            assert_close(
                f"{gate} {name}",
                found[f"grad/{name}"],
                central(loss, given[f"in/{name}"]),
                FINITE_DIFFERENCE,
            )
    u = tensors(rule)["in/retain"]
    kept = evaluated(rule, {"gate": "retain"}, grad=True, y_bar=bar, retain=u)["grad/retain"]
    forgot = evaluated(rule, {"gate": "forget"}, grad=True, y_bar=bar, retain=1 - u)["grad/retain"]
    assert_close("the sign", forgot, -kept, ANALYTIC)


@pytest.mark.clause("GATES-12", "GATES-3")
@pytest.mark.parametrize("rule", RULES)
def test_the_derivative_of_a_scalar_is_the_sum_over_its_rows(rule: str) -> None:
    bar = gaussian(T, D_OUT, seed=51)
    scalar = evaluated(rule, grad=True, y_bar=bar)
    for name in [
        each.removeprefix("in/") for each in tensors(rule) if each not in ("in/k", "in/v", "in/q")
    ]:
        row = np.repeat(tensors(rule)[f"in/{name}"][:, None], D_OUT, axis=1)
        rows = evaluated(rule, grad=True, y_bar=bar, **{name: row})[f"grad/{name}"]
        assert rows.shape == (T, D_OUT)
        assert_close(name, rows.sum(axis=1), scalar[f"grad/{name}"], ANALYTIC)


@pytest.mark.clause("GATES-1", "GATES-3")
@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("retain", np.full((1, 1), 1.5), "retain: "),
        ("momentum", np.full((1, 1), -0.1), "momentum: "),
        ("step_size", np.full((1, 1), -0.1), "step_size: "),
        ("step_size_memory", np.full((1, 1), np.nan), "step_size_memory: "),
        ("retain", np.ones(3), r"retain: shape \(3,\), expected a column"),
        ("window_weights", np.ones((2, 3)), r"window_weights: shape \(2, 3\), expected a column"),
        ("momentum", 0.5, "momentum: "),
    ],
)
def test_gates_of_one_token_are_checked_where_a_caller_makes_them(name, value, words) -> None:
    with pytest.raises(ValueError, match=words):
        Gates(**{name: value})
    assert getattr(Gates(**{name: np.full((2, 3, 1), 0.5)}), name).shape == (2, 3, 1)
