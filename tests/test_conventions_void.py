"""Void axes, listed exactly where no value can matter: CONV-3 and the clauses' own conditions."""

import numpy as np
import pytest

from atlas_ref.conventions import resolve, void_axes
from tests.support.close import EXACT, assert_close, relative_error
from tests.support.sequences import case, drawn, earlier, results, without

BARE = {"newton_schulz": "none"}
VALUES = {
    "decay": ("after_error", "before_error"),
    "gradient_scale": (1, 2, "2/d_out"),
    "momentum_sign": ("plus", "minus"),
    "momentum_kind": ("sum", "average", "delta_momentum"),
    "retain_bounds": ("none", (0.45, 0.55)),
    "step_bounds": ("none", (0.05, 0.06)),
    "memory_ceiling": ("none", 0.1),
    "direction": ("descent", "ascent"),
    "value_sign": ("minus", "plus"),
    "read": ("after", "before", "chunk_start", "call_end"),
    "reference": ("running", "chunk_start", "call_start", "zero"),
    "span_origin": ("first", "multiple"),
    "window_at_boundary": ("recompute", "cut", "carry"),
    "window_edge": ("truncate", "renormalise"),
    "order": ("window_then_momentum", "momentum_then_window"),
    "query_scale": (1, "1/sqrt(d_in)"),
    "q_norm": ("none", "l2"),
    "k_norm": ("none", "l2"),
    "norm_place": ("before_phi", "after_phi"),
}
MAP = {"feature_map": {"kind": "elementwise"}}
GATED = {"window_gate": np.linspace(0.3, 0.9, 6)}
RESET = {"reset": np.arange(6) == 3}
CASES = {
    "omega": ("omega", {}, {"window": 3, "span": 2, **MAP}, {}),
    "omega, frozen": (
        "omega",
        {"reference": "chunk_start", "k_norm": "l2"},
        {"window": 3, "span": 2, **MAP},
        {},
    ),
    "omega, one span": ("omega", {"reference": "chunk_start"}, {"window": 3, "span": 6}, {}),
    "omega, one span counted from one": (
        "omega",
        {"reference": "chunk_start", "span_origin": "multiple"},
        {"window": 3, "span": 6},
        {},
    ),
    "omega, span 1": ("omega", {"reference": "chunk_start"}, {"window": 3, "span": 1}, {}),
    "omega, phase": (
        "omega",
        {"reference": "chunk_start"},
        {"window": 3, "span": 4, "phase": 1},
        {},
    ),
    "omega, phase and reset": (
        "omega",
        {"reference": "chunk_start"},
        {"window": 3, "span": 3, "phase": 1},
        RESET,
    ),
    "omega, call_start": ("omega", {"reference": "call_start"}, {"window": 3, "span": 2}, {}),
    "omega, call_start with history": (
        "omega",
        {"reference": "call_start"},
        {"window": 3, "span": 2},
        earlier(2, residual=True),
    ),
    "omega, part of a history": ("omega", {}, {"window": 4, "span": 2}, earlier(2)),
    "omega, history and reset": ("omega", {}, {"window": 3, "span": 2}, earlier(2) | RESET),
    "omega, zero": ("omega", {"reference": "zero"}, {"window": 3, "span": 2}, {}),
    "omega, gate per token": ("omega", {}, {"window": 3, "span": 2}, GATED),
    "omega, momentum first": (
        "omega",
        {"order": "momentum_then_window", "reference": "chunk_start"},
        {"window": 3, "span": 2},
        {},
    ),
    "omega, one token": (
        "omega",
        {"reference": "chunk_start"},
        {"window": 1, "span": 2},
        {"window_weights": np.full((6, 1), 0.7)},
    ),
    "titans": ("titans_lmm", {"q_norm": "l2"}, {"span": 2}, {}),
    "titans, frozen, no gate": (
        "titans_lmm",
        {"reference": "chunk_start", "gate": "none"},
        {"span": 2},
        {},
    ),
    "delta": ("delta", {"reference": "chunk_start"}, {"span": 2}, {}),
    "delta, zero": ("delta", {"reference": "zero", "read": "chunk_start"}, {"span": 2}, {}),
    "hebbian": ("hebbian", {}, {"span": 2}, {}),
    "hebbian, read chunk_start": ("hebbian", {"read": "chunk_start"}, {"span": 2}, {}),
}


