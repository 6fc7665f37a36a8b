"""Departures: what a small program computes that ignores a feature or has a habit of kernels."""

import numpy as np
import pytest
from hypothesis import given, settings

import atlas_ref
from atlas_ref.oracle.cases.inputs import convert
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.family import candidates
from atlas_ref.oracle.family.departures import features, ignore_features
from atlas_ref.oracle.family.habits import habits
from tests.support import departing
from tests.support.close import ANALYTIC, Tolerance, assert_close, assert_differs
from tests.support.strategies import cases, repeatable

BARE = {"newton_schulz": "none"}

#: Between two programs that sum in other orders, through Newton-Schulz; that of test_family.py.
TIED = Tolerance("TIED", 1e-9)


def case_of(rule, convention=None, **request):
    """A case with keys so small that an eps shows, and silent tokens between others."""
    window = {"window": 3} if rule == "omega" else {}
    base = BARE if rule == "omega" else {}
    made = new(
        Request(
            **{"rule": rule, "tokens": 7, "d_in": 3, "d_out": 3, "seed": 8}
            | window
            | request
            | {"convention": base | (convention or {}) or "spec"}
        )
    )
    return atlas_ref.make(made.header.plain(), made.inputs)


SPANS = {"span": 3, "convention": {"reference": "chunk_start"}}
ROWS = {"per_dimension_gates": True}

#: Rule, request, program, feature and words of the departure that it is.
DEPARTURES = [
    ("titans_lmm", {"pulse": 3}, "AllActive", "in/active", "in/active were ignored"),
    ("omega", {"pulse": 3}, "AllActive", "in/active", "in/active were ignored"),
    ("omega", {"pulse": 2}, "SilentLeftOut", "in/active", "silent tokens did not enter"),
    (
        "omega",
        {"pulse": 2, "history": 2},
        "SilentLeftOut",
        "in/active",
        "silent tokens did not enter",
    ),
    ("titans_lmm", {"pulse": 3}, "StillDecaying", "in/active", "silent tokens had a step size of"),
    ("delta", {"pulse": 3}, "StillDecaying", "in/active", "silent tokens had a step size of 0 and"),
    ("omega", {"reset": 3}, "NoResets", "in/reset", "in/reset were ignored"),
    ("hebbian", {"reset": 3}, "NoResets", "in/reset", "in/reset were ignored"),
    ("omega", {"history": 2}, "NoStart", "in/window_k", "the window from before were ignored"),
    ("omega", {"history": 2}, "ReversedStart", "in/window_k", "the window from before were in"),
    ("delta", {"pulse": 3, "reset": 3}, "Continuing", "in/active", "in/active and in/reset were"),
    (
        "omega",
        {"pulse": 3, "reset": 3, "history": 2},
        "Bare",
        "in/active",
        "in/active, in/reset and the window from before were ignored",
    ),
    ("delta", SPANS, "Running", "span", "the span were ignored and the reference ran"),
    ("omega", SPANS, "Staying", "span", "the span were ignored and the reference stayed"),
    ("delta", ROWS, "FirstGate", "in/retain", "all output dimensions had the gate of the first"),
    ("titans_lmm", ROWS, "FirstGate", "in/retain", "all output dimensions had the gate of the"),
    ("delta", ROWS, "KeyGate", "in/retain", "in/retain were a gate per key channel"),
    ("titans_lmm", ROWS, "KeyGate", "in/retain", "in/retain were a gate per key channel"),
    ("titans_lmm", {}, "NoS0", "in/S0", "in/S0 were ignored"),
    ("omega", {}, "ShortWindow", "", "the window were one token shorter"),
    ("omega", {"history": 2}, "ShortWindow", "", "the window were one token shorter"),
    ("omega", {}, "ReversedWeights", "", "window weights ran from the oldest token"),
    ("omega", {}, "LateDecay", "", "the decay came after the write"),
    ("titans_lmm", {"convention": {"rate": "memory"}}, "LateDecay", "", "the decay came after"),
    ("titans_lmm", {"convention": {"rate": "split"}}, "LateDecay", "", "the decay came after"),
    ("delta", ROWS | {"convention": {"gate": "forget"}}, "LateDecay", "", "the decay came after"),
    ("delta", {"convention": {"rate": "both"}}, "LateDecay", "", "the decay came after"),
    ("hebbian", ROWS, "LateDecay", "", "the decay came after the write, r (M - b U)"),
]


@pytest.mark.clause("IDENT-14", "IDENT-15")
@pytest.mark.parametrize(
    ("rule", "request_", "loops", "feature", "words"),
    DEPARTURES,
    ids=[f"{each[2]} {each[0]} {number}" for number, each in enumerate(DEPARTURES)],
)
def test_a_departure_is_what_a_small_program_computes(rule, request_, loops, feature, words):
    """Against literal loops with the mistake in them, which share nothing with the family."""
    case = case_of(rule, **request_)
    want = departing.results(case, getattr(departing, loops), "float64")
    found = [
        each for each in (*ignore_features(case), *habits(case)) if each.as_if.startswith(words)
    ]
    assert [each.feature for each in found] == [feature]
    other = found[0].case(case)
    ((_, ours),) = candidates.evaluate(
        other,
        {name: np.asarray(value) for name, value in other.inputs.items()},
        [other.convention],
        columns=found[0].columns,
    )
    for name, value in want.items():
        assert_close(name, ours[name][0], value, ANALYTIC)
    assert_differs("y", evaluate(case).tensors["out/y"], want["out/y"], 1e-6)


@pytest.mark.clause("IDENT-14", "CASE-27")
def test_features_are_named_and_plain_sequences_have_none():
    assert features(case_of("omega")) == {}
    assert features(case_of("delta", span=3)) == {}  # nothing is refreshed
    assert features(new(Request(rule="newton_schulz"))) == {}
    one = case_of("omega", pulse=3, reset=3, history=2, **SPANS, **ROWS)
    assert list(features(one).values()) == [
        "in/active (4 silent tokens)",
        "in/reset (2 starts of a sequence)",
        "in/window_k (a window from before)",
        "in/retain, in/momentum, in/step_size (a gate per output dimension)",
        "span 3",
    ]
    assert [each.feature for each in ignore_features(case_of("omega"))] == ["in/M0", "in/S0"]


@pytest.mark.clause("IDENT-14")
def test_level_token_has_the_departures_that_need_no_projection():
    case = new(Request(rule="titans_lmm", level="token", pulse=3, per_dimension_gates=True))
    words = [each.as_if for each in (*ignore_features(case), *habits(case))]
    assert words == [
        "in/active were ignored",
        "all output dimensions had the gate of the first",
        "in/M0 were ignored",
        "in/S0 were ignored",
    ]


@pytest.mark.clause("IDENT-14", "IDENT-15")
@settings(repeatable, max_examples=40)
@given(cases())
def test_every_departure_of_any_case_is_a_case_that_the_rules_compute(case):
    """The rules and the family, which share no code, on the case of every departure."""
    for each in (*ignore_features(case), *habits(case)):
        if each.columns:
            continue
        other = each.case(case)
        inputs = convert(other, "float64")
        ((_, ours),) = candidates.evaluate(other, inputs, [other.convention])
        want = evaluate(other).tensors
        if np.isfinite(want["out/y"]).all():
            assert_close(each.as_if, ours["out/y"][0], want["out/y"], TIED)
