"""The exact form over all chunks of one memory, compiled: nothing of a chunk but its state and its reads leaves the cache.

Plain twin: `atlas_ref.parallel.stacked_solved`. Here the system is solved, not inverted, and every chunk goes from its
coefficients to its end before the next one begins. Specified in specs/exact.md (EXACT-1, EXACT-2, EXACT-6).

All of it is one file, since Numba compiles again what it kept on disk when this file has changed, and asks of no other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from atlas_ref.compiled.compiler import compiled, compiled_for
from atlas_ref.types import Array

RETAIN, MOMENTUM, RATE_IN, RATE_OUT = range(4)  # rows of the gates of a memory
BASES = 2  # columns of the coefficient rows before those of the tokens: M_0 and S_0
STEP = 4  # rows of a product, and terms of its sums, that are taken at once: as many as the registers hold


@functools.cache
def walk_for(kind: np.dtype[Any]) -> Callable[..., None]:
    """`walk` compiled for arrays of a dtype."""
    number = numba.from_dtype(kind)
    given, made = (numba.types.Array(number, 2, "C", readonly=readonly) for readonly in (True, False))
    flag = numba.types.boolean
    return compiled_for(walk, numba.void(given, given, given, given, made, made, numba.types.intp, flag, flag, flag, made))


def walk(
    keys: Array,
    values: Array,
    queries: Array,
    gates: Array,
    M: Array,
    S: Array,
    chunk: int,
    has_momentum: bool,
    before_error: bool,
    after: bool,
    y: Array,
) -> None:
    """Run a memory over whole chunks (EXACT-1, EXACT-2, EXACT-6).

    Args:
        keys (n, d), values (n, o), queries (n, d).
        gates (4, n): retain, momentum, rate_in times the weight, rate_out.
        M, S (d, o): the state, transposed; overwritten by that at the end. S is not looked at without momentum.
        before_error: whether residuals see the memory after its decay.
        after: whether reads see the write of their own token.
        y (n, o): the reads.
    """
    d, o, kind = keys.shape[1], values.shape[1], keys.dtype
    rows, momenta = np.zeros((chunk + 1, BASES + chunk), kind), np.zeros(BASES + chunk, kind)
    before, scores, masked = np.zeros((chunk, BASES + chunk), kind), np.zeros((chunk, chunk), kind), np.zeros((chunk, chunk), kind)
    phi_T, F, room = np.zeros((d, chunk), kind), np.zeros((chunk, o), kind), np.zeros((chunk, o), kind)
    for first in range(0, keys.shape[0], chunk):
        last = first + chunk
        phi, psi, reads, now = keys[first:last], queries[first:last], y[first:last], gates[:, first:last]
        _coefficients(now, rows, momenta)
        _transpose(phi, phi_T)
        # (I + N) F = V - c' Phi M^T - f' Phi S^T
        _before(now, rows, before_error, before)
        _product(phi, phi_T, scores)
        _mask(before, scores, True, masked)
        _ask(phi, before, M, S, has_momentum, room, F)
        _subtract_from(values[first:last], F)
        _solve(masked, F)
        # Y = c Psi M^T + f Psi S^T + A F
        reading = rows[1:] if after else rows[:-1]
        _product(psi, phi_T, scores)
        _mask(reading, scores, False, masked)
        _ask(psi, reading, M, S, has_momentum, room, reads)
        _add_lower_product(masked, F, reads)
        _pass_on(rows[chunk], momenta, phi_T, F, has_momentum, room, M, S)


# -- a chunk --------------------------------------------------------------------------------------------


@compiled
def _coefficients(gates: Array, rows: Array, momenta: Array) -> None:
    """Coefficient rows D_0 .. D_C of a chunk, and X_C. What a row has not reached is 0 from the start and stays so."""
    rows[0, 0], momenta[1] = 1.0, 1.0
    for t in range(len(rows) - 1):
        for j in range(BASES + t):
            momenta[j] *= gates[MOMENTUM, t]
        momenta[BASES + t] = gates[RATE_IN, t]
        for j in range(BASES + t + 1):
            rows[t + 1, j] = gates[RETAIN, t] * rows[t, j] + gates[RATE_OUT, t] * momenta[j]


@compiled
def _before(gates: Array, rows: Array, before_error: bool, out: Array) -> None:
    """The coefficients of the memory that each residual is taken under."""
    for t in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[t, j] = gates[RETAIN, t] * rows[t, j] if before_error else rows[t, j]


@compiled
def _mask(coefficients: Array, scores: Array, negative: bool, out: Array) -> None:
    """Scores times the coefficients of the tokens, or minus that, up to the diagonal. What is above it is 0 and stays so."""
    for t in range(scores.shape[0]):
        for j in range(t + 1):
            weight = coefficients[t, BASES + j]
            out[t, j] = scores[t, j] * (-weight if negative else weight)


@compiled
def _ask(asks: Array, coefficients: Array, M: Array, S: Array, has_momentum: bool, room: Array, out: Array) -> None:
    """out = c (asks M^T) + f (asks S^T), where f is minus the coefficient of S_0."""
    _product(asks, M, out)
    for t in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[t, j] *= coefficients[t, 0]
    if has_momentum:
        _product(asks, S, room)
        for t in range(out.shape[0]):
            for j in range(out.shape[1]):
                out[t, j] -= coefficients[t, 1] * room[t, j]


@compiled
def _subtract_from(values: Array, out: Array) -> None:
    """out = values - out."""
    for t in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[t, j] = values[t, j] - out[t, j]


@compiled
def _solve(minus_strict: Array, x: Array) -> None:
    """x <- (I + N)^{-1} x by forward substitution, from -N, of which only what is below the diagonal is read."""
    for i in range(0, x.shape[0], STEP):
        last = min(i + STEP, x.shape[0])
        _add_product(minus_strict[i:last, :i], x[:i], x[i:last])
        for row in range(i + 1, last):
            for t in range(i, row):
                for j in range(x.shape[1]):
                    x[row, j] += minus_strict[row, t] * x[t, j]


@compiled
def _pass_on(last: Array, momenta: Array, phi_T: Array, F: Array, has_momentum: bool, room: Array, M: Array, S: Array) -> None:
    """The state after a chunk: M <- c M + f S + Phi^T diag(D_C) F,  S <- n S - Phi^T diag(X_C) F."""
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


# -- products of matrices that fit in the cache -----------------------------------------------------------


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
def _add_lower_product(a: Array, b: Array, out: Array) -> None:
    """out += a b for a lower triangular a with zeros above its diagonal."""
    for i in range(0, a.shape[0], STEP):
        last = min(i + STEP, a.shape[0])
        _add_product(a[i:last, :last], b[:last], out[i:last])


@compiled
def _add_product(a: Array, b: Array, out: Array) -> None:
    """out += a b, four rows and four terms at once: a row of b is read once for four rows of a."""
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
    """What is left of the rows from first to last: the terms from `term` on."""
    for i in range(first, last):
        for t in range(term, a.shape[1]):
            for j in range(b.shape[1]):
                out[i, j] += a[i, t] * b[t, j]
