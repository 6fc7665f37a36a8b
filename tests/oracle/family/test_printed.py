"""The steps of the family in the order of their clauses, each beside its definition: REPLAY-3."""

import numpy as np
import pytest

from atlas_ref.oracle.family import steps
from atlas_ref.oracle.family.arithmetic import MEMBERS, PLAIN
from atlas_ref.parts.newton_schulz import NewtonSchulz, coefficient_table, newton_schulz
from tests.support.close import ANALYTIC, assert_close

PRINTED = [way._replace(printed=True) for way in MEMBERS]
EXPANDED = [way._replace(name=f"{way.name}, expanded", expanded=True) for way in PRINTED]
WAYS = pytest.mark.parametrize(
    "way", [*MEMBERS, *PRINTED, *EXPANDED], ids=lambda way: f"{way.name}{way.printed * ', printed'}"
)


def drawn(*shapes):
    random = np.random.default_rng(5)
    return [random.standard_normal(shape) for shape in shapes]


@pytest.mark.clause("REPLAY-3", "REPLAY-12")
@WAYS
def test_the_gradient_is_the_scaled_and_weighed_sum_of_residual_times_key(way):
    weights, e, keys = drawn((2, 4, 1), (2, 4, 3), (2, 4, 5))
    want = np.einsum("hj,hjo,hjp->hop", weights[..., 0], e, keys)
    scale = np.array([[0.7]])
    assert_close("weighed", steps.gradient(way, weights, e, keys), want, ANALYTIC)
    assert_close("both", steps.gradient(way, weights, e, keys, scale), 0.7 * want, ANALYTIC)
    one, want = (e[:, :1], keys[:, :1]), np.einsum("ho,hp->hop", e[:, 0], keys[:, 0])
    assert_close("one pair", steps.gradient(way, None, *one, scale), 0.7 * want, ANALYTIC)


@pytest.mark.clause("REPLAY-3", "REPLAY-12")
@WAYS
def test_momentum_window_and_memory_are_what_their_clauses_say(way):
    m, a, share, S, g = drawn((2, 3, 1), (2, 1, 1), (2, 1, 1), (2, 3, 5), (2, 3, 5))
    moved = steps.momentum(way, m, S, a, g, share)
    assert_close("S", moved, m * S + share * a * g, ANALYTIC)
    assert_close("S without m", steps.momentum(way, None, None, a, g), a * g, ANALYTIC)
    assert_close("M", steps.memory(way, m, S, a, g), m * S - a * g, ANALYTIC)
    assert_close("M without r", steps.memory(way, None, S, None, g), S - g, ANALYTIC)
    weights, momenta = drawn((2, 4, 1), (2, 4, 3, 5))
    want = np.einsum("hj,hjop->hop", weights[..., 0], momenta)
    assert_close("P", steps.window_sum(way, weights, momenta), want, ANALYTIC)


@pytest.mark.clause("REPLAY-3", "REPLAY-13")
@WAYS
@pytest.mark.parametrize("settings", [{}, {"scale": "norm"}, {"guard": "return", "eps": 10.0}])
def test_newton_schulz_step_by_step_gives_its_result_from_either_side(way, settings):
    chosen = NewtonSchulz(**settings)
    for S in drawn((2, 5, 3), (3, 5)):
        for tall in (False, True):
            X = steps.normalise(way, S, chosen)
            for row in coefficient_table(chosen):
                X = steps.polynomial(way, X, row, tall)
            assert_close("U", steps.image(way, S, X, chosen), newton_schulz(S, chosen), ANALYTIC)


@pytest.mark.clause("REPLAY-12")
def test_what_traces_print_is_another_rounding_than_what_tolerances_measure():
    weights, e, keys, S = drawn((9, 1), (9, 4), (9, 4), (4, 4))
    printed, chosen = PLAIN._replace(printed=True), NewtonSchulz()
    narrow = [x.astype(np.float32) for x in (weights, e, keys)]
    one, other = (steps.gradient(way, *narrow) for way in (PLAIN, printed))
    assert one.tobytes() != other.tobytes()
    one, other = (steps.normalise(way, S, chosen) for way in (PLAIN, printed))
    assert one.tobytes() != other.tobytes()
