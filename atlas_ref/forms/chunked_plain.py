"""A group of chunks in tape ops, one chunk after the other: the plain twin of the engine.

A set of columns is a pair (weights, residuals). One set is enough except under carry, where a
column of an older span has the residual of its arrival (CHUNK-9). Specified in specs/chunkwise.md
(CHUNK-6 to CHUNK-13) and specs/exact.md (EXACT-1 to EXACT-6).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from atlas_ref.engine.group.coefficients import gate_rows, plain_coefficient_rows
from atlas_ref.engine.group.layout import Arrays, Layout
from atlas_ref.types import Array
from tape import ops


class _Set(NamedTuple):
    """Columns of one chunk.

    Coefficient rows D, X (C + 1, B, G, bases + K), features (B, K, d), residuals (B, K, o).
    """

    D: Array
    X: Array
    phi: Array
    E: Array


def plain(layout: Layout, inputs: Arrays) -> tuple[Array, ...]:
    """Outputs of a group that are there, in order: y, M, S, reference, last c residuals."""
    C, h = layout.chunk, layout.window - 1
    M, S, reference, residuals = inputs.M, inputs.S, inputs.reference, inputs.residuals
    position = layout.position
    reads = []
    for k, refresh in enumerate(layout.refresh):
        reference = M if refresh and layout.keeps_reference else reference
        position = position if k == 0 else 0 if refresh else position + C
        columns, tokens = slice(k * C, k * C + C + h), slice(k * C, k * C + C)
        part = inputs._replace(
            keys=inputs.keys[:, columns],
            values=inputs.values[:, columns],
            queries=inputs.queries[:, tokens],
            **{
                name: _cut(getattr(inputs, name), tokens)
                for name in ("retain", "momentum", "rate_in", "rate_out", "weights")
            },
            M=M,
            S=S,
            reference=reference,
            residuals=residuals,
        )
        sets, arrived = (
            _running_set(layout, part) if layout.running else _frozen_sets(layout, part, position)
        )
        reads.append(_read(layout, part, sets))
        M, S = _after(part, sets)
        if layout.carry:
            residuals = ops.concatenate([residuals, arrived], axis=1)
            kept = residuals.shape[1] - h if k < len(layout.refresh) - 1 else -h - 1
            residuals = residuals[:, kept:]
    outputs = [] if layout.read == "none" else [ops.concatenate(reads, axis=1)]
    outputs += [M] if S is None else [M, S]
    outputs += [reference] if layout.keeps_reference else []
    return (*outputs, residuals) if layout.carry else tuple(outputs)


def _cut(value: Array, tokens: slice) -> Array:
    return None if value is None else value[:, tokens]


def _rows(layout: Layout, part: Arrays, weights: Array) -> tuple[Array, Array]:
    gates = gate_rows(
        layout.chunk, part.retain, part.momentum, part.rate_in, part.rate_out, weights
    )
    D, X = plain_coefficient_rows(gates, layout.columns, layout.stride)
    return D[:, :, 0], None if X is None else X[:, :, 0]


def _running_set(layout: Layout, part: Arrays) -> tuple[list[_Set], Array]:
    """Columns under the running reference (EXACT-1).

    (I + N) E = c M_0 phi + f S_0 phi - v,  N[i, j] = D[token of i - 1, j] <phi_i, phi_j>
    """
    D, X = _rows(layout, part, part.weights)
    c, nb = layout.window, D.shape[-1] - layout.columns
    places = (np.arange(layout.chunk)[:, None] + np.arange(c)).ravel()
    phi, values = (ops.index(x, (slice(None), places)) for x in (part.keys, part.values))
    before = ops.moveaxis(D[:-1], 0, -2)  # (B, G, C, nb + K)
    if layout.before_error:
        before = ops.expand_dims(ops.swapaxes(part.retain, -1, -2), -1) * before
    before = ops.index(before, (slice(None), slice(None), np.repeat(np.arange(layout.chunk), c)))
    right_side = (
        _base(before, [phi @ ops.transpose(Z) for Z in (part.M, part.S) if Z is not None]) - values
    )
    N = before[..., nb:] * ops.expand_dims(phi @ ops.transpose(phi), 1)
    E = _solve(N, right_side)
    return [_Set(D, X, phi, E)], None


def _solve(N: Array, right_side: Array) -> Array:
    """(I + N)^{-1} right_side, with one matrix for all columns or one for each."""
    if N.shape[1] == 1:
        return ops.solve_triangular(N[:, 0], right_side, unit=True)
    each = ops.solve_triangular(N, ops.expand_dims(ops.transpose(right_side), -1), unit=True)
    return ops.transpose(each[..., 0])


def _frozen_sets(layout: Layout, part: Arrays, position: int) -> tuple[list[_Set], Array]:
    """Sets of columns under a frozen or zero reference, and the residuals of this chunk's tokens at
    their arrival.
    """
    fresh: Array = -part.values
    if layout.reference == "frozen":
        fresh = part.keys @ ops.transpose(part.reference) - part.values
    arrived = fresh[:, layout.window - 1 :]
    pairs = [(part.weights, fresh)]
    if layout.carry:
        # seen (C, c) marks the lags of this span
        seen = np.arange(layout.window) <= position + np.arange(layout.chunk)[:, None]
        stored = ops.concatenate([part.residuals, arrived], axis=1)
        pairs = [
            (ops.where(seen, part.weights, 0.0), fresh),
            (ops.where(seen, 0.0, part.weights), stored),
        ]
    return [_Set(*_rows(layout, part, weights), part.keys, E) for weights, E in pairs], arrived


def _base(rows: Array, products: list[Array]) -> Array:
    """c (rows M_0) + f (rows S_0): coefficients (B, G, C, nb + K), products (B, C, o) per base."""
    prediction = ops.swapaxes(rows[..., 0], -1, -2) * products[0]
    return (
        prediction
        if len(products) == 1
        else prediction - ops.swapaxes(rows[..., 1], -1, -2) * products[1]
    )


def _mixed(A: Array, E: Array) -> Array:
    """A (B, G, C, K) times E (B, K, o)."""
    if A.shape[1] == 1:
        return A[:, 0] @ E
    return ops.transpose((A @ ops.expand_dims(ops.transpose(E), -1))[..., 0])


def _read(layout: Layout, part: Arrays, sets: list[_Set]) -> Array:
    if layout.read == "none":
        return None
    if layout.read == "reference":
        return part.queries @ ops.transpose(part.reference)
    y = None
    for each in sets:
        rows = ops.moveaxis(each.D[1:] if layout.read == "after" else each.D[:-1], 0, -2)
        nb = rows.shape[-1] - each.phi.shape[1]
        if y is None:
            y = _base(
                rows, [part.queries @ ops.transpose(Z) for Z in (part.M, part.S) if Z is not None]
            )
        scores = part.queries @ ops.transpose(each.phi)
        y = y - _mixed(rows[..., nb:] * ops.expand_dims(scores, 1), each.E)
    return y


def _after(part: Arrays, sets: list[_Set]) -> tuple[Array, Array]:
    """M_C = c_C M_0 + f_C S_0 - E^T diag(D_C) Phi,  S_C = n_C S_0 + E^T diag(X_C) Phi."""
    nb = sets[0].D.shape[-1] - sets[0].phi.shape[1]
    last = sets[0].D[-1]  # (B, G, nb + K)
    M = ops.expand_dims(last[..., 0], -1) * part.M
    S = None
    if part.S is not None:
        M = M - ops.expand_dims(last[..., 1], -1) * part.S
        S = ops.expand_dims(sets[0].X[-1][..., 1], -1) * part.S
    for each in sets:
        E = ops.transpose(each.E)  # (B, o, K)
        M = M - (E * each.D[-1][..., nb:]) @ each.phi
        if S is not None:
            S = S + (E * each.X[-1][..., nb:]) @ each.phi
    return M, S
