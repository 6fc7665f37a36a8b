"""The inter-chunk loop over all chunks of one memory, compiled; plain twin:
`atlas_ref.forms.chunked_plain`.

The same as `atlas_ref.engine.masked.forward` up to rounding. Every chunk goes from its coefficients
to its end before the next one begins: nothing of a chunk but its state and its reads leaves the
cache. Specified in specs/chunkwise.md (CHUNK-4, CHUNK-6 to CHUNK-8).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from atlas_ref.backend.compiled.lanes import compiled, on_disk
from atlas_ref.types import Array

RETAIN, MOMENTUM, RATE_OUT = range(3)  # rows of the gates of a memory
BASES = 2  # columns of the coefficient rows before those of the keys: M_0 and S_0
# rows of a product, and terms of its sums, that are taken at once: as many as the registers hold
STEP = 4


def compiled_for(kind: np.dtype[Any]) -> Callable[..., None]:
    """`inter_chunk_loop` compiled for arrays of a dtype."""
    number, flag, count = numba.from_dtype(kind), numba.types.boolean, numba.types.intp
    read_only, writable = (
        numba.types.Array(number, 2, "C", readonly=readonly) for readonly in (True, False)
    )
    refresh = numba.types.Array(flag, 1, "C", readonly=True)
    return on_disk(
        inter_chunk_loop,
        [*[read_only] * 5, refresh, *[writable] * 4, count, count, *[flag] * 3, writable],
        allocates=True,
    )


def inter_chunk_loop(
    keys: Array,
    values: Array,
    queries: Array,
    gates: Array,
    enters: Array,
    refresh: Array,
    M: Array,
    S: Array,
    reference: Array,
    arrivals: Array,
    chunk: int,
    older: int,
    has_momentum: bool,
    carry: bool,
    after: bool,
    y: Array,
) -> None:
    """Run a memory over whole chunks (CHUNK-4, CHUNK-6 to CHUNK-8).

        F = V - Phi R^T,      Y = c Psi M^T + f Psi S^T + A F
        M^T <- c_C M^T + f_C S^T + Phi^T diag(D_C) F,      S^T <- n_C S^T - Phi^T diag(X_C) F

    Args:
        keys (h + n, d), values (h + n, o), queries (n, d): the first two behind the h = c - 1
        tokens of their history.
        gates (3, n): retain, momentum, rate_out.
        enters (n, c): window weights, oldest token first, times rate_in.
        refresh (chunks): where the reference becomes the memory before the chunk.
        M, S, reference (d, o): transposed; overwritten by those at the end. S is not read without
            momentum.
        arrivals (h + n, o): under carry, F of each token at its arrival; the first h are inputs.
        Else not read.
        older: tokens of the history that belong to an older span than the first one here; 0 unless
            carry.
        carry: whether tokens of older spans keep the residual of their arrival.
        after: whether reads see the write of their own token.
        y (n, o): the reads.
    """
    d, o, c, kind = keys.shape[1], values.shape[1], enters.shape[1], keys.dtype
    columns = chunk + c - 1
    rows, momenta = np.zeros((chunk + 1, BASES + columns), kind), np.zeros(BASES + columns, kind)
    scores, masked = np.zeros((chunk, columns), kind), np.zeros((chunk, columns), kind)
    phi_T, F, room = (
        np.zeros((d, columns), kind),
        np.zeros((columns, o), kind),
        np.zeros((columns, o), kind),
    )
    for k in range(len(refresh)):
        first, last = k * chunk, (k + 1) * chunk
        phi, psi, reads, now = (
            keys[first : last + c - 1],
            queries[first:last],
            y[first:last],
            gates[:, first:last],
        )
        _coefficients(now, enters[first:last], rows, momenta)
        _transpose(phi, phi_T)
        if refresh[k]:
            reference[:] = M
            if carry and k > 0:
                older = first + c - 1
        kept = min(max(older - first, 0), c - 1)
        F[:kept] = arrivals[first : first + kept]
        _product(phi[kept:], reference, F[kept:])
        _subtract_from(values[first + kept : last + c - 1], F[kept:])
        if carry:
            arrivals[first + c - 1 : last + c - 1] = F[c - 1 :]
        # Y = c Psi M^T + f Psi S^T + A F
        reading = rows[1:] if after else rows[:-1]
        _product(psi, phi_T, scores)
        _mask(reading, scores, c, masked)
        _ask(psi, reading, M, S, has_momentum, room, reads)
        _add_lower_product(masked, F, c, reads)
        _pass_on(rows[chunk], momenta, phi_T, F, has_momentum, room, M, S)


# -- a chunk ---------------------------------------------------------------------------------------


@compiled
def _coefficients(gates: Array, enters: Array, rows: Array, momenta: Array) -> None:
    """Coefficient rows D_0 .. D_C of a chunk, and X_C; columns that a row has not reached stay
    0.
    """
    c = enters.shape[1]
    rows[0, 0], momenta[1] = 1.0, 1.0
    for j in range(BASES, BASES + c - 1):
        momenta[j] = 0.0
    for t in range(len(rows) - 1):
        newest = BASES + t + c - 1
        momenta[newest] = 0.0
        for j in range(newest):
            momenta[j] *= gates[MOMENTUM, t]
        for lag in range(c):
            momenta[BASES + t + lag] += enters[t, lag]
        for j in range(newest + 1):
            rows[t + 1, j] = gates[RETAIN, t] * rows[t, j] + gates[RATE_OUT, t] * momenta[j]


@compiled
def _mask(coefficients: Array, scores: Array, c: int, out: Array) -> None:
    """Scores times the coefficients of the keys, in the columns that each token has reached."""
    for t in range(scores.shape[0]):
        for j in range(t + c):
            out[t, j] = scores[t, j] * coefficients[t, BASES + j]


@compiled
def _ask(
    asks: Array,
    coefficients: Array,
    M: Array,
    S: Array,
    has_momentum: bool,
    room: Array,
    out: Array,
) -> None:
    """out = c (asks M^T) + f (asks S^T), where f is minus the coefficient of S_0."""
    _product(asks, M, out)
    for t in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[t, j] *= coefficients[t, 0]
    if has_momentum:
        found = room[: out.shape[0]]
        _product(asks, S, found)
        for t in range(out.shape[0]):
            for j in range(out.shape[1]):
                out[t, j] -= coefficients[t, 1] * found[t, j]


@compiled
def _subtract_from(values: Array, out: Array) -> None:
    """out = values - out."""
    for t in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[t, j] = values[t, j] - out[t, j]


@compiled
def _pass_on(
    last: Array,
    momenta: Array,
    phi_T: Array,
    F: Array,
    has_momentum: bool,
    room: Array,
    M: Array,
    S: Array,
) -> None:
    """M <- c M + f S + Phi^T diag(D_C) F,  S <- n S - Phi^T diag(X_C) F."""
    for i in range(M.shape[0]):
        for j in range(M.shape[1]):
            M[i, j] *= last[0]
            if has_momentum:
                M[i, j] -= last[1] * S[i, j]
                S[i, j] *= momenta[1]
    for t in range(F.shape[0]):
        for j in range(F.shape[1]):
            room[t, j] = last[BASES + t] * F[t, j]
    _add_product(phi_T, room, M)
    if has_momentum:
        for t in range(F.shape[0]):
            for j in range(F.shape[1]):
                room[t, j] = -momenta[BASES + t] * F[t, j]
        _add_product(phi_T, room, S)


# -- products of matrices that fit in the cache ----------------------------------------------------


@compiled
def _transpose(x: Array, out: Array) -> None:
    """out = x^T."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[j, i] = x[i, j]


