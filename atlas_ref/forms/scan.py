"""Associative scan: linear recurrences, and the rules of a running reference, in logarithmic depth.

    y_t = a_t y_{t-1} + b_t            pairs combine as (a_2 a_1, a_2 b_1 + b_2)
    X_t = X_{t-1} A_t + B_t            pairs combine as (A_1 A_2, B_1 A_2 + B_2)

Without Newton-Schulz [M_t S_t] is an affine function of [M_{t-1} S_{t-1}], so the second form
computes Titans, Delta and Omega exactly, and two of the first compute Hebbian. Nothing is divided,
so a gate may be exactly 0. Specified in specs/scan.md.

No division, cost, special cases and backward: SCAN-4, SCAN-12 to SCAN-16.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from atlas_ref.backend import at_once
from atlas_ref.engine.associative_scan import affine_scan, scan
from atlas_ref.forms.recurrence import Memory, Recurrence
from atlas_ref.types import Array
from tape import ops

#: Bytes of the matrices that are scanned at once where the caller names no chunk: about a cache.
#: Above it a scan was slower from d = 16 on, below it the calls outweighed the work (measured, d =
#: 4 to 64, with and without gradient).
SCANNED_BYTES = 2**20

# -- the blocks, time first ------------------------------------------------------------------------


# -- the form --------------------------------------------------------------------------------------


def run(
    config: Any, sequence: Recurrence, memory: Memory, chunk: int | None = None
) -> tuple[Memory, Array]:
    """A rule of the running or the zero reference by associative scans (SCAN-9, SCAN-11, CHUNK-13).

    It has no Newton-Schulz.

        [M_t S_t] = [M_{t-1} S_{t-1}] A_t + B_t

    Args:
        config: the rule's configuration; its convention names the memory that is read.
        sequence: one packed sequence; its reference is running or zero.
        memory: start of the sequence.
        chunk: tokens that are scanned at once; it changes results by rounding only. None for the
            fastest measured.

    Returns:
        memory after the last token, y (..., T, d_out).

    Source: Atlas (2505.23735) Eq 11, Titans (2501.00663) section 3.2; SCAN-5 to SCAN-11.
    """
    sequence = sequence.whole()
    read = config.convention.read
    M, S, reference = memory.M, memory.S, memory.reference
    reads = []
    size = chunk or (
        tokens_at_once(M, M.shape[-2:])
        if sequence.reference == "zero"
        else _maps_at_once(sequence, M)
    )
    for first in range(0, sequence.length, size):
        part = tokens_of(sequence, first, min(first + size, sequence.length))
        memories, momenta = (_from_zero if part.reference == "zero" else _from_running)(part, M, S)
        if read == "chunk_start":
            for start, stop in segments(part.refresh, part.length):
                if part.refresh[start]:
                    reference = memories[..., start - 1, :, :] if start else M
                reads.append(read_one(reference, part.queries[..., start:stop, :]))
        elif read != "call_end":
            reads.append(
                read_each(memories if read == "after" else shifted(memories, M), part.queries)
            )
        M = memories[..., -1, :, :]
        S = None if momenta is None else momenta[..., -1, :, :]
    y = read_one(M, sequence.queries) if read == "call_end" else joined(reads)
    return Memory(M=M, S=S, reference=reference), y


def _from_zero(part: Recurrence, M: Array, S: Array) -> tuple[Array, Array]:
    """M_t and S_t where residuals are -v, by two scalar scans (SCAN-6).

    S_t = m S_{t-1} - a R_t and M_t = r M_{t-1} - b S_t
    """
    _, R = window_sums(part)
    momenta = (
        None
        if part.momentum is None
        else scan(column(part.momentum), -column(part.rate_in) * R, axis=-3, initial=S)
    )
    step = (
        column(part.rate_in * part.rate_out) * R
        if momenta is None
        else -column(part.rate_out) * momenta
    )
    return scan(column(part.retain), step, axis=-3, initial=M), momenta


def _from_running(part: Recurrence, M: Array, S: Array) -> tuple[Array, Array]:
    """M_t and S_t under the running reference, by an affine scan, per row if rows have gates.

    Source: SCAN-5, SCAN-7.
    """
    d, rows = M.shape[-1], _rows(part)
    A, B = affine_maps(part, rows)
    X = M if S is None else ops.concatenate([M, S], axis=-1)
    if rows is None:
        X = affine_scan(A, B, initial=X)
    else:
        X = affine_scan(A, B, initial=ops.expand_dims(X, -2))[..., 0, :]  # (..., d_out, T, n)
        X = ops.swapaxes(X, -2, -3)
    return X[..., :d], None if S is None else X[..., d:]


def affine_maps(part: Recurrence, rows: int | None = None) -> tuple[Array, Array]:
    """The step of every token as an affine map (SCAN-5 to SCAN-7).

        g_t = rho_t M_{t-1} Q_t - R_t,    S_t = m S_{t-1} + a g_t,    M_t = r M_{t-1} - b S_t
        A_t = [[r I - a b rho Q, a rho Q], [-b m I, m I]],    B_t = [a b R, -a R]

    with rho_t = r_t under decay before_error, else 1; without momentum the first block of each.

    Args:
        rows: d_out for one map per row of the memory, which per-dimension gates need.

    Returns:
        A (..., T, n, n), B (..., T, d_out, n), n = d_phi or with momentum 2 d_phi; with `rows`
        A (..., d_out, T, n, n), B (..., d_out, T, 1, n).
    """
    Q, R = window_sums(part)
    one = ops.tril(ops.triu(ops.ones_like(Q, shape=Q.shape[-2:])))
    if rows is not None:
        Q, R = ops.expand_dims(Q, -4), ops.expand_dims(ops.swapaxes(R, -2, -3), -2)

    def gate(value: Array) -> Array:
        if rows is None:
            return column(value)  # (..., T, 1, 1)
        every = ops.broadcast_to(value, (*value.shape[:-1], rows))
        return column(column(ops.swapaxes(every, -1, -2)))  # (..., d_out, T, 1, 1)

    r, a, b = gate(part.retain), gate(part.rate_in), gate(part.rate_out)
    seen = r * Q if part.before_error else Q
    kept, added = r * one - a * b * seen, a * b * R
    if part.momentum is None:
        return kept, added
    m = gate(part.momentum)
    from_M = ops.concatenate([kept, a * seen], axis=-1)
    from_S = ops.concatenate([-b * m * one, m * one], axis=-1)
    return ops.concatenate([from_M, from_S], axis=-2), ops.concatenate([added, -a * R], axis=-1)


def window_sums(part: Recurrence) -> tuple[Array, Array]:
    """Window sums Q_t (..., T, d_phi, d_phi) and R_t (..., T, d_out, d_phi) (SCAN-8).

    Q_t = sum_j w[t,j] phi phi^T and R_t = sum_j w[t,j] v phi^T
    """
    keys = windowed(part.keys, part)
    weighted = ops.expand_dims(part.weights, -1) * keys
    return ops.swapaxes(keys, -1, -2) @ weighted, ops.swapaxes(
        windowed(part.values, part), -1, -2
    ) @ weighted


def _rows(sequence: Recurrence) -> int | None:
    """Number of rows with gates of their own; None where one gate scales all rows."""
    gates = (sequence.retain, sequence.momentum, sequence.rate_in, sequence.rate_out)
    most = max(gate.shape[-1] for gate in gates if gate is not None)
    return most if most > 1 else None


def _maps_at_once(sequence: Recurrence, M: Array) -> int:
    n = M.shape[-1] if sequence.momentum is None else 2 * M.shape[-1]
    return tokens_at_once(M, (_rows(sequence) or 1, n, n))


# -- common to the scanning forms ------------------------------------------------------------------


def tokens_at_once(M: Array, each: tuple[int, ...]) -> int:
    """Number of tokens, at least 2, whose arrays of shape `each` fill SCANNED_BYTES.

    On a device there are more.
    """
    return max(
        2, at_once(M, SCANNED_BYTES) // (math.prod((*M.shape[:-2], *each)) * int(M.dtype.itemsize))
    )


def tokens_of(sequence: Recurrence, first: int, last: int) -> Recurrence:
    """Tokens first to last of a sequence, with the window tokens before them."""
    if (first, last) == (0, sequence.length):
        return sequence
    now, with_window = slice(first, last), slice(first, last + sequence.window - 1)
    per_token = ("queries", "retain", "momentum", "rate_in", "rate_out", "weights")
    cut = {
        name: value[..., now, :]
        for name in per_token
        if (value := getattr(sequence, name)) is not None
    }
    cut |= {name: getattr(sequence, name)[..., with_window, :] for name in ("keys", "values")}
    return sequence._replace(
        **cut, **{name: getattr(sequence, name)[now] for name in ("active", "position", "refresh")}
    )


def segments(refresh: Any, longest: int) -> Iterator[tuple[int, int]]:
    """First and last of segments of at most `longest` tokens without a refresh inside."""
    starts = np.union1d(0, np.nonzero(refresh)[0]).tolist()
    for start, stop in itertools.pairwise([*starts, len(refresh)]):
        for first in range(start, stop, longest):
            yield first, min(first + longest, stop)


def windowed(rows: Array, part: Recurrence) -> Array:
    """The rows of each token's window by lag, (..., h + T, d) -> (..., T, c, d)."""
    h, T = part.window - 1, part.length
    return ops.stack([rows[..., h - j : h - j + T, :] for j in range(h + 1)], axis=-2)


def column(gate: Array) -> Array:
    """A gate (..., T, 1 or d_out) as a factor of rows of matrices (..., T, d_out, d_phi)."""
    return ops.expand_dims(gate, -1)


def shifted(memories: Array, M: Array) -> Array:
    """M_{t-1} for every t, (..., T, d_out, d_phi)."""
    return ops.concatenate([ops.expand_dims(M, -3), memories[..., :-1, :, :]], axis=-3)


def read_each(memories: Array, queries: Array) -> Array:
    """y_t = M_t phi(q_t)."""
    return (memories @ ops.expand_dims(queries, -1))[..., 0]


def read_one(M: Array, queries: Array) -> Array:
    """y_t = M phi(q_t): every token reads the same memory."""
    return queries @ ops.swapaxes(M, -1, -2)


def joined(reads: list[Array]) -> Array:
    """The reads of successive segments as one array."""
    return reads[0] if len(reads) == 1 else ops.concatenate(reads, axis=-2)
