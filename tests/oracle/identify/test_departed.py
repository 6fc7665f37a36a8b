"""Answers of identify where no convention explains results: departures, and further changes."""

import numpy as np
import pytest

from atlas_ref.conventions import resolve
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.family import lattice
from atlas_ref.oracle.family.facts import facts
from atlas_ref.oracle.identify import further
from atlas_ref.oracle.identify.identify import identify
from tests.oracle.family.test_departures import DEPARTURES, case_of
from tests.support import departing
from tests.support.identified import made, results, same_point

TITANS = made("titans_lmm", d_in=3, d_out=3)


@pytest.mark.sample(8)
@pytest.mark.clause("IDENT-14", "IDENT-15")
@pytest.mark.parametrize(
    ("rule", "request_", "loops", "feature", "words"),
    DEPARTURES,
    ids=[f"{each[2]} {each[0]} {number}" for number, each in enumerate(DEPARTURES)],
)
def test_a_departure_is_named_from_reads_alone(rule, request_, loops, feature, words):
    case = case_of(rule, **request_)
    mine = departing.results(case, getattr(departing, loops))
    answer = identify(case, {"out/y": mine["out/y"]}, depth=1)
    assert any(each.words.startswith(words) for each in answer.departures), answer.departures
    assert all(each.own and each.ratio < 1.0 for each in answer.departures)
    assert not answer.own
    if answer.verdict == "NO MATCH":
        said = answer.departures[0].phrase
        assert answer.why.endswith(f"explains these results; ours is the same {said}")
        assert said.endswith(", under the case's own convention")


@pytest.mark.clause("IDENT-15")
def test_a_gate_per_key_channel_is_named():
    case = case_of("titans_lmm", per_dimension_gates=True)
    answer = identify(case, departing.results(case, departing.KeyGate))
    assert [each.words for each in answer.departures] == [
        "in/retain were a gate per key channel, as of KDA, GLA and the rule dplr, which scales columns of M"
    ]


@pytest.mark.clause("IDENT-14", "IDENT-15")
def test_departures_are_tried_under_the_nearest_conventions_too():
    """A kernel that reads before its write and decays late, on a case that reads after it."""
    case = case_of("hebbian", convention={"read": "before"})
    mine = departing.results(case, departing.LateDecay, "float64")
    asked = case.replaced(
        header=case.header.replaced(convention="spec"), convention=resolve("spec", rule="hebbian")
    )
    answer = identify(asked, {"out/y": mine["out/y"]})
    assert answer.verdict == "NO MATCH"
    assert answer.departures[0].words.startswith("the decay came after the write")
    assert not answer.departures[0].own
    assert resolve(answer.departures[0].convention, rule="hebbian").read == "before"


@pytest.mark.clause("IDENT-14")
@pytest.mark.parametrize("factor", [1.01, 3.0])
def test_what_nothing_explains_has_no_departure(factor):
    mine = results(TITANS, {"gate": "forget"})["out/y"] * np.float32(factor)
    answer = identify(TITANS, {"out/y": mine + np.float32(0.01)}, depth=1)
    assert (answer.verdict, answer.departures) == ("NO MATCH", ())


@pytest.mark.clause("IDENT-7", "IDENT-14")
def test_gradients_alone_that_are_wrong_are_no_departure():
    right = results(TITANS, {}, "out/y", "grad/k")
    answer = identify(TITANS, right | {"grad/k": right["grad/k"] * np.float32(1.001)}, depth=1)
    assert (answer.verdict, answer.departures) == ("NO MATCH", ())


@pytest.mark.sample(1)
@pytest.mark.clause("IDENT-16")
@pytest.mark.parametrize("own", ["spec", "fla-delta"])
@pytest.mark.parametrize(
    "changes",
    [
        {"gate": "forget", "decay": "before_error", "read": "before"},
        {"gate": "forget", "decay": "before_error", "read": "before", "k_norm": "l2"},
        {"value_sign": "plus", "gradient_scale": 2.0, "q_norm": "l2"},
    ],
    ids=["three", "four", "three others"],
)
def test_a_third_and_a_fourth_change_are_found(own, changes):
    case = made("titans_lmm", d_in=3, d_out=3, convention=own)
    planted = {"preset": own} | changes
    answer = identify(case, results(case, planted))
    # of keys of ordinary length float32 says that they are normed, and hardly by which eps
    normed = bool({"k_norm", "q_norm"} & changes.keys())
    assert answer.undecided.keys() <= ({"norm_eps", "norm_guard"} if normed else set())
    assert answer.verdict == ("UNDECIDABLE" if answer.undecided else "MATCH")
    assert same_point(case, answer.match.convention, planted)
    assert {axis: answer.from_own[axis] for axis in changes} == changes
    assert answer.runner_up.distance > (20 if normed else 1e3) * answer.match.distance
    fewer = identify(case, results(case, planted), depth=1)
    assert fewer.verdict == "NO MATCH"


@pytest.mark.clause("IDENT-16")
def test_what_three_changes_do_not_decide_is_said():
    case = made("titans_lmm", d_in=3, d_out=3)
    still = case.replaced(inputs={n: x for n, x in case.inputs.items() if n != "in/S0"})
    planted = {"gate": "forget", "decay": "before_error", "read": "before"}
    answer = identify(still, results(still, planted))
    assert answer.verdict == "UNDECIDABLE"
    assert answer.undecided["momentum_sign"] == ["plus", "minus"]


@pytest.mark.clause("IDENT-16")
def test_a_round_starts_near_the_cases_own_convention_first():
    case = new(Request(rule="titans_lmm"))
    of, own = facts(case), lattice.point(case.convention)
    points = [lattice.fold(of, each) for each in lattice.around(own, {"read": ("before",)}, 1)]
    far = lattice.point(resolve("nl-hecate", rule="titans_lmm"))
    order = np.array([0, 1, 2])
    assert further.starts([far, *points], order, own, 2) == [*points, far]
    assert further.starts([far, *points], order, own, 0) == [own, far, points[1]]
    known = set(points)
    new_ones = list(further.beside(of, case.convention, [own], known))
    assert known == {*points, *new_ones}
    assert not set(points) & set(new_ones)
    assert further.explains_most(0.7, 1.0)
    assert not further.explains_most(0.71, 1.0)


@pytest.mark.clause("IDENT-7", "IDENT-9")
def test_the_difference_to_the_cases_own_convention_stands_beside_a_preset():
    answer = identify(TITANS, results(TITANS, "titans-paper"), depth=1)
    assert answer.preset == "titans-paper"
    assert answer.from_own == {"gate": "forget", "momentum_sign": "minus", "gradient_scale": 2.0}
    assert identify(TITANS, results(TITANS, {}), depth=1).from_own == {}
    omega = made("omega", window=3)
    answer = identify(omega, results(omega, "atlas-rnn"), depth=1)
    assert answer.from_own["newton_schulz"] == "none"
