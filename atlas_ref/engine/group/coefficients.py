"""Coefficient rows, the factors of keys in a memory; plain twin: `plain_coefficient_rows` below.

    X_t = momentum_t X_{t-1} + rate_in_t w_t        coefficients of S_t
    D_t = retain_t D_{t-1} + rate_out_t X_t         coefficients of -M_t

over the columns [M_0, S_0, keys]: X_0 = (0, 1, 0, ...), D_0 = (1, 0, 0, ...), where the first entry
of D is the factor of +M_0. w_t holds the window weights of token t in the columns of its window.
Recurrences only: a gate may be 0. Specified in specs/chunkwise.md (CHUNK-4, CHUNK-5).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.backend.scratch import ALIGNMENT, PAGE, scratch
from atlas_ref.engine.cuda import coefficients as kernels
from atlas_ref.engine.cuda.hook import kernel
from atlas_ref.types import Array
from tape import ops


class GateRows(NamedTuple):
    """Gates of the tokens of a group of chunks, chunk position first.

    Attributes:
        retain, rate_in, rate_out (C, ..., G): G is 1, or d_out for one gate per output dimension.
        momentum: the same; None for a rule without momentum, which then has no column for S_0.
        weights (C, ..., 1, c): oldest token first.
    """

    retain: Array
    momentum: Array
    rate_in: Array
    rate_out: Array
    weights: Array

    @property
    def bases(self) -> int:
        """Columns before those of the keys: the memory and, with momentum, the momentum at the
        start of the chunk.
        """
        return 1 if self.momentum is None else 2


class Rows(NamedTuple):
    """Gates of a group and their coefficient rows.

    Their second axis is B, or 1 for weights that all memories share.
    """

    gates: GateRows
    D: Array
    X: Array

    def of(self, memories: slice) -> Rows:
        """The gates and rows of some memories, as views."""

        def some(x: Array) -> Array:
            return x if x is None or x.shape[1] == 1 else x[:, memories]

        return Rows(GateRows(*map(some, self.gates)), some(self.D), some(self.X))


@kernel(kernels.coefficient_rows)
def coefficient_rows(gates: GateRows, columns: int, stride: int) -> tuple[Array, Array]:
    """D_0 .. D_C and X_0 .. X_C of every chunk (CHUNK-4).

    Args:
        columns: K, number of columns of the keys of a chunk.
        stride: the window of token t occupies c columns from stride * t on.

    Returns:
        D (C + 1, ..., G, bases + K) and X likewise; X None without momentum.
    """
    enter = _entering(gates)  # (C, ..., G, c)
    C, c, nb = len(enter), enter.shape[-1], gates.bases
    D = _room((C + 1, *enter.shape[1:-1], nb + columns), enter)
    D[0, ..., 0] = 1.0
    r = gates.retain[..., None]
    if gates.momentum is None:
        for t in range(C):
            first = nb + stride * t
            D_now = D[t + 1, ..., : first + c]
            np.multiply(D[t, ..., : first + c], r[t], out=D_now)
            own = D_now[..., first:]
            own += enter[t]
        return D, None
    X = _room(D.shape, D)
    X[0, ..., 1] = 1.0
    m, b = gates.momentum[..., None], gates.rate_out[..., None]
    room = _room(D[:1].shape, D)[0]
    for t in range(C):
        first = nb + stride * t
        seen = first + c
        X_now, D_now, part = X[t + 1, ..., :seen], D[t + 1, ..., :seen], room[..., :seen]
        np.multiply(X[t, ..., :seen], m[t], out=X_now)
        own = X_now[..., first:]
        own += enter[t]
        np.multiply(D[t, ..., :seen], r[t], out=D_now)
        D_now += np.multiply(X_now, b[t], out=part)
    return D, X


def _room(shape: tuple[int, ...], like: Array) -> Array:
    """Zero rows, contiguous along the longer of a row and a column of them.

    Columns that would begin at the same place of a page are moved a cache line apart. Else their
    entries would share one set of the cache, which holds a few of them, and every step along a row
    would be a cache miss.
    """
    across = math.prod(shape[1:-1])
    if across <= shape[-1]:
        return scratch.zeros(shape, like)
    apart = ALIGNMENT // like.dtype.itemsize if across * like.dtype.itemsize % PAGE == 0 else 0
    columns = scratch.zeros((shape[0], shape[-1], across + apart), like)[..., :across]
    return np.moveaxis(columns.reshape(shape[0], shape[-1], *shape[1:-1]), 1, -1)


@kernel(kernels.coefficient_rows_backward)
def coefficient_rows_backward(
    gates: GateRows, D: Array, X: Array, dD: Array, dX_last: Array, stride: int
) -> GateRows:
    """Cotangents of the gates from those of D (which may be overwritten) and of the last row of X
    (CHUNK-17).

    lambda_t = dX_t + rate_out_t mu_t + momentum_{t+1} lambda_{t+1},    mu_t = dD_t + retain_{t+1} mu_{t+1}
    """
    C, c, nb = len(D) - 1, gates.weights.shape[-1], gates.bases
    r = gates.retain[..., None]
    if gates.momentum is None:
        for t in range(C - 1, 0, -1):
            seen = (..., slice(0, nb + stride * (t - 1) + c))  # beyond them D_t is 0 for all gates
            dD[t][seen] += r[t] * dD[t + 1][seen]
        into = dD
    else:
        m, b = gates.momentum[..., None], gates.rate_out[..., None]
        into = scratch.empty(dD.shape, dD)
        into[C] = dX_last
        for t in range(C - 1, -1, -1):
            now = (..., slice(0, nb + stride * t + c))
            into[t + 1][now] += b[t] * dD[t + 1][now]
            if t:
                seen = (..., slice(0, nb + stride * (t - 1) + c))
                np.multiply(into[t + 1][seen], m[t], out=into[t][seen])
                dD[t][seen] += r[t] * dD[t + 1][seen]
    d_enter = np.stack([into[t + 1, ..., nb + stride * t : nb + stride * t + c] for t in range(C)])
    d_retain = _row_dots(dD[1:], D[:-1], stride, c, nb, 0)
    d_rate = np.sum(d_enter * gates.weights, axis=-1)
    if gates.momentum is None:
        rate = gates.rate_in * gates.rate_out
        d_weights = np.sum(d_enter * rate[..., None], axis=-2, keepdims=True)
        return GateRows(d_retain, None, d_rate * gates.rate_out, d_rate * gates.rate_in, d_weights)
    d_weights = np.sum(d_enter * gates.rate_in[..., None], axis=-2, keepdims=True)
    d_momentum = _row_dots(into[1:], X[:-1], stride, c, nb, 0)
    d_out = _row_dots(dD[1:], X[1:], stride, c, nb, 1)
    return GateRows(d_retain, d_momentum, d_rate, d_out, d_weights)


def _row_dots(g: Array, rows: Array, stride: int, c: int, nb: int, ahead: int) -> Array:
    """<g_t, rows_t> for every t, over the columns that rows_t has reached."""
    found = np.empty_like(g, shape=g.shape[:-1])
    for t in range(len(g)):
        seen = (..., slice(0, nb + stride * (t + ahead - 1) + c if t + ahead else nb))
        found[t] = np.einsum("...k,...k->...", g[t][seen], rows[t][seen])
    return found


def _entering(gates: GateRows) -> Array:
    """Entries of token t in its own columns: rate_in_t w_t, times rate_out_t where no momentum
    stands between.
    """
    rate = gates.rate_in if gates.momentum is not None else gates.rate_in * gates.rate_out
    return ops.expand_dims(rate, -1) * gates.weights


def plain_coefficient_rows(gates: GateRows, columns: int, stride: int) -> tuple[Array, Array]:
    """The plain twin of `coefficient_rows` in tape ops."""
    enter = _entering(gates)
    C, c, nb = enter.shape[0], enter.shape[-1], gates.bases
    shape = (*enter.shape[1:-1], nb + columns)
    D, X = [unit(enter, shape, 0)], [unit(enter, shape, 1)]
    for t in range(C):
        before, after = nb + stride * t, columns - stride * t - c
        w = ops.concatenate(
            [zeros(enter, shape, before), enter[t], zeros(enter, shape, after)], axis=-1
        )
        r = ops.expand_dims(gates.retain[t], -1)
        if gates.momentum is None:
            D.append(r * D[t] + w)
            continue
        X.append(ops.expand_dims(gates.momentum[t], -1) * X[t] + w)
        D.append(r * D[t] + ops.expand_dims(gates.rate_out[t], -1) * X[t + 1])
    return ops.stack(D), None if gates.momentum is None else ops.stack(X)


def unit(like: Array, shape: tuple[int, ...], column: int) -> Array:
    """Rows that hold 1 in one column and 0 elsewhere."""
    made = ops.zeros_like(like, shape=shape)
    if column < shape[-1]:
        made[..., column] = 1.0
    return made


def zeros(like: Array, shape: tuple[int, ...], columns: int) -> Array:
    """Zeros of the shape of `like` with another number of columns."""
    return ops.zeros_like(like, shape=(*shape[:-1], columns))


def gate_rows(
    chunk: int, retain: Any, momentum: Any, rate_in: Any, rate_out: Any, weights: Any
) -> GateRows:
    """Gates (B, n, G) and weights by lag (B or 1, n, c) by chunks of `chunk` tokens (CHUNK-4)."""
    most = max(gate.shape[-1] for gate in (retain, momentum, rate_in, rate_out) if gate is not None)

    def rows(value: Array, last: tuple[int, ...]) -> Array:
        split = ops.reshape(value, (value.shape[0], value.shape[1] // chunk, chunk, *last))
        return ops.moveaxis(split, 2, 0)

    def gate(value: Array) -> Array:
        if value is None or value.shape[-1] == most:
            return value if value is None else rows(value, (most,))
        return rows(ops.broadcast_to(value, (*value.shape[:-1], most)), (most,))

    return GateRows(
        gate(retain),
        gate(momentum),
        gate(rate_in),
        gate(rate_out),
        rows(ops.flip(weights, -1), (1, weights.shape[-1])),
    )
