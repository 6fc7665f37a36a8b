"""Rows of norms, gated halves, mixes and convolutions by compiled code; plain twins: those of the
blocks in `atlas_ref.engine.layers`.

Target: a training step of a MAG model at most 1.45 times one of a plain transformer
(`benchmarks.models`). Without these loops it takes 1.19 times as long. Arrays are lines of one
axis, with one pass over rows that stay in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from atlas_ref.backend.compiled.lanes import compiled, on_disk, total
from atlas_ref.backend.compiled.rows import (
    by_sign,
    exponential,
    part_of,
    put_part,
    quotient,
)
from atlas_ref.types import Array


def compiled_for(kind: np.dtype[Any], name: str) -> Callable[..., None]:
    """The function of that name for a dtype."""
    number, count, flag = numba.from_dtype(kind), numba.types.intp, numba.types.boolean
    x = numba.types.Array(number, 1, "C", readonly=True)
    to = numba.types.Array(number, 1, "C")
    signatures: dict[str, tuple[Callable[..., None], tuple[Any, ...]]] = {
        "norm": (norm, (x, x, *[count] * 4, number, number, flag, to, to)),
        "norm_back": (norm_back, (x, x, x, x, *[count] * 4, number, number, flag, to, to)),
        "gated": (gated, (x, x, count, count, flag, to, to, to)),
        "gated_back": (gated_back, (x, x, x, x, x, count, count, flag, to)),
        "mixed": (mixed, (x, x, x, x, count, count, to, to, to)),
        "mixed_back": (mixed_back, (x, x, x, x, x, to, to, to)),
        "taps": (taps, (x, x, x, *[count] * 4, to)),
        "taps_back": (taps_back, (x, x, x, x, *[count] * 4, to, to, to)),
    }
    function, arguments = signatures[name]
    return on_disk(function, arguments)


@compiled
def _lanes(x: Array) -> Any:
    """Numbers of a vector."""
    return 64 // x.itemsize


# -- norms -----------------------------------------------------------------------------------------


def norm(
    x: Array,
    weight: Array,
    B: int,
    T: int,
    H: int,
    d: int,
    share: float,
    eps: float,
    clamp: bool,
    r: Array,
    y: Array,
) -> None:
    """Rows (B, T, H, d) over the root of `share` of their squares, into y (B, H, T, d).

    Args:
        r (B, T, H): the factors, negative where they are constants.
    """
    w, rows = _lanes(x), len(weight) // d
    for i in range(B * T * H):
        b, t, h = i // (T * H), i // H % T, i % H
        first, to, of = i * d, ((b * H + h) * T + t) * d, h % rows * d
        v = part_of(x, first)
        squares = v * v
        for c in range(w, d, w):
            v = part_of(x, first + c)
            squares = squares + v * v
        mean = total(squares) * share
        if clamp:
            small = mean < eps * eps
            factor = x.dtype.type(1) / (eps if small else np.sqrt(mean))
            r[i] = -factor if small else factor
        else:
            factor = x.dtype.type(1) / np.sqrt(mean + eps)
            r[i] = factor
        for c in range(0, d, w):
            put_part(y, to + c, part_of(x, first + c) * factor * part_of(weight, of + c))


def norm_back(
    x: Array,
    weight: Array,
    r: Array,
    g: Array,
    B: int,
    T: int,
    H: int,
    d: int,
    share: float,
    eps: float,
    clamp: bool,
    dx: Array,
    d_weight: Array,
) -> None:
    """Cotangents of `norm` from g (B, H, T, d); that of the weight is added."""
    w, rows = _lanes(x), len(weight) // d
    for i in range(B * T * H):
        b, t, h = i // (T * H), i // H % T, i % H
        first, of_g, of = i * d, ((b * H + h) * T + t) * d, h % rows * d
        constant, factor = r[i] < 0, abs(r[i])
        n = part_of(x, first) * factor
        product = part_of(g, of_g) * n
        put_part(d_weight, of, part_of(d_weight, of) + product)
        along = product * part_of(weight, of)
        for c in range(w, d, w):
            n = part_of(x, first + c) * factor
            product = part_of(g, of_g + c) * n
            put_part(d_weight, of + c, part_of(d_weight, of + c) + product)
            along = along + product * part_of(weight, of + c)
        mean = x.dtype.type(0) if constant else total(along) * share * factor
        for c in range(0, d, w):
            of_n = part_of(g, of_g + c) * part_of(weight, of + c)
            put_part(dx, first + c, (of_n - part_of(x, first + c) * mean) * factor)


# -- sigmoids --------------------------------------------------------------------------------------


@compiled
def _sigmoids(z: Any) -> tuple[Any, Any]:
    """sigmoid(z) and sigmoid(-z), both to full relative precision."""
    e = exponential(by_sign(z, z, z * -1))
    large = quotient(e * 0 + 1, e + 1)
    small = e * large
    return by_sign(z, small, large), by_sign(z, large, small)


def gated(
    h: Array, bias: Array, N: int, n: int, first: bool, silu: Array, slope: Array, y: Array
) -> None:
    """y = a silu(b) of rows [a; b] = h + bias, or [b; a] if the gate is the first half.

    Args:
        silu, slope (N, n): of the gate; the second is the derivative.
    """
    w, of_value = _lanes(h), n if first else 0
    of_gate = n - of_value
    for i in range(N):
        row = i * 2 * n
        for c in range(0, n + w - 1, w):
            at = min(c, n - w)  # the last vector overlaps the one before
            a = part_of(h, row + of_value + at) + part_of(bias, of_value + at)
            b = part_of(h, row + of_gate + at) + part_of(bias, of_gate + at)
            s, rest = _sigmoids(b)
            put_part(slope, i * n + at, s * (b * rest + 1))
            put_part(silu, i * n + at, s * b)
            put_part(y, i * n + at, s * b * a)


def gated_back(
    h: Array,
    bias: Array,
    silu: Array,
    slope: Array,
    g: Array,
    N: int,
    n: int,
    first: bool,
    dh: Array,
) -> None:
    """The cotangent of `gated` by h."""
    w, of_value = _lanes(h), n if first else 0
    of_gate = n - of_value
    for i in range(N):
        row = i * 2 * n
        for c in range(0, n + w - 1, w):
            at = min(c, n - w)
            of_y = part_of(g, i * n + at)
            a = part_of(h, row + of_value + at) + part_of(bias, of_value + at)
            put_part(dh, row + of_value + at, of_y * part_of(silu, i * n + at))
            put_part(dh, row + of_gate + at, of_y * a * part_of(slope, i * n + at))


def mixed(
    z: Array, bias: Array, a: Array, m: Array, N: int, d: int, g: Array, rest: Array, y: Array
) -> None:
    """y = g a + (1 - g) m with g = sigmoid(z + bias); rest is 1 - g."""
    w = _lanes(z)
    for i in range(N):
        for c in range(0, d, w):
            at = i * d + c
            s, other = _sigmoids(part_of(z, at) + part_of(bias, c))
            put_part(g, at, s)
            put_part(rest, at, other)
            put_part(y, at, s * part_of(a, at) + other * part_of(m, at))


def mixed_back(
    a: Array, m: Array, g: Array, rest: Array, dy: Array, da: Array, dm: Array, dz: Array
) -> None:
    """Cotangents of `mixed`."""
    for at in range(0, len(a), _lanes(a)):
        of_y, s, other = part_of(dy, at), part_of(g, at), part_of(rest, at)
        put_part(da, at, s * of_y)
        put_part(dm, at, other * of_y)
        put_part(dz, at, (part_of(a, at) - part_of(m, at)) * s * other * of_y)


# -- convolutions ----------------------------------------------------------------------------------


@compiled
def _row(earlier: Array, x: Array, b: int, t: int, T: int, K: int, d: int, c: int) -> Any:
    """Numbers of row t of x, or if that is negative, of an earlier one."""
    if t >= 0:
        return part_of(x, (b * T + t) * d + c)
    return part_of(earlier, (b * (K - 1) + t + K - 1) * d + c)


def taps(earlier: Array, x: Array, weight: Array, B: int, T: int, K: int, d: int, y: Array) -> None:
    """Sums over taps, y_t = sum_j w_j x_{t + j - K + 1}.

    Args:
        earlier (B, K - 1, d): rows before those of x (B, T, d).
        weight (K, d).
    """
    w = _lanes(x)
    for b in range(B):
        for t in range(T):
            for c in range(0, d, w):
                sums = part_of(x, (b * T + t) * d + c) * part_of(weight, (K - 1) * d + c)
                for j in range(K - 1):
                    v = _row(earlier, x, b, t + j - (K - 1), T, K, d, c)
                    sums = sums + v * part_of(weight, j * d + c)
                put_part(y, (b * T + t) * d + c, sums)


def taps_back(
    earlier: Array,
    x: Array,
    weight: Array,
    g: Array,
    B: int,
    T: int,
    K: int,
    d: int,
    d_earlier: Array,
    dx: Array,
    d_weight: Array,
) -> None:
    """Cotangents of `taps`; those of the weight and of earlier rows are added."""
    w = _lanes(x)
    for b in range(B):
        for t in range(T):
            for c in range(0, d, w):
                at = (b * T + t) * d + c
                sums = part_of(g, at) * part_of(weight, (K - 1) * d + c)
                for j in range(max(0, K - T + t), K - 1):
                    later = part_of(g, at + (K - 1 - j) * d)
                    sums = sums + later * part_of(weight, j * d + c)
                put_part(dx, at, sums)
                of_y = part_of(g, at)
                for j in range(K):
                    s, of = t + j - (K - 1), j * d + c
                    v = _row(earlier, x, b, s, T, K, d, c)
                    put_part(d_weight, of, part_of(d_weight, of) + of_y * v)
                    if s < 0:
                        row = (b * (K - 1) + s + K - 1) * d + c
                        before = part_of(d_earlier, row)
                        put_part(d_earlier, row, before + of_y * part_of(weight, of))
