"""Cotangents of the gates of a group from those of its coefficient rows.

Plain twin: the gradient of `plain_coefficient_rows` of `atlas_ref.engine.group.coefficients`.
"""

from __future__ import annotations

import numpy as np

from atlas_ref.backend.scratch import scratch
from atlas_ref.engine.group.coefficients import Rows, coefficient_rows_backward
from atlas_ref.engine.group.cotangents import CotangentSums, Into, RowCotangents
from atlas_ref.engine.group.layout import Arrays, Group, Layout
from atlas_ref.engine.masked.rows import (
    against,
    before_rows,
    factor_cotangents,
    gathered,
    spread_out,
)
from atlas_ref.types import Array


def gates_backward(
    layout: Layout, inputs: Arrays, rows: Rows, d_rows: RowCotangents
) -> dict[str, Array]:
    """Cotangents of gates and weights by name, from those of the coefficient rows of all memories.

    Source: CHUNK-17.
    """
    with scratch.frame():
        of_rows = coefficient_rows_backward(
            rows.gates, rows.D, rows.X, d_rows.D, d_rows.X_last, layout.stride
        )
    if d_rows.retain is not None:
        of_rows = of_rows._replace(retain=of_rows.retain + d_rows.retain)
    names = ["retain", "rate_in", "rate_out"] + ([] if inputs.momentum is None else ["momentum"])
    gates = {name: _per_token(getattr(of_rows, name), getattr(inputs, name)) for name in names}
    return gates | {"weights": _weights(of_rows.weights, inputs.weights)}


def _per_token(rows: Array, like: Array) -> Array:
    """Cotangents (C, B, g, G) as (B, n, G), in the shape of the gate."""
    moved = np.moveaxis(rows, 0, 2)
    flat = moved.reshape(moved.shape[0], -1, moved.shape[-1])
    return flat if flat.shape == like.shape else flat.sum(axis=-1, keepdims=True)


def _weights(rows: Array, like: Array) -> Array:
    moved = np.moveaxis(rows[..., 0, :], 0, 2)
    flat = moved.reshape(moved.shape[0], -1, moved.shape[-1])[..., ::-1]
    return flat if flat.shape == like.shape else flat.sum(axis=0, keepdims=True)


def through_rows(
    layout: Layout, group: Group, sums: CotangentSums, d_rows: RowCotangents, into: Into
) -> None:
    """From R_bar, in the array of E_bar, to the triangular system.

    That is to columns, values, coefficient rows and retain.
    """
    nb, dR = group.gates.bases, sums.E
    gathered(layout, -dR, into.values)
    before = before_rows(layout, group.gates, group.D)  # (B, g, G, K, bases + K)
    d_before = scratch.zeros(before.shape, before)
    dN = against(-dR, group.E, before.shape[-3])
    np.multiply(dN, group.keyed[:, :, None], out=d_before[..., nb:])
    dN *= before[..., nb:]
    d_keyed = dN.sum(axis=-3) if dN.shape[-3] > 1 else dN[..., 0, :, :]
    factor_cotangents(dR, group.answered, np.moveaxis(d_before[..., :nb], -3, -2))
    out = spread_out(dR, np.moveaxis(before[..., :nb], -3, -2))
    sums.phi[...] += scratch.product(out, scratch.transposed(group.states[:, :-1]))
    sums.phi[...] += scratch.product(d_keyed + d_keyed.swapaxes(-1, -2), group.phi)
    through_before(layout, Rows(group.gates, group.D, group.X), d_before, d_rows)


def through_before(layout: Layout, rows: Rows, d_before: Array, d_rows: RowCotangents) -> None:
    """From coefficients of `before_rows` (B, g, G, K, bases + K) to the rows and their decay."""
    if layout.stride > 1:
        d_before = d_before.reshape(*d_before.shape[:-2], layout.chunk, layout.window, -1).sum(
            axis=-2
        )
    d_before = np.moveaxis(d_before, -2, 0)
    if not layout.before_error:
        d_rows.D[:-1] += d_before
        return
    d_rows.D[:-1] += d_before * rows.gates.retain[..., None]
    d_rows.retain[...] = (d_before * rows.D[:-1]).sum(axis=-1)
