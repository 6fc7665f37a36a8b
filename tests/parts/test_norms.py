"""Norms of keys and queries of any size: CONV-24."""

import math
from fractions import Fraction

import numpy as np
import pytest

import tape
from atlas_ref import evaluate, make
from atlas_ref.certify import certify
from atlas_ref.conventions import resolve
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.parts.norms import keys_normalised, normalised
from tape import ops
from tests.support.certified import assert_certified
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs, reordered
from tests.support.literally import assert_literal
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


def convention(**axes):
    return resolve({"q_norm": "l2", "k_norm": "rms", **axes}, rule="delta")


#: Rows longer and shorter than every eps below, and one of zeros.
SHORT = np.array([[3.0, -4.0, 1.0], [3e-4, -4e-4, 0.0], [2e-9, 1e-9, -5e-9], [0.0, 0.0, 0.0]])
FORMULA = {
    "root": lambda n, eps: np.sqrt(n * n + eps),
    "add": lambda n, eps: n + eps,
    "clamp": lambda n, eps: n if n > eps else eps,
}


@pytest.mark.clause("CONV-24")
@pytest.mark.parametrize("guard", FORMULA)
@pytest.mark.parametrize("kind", ["l2", "rms"])
@pytest.mark.parametrize("eps", [1e-12, 1e-8, 1e-3])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_eps_enters_by_the_guard(guard, kind, eps, dtype):
    x = SHORT.astype(dtype)
    got = keys_normalised(x, kind, convention(norm_eps=eps, norm_guard=guard))
    assert got.dtype == dtype
    for row, own in zip(x.astype(np.float64), got.astype(np.float64), strict=True):
        n = math.sqrt(math.fsum(row * row) / (1 if kind == "l2" else 3))
        assert_close(guard, own, row / FORMULA[guard](n, eps), reordered(4, dtype=dtype))


@pytest.mark.clause("CONV-24")
@pytest.mark.parametrize("guard", FORMULA)
@pytest.mark.parametrize("kind", ["l2", "rms"])
@pytest.mark.parametrize("eps", [1e-8, 1e-3])
def test_the_derivative_of_every_guard_is_the_complex_step_and_1_over_eps_at_zero(guard, kind, eps):
    own = convention(norm_eps=eps, norm_guard=guard)
    draw = np.random.default_rng(3)
    bar, direction = draw.standard_normal((2, *SHORT.shape))
    gradient = tape.grad(lambda x: ops.sum(keys_normalised(x, kind, own) * bar))(SHORT)
    size = np.max(np.abs(SHORT), axis=-1, keepdims=True)
    moved = keys_normalised(SHORT + 1e-30j * size * direction, kind, own)
    slope = np.sum(np.imag(moved) / 1e-30 * bar, axis=-1)
    assert_close(guard, np.sum(gradient * size * direction, axis=-1), slope, ANALYTIC)
    at_zero = bar[-1] / (math.sqrt(eps) if guard == "root" else eps)
    assert_close("zeros", gradient[-1], at_zero, ANALYTIC)


@pytest.mark.clause("CONV-24")
@pytest.mark.parametrize("guard", FORMULA)
@pytest.mark.parametrize("kind", ["l2", "rms"])
def test_a_large_row_has_its_norm_under_every_guard(guard, kind):
    own = convention(norm_guard=guard, norm_eps=1e-3)
    x = np.array(LARGE[np.float64])
    want = np.array([by_fractions(row, kind) for row in x])
    assert_close(kind, keys_normalised(x, kind, own), want, reordered(4))


GUARDED = [
    {"q_norm": "l2", "k_norm": "l2", "norm_eps": 1e-8, "norm_guard": "clamp"},
    {"q_norm": "rms", "k_norm": "l2", "norm_eps": 1e-2, "norm_guard": "add"},
    {"k_norm": "rms", "norm_eps": 1e-3, "norm_guard": "clamp", "norm_place": "after_phi"},
    {"q_norm": "l2", "k_norm": "rms", "norm_eps": 1e-1},
]


@pytest.mark.clause("CONV-24", "CONV-35")
@pytest.mark.parametrize("level", ["projected", "token"])
@pytest.mark.parametrize("axes", GUARDED)
def test_a_case_with_an_eps_of_its_own_is_that_of_the_literal_loop_and_certified(axes, level):
    of_map = {"feature_map": {"kind": "elementwise"}, "window": 2}
    made = new(
        Request(
            **{"rule": "omega", "tokens": 4, "d_in": 3, "d_out": 2, "seed": 5, "level": level},
            **of_map,
            cotangent=True,
            convention={**axes, "newton_schulz": "none"},
        )
    )
    inputs = dict(made.inputs)
    for name in {"in/k", "in/q", "in/param/W_K", "in/param/W_Q"} & inputs.keys():
        inputs[name] = inputs[name] * 0.01
    small = make(made.header.plain(), inputs)
    assert_literal(small)
    assert_certified(small, ANALYTIC)


@pytest.mark.clause("CONV-24")
@pytest.mark.parametrize("form", ["chunkwise", "exact", "scan", "kernel"])
def test_every_form_takes_the_eps(form):
    axes = {"k_norm": "l2", "q_norm": "rms", "norm_eps": 1e-1, "norm_guard": "clamp"}
    axes["reference"] = "chunk_start" if form == "chunkwise" else "running"
    span = {"span": 2} if form == "chunkwise" else {}
    made = new(Request(rule="titans_lmm", tokens=6, d_in=3, d_out=2, convention=axes, **span))
    small = make(made.header.plain(), {**made.inputs, "in/k": made.inputs["in/k"] * 0.02})
    y = evaluate(small, form=form).tensors["out/y"]
    assert_close(form, y, evaluate(small).tensors["out/y"], ANALYTIC)
    other = evaluate(small, convention={**axes, "norm_eps": 1e-6}).tensors["out/y"]
    assert_differs(form, y, other, 1e-3)
