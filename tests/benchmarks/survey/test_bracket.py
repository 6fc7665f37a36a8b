"""The bracket missing in fla-core's Titans reference: the formula by hand, and the one that the
reference applies.
"""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.survey import bracket, run
from tests.support.close import ANALYTIC, assert_close

DATA = Path(__file__).parents[3] / "specs" / "survey.json"


def by_complex_step(x, step=1e-30):
    """d loss / d M at the first token, entry by entry."""
    found = np.zeros((bracket.HEADS, bracket.WIDTH, bracket.WIDTH))
    for h, i, j in np.ndindex(found.shape):
        M = x.M0[0, h].astype(complex)
        M[i, j] += 1j * step
        found[h, i, j] = bracket.loss(M, *bracket._first(x, h)).imag / step
    return found


@pytest.mark.parametrize("seed", range(3))
def test_the_formula_with_its_bracket_is_the_gradient_of_the_loss_and_without_it_is_not(seed):
    x = bracket.drawn(seed, 1)
    right = by_complex_step(x)
    assert_close("with", bracket.by_hand(x, bracket=True), right, ANALYTIC)
    lost = bracket.by_hand(x, bracket=False)
    assert np.linalg.norm(lost - right) > 2 * np.linalg.norm(right)


@pytest.mark.parametrize("seed", range(2))
def test_the_reference_applies_the_formula_without_it_and_its_two_forms_agree(seed):
    for package in ("torch", "fla"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    found = bracket.drift(seed)
    assert found.hand_from_autograd < 1e-14
    assert found.applied_from_lost < 1e-6
    assert found.applied_from_autograd > 2
    assert found.forms_apart < 2e-6


def test_the_page_holds_the_numbers_of_the_bracket():
    for package in ("torch", "fla"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    said, found = json.loads(DATA.read_text())["bracket"], run._bracket()
    # one digit of noise, which machines do not share
    rounding = {
        "hand_from_autograd",
        "applied_from_lost",
        "forms_apart",
    }
    assert {name: value for name, value in said.items() if name not in rounding} == {
        name: value for name, value in found.items() if name not in rounding
    }
    for name in rounding:
        assert 0.2 < float(found[name]) / float(said[name]) < 5, name