def inputs(rule, axes, header, more):
    p = drawn(rule, window=header.get("window", 1), seed=1) | more
    p = without(p, "window_weights") if "window_gate" in more else p
    return without(p, "retain") if axes.get("gate") == "none" else p


def distances(name, axis):
    """The largest distances of y, M and S between the values of an axis."""
    rule, axes, header, more = CASES[name]
    p, base = inputs(rule, axes, header, more), BARE | axes if rule == "omega" else axes
    found = []
    for value in VALUES[axis]:
        chosen = {**base, axis: value}
        frozen = chosen.get("reference") in ("chunk_start", "call_start")
        carries = (
            frozen
            and chosen.get("window_at_boundary") == "carry"
            and chosen.get("order") != "momentum_then_window"
        )
        kept = p if carries else without(p, "window_residual")
        found.append(results(rule, kept, chosen, **header))
    return max(
        relative_error(other[key], found[0][key])
        for other in found[1:]
        for key in ("y", "M", "S")
        if key in found[0]
    )


@pytest.mark.clause(
    "CONV-3",
    "CONV-5",
    "CONV-6",
    "CONV-8",
    "CONV-9",
    "CONV-10",
    "CONV-11",
    "CONV-12",
    "CONV-13",
    "CONV-14",
    "CONV-15",
)
@pytest.mark.clause("CONV-16", "CONV-24", "CONV-41", "CASE-18")
@pytest.mark.parametrize("axis", VALUES)
@pytest.mark.parametrize("name", CASES)
def test_an_axis_is_void_exactly_where_its_values_cannot_be_told_apart(name, axis):
    rule, axes, header, more = CASES[name]
    p, base = inputs(rule, axes, header, more), BARE | axes if rule == "omega" else axes
    convention = resolve(base, rule=rule)
    listed = void_axes(
        convention,
        rule=rule,
        window=header.get("window", 1),
        span=header.get("span"),
        phase=header.get("phase"),
        tokens=6,
        history=len(p.get("window_k", ())),
        resets="reset" in p,
        gated="window_gate" in p,
    )
    moved = distances(name, axis)
    if axis in listed:
        assert moved == 0 or (axis == "window_edge" and moved < 1e-14)
    elif axis in ("q_norm", "k_norm", "norm_place", "query_scale"):
        assert moved > 1e-3 or (axis == "norm_place" and "feature_map" not in header)
    else:
        assert moved > 1e-3


@pytest.mark.clause("CONV-3", "CASE-18")
def test_a_void_value_is_accepted_and_listed_where_it_was_chosen():
    p = drawn("hebbian")
    assert case("hebbian", p).void == {}
    assert case("hebbian", p, {"rate": "both"}).void == {"rate": "hebbian has no error and no rate"}


@pytest.mark.clause("CONV-3", "CONV-18", "CONV-21", "CASE-18")
@pytest.mark.parametrize(
    ("d_in", "d_out", "settings", "void"),
    [
        (4, 3, {"transpose": "never"}, {"newton_schulz.transpose"}),
        (3, 3, {"transpose": "never"}, {"newton_schulz.transpose"}),
        (3, 4, {"transpose": "never"}, set()),
        (4, 3, {"transpose": "tall"}, set()),
        (4, 3, {"lower_bound": 0.1}, {"newton_schulz.lower_bound"}),
        (4, 3, {"lower_bound": 0.1, "coefficients": "polar_express"}, set()),
    ],
)
def test_keys_of_newton_schulz_that_nothing_reads_are_listed(d_in, d_out, settings, void):
    p = drawn(d_in=d_in, d_out=d_out, window=2)
    assert set(case("omega", p, {"newton_schulz": settings}, window=2).void) == void
    if void:
        assert_close(
            "y",
            results("omega", p, {"newton_schulz": settings}, window=2)["y"],
            results("omega", p, window=2)["y"],
            EXACT,
        )
    assert set(case("newton_schulz", {"G": p["M0"]}, {"newton_schulz": settings}).void) == void


@pytest.mark.clause("CONV-3", "CONV-21")
def test_the_size_of_the_features_decides_whether_transpose_is_void():
    p = without(drawn(d_in=3, d_out=4), "M0", "S0")
    turned = {"newton_schulz": {"transpose": "never"}}
    assert "newton_schulz.transpose" not in case("omega", p, turned).void
    assert (
        "newton_schulz.transpose"
        in case("omega", p, turned, feature_map={"kind": "monomials"}).void
    )
