"""The layer norm of a memory's rows and its pullback, by hand and op by op."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref.parts.memory_functions import norms
from tape import grad, ops
from tests.support.close import ANALYTIC, assert_close

EPS = 1e-3


def arrays(count: int, *shape: int) -> Any:
    return np.random.default_rng(5).standard_normal((count, *shape))


def by_hand(x: Any) -> tuple[Any, Any]:
    """n and r of rows, each row by its own loop."""
    n, r = np.zeros_like(x), np.zeros((*x.shape[:-1], 1), x.dtype)
    for at in np.ndindex(*x.shape[:-1]):
        d = x.shape[-1]
        mean = sum(x[at]) / d
        r[(*at, 0)] = 1.0 / np.sqrt(sum((each - mean) ** 2 for each in x[at]) / d + EPS)
        n[at] = (x[at] - mean) * r[(*at, 0)]
    return n, r


def pulled_by_hand(n: Any, r: Any, g: Any) -> Any:
    """J^T g of n as a function of x, from J written out."""
    y = np.zeros_like(n)
    for at in np.ndindex(*n.shape[:-1]):
        d = n.shape[-1]
        J = r[(*at, 0)] * (np.eye(d) - np.ones((d, d)) / d - np.outer(n[at], n[at]) / d)
        y[at] = J.T @ g[at]
    return y


def stepped(function: Any, at: list[Any], place: int) -> Any:
    """d function / d at[place] by the complex step, entry by entry; function is a number."""
    found = np.zeros(at[place].shape)
    for entry in np.ndindex(*found.shape):
        moved = [x.astype(complex) for x in at]
        moved[place][entry] += 1e-40j
        found[entry] = np.imag(function(*moved)) / 1e-40
    return found


@pytest.mark.clause("MEMFUN-4", "MEMFUN-6")
def test_values_are_those_of_loops() -> None:
    x, g = arrays(2, 2, 3, 5)
    n, r = norms.standardised(x, EPS)
    want_n, want_r = by_hand(x)
    assert_close("n", n, want_n, ANALYTIC)
    assert_close("r", r, want_r, ANALYTIC)
    assert_close("y", norms.standardised_back(n, r, g), pulled_by_hand(n, r, g), ANALYTIC)


@pytest.mark.clause("MEMFUN-6")
@pytest.mark.parametrize("parts", [(1.0, 1.0), (1.0, 0.0), (0.0, 1.0)])
def test_the_pullback_of_the_norm_is_its_complex_step(parts: tuple[float, float]) -> None:
    x, of_n = arrays(2, 2, 5)
    of_r = arrays(1, 2, 1)[0]

    def loss(x: Any, stats: Any = norms.standardised) -> Any:
        n, r = stats(x, EPS) if stats is norms.standardised else stats(x)
        terms = [ops.sum(n * of_n)] if parts[0] else []
        terms += [ops.sum(r * of_r)] if parts[1] else []
        return sum(terms[1:], terms[0])

    want = stepped(lambda x: loss(x, by_hand), [x], 0)
    assert_close("x", grad(loss)(x), want, ANALYTIC)
    twice = grad(lambda x: ops.sum(grad(loss)(x) * of_n))(x)
    directed = np.zeros(x.shape)
    for entry in np.ndindex(*x.shape):
        moved = x.astype(complex)
        moved[entry] += 1e-40j
        directed[entry] = np.imag(np.sum(grad(loss)(moved) * of_n)) / 1e-40
    assert_close("second", twice, directed, ANALYTIC)


@pytest.mark.clause("MEMFUN-6")
def test_the_pullback_of_the_pullback_is_its_complex_step() -> None:
    n, g, bar = arrays(3, 2, 5)
    given = [n, np.abs(arrays(1, 2, 1)[0]), g]

    def loss(n: Any, r: Any, g: Any) -> Any:
        return ops.sum(norms.standardised_back(n, r, g) * bar)

    for place, name in enumerate(("n", "r", "g")):
        want = stepped(lambda *at: np.sum(pulled_complex(*at) * bar), given, place)
        assert_close(name, grad(loss, argnums=place)(*given), want, ANALYTIC)


def pulled_complex(n: Any, r: Any, g: Any) -> Any:
    """`pulled_by_hand` of complex arrays."""
    y = np.zeros(n.shape, complex)
    for at in np.ndindex(*n.shape[:-1]):
        d = n.shape[-1]
        J = r[(*at, 0)] * (np.eye(d) - np.ones((d, d)) / d - np.outer(n[at], n[at]) / d)
        y[at] = J.T @ g[at]
    return y


@pytest.mark.clause("MEMFUN-3", "MEMFUN-6")
def test_arguments_without_a_leading_axis_get_sums() -> None:
    n, bar = arrays(2, 3, 2, 5)
    r, g = np.abs(arrays(1, 2, 1)[0]), arrays(1, 1, 2, 5)[0]
    y = grad(lambda at: ops.sum(norms.standardised_back(at["n"], at["r"], at["g"]) * bar))
    found = y({"n": n, "r": r, "g": g})
    spread = {"n": n, "r": np.broadcast_to(r, (3, 2, 1)), "g": np.broadcast_to(g, n.shape)}
    want = y({name: x.copy() for name, x in spread.items()})
    assert_close("n", found["n"], want["n"], ANALYTIC)
    assert_close("r", found["r"], want["r"].sum(axis=0), ANALYTIC)
    assert_close("g", found["g"], want["g"].sum(axis=0, keepdims=True), ANALYTIC)
