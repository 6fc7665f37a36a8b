"""The chunk form of dplr: what a chunk, and its rows, find in the memory before them.

    U   = (1 + N)^-1 (A M_0^T + F V)
    Y   = Q M_0^T + S_k V - S_b U,      M_C = M_0 diag(w_1 ... w_C) + V^T K - U^T B

U is what erases find, A and Q what is asked under decays from the chunk's start, K and B what is
written along under those up to its end. Exact: no gate divides, and no product of gates is the
exponential of a difference. Specified in specs/dplr.md (DPLR-12 to DPLR-14).
"""

from __future__ import annotations

from atlas_ref.backend import at_once
from atlas_ref.forms.dplr.halves import Chunk, Vectors, chunks
from atlas_ref.forms.dplr.rows import Rows, packed, rows, with_bonus
from atlas_ref.rules import dplr
from atlas_ref.types import Array
from tape import ops

CHUNK = 32  # tokens of a chunk unless a call says otherwise
#: Bytes of the scores of the chunks that are made at once, about a cache.
SCORES_BYTES = 2**22


def run(
    config: dplr.Config, tokens: dplr.Tokens, state: dplr.State, chunk: int | None = None
) -> tuple[dplr.State, Array]:
    """The rule chunk by chunk (DPLR-12 to DPLR-14).

    Args:
        chunk: tokens of a chunk; None for 32.

    Returns:
        state after the last token, y (L, T, d_out).
    """
    size, every = chunk or CHUNK, rows(config, tokens).without_settings()
    M, reads = state.M, []
    for first, last in packed(tokens.reset, tokens.q.shape[-2]):
        M = state.M  # which is the memory before the first token too
        for start, stop, length in _groups(M, first, last, size, every.steps):
            M, y = _group(every.of(start, stop), M, length)
            reads.append(y)
    y = reads[0] if len(reads) == 1 else ops.concatenate(reads, axis=-2)
    return dplr.State.trusted(M=M), with_bonus(tokens, every, y)


def _groups(M: Array, first: int, last: int, size: int, steps: int) -> list[tuple[int, int, int]]:
    """First and last token of each group of chunks, with the tokens of one; a tail is a group."""
    count = 1
    for axis in M.shape[:-2]:
        count *= axis
    scores = 4 * count * (size * steps) ** 2 * int(M.dtype.itemsize)
    at_most = max(1, at_once(M, SCORES_BYTES) // max(scores, 1)) * size
    whole = first + (last - first) // size * size
    groups = [(start, min(start + at_most, whole), size) for start in range(first, whole, at_most)]
    return [*groups, (whole, last, last - whole)] if whole < last else groups


def _group(own: Rows, M: Array, length: int) -> tuple[Array, Array]:
    """Chunks of `length` tokens one after another, their scores made together (DPLR-14)."""
    n, T = length * own.steps, own.q.shape[-2]
    pad = (1 << (n - 1).bit_length()) - n
    queries = own.q
    if own.steps > 1:  # rows that read nothing ask with zeros
        lead = queries.shape[:-1]
        none = ops.zeros_like(queries, shape=(*lead, own.steps - 1, queries.shape[-1]))
        queries = ops.concatenate([none, ops.expand_dims(queries, -2)], axis=-2)
        queries = ops.reshape(queries, (*lead[:-1], T * own.steps, queries.shape[-1]))
    retain, v = _chunked(own.retain, n, pad, 1.0), _chunked(own.v, n, pad)
    each = (queries, own.erase_read, own.k, own.erase_write)
    vectors = Vectors(*(_chunked(x, n, pad) for x in each))
    whole = chunks(retain, vectors, before=own.before)
    reads = []
    for place in range(T // length):
        M, y = _chunk(whole, v[..., place, :, :], M, place)
        reads.append(y[..., own.steps - 1 : n : own.steps, :])
    return M, reads[0] if len(reads) == 1 else ops.concatenate(reads, axis=-2)


def _chunked(x: Array, n: int, pad: int, fill: float = 0.0) -> Array:
    """Rows (..., m n, d) as chunks (..., m, n + pad, d); a padded row changes nothing."""
    if x is None:
        return None
    *lead, R, d = x.shape
    x = ops.reshape(x, (*lead, R // n, n, d))
    if not pad:
        return x
    more = ops.zeros_like(x, shape=(*x.shape[:-2], pad, d)) + fill
    return ops.concatenate([x, more], axis=-2)


def _chunk(whole: Chunk, v: Array, M: Array, place: int) -> tuple[Array, Array]:
    """One chunk: the memory after it, and the reads of its rows (DPLR-14)."""

    def of(x: Array) -> Array:
        return x[..., place, :, :]

    vectors, decay, scores = whole
    before = ops.swapaxes(M, -1, -2)
    y = of(vectors.q) @ before + of(scores.of_keys) @ v
    M = M * of(decay) + ops.swapaxes(v, -1, -2) @ of(vectors.k)
    if scores.inverse is not None:
        found = of(scores.inverse) @ (of(vectors.erase_read) @ before + of(scores.found) @ v)
        y = y - of(scores.of_erases) @ found
        M = M - ops.swapaxes(found, -1, -2) @ of(vectors.erase_write)
    return M, y
