"""The chunkwise form with Newton-Schulz: momenta of a block of tokens, orthogonalised together.

    g_t = sum_j weights[t,j] e[t,t-j] phi_{t-j}^T,    S_t = momentum_t S_{t-1} + rate_in_t g_t      no memory in it
    U_t = NewtonSchulz(S_t)                           one batch of all heads and tokens of a block
    M_t = retain_t M_{t-1} - rate_out_t U_t

The masked form has no Newton-Schulz, so each token has matrices of its own. A block bounds their
number at a time, and is recomputed for backward. Specified in specs/chunkwise.md (CHUNK-15,
CHUNK-18).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from atlas_ref.backend import at_once, on_host
from atlas_ref.backend.threads import processors, slices
from atlas_ref.engine.recompute import WHOLE, recomputed
from atlas_ref.forms.chunked import READS, apart, joined
from atlas_ref.forms.chunks import alone, grouped
from atlas_ref.forms.recurrence import Memory, Recurrence
from atlas_ref.parts.newton_schulz import newton_schulz
from atlas_ref.types import Array
from tape import ops

BLOCK_NUMBERS = 2**20  # numbers of the momenta of a block
# multiply-adds of one product for all tokens of a block, below which a second thread does not pay
PARTITION_WORK = 2**23


def run(
    config: Any, sequence: Recurrence, memory: Memory, chunk: int | None
) -> tuple[Memory, Array]:
    """The rule with Newton-Schulz under a frozen or zero reference over one packed sequence
    (CHUNK-18).

    Args:
        chunk: tokens of a block; None for as many as hold 2^20 numbers.

    Returns:
        memory after the last token, y (..., T, d_out).
    """
    sequence = sequence.whole()
    read, h = READS[config.convention.read], sequence.window - 1
    keeps = sequence.reference == "frozen" or read == "reference"
    carries = memory.residuals is not None and sequence.reference == "frozen"
    flat = joined(sequence, memory, reference=keeps, residuals=carries)
    M, S, reference, residuals = flat.M, flat.S, flat.reference, flat.residuals
    momenta = (
        None
        if memory.momenta is None
        else ops.reshape(memory.momenta, (M.shape[0], *memory.momenta.shape[-3:]))
    )
    reads = []
    for part in grouped(
        sequence.refresh, chunk or max(1, at_once(M, BLOCK_NUMBERS) // max(1, _numbers(M))), alone
    ):
        reference = M if keeps and part.refresh[0] else reference
        own, seen = slice(part.first, part.last), slice(part.first, part.last + h)
        names = ("queries", "retain", "momentum", "rate_in", "rate_out", "weights")
        tokens = [getattr(flat, name)[:, own] for name in names]
        plain = _block(config, sequence, read, sequence.position[own])
        block = recomputed(plain, _partition(M, part.last - part.first))
        results = list(
            block(
                flat.keys[:, seen],
                flat.values[:, seen],
                *tokens,
                M,
                S,
                reference,
                residuals,
                momenta,
            )
        )
        y, M, S = results[:3]
        reads.append(y)
        kept = residuals, momenta = (
            results[3] if carries else None,
            results[-1] if momenta is not None else None,
        )
        residuals, momenta = _newest(residuals, h), _newest(momenta, h)
    y = (
        ops.matmul(flat.queries, ops.transpose(M))
        if read == "none"
        else ops.concatenate(reads, axis=1)
    )
    return apart(memory, Memory(M, S, reference, *kept), y)


def _numbers(M: Array) -> int:
    return math.prod(M.shape)


def _partition(M: Array, tokens: int) -> Sequence[slice]:
    """Memories of each thread, of equal number; all in one part for little work."""
    B, threads = len(M), processors()
    work = _numbers(M) * tokens * min(M.shape[-2:])
    return (
        slices(B, threads) if on_host(M) and B % threads == 0 and work >= PARTITION_WORK else WHOLE
    )


def _newest(rows: Array, count: int) -> Array:
    return None if rows is None else rows[:, rows.shape[1] - count :]


def _block(config: Any, sequence: Recurrence, read: str, position: Any) -> Any:
    """One block as a function: its arrays -> y, M, S, then residuals or momenta for the next."""
    convention = config.convention
    settings = convention.newton_schulz_settings

    def plain(
        keys: Array,
        values: Array,
        queries: Array,
        retain: Array,
        momentum: Array,
        rate_in: Array,
        rate_out: Array,
        weights: Array,
        M: Array,
        S: Array,
        reference: Array,
        residuals: Array,
        momenta: Array,
    ) -> tuple[Array, ...]:
        window_arrays: tuple[Array, ...] = ()
        if momenta is None:
            gradients, arrived = _gradients(
                sequence, keys, values, retain, weights, reference, residuals, position
            )
            window_arrays = () if arrived is None else (arrived,)
        else:
            gradients = sequence.scale * _single(sequence, keys, values, retain, reference)
        own = _running(S, momentum, rate_in, gradients)
        S = own[-1]
        stacked = ops.stack(own, axis=1)  # (B, n, o, d)
        if momenta is not None:
            window_arrays = (ops.concatenate([momenta, stacked], axis=1),)
            stacked = _averaged(window_arrays[0], weights)
        if convention.argument == "nesterov":
            stacked = gradients + ops.expand_dims(momentum, -1) * stacked
        updates = newton_schulz(stacked, settings)
        y, M = _reads(M, retain, rate_out, updates, queries, read, reference)
        return (y, M, S, *window_arrays)

    return plain


def _windows(rows: Array, c: int) -> Array:
    """Rows (B, h + n, x) as the window of each token (B, n, c, x), oldest first."""
    n = rows.shape[1] - c + 1
    return ops.index(rows, (slice(None), np.arange(n)[:, None] + np.arange(c)))


def _predicted(sequence: Recurrence, keys: Array, reference: Array) -> Array:
    return None if sequence.reference == "zero" else ops.matmul(keys, ops.transpose(reference))


def _gradients(
    sequence: Recurrence,
    keys: Array,
    values: Array,
    retain: Array,
    weights: Array,
    reference: Array,
    residuals: Array,
    position: Any,
) -> tuple[Array, Array]:
    """g_t (B, n, o, d) of every token, and under carry residuals of window and block at arrival."""
    c, h = sequence.window, sequence.window - 1
    predicted = _predicted(sequence, keys, reference)
    error = -values if predicted is None else predicted - values
    seen, arrived = _windows(error, c), error[:, h:]  # (B, n, c, o)
    if sequence.before_error:
        seen = ops.expand_dims(retain, -2) * _windows(predicted, c) - _windows(values, c)
        arrived = retain * predicted[:, h:] - values[:, h:]
    stored = None
    if residuals is not None:
        stored = ops.concatenate([residuals, arrived], axis=1)
        older = np.arange(c)[::-1] > np.asarray(position)[:, None]  # (n, c)
        seen = ops.where(older[..., None], _windows(stored, c), seen)
    weighted = ops.expand_dims(ops.flip(weights, -1), -1) * seen
    return ops.matmul(ops.transpose(weighted), _windows(keys, c)), stored


def _single(
    sequence: Recurrence, keys: Array, values: Array, retain: Array, reference: Array
) -> Array:
    """e_t phi_t^T of every token alone (OMEGA-11)."""
    h = sequence.window - 1
    keys, values = keys[:, h:], values[:, h:]
    predicted = _predicted(sequence, keys, reference)
    if predicted is not None and sequence.before_error:
        predicted = retain * predicted
    return ops.outer(-values if predicted is None else predicted - values, keys)


def _running(S: Array, momentum: Array, rate_in: Array, gradients: Array) -> list[Array]:
    """S_t of every token, by the recurrence."""
    momentum, steps = ops.expand_dims(momentum, -1), ops.expand_dims(rate_in, -1) * gradients
    momenta = []
    for t in range(gradients.shape[1]):
        S = momentum[:, t] * S + steps[:, t]
        momenta.append(S)
    return momenta


def _averaged(momenta: Array, weights: Array) -> Array:
    """sum_j weights[t,j] Z_{t-j}, from the momenta of the h tokens before and of the block."""
    n, c = weights.shape[1:]
    average = None
    for lag in range(c):
        first = momenta.shape[1] - n - lag
        term = ops.expand_dims(weights[:, :, lag, None], -1) * momenta[:, first : first + n]
        average = term if average is None else average + term
    return average


def _reads(
    M: Array,
    retain: Array,
    rate_out: Array,
    updates: Array,
    queries: Array,
    read: str,
    reference: Array,
) -> tuple[Array, Array]:
    """y (B, n, o) of every token and the last memory, by the recurrence."""
    retain, steps = ops.expand_dims(retain, -1), ops.expand_dims(rate_out, -1) * updates
    columns = ops.expand_dims(queries, -1)
    reads = []
    for t in range(updates.shape[1]):
        before, M = M, retain[:, t] * M - steps[:, t]
        if read in ("after", "before"):
            reads.append(ops.matmul(M if read == "after" else before, columns[:, t])[..., 0])
    if read in ("after", "before"):
        return ops.stack(reads, axis=1), M
    return ops.matmul(queries, ops.transpose(M if read == "none" else reference)), M
