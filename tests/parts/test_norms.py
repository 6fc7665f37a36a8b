"""Norms of keys and queries of any size: CONV-24."""

import math
from fractions import Fraction

import numpy as np
import pytest

import tape
from atlas_ref import evaluate, make
from atlas_ref.certify import certify
from atlas_ref.parts.norms import normalised
from tape import ops
from tests.support.close import ANALYTIC, EXACT, assert_close, reordered
from tests.support.sequences import case, drawn

#: Rows whose squares overflow, with one that is as large as can be and small entries beside them.
LARGE = {
    np.float64: [[3e200, -4e200, 1.0], [1.7e308, 1.7e308, -1.7e308], [1e154, 2e154, 0.0]],
    np.float32: [[3e30, -4e30, 1.0], [3.4e38, 3.4e38, -3.4e38], [1e19, 2e19, 0.0]],
}


def by_fractions(row, kind):
    """One row over its length in rational numbers, beside which the 1e-6 is nothing."""
    exact = [Fraction(float(x)) for x in row]
    squares = sum(x * x for x in exact) / (1 if kind == "l2" else len(row))
    length = Fraction(math.isqrt(int(squares * 2**200)), 2**100)
    return [float(x / length) for x in exact]


@pytest.mark.clause("CONV-24")
@pytest.mark.parametrize("kind", ["l2", "rms"])
@pytest.mark.parametrize("dtype", LARGE)
def test_a_row_whose_squares_overflow_has_its_norm(dtype, kind):
    x = np.array(LARGE[dtype], dtype)
    got = normalised(x, kind)
    assert got.dtype == dtype
    want = np.array([by_fractions(row, kind) for row in x])
    assert_close(kind, got.astype(np.float64), want, reordered(4, dtype=dtype))


@pytest.mark.clause("CONV-24")
@pytest.mark.parametrize("kind", ["l2", "rms"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.complex128])
def test_any_other_row_has_the_bits_of_the_formula(dtype, kind):
    draw = np.random.default_rng(0)
    x = (draw.standard_normal((50, 5)) * 10.0 ** draw.integers(-15, 15, (50, 1))).astype(dtype)
    total = np.sum(x * x, axis=-1, keepdims=True)
    total = total if kind == "l2" else total * (1.0 / 5)
    beside = np.concatenate([x, np.full((1, 5), 1e30 if dtype == np.float32 else 1e300, dtype)])
    assert_close(kind, normalised(beside, kind)[:50], x / np.sqrt(total + 1e-6), EXACT)


@pytest.mark.clause("CONV-24")
@pytest.mark.parametrize("kind", ["l2", "rms"])
def test_its_derivative_is_the_complex_step(kind):
    x = np.array(LARGE[np.float64])
    draw = np.random.default_rng(1)
    bar, direction = draw.standard_normal((2, *x.shape))
    size = np.max(np.abs(x), axis=-1, keepdims=True)
    # along a direction as long as the row, since a derivative by 1e200 is 1e-200
    gradient = tape.grad(lambda x: ops.sum(normalised(x, kind) * bar))(x)
    moved = normalised(x + 1e-30j * size * direction, kind)
    slope = np.sum(np.imag(moved) / 1e-30 * bar, axis=-1)
    assert_close(kind, np.sum(gradient * size * direction, axis=-1), slope, ANALYTIC)


@pytest.mark.clause("CONV-24", "CONV-35")
@pytest.mark.parametrize("place", ["before_phi", "after_phi"])
@pytest.mark.parametrize("kind", ["l2", "rms"])
def test_a_case_of_huge_keys_and_queries_is_certified(kind, place):
    p = drawn("delta", T=4, seed=3)
    p |= {"k": p["k"] * 1e200, "q": p["q"] * 1e180, "y_bar": np.ones((4, 3))}
    axes = {"q_norm": kind, "k_norm": kind, "norm_place": place}
    huge = case("delta", p, axes)
    ours = evaluate(huge, grad=True).tensors
    certified = certify(huge, grad=True).values
    assert np.abs(ours["out/y"]).min() > 1e-3
    for name, value in certified.items():
        assert_close(name, ours[name], value, ANALYTIC)
    within = {"in/k": huge.inputs["in/k"] * 1e-175, "in/q": huge.inputs["in/q"] * 1e-155}
    single = make(huge.header.plain(), huge.inputs | within)
    narrow = evaluate(single, dtype="float32").tensors["out/y"]
    assert_close("float32", narrow, ours["out/y"], reordered(64, dtype=np.float32))
