"""The scan form of dplr: row after row, by a compiled loop where there is one.

    M_r = M_{r-1} diag(w_r) - (M_{r-1} a_r) b_r^T + v_r k_r^T,      y = s M q

The loop has a backward of its own; what it does not take runs here, in ops of the tape. Specified in
specs/dplr.md (DPLR-17).
"""

from __future__ import annotations

import functools
import math

from atlas_ref.engine.compiled import low_rank
from atlas_ref.engine.compiled.low_rank import Settings
from atlas_ref.forms.dplr.rows import Rows, packed, rows, with_bonus
from atlas_ref.rules import dplr
from atlas_ref.types import Array
from tape import ops


def run(
    config: dplr.Config, tokens: dplr.Tokens, state: dplr.State, chunk: int | None = None
) -> tuple[dplr.State, Array]:
    """The rule row by row, compiled where it pays (DPLR-12, DPLR-17).

    Args:
        chunk: changes nothing.

    Returns:
        state after the last token, y (L, T, d_out).
    """
    every = rows(config, tokens)
    steps, M, reads = 0 if every.before else every.steps, state.M, []
    settings = Settings(steps, every.before_error, every.query_scale)
    for first, last in packed(tokens.reset, tokens.q.shape[-2]):
        y, M = sequence(settings, *_arrays(every.of(first, last)), state.M)
        reads.append(y)
    y = reads[0] if len(reads) == 1 else ops.concatenate(reads, axis=-2)
    return dplr.State.trusted(M=M), with_bonus(tokens, every, y)


def plain(
    settings: Settings,
    retain: Array,
    k: Array,
    a: Array,
    b: Array,
    v: Array,
    q: Array,
    M: Array,
) -> tuple[Array, Array]:
    """One sequence in ops of the tape: the plain twin of the compiled loop (DPLR-17).

    Args:
        settings: rows of a token, whether an erase reads what has decayed, factor of the reads.
        retain, k, a, b (L, R, d_in), v (L, R, d_out), q (L, T, d_in), M (L, d_out, d_in); a and b
            of shape (L, 0, d_in) erase nothing.

    Returns:
        y (L, T, d_out), the memory after the last row.
    """
    steps, before_error, scale = settings
    reads = []
    for r in range(k.shape[-2]):
        if steps == 0:
            reads.append(scale * _product(M, q[..., r, :]))
        decayed = M * ops.expand_dims(retain[..., r, :], -2)
        written = ops.outer(v[..., r, :], k[..., r, :])
        if a.shape[-2]:
            found = _product(decayed if before_error else M, a[..., r, :])
            decayed = decayed - ops.outer(found, b[..., r, :])
        M = decayed + written
        if steps and (r + 1) % steps == 0:
            reads.append(scale * _product(M, q[..., r // steps, :]))
    return ops.stack(reads, axis=-2), M


def sequence(settings: Settings, *arrays: Array) -> tuple[Array, Array]:
    """One packed sequence, compiled where that pays."""
    own = functools.partial(plain, settings)
    functools.update_wrapper(own, plain)
    if low_rank.takes(*arrays, work=math.prod(arrays[1].shape) * arrays[4].shape[-1]):
        return low_rank.block(settings, own)(*arrays)
    return own(*arrays)


def _arrays(part: Rows) -> list[Array]:
    """Arrays in the order of `plain`; no erase has no rows."""
    k, retain = part.k, part.retain
    if retain.shape != k.shape:
        retain = ops.broadcast_to(retain, k.shape)
    a, b = part.erase_read, part.erase_write
    if a is None:
        a = b = ops.zeros_like(k, shape=(*k.shape[:-2], 0, k.shape[-1]))
    return [retain, k, a, b, part.v, part.q]


def _product(M: Array, x: Array) -> Array:
    return (M @ ops.expand_dims(x, -1))[..., 0]
