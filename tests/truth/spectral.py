"""Newton-Schulz by definition, as loops over entries and through the singular values.

Nothing is shared with the package under test. The loops take complex arrays, so their complex step
gives derivatives of any order; the spectral forms know nothing of matrix products.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tests.support.close import Tolerance, assert_close, reordered
from tests.truth import minimax

Array = Any
Rows = Sequence[tuple[float, float, float]]


class Map(NamedTuple):
    """The function: one row (a, b, c) a step, the divisor of the argument and the scale of the
    result.
    """

    rows: Rows
    eps: float = 1e-7
    norm_factor: float = 1.0
    guard: str = "add"
    scale: str = "1"


#: Some forty sums of products, one after another.
IN_ANOTHER_ORDER = reordered(40)

MUON, CUBIC = (3.4445, -4.7750, 2.0315), (1.5, -0.5, 0.0)


def rows_of(coefficients: Any = "muon", steps: int = 5, lower_bound: float = 1e-3) -> Rows:
    """The row of every step (NS-3 to NS-5)."""
    if coefficients == "polar_express":
        return [step.row for step in minimax.polar_express(lower_bound, steps)]
    rows = (
        {"muon": [MUON], "cubic": [CUBIC]}.get(coefficients, coefficients)
        if isinstance(coefficients, str)
        else coefficients
    )
    return [rows[min(i, len(rows) - 1)] for i in range(steps)]


def map_of(settings: Mapping[str, Any]) -> Map:
    """The function of settings as a user writes them."""
    table = {
        key: settings[key] for key in ("coefficients", "steps", "lower_bound") if key in settings
    }
    return Map(
        rows_of(**table),
        **{
            key: settings[key]
            for key in ("eps", "norm_factor", "guard", "scale")
            if key in settings
        },
    )


TWO_ROWS = ((2.0, -1.5, 0.5), (1.5, -0.5, 0.0))

#: Every setting, alone and together, as keyword arguments of the settings object.
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "cubic": {"coefficients": "cubic"},
    "polar express": {"coefficients": "polar_express"},
    "polar express for 0.05": {"coefficients": "polar_express", "lower_bound": 0.05, "steps": 3},
    "one row": {"coefficients": (MUON,)},
    "last row repeated": {"coefficients": TWO_ROWS},
    "surplus rows": {"coefficients": (*TWO_ROWS, MUON), "steps": 2},
    "one step": {"steps": 1},
    "nine steps": {"steps": 9},
    "no eps": {"eps": 0.0},
    "large eps": {"eps": 0.5, "coefficients": "cubic"},
    "norm factor above 1": {"norm_factor": 1.3},
    "norm factor below 1": {"norm_factor": 0.8},
    "clamp": {"guard": "clamp"},
    "clamp, large eps": {"guard": "clamp", "eps": 2.0},
    "clamp, no eps": {"guard": "clamp", "eps": 0.0},
    "return": {"guard": "return"},
    "return, large eps": {"guard": "return", "eps": 2.0},
    "never transposed": {"transpose": "never"},
    "sqrt": {"scale": "sqrt"},
    "norm": {"scale": "norm"},
    "norm, clamp": {"scale": "norm", "guard": "clamp", "norm_factor": 1.3},
    "norm, return, large eps": {"scale": "norm", "guard": "return", "eps": 2.0},
    "sqrt, cubic, no eps, never": {
        "scale": "sqrt",
        "coefficients": "cubic",
        "eps": 0.0,
        "transpose": "never",
    },
}

SHAPES = [(1, 1), (1, 6), (6, 1), (5, 5), (4, 7), (7, 4)]


def arguments(seed: int = 0) -> Iterator[tuple[str, Array]]:
    """Matrices of every shape and kind, with descriptions."""
    random = np.random.default_rng(seed)
    for shape in SHAPES:
        S = random.standard_normal(shape)
        k = min(shape)
        U, s, Vt = np.linalg.svd(S, full_matrices=False)
        kinds = {
            "Gaussian": S,
            "of norm 1e-7": S * (1.01e-7 / np.linalg.norm(S)),  # beside eps, not on it
            "of norm 1e-9": S * (1e-9 / np.linalg.norm(S)),
            "of norm 1e6": S * (1e6 / np.linalg.norm(S)),
            "zero": 0.0 * S,
            "with all singular values equal": (U * 2.0) @ Vt,
            "with two equal": (U * np.where(np.arange(k) < 2, 2.0, 0.3)) @ Vt,
            "with two almost equal": (
                U * np.where(np.arange(k) == 0, 2.0 + 1e-9, np.where(np.arange(k) == 1, 2.0, 0.3))
            )
            @ Vt,
            "of half rank": (U * np.where(np.arange(k) < (k + 1) // 2, s, 0.0)) @ Vt,
        }
        for kind, argument in kinds.items():
            yield f"{shape[0]}x{shape[1]} {kind}", argument


# -- singular values -------------------------------------------------------------------------------


def polynomial(rows: Rows, x: Array) -> Array:
    """The polynomial h(x), the result of the steps on one singular value of X_0."""
    for a, b, c in rows:
        x = x * (a + x * x * (b + c * x * x))
    return x


def divided_difference(rows: Rows, x: Array, y: Array) -> Array:
    """(h(x) - h(y)) / (x - y) without a quotient, so h'(x) where x = y.

    It is the product of those of the steps.
    """
    product = 1.0
    for a, b, c in rows:
        xx, xy, yy = x * x, x * y, y * y
        product = product * (a + b * (xx + xy + yy) + c * (xx * xx + xy * (xx + xy + yy) + yy * yy))
        x, y = x * (a + xx * (b + c * xx)), y * (a + yy * (b + c * yy))
    return product


def frobenius(S: Array) -> Array:
    """The root of the sum of squares over entries; holomorphic."""
    total = 0.0
    for row in S.tolist():
        for entry in row:
            total = total + entry * entry
    return np.sqrt(total)


def divisor(m: Map, norm: Array) -> Array:
    """The divisor N of NS-6 for one matrix."""
    if m.guard == "clamp":
        return m.norm_factor * norm if np.real(m.norm_factor * norm) >= m.eps else m.eps
    return m.norm_factor * norm + m.eps


def returned(m: Map, norm: Array) -> bool:
    """Whether the argument itself is the result."""
    return m.guard == "return" and bool(np.real(norm) < m.eps)


def factor(m: Map, S: Array, norm: Array) -> Array:
    """Scale of the result (NS-9)."""
    if m.scale == "norm":
        return norm
    return math.sqrt(max(1.0, S.shape[0] / S.shape[1])) if m.scale == "sqrt" else 1.0


def spectral(m: Map, S: Array) -> Array:
    """NS(S) of one real matrix by its singular values (NS-10)."""
    norm = np.linalg.norm(S)
    if returned(m, norm):
        return S.copy()
    U, s, Vt = np.linalg.svd(S, full_matrices=False)
    N = divisor(m, norm)
    x = s / N if N > 0 else s
    return factor(m, S, norm) * (U * polynomial(m.rows, x)) @ Vt


def spectral_pullback(m: Map, S: Array, G: Array) -> Array:
    """The cotangent of S by divided differences of the polynomial (NS-23) and the quotient rule
    (NS-21).

    Full singular vectors turn the three terms of NS-23 into one: a row or column beyond the rank
    has x = 0.
    """
    norm = np.linalg.norm(S)
    if returned(m, norm):
        return G.copy()
    N = divisor(m, norm)
    N = N if N > 0 else 1.0
    U, s, Vt = np.linalg.svd(S, full_matrices=True)
    rows, columns = S.shape
    size = max(rows, columns)
    x = np.zeros(size)
    x[: len(s)] = s / N
    H = np.zeros((size, size))  # zero rows or columns make the rotated cotangent square
    H[:rows, :columns] = U.T @ (factor(m, S, norm) * G) @ Vt.T
    minus = divided_difference(m.rows, x[:, None], x[None, :])
    plus = divided_difference(m.rows, x[:, None], -x[None, :])  # h is odd: (h(x) + h(y)) / (x + y)
    inner = minus * (H + H.T) / 2 + plus * (H - H.T) / 2
    G0 = U @ inner[:rows, :columns] @ Vt
    result = G0 / N
    if norm > 0 and not (m.guard == "clamp" and m.norm_factor * norm < m.eps):
        result = result - m.norm_factor * np.sum(G0 * S) / (N * N * norm) * S
    if m.scale == "norm" and norm > 0:
        end = (U[:, : len(s)] * polynomial(m.rows, s / N)) @ Vt[: len(s)]
        result = result + np.sum(G * end) * S / norm
    return result


def gain(m: Map, S: Array) -> float:
    """The largest factor by which any run of steps multiplies a small change of S / N, at least 1.

    Errors of rounding grow by it; derivatives are as large as it where nothing cancels.
    """
    N = divisor(m, np.linalg.norm(S))
    x = np.linalg.svd(S, compute_uv=False) / (N if N > 0 else 1.0)
    x = np.append(x, 0.0)
    # of each step between every two singular values, and between one and the negative of another
    slopes = []
    for row in m.rows:
        y = x[None, :, None] * np.array([1.0, -1.0])[:, None, None]
        slopes.append(np.abs(divided_difference([row], x[None, None, :], y)))
        x = polynomial([row], x)
    return max(1.0, *(float(np.cumprod(slopes[i:], axis=0).max()) for i in range(len(slopes))))


def natural_size(m: Map, S: Array, order: int) -> float:
    """The size of the derivative of this order along unit directions where nothing cancels; 0 for
    the value.

    Newton-Schulz hides the length of its argument, so a derivative can all but vanish; its error
    does not.
    """
    norm = float(np.linalg.norm(S))
    if returned(m, norm):
        return norm if order == 0 else float(order == 1)
    N = float(divisor(m, norm))
    scale = max(1.0, float(factor(m, S, norm)))
    return (
        scale
        * gain(m, S) ** max(1, order)
        * (norm / N if order == 0 and N > 0 else 1.0 / (N if N > 0 else 1.0) ** order)
    )


def assert_near(
    name: str, got: Array, want: Array, size: float, tolerance: Tolerance = IN_ANOTHER_ORDER
) -> None:
    """Assert closeness relative to the larger of ||want|| and `size`."""
    assert np.shape(got) == np.shape(want), (
        f"{name}: shape {np.shape(got)}, expected {np.shape(want)}"
    )
    assert_close(name, np.append(got, size), np.append(want, size), tolerance)


# -- loops -----------------------------------------------------------------------------------------


def product(A: Array, B: Array) -> Array:
    """The matrix product, entry by entry."""
    columns = np.transpose(B).tolist()  # lists of numbers: an array hands out its entries slowly
    return np.array(
        [
            [sum(map(operator.mul, row, column)) for column in columns]
            for row in np.asarray(A).tolist()
        ]
    )


def start(m: Map, S: Array) -> Array:
    """The first iterate X_0 (NS-6, NS-7)."""
    N = divisor(m, frobenius(S))
    return S / N if np.real(N) > 0 else S


def loops(m: Map, S: Array) -> Array:
    """The iteration NS(S) of one matrix as in NS-1."""
    norm = frobenius(S)
    if returned(m, norm):
        return S
    X = start(m, S)
    for a, b, c in m.rows:
        A = product(X, X.T)
        X = a * X + product(b * A + c * product(A, A), X)
    return factor(m, S, norm) * X


def loops_pullback(m: Map, S: Array, G: Array) -> Array:
    """The backward of one matrix by NS-20 and NS-21; for complex S the derivative's holomorphic
    extension.
    """
    norm = frobenius(S)
    if returned(m, norm):
        return G
    X = [start(m, S)]
    for a, b, c in m.rows:
        A = product(X[-1], X[-1].T)
        X.append(a * X[-1] + product(b * A + c * product(A, A), X[-1]))
    D = factor(m, S, norm) * G
    for (a, b, c), x in zip(reversed(m.rows), reversed(X[:-1]), strict=True):
        A = product(x, x.T)
        P = b * A + c * product(A, A)
        H = product(D, x.T)
        K = b * H + c * (product(H, A) + product(A, H))
        D = a * D + product(P, D) + product(K + K.T, x)
    N = divisor(m, norm)
    N = N if np.real(N) > 0 else 1.0
    result = D / N
    if np.real(norm) > 0 and not (m.guard == "clamp" and np.real(m.norm_factor * norm) < m.eps):
        result = result - m.norm_factor * np.sum(D * S) / (N * N * norm) * S
    if m.scale == "norm" and np.real(norm) > 0:
        result = result + np.sum(G * X[-1]) * S / norm
    return result
