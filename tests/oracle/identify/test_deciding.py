"""Deciding cases, on which settings that were indistinguishable have one answer: IDENT-8."""

import numpy as np
import pytest

from atlas_ref.oracle.identify.deciding import deciding_case, separates
from atlas_ref.oracle.identify.identify import identify
from tests.support.identified import BARE, altered, made, results, same_point

TITANS = made("titans_lmm", d_in=3, d_out=3)

UNDECIDED = [
    (altered(TITANS, {"in/M0": None, "in/S0": None}), {}),
    (altered(TITANS, {"in/retain": 0.5}), {"gate": "forget"}),
    (altered(TITANS, {"in/momentum": 0.0}), {"rate": "memory"}),
    (made("delta", d_out=2, span=1), {"gradient_scale": "2/d_out"}),
    (made("delta", span=20), {"reference": "call_start"}),
    (made("omega", window=1, convention=BARE), BARE | {"order": "momentum_then_window"}),
    (
        altered(made("omega", window=2, span=20, convention=BARE), {"in/M0": None}),
        BARE | {"reference": "zero"},
    ),
]


@pytest.mark.sample(3)
@pytest.mark.clause("IDENT-8")
@pytest.mark.parametrize(("case", "planted"), UNDECIDED, ids=[str(each[1]) for each in UNDECIDED])
def test_a_case_is_found_on_which_the_planted_setting_is_told_from_the_others(case, planted):
    answer = identify(case, results(case, planted), depth=1)
    assert answer.verdict == "UNDECIDABLE"
    found = deciding_case(case, answer.fits)
    # with one token in the window there is nothing to decide for any numbers
    if planted.get("order"):
        assert found is None or separates(found, answer.fits, [], "float32")
        return
    assert separates(found, answer.fits, [], "float32")
    again = identify(found, results(found, planted), depth=1)
    assert again.verdict == "MATCH"
    assert same_point(found, again.match.convention, planted)


@pytest.mark.clause("IDENT-8")
def test_guards_and_eps_are_decided_at_float32_by_tiny_heads():
    case = made("newton_schulz", span=None)
    for settings in ({}, {"guard": "return"}, {"eps": 1e-10}, {"guard": "clamp", "eps": 1e-5}):
        planted = {"newton_schulz": settings}
        answer = identify(case, results(case, planted, "out/X"))
        assert answer.verdict == "UNDECIDABLE"
        found = deciding_case(case, answer.fits)
        again = identify(found, results(found, planted, "out/X"))
        assert again.verdict == "MATCH"
        assert same_point(found, again.match.convention, planted)


@pytest.mark.clause("IDENT-8")
def test_a_sequence_decides_guards_and_eps_as_well():
    case = made("omega", window=3, convention="atlas-paper")
    answer = identify(case, results(case, "atlas-paper"), depth=1)
    assert set(answer.undecided) == {"newton_schulz.guard", "newton_schulz.eps"}
    found = deciding_case(case, answer.fits)
    again = identify(
        found,
        results(found, {"preset": "atlas-paper", "newton_schulz": {"guard": "return"}}),
        depth=1,
    )
    assert (again.verdict, again.undecided) == ("MATCH", {})
    assert same_point(
        found,
        again.match.convention,
        {"preset": "atlas-paper", "newton_schulz": {"guard": "return"}},
    )
    assert found.inputs["in/k"].shape[-2] <= 3


@pytest.mark.clause("IDENT-8")
def test_the_case_is_the_smallest_of_those_tried():
    """The smallest case: a reference needs more than one token, and the sign of a momentum shows at
    the first.
    """
    signs = altered(TITANS, {"in/S0": None})
    answer = identify(signs, results(signs, {}), depth=1)
    assert set(answer.undecided) == {"momentum_sign"}
    found = deciding_case(signs, answer.fits)
    fewer = identify(found, results(found, {}), depth=1)
    assert fewer.verdict == "MATCH"
    assert found.inputs["in/k"].shape[-2] <= 4
    assert found.inputs["in/k"].dtype == np.float32


@pytest.mark.clause("IDENT-8")
def test_settings_that_are_one_function_have_no_deciding_case():
    case = made("newton_schulz", span=None)
    convention = case.convention
    turned = convention.replaced(
        newton_schulz=convention.newton_schulz_settings.replaced(transpose="never")
    )
    assert deciding_case(case, [convention, turned]) is None


@pytest.mark.clause("IDENT-8", "CONV-24")
def test_a_deciding_case_has_short_keys_where_the_eps_of_norms_is_open():
    case = made("titans_lmm", convention="nl-hecate")
    answer = identify(case, results(case, "nl-hecate-clamp", "out/y"), depth=1)
    assert answer.verdict == "UNDECIDABLE"
    assert {"norm_eps", "norm_guard"} <= answer.undecided.keys()
    found = deciding_case(case, answer.fits)
    again = identify(found, results(found, "nl-hecate-clamp", "out/y"), depth=1)
    assert again.verdict == "MATCH"
    assert same_point(found, again.match.convention, "nl-hecate-clamp")
