"""Inside a chunk of dplr: scores under decays, and the inverse of its system, by halves.

    <x_i, diag(w_{j+1} ... w_i) z_j> = <(w_{m+1} ... w_i) x_i, (w_{j+1} ... w_m) z_j>

for j in the left and i in the right half of a block, whose left half ends at m. Gates are multiplied
from the middle forwards and from it backwards, and nothing is divided. Specified in specs/dplr.md
(DPLR-13, DPLR-14).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from atlas_ref.types import Array
from tape import ops


class Vectors(NamedTuple):
    """Vectors of rows (..., C, d_in): q and erase_read meet the memory, the others are put into it.

    Both of an erase may be None.
    """

    q: Array
    erase_read: Array
    k: Array
    erase_write: Array


class Decays(NamedTuple):
    """Products of the gates of a block's rows (..., count, size, d_in or 1), in float64 (DPLR-13).

    Attributes:
        reads: up to each row, or before it where reads come before their rows.
        before, behind: before each row, and behind it.
        whole (..., count, 1, d_in or 1): of all rows.
    """

    reads: Array
    before: Array
    behind: Array
    whole: Array


class Scores(NamedTuple):
    """Scores in blocks (..., count, size, size); None without an erase (DPLR-14).

    Attributes:
        of_keys, of_erases: of queries with keys, and with what erases write along.
        found: of what erases read with keys.
        inverse: of 1 + the scores of what erases read with what they write along.
    """

    of_keys: Array
    of_erases: Array
    found: Array
    inverse: Array


class Chunk(NamedTuple):
    """Whole chunks: vectors under the decays from the start, or to the end; all gates' product
    (..., 1, d_in or 1); scores (..., C, C).
    """

    vectors: Vectors
    decay: Array
    scores: Scores


def chunks(retain: Array, vectors: Vectors, *, before: bool) -> Chunk:
    """Join rows to blocks of two, four, ... up to chunks of C rows, a power of two (DPLR-13).

    Args:
        retain (..., C, d_in or 1): gates.
        before: whether queries read before their row; then none has a score with itself.
    """
    C, kind = retain.shape[-2], vectors.k.dtype
    decays = _decays_of_rows(_blocks(retain, 1), before=before)
    scores = _scores_of_rows(vectors, before=before)
    size = 1
    while size < C:
        pairs = Vectors(*(_blocks(x, size) for x in vectors))
        scores = _scores_of_pairs(pairs, decays, scores, kind)
        decays, size = _decays_of_pairs(decays), 2 * size
    reads, before_rows, behind, whole = (ops.astype(x[..., 0, :, :], kind) for x in decays)
    decayed = (reads, before_rows, behind, behind)
    vectors = Vectors(
        *(None if x is None else x * decay for x, decay in zip(vectors, decayed, strict=True))
    )
    first = Scores(*(None if x is None else x[..., 0, :, :] for x in scores))
    return Chunk(vectors, whole, first)


def _blocks(x: Array, size: int) -> Array:
    """(..., C, d) as blocks (..., C / size, size, d)."""
    if x is None:
        return None
    *lead, C, d = x.shape
    return ops.reshape(x, (*lead, C // size, size, d))


def _left(x: Array) -> Array:
    return x[..., 0::2, :, :]


def _right(x: Array) -> Array:
    return x[..., 1::2, :, :]


def _decays_of_rows(retain: Array, *, before: bool) -> Decays:
    """Blocks of one row. In float32 equal gates would round alike, and errors add up (DPLR-15)."""
    wide = ops.astype(retain, np.float64)
    one = ops.ones_like(wide)
    return Decays(one if before else wide, one, one, wide)


def _decays_of_pairs(decays: Decays) -> Decays:
    """Products over pairs of blocks."""

    def both(left: Array, right: Array) -> Array:
        return ops.concatenate([left, right], axis=-2)

    left, right = _left(decays.whole), _right(decays.whole)
    return Decays(
        both(_left(decays.reads), _right(decays.reads) * left),
        both(_left(decays.before), _right(decays.before) * left),
        both(_left(decays.behind) * right, _right(decays.behind)),
        left * right,
    )


def _scores_of_rows(vectors: Vectors, *, before: bool) -> Scores:
    """Scores of each row with itself: a query with its own write, unless it reads before it."""

    def with_own(z: Array) -> Array:
        own = ops.sum(vectors.q * z, axis=-1, keepdims=True)
        return _blocks(ops.zeros_like(own) if before else own, 1)

    of_keys = with_own(vectors.k)
    if vectors.erase_write is None:
        return Scores(of_keys, None, None, None)
    none, one = ops.zeros_like(of_keys), ops.ones_like(of_keys)
    return Scores(of_keys, with_own(vectors.erase_write), none, one)


def _scores_of_pairs(pairs: Vectors, decays: Decays, scores: Scores, kind: Any) -> Scores:
    """Scores in pairs of blocks: those of right rows with left ones are new (DPLR-13, DPLR-14).

    The inverse of [[L, 0], [N, R]] has the corner - R^-1 N L^-1.
    """

    def asked(x: Array, decay: Array) -> Array:
        return _right(x) * ops.astype(_right(decay), kind)

    def told(x: Array) -> Array:
        return ops.swapaxes(_left(x) * ops.astype(_left(decays.behind), kind), -1, -2)

    reads, keys = asked(pairs.q, decays.reads), told(pairs.k)
    of_keys = _lower(scores.of_keys, reads @ keys)
    if pairs.erase_write is None:
        return Scores(of_keys, None, None, None)
    finds, erases = asked(pairs.erase_read, decays.before), told(pairs.erase_write)
    inverse = scores.inverse
    corner = _right(inverse) @ (finds @ erases) @ _left(inverse)
    return Scores(
        of_keys,
        _lower(scores.of_erases, reads @ erases),
        _lower(scores.found, finds @ keys),
        _lower(inverse, -corner),
    )


def _lower(blocks: Array, corner: Array) -> Array:
    """[[left, 0], [corner, right]] of pairs of blocks."""
    left, right = _left(blocks), _right(blocks)
    above = ops.concatenate([left, ops.zeros_like(left)], axis=-1)
    below = ops.concatenate([corner, right], axis=-1)
    return ops.concatenate([above, below], axis=-2)
