"""Functions of balls, each with its derivative: activations, norms, softmax.

Source: GATES-7, WINDOW-5, WINDOW-6, CONV-24, PHI-6.
"""

from __future__ import annotations

from typing import Any

from flint import arb

from atlas_ref.certify.matrix import Matrix, each, hadamard, number, scaled, unknown

#: Cubic coefficient of the tanh form of gelu, likewise.
GELU_CUBIC = 0.044715


def sigmoid(x: arb) -> arb:
    """1 / (1 + e^-x)."""
    return 1 / (1 + (-x).exp())


def silu(x: arb) -> arb:
    """x sigmoid(x)."""
    return x * sigmoid(x)


def gelu(x: arb) -> arb:
    """x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    return x / 2 * (1 + _gelu_inner(x).tanh())


def _gelu_inner(x: arb) -> arb:
    return (2 / arb.pi()).sqrt() * (x + arb(GELU_CUBIC) * x * x * x)


def _sigmoid_slope(x: arb) -> arb:
    return sigmoid(x) * sigmoid(-x)


def _silu_slope(x: arb) -> arb:
    return sigmoid(x) + x * _sigmoid_slope(x)


def _gelu_slope(x: arb) -> arb:
    t = _gelu_inner(x).tanh()
    return (1 + t) / 2 + x / 2 * (1 - t * t) * (2 / arb.pi()).sqrt() * (
        1 + 3 * arb(GELU_CUBIC) * x * x
    )


def sigmoids(x: Matrix) -> Matrix:
    """The sigmoid of every entry."""
    return each(x, sigmoid, _sigmoid_slope)


def softpluses(x: Matrix) -> Matrix:
    """log(1 + e^x) of every entry."""
    return each(x, lambda z: z.exp().log1p(), sigmoid)


def exponentials(x: Matrix) -> Matrix:
    """e^x of every entry."""
    return each(x, lambda z: z.exp(), lambda z: z.exp())


def activated(x: Matrix, kind: str) -> Matrix:
    """silu or gelu of every entry."""
    return each(x, silu, _silu_slope) if kind == "silu" else each(x, gelu, _gelu_slope)


def bounded(x: Matrix, bounds: Any) -> Matrix:
    """Every entry, or the bound that it reaches; a ball around a bound has both slopes (CONV-66)."""
    if bounds == "none":
        return x
    least, greatest = map(arb, bounds)

    def slope(z: arb) -> arb:
        if z <= least or z >= greatest:
            return arb(0)
        return arb(1) if z > least and z < greatest else arb(0.5, 0.5)

    return each(x, lambda z: z.max(least).min(greatest), slope)


def shortened(M: Matrix, ceiling: Any) -> Matrix:
    """M min(1, ceiling / ||M||), whose cotangent is that of M (CONV-67)."""
    if ceiling == "none":
        return M
    squares, most = sum((x * x for x in M.value.entries()), arb(0)), arb(ceiling)
    if squares <= most * most:
        return M
    return Matrix(M.value * (most / squares.sqrt()).min(arb(1)), (M, lambda g: g))


def cosines(x: Matrix) -> Matrix:
    """The cosine of every entry."""
    return each(x, lambda z: z.cos(), lambda z: -z.sin())


def shifted_elu(x: Matrix) -> Matrix:
    """x + 1 above 0, e^x at and below 0 (PHI-5).

    It is max(x, 0) + e^min(x, 0), which encloses a ball around 0 tightly.
    """
    return each(x, lambda z: z.max(arb(0)) + z.min(arb(0)).exp(), lambda z: z.min(arb(0)).exp())


def inverse(x: Matrix) -> Matrix:
    """1/x of every entry."""
    return each(x, lambda z: 1 / z, lambda z: -1 / (z * z))


def softmax(logits: Matrix) -> Matrix:
    """e^x_j / sum_i e^x_i of a column."""
    powers = exponentials(logits)
    return scaled(inverse(summed(powers)), powers)


def summed(x: Matrix) -> Matrix:
    """The sum of a column, 1 x 1."""
    return x.T @ each(x, lambda _: arb(1), lambda _: arb(0))


def normalised(x: Matrix, kind: str, convention: Any) -> Matrix:
    """x over its norm n, with n^2 = sum x^2 (l2) or mean x^2 (rms), by eps and guard (CONV-24).

    sqrt(n^2 + eps) under guard root, n + eps under add, max(n, eps) under clamp. The eps is the
    float64 that stands in the convention (CERT-3).
    """
    if kind == "none":
        return x
    eps, guard = arb(convention.norm_eps), convention.norm_guard
    squares = summed(hadamard(x, x))
    if kind == "rms":
        squares = squares.times(arb(1) / x.rows)
    if guard == "root":
        return scaled(inverse(_roots(squares.plus(eps))), x)
    n = squares.value[0, 0]
    if guard == "add":
        # a row of zeros has n = 0, and no derivative through n
        return scaled(inverse((number(arb(0)) if n.is_zero() else _roots(squares)).plus(eps)), x)
    if n < eps * eps:
        return x.times(1 / eps)
    if n >= eps * eps:
        return scaled(inverse(_roots(squares)), x)
    return unknown(x)


def _roots(x: Matrix) -> Matrix:
    return each(x, lambda z: z.sqrt(), lambda z: 1 / (2 * z.sqrt()))