@compiled
def _product(a: Array, b: Array, out: Array) -> None:
    """out = a b."""
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = 0.0
    _add_product(a, b, out)


@compiled
def _add_lower_product(a: Array, b: Array, c: int, out: Array) -> None:
    """out += a b, where row t of a is 0 behind its first t + c entries."""
    for i in range(0, a.shape[0], STEP):
        last = min(i + STEP, a.shape[0])
        _add_product(a[i:last, : last + c - 1], b[: last + c - 1], out[i:last])


@compiled
def _add_product(a: Array, b: Array, out: Array) -> None:
    """out += a b, four rows and four terms at once."""
    m, k = a.shape
    rows, terms = m - m % STEP, k - k % STEP
    for i in range(0, rows, STEP):
        for t in range(0, terms, STEP):
            a00, a01, a02, a03 = a[i, t], a[i, t + 1], a[i, t + 2], a[i, t + 3]
            a10, a11, a12, a13 = a[i + 1, t], a[i + 1, t + 1], a[i + 1, t + 2], a[i + 1, t + 3]
            a20, a21, a22, a23 = a[i + 2, t], a[i + 2, t + 1], a[i + 2, t + 2], a[i + 2, t + 3]
            a30, a31, a32, a33 = a[i + 3, t], a[i + 3, t + 1], a[i + 3, t + 2], a[i + 3, t + 3]
            for j in range(b.shape[1]):
                b0, b1, b2, b3 = b[t, j], b[t + 1, j], b[t + 2, j], b[t + 3, j]
                out[i, j] = out[i, j] + a00 * b0 + a01 * b1 + a02 * b2 + a03 * b3
                out[i + 1, j] = out[i + 1, j] + a10 * b0 + a11 * b1 + a12 * b2 + a13 * b3
                out[i + 2, j] = out[i + 2, j] + a20 * b0 + a21 * b1 + a22 * b2 + a23 * b3
                out[i + 3, j] = out[i + 3, j] + a30 * b0 + a31 * b1 + a32 * b2 + a33 * b3
        _add_terms(a, b, out, i, i + STEP, terms)
    _add_terms(a, b, out, rows, m, 0)


@compiled
def _add_terms(a: Array, b: Array, out: Array, first: int, last: int, term: int) -> None:
    """The remaining terms, from `term` on, of the rows from first to last."""
    for i in range(first, last):
        for t in range(term, a.shape[1]):
            for j in range(b.shape[1]):
                out[i, j] += a[i, t] * b[t, j]
