"""Associative scan: linear recurrences, and the rules of a running reference, in logarithmic depth.

    y_t = a_t y_{t-1} + b_t            pairs combine as (a_2 a_1, a_2 b_1 + b_2)
    X_t = X_{t-1} A_t + B_t            pairs combine as (A_1 A_2, B_1 A_2 + B_2)

Without Newton-Schulz [M_t S_t] is an affine function of [M_{t-1} S_{t-1}], so the second form computes Titans, Delta
and Omega exactly, and two of the first compute Hebbian. Nothing is divided, so a gate may be exactly 0.
Specified in specs/scan.md.

No division, cost, special cases and backward: SCAN-4, SCAN-12 to SCAN-16.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.backend import at_once
from atlas_ref.forms.recurrence import Memory, Recurrence
from atlas_ref.types import Array
from tape import opaque, ops
from tape.shapes import unbroadcast

#: Bytes of the matrices that are scanned at once where the caller names no chunk: about a cache. Above it a scan was slower
#: from d = 16 on, below it the calls outweighed the work (measured, d = 4 to 64, with and without gradient).
SCANNED_BYTES = 2**20


class Action(NamedTuple):
    """The action of a step's coefficient on a value, and the coefficient of two steps together.

    Attributes:
        act: the ufunc (value, coefficient) -> value; of an earlier and a later coefficient it makes that of both.
        adjoint: coefficients -> those of the transposed steps.
    """

    act: Any
    adjoint: Callable[[Array], Array]


SCALAR = Action(np.multiply, lambda a: a)
AFFINE = Action(np.matmul, lambda A: A.swapaxes(-1, -2))


def scan(a: Array, b: Array, *, axis: int = 0, initial: Array = None) -> Array:
    """Every value of a scalar linear recurrence, inclusive, in O(log T) steps (SCAN-1, SCAN-3).

        y_t = a_t y_{t-1} + b_t,    y_0 = initial

    Args:
        a (..., T, ...): coefficients, any numbers; of the shape of b, or broadcastable to it, with all T along `axis`.
        b (..., T, ...): the term that each step adds.
        axis: that of time, of b (a has it at the same place from the end).
        initial: y_0, of the shape of b without `axis`, or broadcastable to it; None for zero.

    Returns:
        y, of the shape of b.

    Raises:
        ValueError: no step, or shapes that do not fit.

    Source: Atlas (2505.23735) Eq 34; SCAN-1, gradient SCAN-15.
    """
    back = axis - b.ndim if axis >= 0 else axis
    rest = tuple(n for place, n in enumerate(b.shape) if place != b.ndim + back)
    if not -b.ndim <= back < 0 or b.shape[back] == 0 or not _fits(a.shape, b.shape) or a.shape[back:][:1] != b.shape[back:][:1]:
        raise ValueError(f"scan: a {a.shape} and b {b.shape} do not fit along axis {axis}; both need the same steps there, at least one")
    if initial is None:
        initial = ops.zeros_like(b, shape=rest)
    elif not _fits(initial.shape, rest):
        raise ValueError(f"scan: initial {initial.shape}, expected {rest}")
    y = _scalar(ops.moveaxis(_aligned(a, b.ndim), back, 0), ops.moveaxis(b, back, 0), ops.broadcast_to(initial, rest))
    return ops.moveaxis(y, 0, back)


def affine_scan(A: Array, B: Array, *, initial: Array = None) -> Array:
    """Every value of an affine recurrence of matrices, inclusive, in O(log T) steps (SCAN-2, SCAN-3).

        X_t = X_{t-1} A_t + B_t,    X_0 = initial

    Args:
        A (..., T, n, n): maps that act from the right; leading axes of B, or broadcastable to them.
        B (..., T, rows, n): the term that each step adds.
        initial (..., rows, n): X_0; None for zero.

    Returns:
        X (..., T, rows, n).

    Raises:
        ValueError: no step, or shapes that do not fit.

    Source: Atlas (2505.23735) Eq 11, SCAN-2, gradient SCAN-15.
    """
    steps, n = B.shape[-3:-2], B.shape[-1:]
    if B.ndim < 3 or A.shape[-3:] != (*steps, *n, *n) or steps == (0,) or not _fits(A.shape[:-3], B.shape[:-3]):
        raise ValueError(f"affine_scan: A {A.shape} and B {B.shape}, expected (..., T, n, n) and (..., T, rows, n) with T at least 1")
    first = (*B.shape[:-3], *B.shape[-2:])
    if initial is None:
        initial = ops.zeros_like(B, shape=first)
    elif not _fits(initial.shape, first):
        raise ValueError(f"affine_scan: initial {initial.shape}, expected {first}")
    X = _affine(ops.moveaxis(_aligned(A, B.ndim), -3, 0), ops.moveaxis(B, -3, 0), ops.broadcast_to(initial, first))
    return ops.moveaxis(X, 0, -3)


def _fits(shape: tuple[int, ...], into: tuple[int, ...]) -> bool:
    """Whether an array of this shape broadcasts to `into`."""
    return len(shape) <= len(into) and all(n in (1, m) for n, m in zip(reversed(shape), reversed(into), strict=False))


def _aligned(a: Array, ndim: int) -> Array:
    return a if a.ndim == ndim else ops.reshape(a, (*(1,) * (ndim - a.ndim), *a.shape))


# -- the blocks, time first ----------------------------------------------------------------------------


def _values(kind: Action, a: Array, b: Array, initial: Array) -> Array:
    """y_t = y_{t-1} a_t + b_t for every t, from y_0 = initial."""
    y = np.empty_like(b, dtype=np.result_type(a, b, initial))
    _fill(kind, a, b, initial, y)
    return y


def _fill(kind: Action, a: Array, b: Array, initial: Array, y: Array) -> None:
    """Every second value by the scan of the pairs between them, then the others in one step (SCAN-3).

    The first step takes the initial value in, so no product of coefficients reaches back to the start.
    """
    _step(kind, initial, a[0], b[0], y[0, ...])
    if len(b) > 2:
        _fill(kind, *_pairs(kind, a[1:], b[1:]), y[0], y[2::2])
    _step(kind, y[:-1:2], a[1::2], b[1::2], y[1::2])


def _step(kind: Action, before: Array, a: Array, b: Array, out: Array) -> None:
    kind.act(before, a, out=out)
    out += b


def _pairs(kind: Action, a: Array, b: Array) -> tuple[Array, Array]:
    """(a_1 a_2, b_1 a_2 + b_2) of steps by twos, without a last step that has no partner."""
    end = len(b) - len(b) % 2
    first, then = slice(0, end, 2), slice(1, end, 2)
    both = kind.act(b[first], a[then])
    both += b[then]
    return kind.act(a[first], a[then]), both


def _adjoint_values(kind: Action, a: Array, g: Array) -> Array:
    """lambda_t = g_t + a_{t+1}^T lambda_{t+1}: the same scan from the end (SCAN-15)."""
    found = np.empty_like(g, dtype=np.result_type(a, g))
    found[-1] = g[-1]
    if len(g) > 1:
        found[-2::-1] = _values(kind, kind.adjoint(a[:0:-1]), g[-2::-1], g[-1])
    return found


def _before(y: Array, initial: Array) -> Array:
    """y_{t-1} for every t."""
    return np.concatenate([initial[None], y[:-1]])


def _plain_scalar(a: Array, b: Array, initial: Array) -> Array:
    y = [initial]
    for t in range(b.shape[0]):
        y.append(a[t] * y[-1] + b[t])
    return ops.stack(y[1:])


def _scalar_forward(a: Array, b: Array, initial: Array) -> tuple[Array, Any]:
    y = _values(SCALAR, a, b, initial)
    return y, (a, initial, y)


def _scalar_backward(kept: Any, g: Array) -> tuple[Array, Array, Array]:
    a, initial, y = kept
    found = _adjoint_values(SCALAR, a, g)
    return unbroadcast(found * _before(y, initial), a.shape), found, a[0] * found[0]


def _plain_affine(A: Array, B: Array, initial: Array) -> Array:
    X = [initial]
    for t in range(B.shape[0]):
        X.append(X[-1] @ A[t] + B[t])
    return ops.stack(X[1:])


def _affine_forward(A: Array, B: Array, initial: Array) -> tuple[Array, Any]:
    X = _values(AFFINE, A, B, initial)
    return X, (A, initial, X)


def _affine_backward(kept: Any, g: Array) -> tuple[Array, Array, Array]:
    A, initial, X = kept
    found = _adjoint_values(AFFINE, A, g)
    dA = _before(X, initial).swapaxes(-1, -2) @ found
    return unbroadcast(dA, A.shape), found, found[0] @ A[0].swapaxes(-1, -2)


_scalar = opaque(_plain_scalar, _scalar_forward, _scalar_backward)
_affine = opaque(_plain_affine, _affine_forward, _affine_backward)


# -- the form ------------------------------------------------------------------------------------------


def run(config: Any, sequence: Recurrence, memory: Memory, chunk: int | None = None) -> tuple[Memory, Array]:
    """A rule of the running or the zero reference by associative scans (SCAN-9, SCAN-11, CHUNK-13).

    It has no Newton-Schulz.

        [M_t S_t] = [M_{t-1} S_{t-1}] A_t + B_t

    Args:
        config: the rule's configuration; its convention names the memory that is read.
        sequence: one packed sequence; its reference is running or zero.
        memory: start of the sequence.
        chunk: tokens that are scanned at once; it changes results by rounding only. None for the fastest measured.

    Returns:
        memory after the last token, y (..., T, d_out).

    Source: Atlas (2505.23735) Eq 11, Titans (2501.00663) section 3.2; SCAN-5 to SCAN-11.
    """
    sequence = sequence.whole()
    read = config.convention.read
    M, S, reference = memory.M, memory.S, memory.reference
    reads = []
    size = chunk or (tokens_at_once(M, M.shape[-2:]) if sequence.reference == "zero" else _maps_at_once(sequence, M))
    for first in range(0, sequence.length, size):
        part = tokens_of(sequence, first, min(first + size, sequence.length))
        memories, momenta = (_from_zero if part.reference == "zero" else _from_running)(part, M, S)
        if read == "chunk_start":
            for start, stop in stretches(part.refresh, part.length):
                if part.refresh[start]:
                    reference = memories[..., start - 1, :, :] if start else M
                reads.append(read_one(reference, part.queries[..., start:stop, :]))
        elif read != "call_end":
            reads.append(read_each(memories if read == "after" else shifted(memories, M), part.queries))
        M = memories[..., -1, :, :]
        S = None if momenta is None else momenta[..., -1, :, :]
    y = read_one(M, sequence.queries) if read == "call_end" else joined(reads)
    return Memory(M=M, S=S, reference=reference), y


def _from_zero(part: Recurrence, M: Array, S: Array) -> tuple[Array, Array]:
    """M_t and S_t where residuals are -v, by two scalar scans (SCAN-6).

    S_t = m S_{t-1} - a R_t and M_t = r M_{t-1} - b S_t
    """
    _, R = window_sums(part)
    momenta = None if part.momentum is None else scan(column(part.momentum), -column(part.rate_in) * R, axis=-3, initial=S)
    step = column(part.rate_in * part.rate_out) * R if momenta is None else -column(part.rate_out) * momenta
    return scan(column(part.retain), step, axis=-3, initial=M), momenta


def _from_running(part: Recurrence, M: Array, S: Array) -> tuple[Array, Array]:
    """M_t and S_t under the running reference, by an affine scan, per row if rows have gates (SCAN-5, SCAN-7)."""
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
    return ops.swapaxes(keys, -1, -2) @ weighted, ops.swapaxes(windowed(part.values, part), -1, -2) @ weighted


def _rows(sequence: Recurrence) -> int | None:
    """Number of rows with gates of their own; None where one gate scales all rows."""
    gates = (sequence.retain, sequence.momentum, sequence.rate_in, sequence.rate_out)
    most = max(gate.shape[-1] for gate in gates if gate is not None)
    return most if most > 1 else None


def _maps_at_once(sequence: Recurrence, M: Array) -> int:
    n = M.shape[-1] if sequence.momentum is None else 2 * M.shape[-1]
    return tokens_at_once(M, (_rows(sequence) or 1, n, n))


# -- common to the scanning forms ----------------------------------------------------------------------


def tokens_at_once(M: Array, each: tuple[int, ...]) -> int:
    """Number of tokens, at least 2, whose arrays of shape `each` fill SCANNED_BYTES (on a device more)."""
    return max(2, at_once(M, SCANNED_BYTES) // (math.prod((*M.shape[:-2], *each)) * int(M.dtype.itemsize)))


def tokens_of(sequence: Recurrence, first: int, last: int) -> Recurrence:
    """Tokens first to last of a sequence, with the window tokens before them."""
    if (first, last) == (0, sequence.length):
        return sequence
    now, with_window = slice(first, last), slice(first, last + sequence.window - 1)
    per_token = ("queries", "retain", "momentum", "rate_in", "rate_out", "weights")
    cut = {name: value[..., now, :] for name in per_token if (value := getattr(sequence, name)) is not None}
    cut |= {name: getattr(sequence, name)[..., with_window, :] for name in ("keys", "values")}
    return sequence._replace(**cut, **{name: getattr(sequence, name)[now] for name in ("active", "position", "refresh")})


def stretches(refresh: Any, longest: int) -> Iterator[tuple[int, int]]:
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
