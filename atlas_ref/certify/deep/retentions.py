"""Retention of the matrices of a deep memory on balls (CERT-17).

Written from DEEP-30 to DEEP-33.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flint import arb

from atlas_ref.certify.matrix import Matrix, each, filled, hadamard

Own = Mapping[str, Any]

#: Settings that a header may leave out.
DEFAULTS: dict[str, Any] = {
    "threshold": 1e-3,
    "over": "matrix",
    "size": 1.0,
    "power": 4.0,
    "link": "printed",
    "lag": False,
}


def decaying(own: Own, W: Matrix) -> Matrix:
    """W, or its logarithm, 0 in the place of that of 0 and less (DEEP-32, DEEP-39)."""
    if own["kind"] != "kl":
        return W
    return each(
        W,
        lambda x: arb(0) if x <= 0 else x.log(),
        lambda x: arb(0) if x <= 0 else 1 / x,
    )


def kept(own: Own, W: Matrix, moved: Matrix) -> Matrix:
    """W after a write (DEEP-31, DEEP-32)."""
    own = {**DEFAULTS, **own}
    if own["kind"] == "elastic_net":
        return _soft(own, moved)
    if own["kind"] == "sphere":
        squares = _sums(own, hadamard(moved, moved))
        length = each(squares, _root, lambda x: arb(0) if x.is_zero() else 1 / (2 * x.sqrt()))
        return hadamard(moved, _inverse(length)).times(arb(own["size"]))
    if own["kind"] == "kl":
        alive = [arb(0 if x <= 0 else 1) for x in W.value.entries()]
        mask = Matrix(filled(W.rows, W.columns, alive))
        powers = hadamard(mask, each(moved, lambda x: x.exp(), lambda x: x.exp()))
        return hadamard(powers, _inverse(_sums(own, powers))).times(arb(own["size"]))
    return moved


def mapped(own: Own, A: Matrix) -> Matrix:
    """The weights with which the function computes (DEEP-33)."""
    own = {**DEFAULTS, **own}
    if own["kind"] == "ftrl":
        return _soft(own, A)
    if own["kind"] != "lq":
        return A
    q = arb(own["power"])
    p = q if own["link"] == "printed" else q / (q - 1)
    total = _sums({"over": "matrix"}, each(A, *_power(p)))
    exponent = (2 - p) / p
    factor = each(
        total,
        lambda x: arb(1) if x.is_zero() else x**exponent,
        lambda x: arb(0) if x.is_zero() else exponent * x ** (exponent - 1),
    )
    if own["link"] != "mirror":
        return hadamard(A, factor)
    power, slope = _power(p - 1)
    return hadamard(each(A, lambda x: x.sgn() * power(x), lambda x: x.sgn() * slope(x)), factor)


def _power(p: arb) -> tuple[Callable[[arb], arb], Callable[[arb], arb]]:
    """|x|^p and its derivative, both 0 at 0."""
    return (
        lambda x: arb(0) if x.is_zero() else abs(x) ** p,
        lambda x: arb(0) if x.is_zero() else p * x.sgn() * abs(x) ** (p - 1),
    )


def _root(x: arb) -> arb:
    return arb(0) if x.is_zero() else x.sqrt()


def _inverse(x: Matrix) -> Matrix:
    """1 / x of every entry, 1 for an exact 0."""
    return each(
        x,
        lambda z: arb(1) if z.is_zero() else 1 / z,
        lambda z: arb(0) if z.is_zero() else -1 / (z * z),
    )


def _sums(own: Own, x: Matrix) -> Matrix:
    """At each entry the sum of those that are normalised with it."""
    n, m = x.rows, x.columns
    if own["over"] in ("matrix", "column"):
        x = _ones(n, n) @ x
    if own["over"] in ("matrix", "row"):
        x = x @ _ones(m, m)
    return x


def _ones(rows: int, columns: int) -> Matrix:
    return Matrix(filled(rows, columns, [arb(1)] * (rows * columns)))


def _soft(own: Own, x: Matrix) -> Matrix:
    d = arb(own["threshold"])

    def soft(x: arb) -> arb:
        if x > d:
            return x - d
        if x < -d:
            return x + d
        return arb(0) if abs(x) <= d else (x - d).union(x + d).union(arb(0))

    def slope(x: arb) -> arb:
        if x > d or x < -d:
            return arb(1)
        return arb(0) if abs(x) <= d else arb(0.5, 0.5)

    return each(x, soft, slope)
