"""Coefficient rows by blocks of tokens; plain twin: `plain_coefficient_rows` of
`atlas_ref.engine.group.coefficients`.

Two short recurrences and one product take the place of a long recurrence:

    [D_t; X_t] = N_t [D_0; X_0; W]          rows of a block, from the rows before it and the weights W of its own tokens
    N_t                                     coefficient rows over the columns [M_0, S_0, tokens of the block]

N comes from the recurrence of `coefficients` over the few tokens of a block, for all blocks at
once; so the rest, for the many columns of the keys, is a product, whose rows are as long as the
recurrence's were. A gate may still be 0: nothing is divided. Specified in specs/chunkwise.md
(CHUNK-29).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from atlas_ref.backend import as_strided, on_host
from atlas_ref.backend.scratch import scratch
from atlas_ref.engine.group.coefficients import (
    GateRows,
    coefficient_rows,
    coefficient_rows_backward,
)
from atlas_ref.types import Array

LONGEST, SHORTEST = 8, 4  # tokens of a block
PAYS = 64  # columns from which the product is faster than the recurrence


def block_length(gates: GateRows, columns: int) -> int:
    """Tokens of a block: a divisor of the chunk, or 1 where rows are computed token after token.

    That is so with a gate for each output dimension, which would need a product for each; without
    momentum, where the recurrence has half the work; and on a device, which has a kernel for it.
    """
    if (
        gates.retain.shape[-1] > 1
        or gates.momentum is None
        or columns < PAYS
        or not on_host(gates.retain)
    ):
        return 1
    chunk = len(gates.retain)
    return next((b for b in range(LONGEST, SHORTEST - 1, -1) if chunk % b == 0 and chunk > b), 1)


class _Inside(NamedTuple):
    """Blocks without the rows before them.

    Attributes:
        gates: of all blocks, by place in the block, one weight of 1 a token.
        D, X (b + 1, B, g m, 1, 2 + b): their coefficient rows, for m blocks a chunk.
        N (B, g, m, b + 1, 2 + b): D_1 .. D_b and below them X_b.
    """

    gates: GateRows
    D: Array
    X: Array
    N: Array


def rows_by_block(gates: GateRows, columns: int, stride: int, block: int) -> tuple[Array, Array]:
    """`coefficient_rows` of gates with momentum, block after block (CHUNK-29).

    Returns:
        D (C + 1, B, g, 1, 2 + K), and X (C / b + 1, ...): X at the start of each block, and after
        the last.
    """
    C, B, g, _ = gates.retain.shape
    m = C // block
    # behind D_C stands X_C, and behind D_t for a while X_t
    D = scratch.zeros((B, g, C + 2, 2 + columns), gates.retain)
    X = scratch.zeros((m + 1, B, g, 1, 2 + columns), D)
    D[:, :, 0, 0], D[:, :, 1, 1], X[0, ..., 1] = 1.0, 1.0, 1.0
    with scratch.frame():
        N, weights = _inside(gates, block).N, _weights(gates, block)
        # Of one block, since those of all would not stay in the cache; on the right, where windows
        # end at the same place.
        entering = scratch.zeros((B, g, 2 + block, 2 + columns), D)
        own = _bands(
            entering[:, :, None, :, 2 + columns - _seen(gates, stride, block, 0) :], gates, stride
        )[:, :, 0]
        for i in range(m):
            first, seen = block * i, _seen(gates, stride, block, i)
            enter, reached = entering[..., 2 + columns - seen :], D[:, :, :, :seen]
            enter[:, :, :2] = reached[:, :, first : first + 2]
            own[...] = weights[:, :, i]
            np.matmul(N[:, :, i], enter, out=reached[:, :, first + 1 : first + block + 2])
            X[i + 1, ..., 0, :seen] = reached[:, :, first + block + 1]
    return np.moveaxis(D[:, :, : C + 1, None], 2, 0), X


def rows_by_block_backward(
    gates: GateRows, D: Array, X: Array, dD: Array, dX_last: Array, stride: int
) -> GateRows:
    """`coefficient_rows_backward` of the rows of `rows_by_block` (CHUNK-29)."""
    C, B, g, _ = gates.retain.shape
    m = len(X) - 1
    block = C // m
    inside, entering = _inside(gates, block), _entering(gates, D.shape[-1] - 2, stride, block)
    d_entering = scratch.zeros(entering.shape, dD)
    dN = scratch.empty(inside.N.shape, dD)
    room = scratch.empty((B, g, block + 1, D.shape[-1]), dD)
    dX = dX_last[..., 0, :]
    for i in range(m - 1, -1, -1):
        first, seen = block * i, _seen(gates, stride, block, i)
        left, made, taken = (
            room[..., :seen],
            d_entering[:, :, i, :, :seen],
            entering[:, :, i, :, :seen],
        )
        left[:, :, :block] = np.moveaxis(dD[first + 1 : first + block + 1, ..., 0, :seen], 0, 2)
        left[:, :, block] = dX[..., :seen]
        if i < m - 1:
            left[:, :, block - 1] += d_entering[:, :, i + 1, 0, :seen]
        taken[:, :, 0], taken[:, :, 1] = D[first, ..., 0, :seen], X[i, ..., 0, :seen]
        np.matmul(inside.N[:, :, i].swapaxes(-1, -2), left, out=made)
        np.matmul(left, taken.swapaxes(-1, -2), out=dN[:, :, i])
        dX = d_entering[:, :, i, 1]
    found = _inside_backward(inside, dN)
    weights = np.moveaxis(_bands(d_entering, gates, stride), (2, 3), (0, 1)).reshape(C, B, g, 1, -1)
    retain, momentum, rate_in, rate_out = (_by_chunk(x, gates.retain.shape) for x in found[:4])
    return GateRows(retain, momentum, rate_in, rate_out, weights)


def _seen(gates: GateRows, stride: int, block: int, i: int) -> int:
    """Columns that the tokens up to the end of block i have reached."""
    return 2 + stride * (block * (i + 1) - 1) + int(gates.weights.shape[-1])


def _inside(gates: GateRows, block: int) -> _Inside:
    """Coefficient rows of every block by itself."""
    C, B, g, _ = gates.retain.shape
    m = C // block

    def by_block(x: Array) -> Array:
        return np.moveaxis(x.reshape(m, block, B, g, 1), 0, 3).reshape(block, B, g * m, 1)

    retain, momentum, rate_in, rate_out = (by_block(x) for x in gates[:4])
    own = GateRows(
        retain, momentum, rate_in, rate_out, np.ones_like(gates.retain, shape=(block, 1, 1, 1, 1))
    )
    D, X = coefficient_rows(own, block, 1)
    N = scratch.empty((B, g, m, block + 1, 2 + block), D)
    flat = N.reshape(B, g * m, block + 1, 2 + block)
    flat[:, :, :block] = np.moveaxis(D[1:, ..., 0, :], 0, 2)
    flat[:, :, block] = X[-1, ..., 0, :]
    return _Inside(own, D, X, N)


def _inside_backward(inside: _Inside, dN: Array) -> GateRows:
    """Cotangents of the gates by place in the block, from those of N."""
    b = len(inside.gates.retain)
    flat = dN.reshape(*inside.D.shape[1:3], b + 1, 2 + b)
    dD = scratch.zeros(inside.D.shape, dN)
    dD[1:, ..., 0, :] = np.moveaxis(flat[:, :, :b], 2, 0)
    return coefficient_rows_backward(inside.gates, inside.D, inside.X, dD, flat[:, :, None, b], 1)


def _by_chunk(x: Array, shape: tuple[int, ...]) -> Array:
    """Gates (b, B, g m, 1) by place in a block as (C, B, g, 1) by place in chunks."""
    C, B, g, _ = shape
    return np.moveaxis(x.reshape(len(x), B, g, C // len(x), 1), 3, 0).reshape(shape)


def _weights(gates: GateRows, block: int) -> Array:
    """Window weights (B or 1, g, m, b, c), by block and place in it: a view."""
    C = len(gates.retain)
    weights = gates.weights[..., 0, :]  # (C, B or 1, g, c)
    return np.moveaxis(weights.reshape(C // block, block, *weights.shape[1:]), (0, 1), (2, 3))


def _entering(gates: GateRows, columns: int, stride: int, block: int) -> Array:
    """Rows before each block, and weights of its tokens, (B, g, m, 2 + b, 2 + K)."""
    C, B, g, _ = gates.retain.shape
    made = scratch.zeros((B, g, C // block, 2 + block, 2 + columns), gates.retain)
    _bands(made, gates, stride)[...] = _weights(gates, block)
    return made


def _bands(entering: Array, gates: GateRows, stride: int) -> Array:
    """A view (B, g, m, b, c) of the columns in each token's window."""
    B, g, m, rows, _ = entering.shape
    block, right = rows - 2, entering.strides[-1]
    across = (
        *entering.strides[:2],
        entering.strides[2] + block * stride * right,
        entering.strides[3] + stride * right,
        right,
    )
    return as_strided(entering[..., 2:, 2:], (B, g, m, block, gates.weights.shape[-1]), across)
