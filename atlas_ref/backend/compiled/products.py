"""Products and transposes of matrices held as panels, for compiled loops (extra `fast`).

A matrix is an array (panels, rows, width): each panel has as many columns as a cache line has
numbers, and rows and columns are padded to whole tiles (width, width). No entry inside depends on
the padding, whatever it holds. A product reads both factors row by row, so it is left^T right; the
sums of a few rows by one panel stay in registers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite.binding import get_host_cpu_features

from atlas_ref.backend.compiled.lanes import compiled
from atlas_ref.backend.compiled.tiles import (
    add_products,
    add_transposes,
    put,
    put_sum,
    side,
    transpose_square,
    width,
    zero_sums,
)
from atlas_ref.types import Array

#: Rows whose sums a product holds at once, and fewer for what is left of a tile. With two registers
#: a row they fill 12 and 8 of the 16 of AVX2, with one 16 and 8 of the 32 of AVX-512; 8 still hide
#: the latency of a multiply-add.
MANY, FEW = (16, 8) if get_host_cpu_features().get("avx512f") else (6, 4)


def _rows_of_product(rows: int) -> Callable[..., None]:
    """A function for the sums of `rows` rows of a product by one panel."""

    @compiled
    def rows_of_product(
        scale: Any,
        left: Array,
        lane: int,
        right: Array,
        inner: int,
        factor: Any,
        other: Array,
        out: Array,
        row: int,
    ) -> None:
        sums = zero_sums(left, rows)
        for k in range(inner):
            sums = add_products(sums, left, lane, right, k)
        if factor == 0:  # and the other may hold anything
            put(sums, scale, out, row)
        else:
            put_sum(sums, scale, out, row, other, factor)

    return rows_of_product


_many, _few = _rows_of_product(MANY), _rows_of_product(FEW)


@compiled
def product(
    scale: Any,
    left: Array,
    right: Array,
    inner: int,
    factor: Any,
    other: Array,
    out: Array,
    rows: int,
    symmetric: bool,
) -> None:
    """out = scale left^T right + factor other, whose first `rows` rows are wanted.

    Args:
        left (panels, inner, width), right (panels, inner, width).
        inner: terms of each sum; rows of padding beyond them are not read.
        other: not read where factor is 0; `out` itself is allowed.
        symmetric: whether the result is known to be, so that half of its tiles are copies.
    """
    of_tile = width(left[0])
    for p in range(-(-rows // of_tile)):
        first = p * of_tile
        end = min(rows - first, of_tile)
        for q in range(p if symmetric else 0, len(right)):
            lane = 0
            while lane < end:
                rest, row = end - lane, first + lane
                if rest <= FEW or MANY < rest <= 2 * FEW:
                    _few(scale, left[p], lane, right[q], inner, factor, other[q], out[q], row)
                    lane += FEW
                else:
                    _many(scale, left[p], lane, right[q], inner, factor, other[q], out[q], row)
                    lane += MANY
            if symmetric and q > p:
                _transpose_tile(out[q], first, out[p], q * of_tile)


@compiled
def transpose(panels: Array, out: Array) -> None:
    """Write the transpose of a matrix."""
    of_tile = width(out[0])
    for q in range(len(panels)):
        for p in range(len(out)):
            _transpose_tile(panels[q], p * of_tile, out[p], q * of_tile)


@compiled
def add_transpose(panels: Array) -> None:
    """X <- X + X^T."""
    of_square = side(panels[0])
    for i in range(2 * len(panels)):
        for j in range(i, 2 * len(panels)):
            one, two = panels[j // 2], panels[i // 2]
            of_one, of_two = j % 2 * of_square, i % 2 * of_square
            add_transposes(one, i * of_square, of_one, two, j * of_square, of_two)


@compiled
def _transpose_tile(panel: Array, row: int, out: Array, to_row: int) -> None:
    of_square = side(panel)
    for i in range(2):
        for j in range(2):
            across, down = i * of_square, j * of_square
            transpose_square(panel, row + across, down, out, to_row + down, across)


# -- panels and plain matrices ---------------------------------------------------------------------


@compiled
def enter(x: Array, panels: Array) -> None:
    """Write a matrix (rows, columns) into panels."""
    rows, columns = x.shape
    of_tile = width(panels[0])
    for q in range(len(panels)):
        first = q * of_tile
        for i in range(rows):
            for lane in range(min(of_tile, columns - first)):
                panels[q, i, lane] = x[i, first + lane]


@compiled
def leave(panels: Array, x: Array) -> None:
    """Write panels into a matrix (rows, columns)."""
    rows, columns = x.shape
    of_tile = width(panels[0])
    for q in range(len(panels)):
        first = q * of_tile
        for i in range(rows):
            for lane in range(min(of_tile, columns - first)):
                x[i, first + lane] = panels[q, i, lane]
