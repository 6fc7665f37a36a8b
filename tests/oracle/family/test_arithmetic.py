"""The legal ways to round, each against exact rational arithmetic: TOL-3."""

from fractions import Fraction

import numpy as np
import pytest

import tape
from atlas_ref.oracle.family import steps
from atlas_ref.oracle.family.arithmetic import MEMBERS, TERMS, Arithmetic, fuse, unbroadcast
from atlas_ref.parts.newton_schulz import NewtonSchulz, newton_schulz, plain_newton_schulz
from tape import ops
from tests.support.close import ANALYTIC, EXACT, assert_close, reordered


def exact_fused(a, b, c, kind):
    """a * b + c in rational arithmetic, rounded once."""
    value = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    return kind(float(value)) if kind is np.float64 else kind(np.float64(float(value)))


@pytest.mark.clause("TOL-3")
@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_fused_multiply_add_rounds_once(kind):
    random = np.random.default_rng(0)
    a, b, c = (random.standard_normal(500).astype(kind) for _ in range(3))
    c[::3] = -(a * b)[::3]  # where two roundings lose everything
    found = fuse(a, b, c)
    want = np.array([exact_fused(*each, kind) for each in zip(a, b, c, strict=True)])
    assert found.dtype == kind
    assert_close("fused", found, want, EXACT)
    assert np.any(found != a * b + c)


@pytest.mark.clause("TOL-3")
def test_members_round_differently_and_are_at_least_eight():
    random = np.random.default_rng(1)
    A, B = (random.standard_normal(shape).astype(np.float32) for shape in ((3, 9, 8), (3, 8, 9)))
    products = {way.matmul(A, B).tobytes() for way in MEMBERS}
    assert len(MEMBERS) >= 8
    assert len(products) >= 6
    orders = {way.order for way in MEMBERS}
    assert {"forward", "reverse", "pairwise", "lanes", "wide"} <= orders
    assert any(way.fused for way in MEMBERS)
    assert any(way.transposed for way in MEMBERS)


@pytest.mark.clause("TOL-3")
@pytest.mark.parametrize("way", MEMBERS, ids=lambda way: way.name)
@pytest.mark.parametrize("length", [1, 2, 5, TERMS, 3 * TERMS + 1])
def test_every_member_computes_the_product(way, length):
    random = np.random.default_rng(length)
    A, B = random.standard_normal((2, 3, length)), random.standard_normal((2, length, 4))
    assert_close(
        "product", way.matmul(A, B), np.einsum("nij,njk->nik", A, B), reordered(4 * length)
    )
    narrow = way.matmul(A.astype(np.float32), B.astype(np.float32))
    assert narrow.dtype == np.float32
    assert_close("product", narrow, A @ B, reordered(4 * length, dtype=np.float32))


@pytest.mark.clause("TOL-3")
@pytest.mark.parametrize(
    ("order", "four", "eight"),  # units 2^-24 above 1 of the sum of 1 and three, or seven, of them
    [("forward", 0, 0), ("reverse", 4, 8), ("pairwise", 2, 6), ("lanes", 4, 6), ("wide", 4, 8)],
)
def test_orders_are_those_that_their_names_say(order, four, eight):
    for count, units in ((4, four), (8, eight)):
        terms = np.array([1.0, *[2.0**-24] * (count - 1)], np.float32).reshape(1, count)
        found = Arithmetic("", order).matmul(terms, np.ones((count, 1), np.float32))
        assert found[0, 0] == 1.0 + units * 2.0**-24


@pytest.mark.clause("TOL-3")
@pytest.mark.parametrize("way", MEMBERS, ids=lambda way: way.name)
def test_gradients_run_backwards_through_the_same_arithmetic(way):
    random = np.random.default_rng(2)
    A, B, weights = (random.standard_normal(shape) for shape in ((2, 3, 5), (5, 4), (2, 3, 4)))
    m, x = random.standard_normal((2, 1, 1)), random.standard_normal((2, 3, 4))

    def value(product, scaled):
        return lambda p: ops.sum(weights * scaled(p["m"], p["x"], product(p["A"], p["B"])))

    p = {"A": A, "B": B, "m": m, "x": x}
    want = tape.grad(value(lambda A, B: A @ B, lambda m, x, y: m * x + y))(p)
    found = tape.grad(value(way.matmul, way.scaled_sum))(p)
    for name in p:
        assert_close(name, found[name], want[name], reordered(64))


@pytest.mark.sample(60)
@pytest.mark.clause("TOL-3")
@pytest.mark.parametrize("way", MEMBERS, ids=lambda way: way.name)
@pytest.mark.parametrize("shape", [(2, 5, 3), (3, 5), (4, 4)])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"coefficients": "cubic"},
        {"guard": "clamp", "eps": 1e-2},
        {"scale": "norm"},
        {"scale": "sqrt", "norm_factor": 1.1},
        {"guard": "return", "eps": 1e-1},
    ],
    ids=str,
)
def test_every_member_computes_newton_schulz(way, shape, settings):
    S = np.random.default_rng(3).standard_normal(shape)
    chosen = NewtonSchulz(**settings)
    assert_close("NS", steps.newton_schulz(way, S, chosen), newton_schulz(S, chosen), ANALYTIC)
    weights = np.random.default_rng(4).standard_normal(shape)
    for scale in (1.0, 1e-3):  # at and below the floor of the guards
        want = tape.grad(lambda x: ops.sum(weights * plain_newton_schulz(x, chosen)))(scale * S)
        found = tape.grad(lambda x: ops.sum(weights * steps.newton_schulz(way, x, chosen)))(
            scale * S
        )
        assert_close("gradient", found, want, ANALYTIC)


@pytest.mark.clause("TOL-3")
def test_the_norm_neither_overflows_nor_vanishes():
    for scale in (1e-200, 1e200):
        S = scale * np.array([[3.0, 0.0], [0.0, 4.0]])
        assert_close("norm", steps.frobenius(MEMBERS[1], S), np.array([[5.0 * scale]]), ANALYTIC)
    assert steps.frobenius(MEMBERS[1], np.zeros((3, 2)))[0, 0] == 0.0


def test_a_broadcast_argument_gets_the_sum_of_its_cotangents():
    g = np.arange(24.0).reshape(2, 3, 4)
    assert_close("leading", unbroadcast(g, (3, 4)), g.sum(axis=0), EXACT)
    assert_close("inner", unbroadcast(g, (2, 1, 4)), g.sum(axis=1, keepdims=True), EXACT)
    assert_close("whole", unbroadcast(g, (2, 3, 4)), g, EXACT)
