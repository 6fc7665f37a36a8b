"""Atlas parallel: the steps of seed 000 over spans of a frozen reference, or with a zero one.

    1   g_t = sum_j w[t,j] (M_ref phi_{t-j} - v_{t-j}) phi_{t-j}^T            all t at once
    2a  S_t = momentum_t S_{t-1} + rate_in_t g_t                              scan
    2b  U_t = NewtonSchulz(S_t), or S_t                                       all t at once
    3   M_t = retain_t M_{t-1} - rate_out_t U_t                               scan
    4   y_t = M_t phi(q_t)                                                    all t at once

Within a span no g_t depends on M_t or S_t, so the steps compute the sequential rule under that
reference exactly, through Newton-Schulz as well. They hold one matrix for each token that is taken
at once. Specified in specs/atlas_parallel.md.

Its properties, cost, special cases and backward: ATLASP-8 to ATLASP-16.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from atlas_ref.engine.associative_scan import scan
from atlas_ref.forms.recurrence import Memory, Recurrence
from atlas_ref.forms.scan import (
    column,
    joined,
    read_each,
    read_one,
    segments,
    shifted,
    tokens_at_once,
    tokens_of,
    windowed,
)
from atlas_ref.parts.newton_schulz import newton_schulz
from atlas_ref.types import Array
from tape import ops


def run(
    config: Any, sequence: Recurrence, memory: Memory, chunk: int | None = None
) -> tuple[Memory, Array]:
    """The rule with a frozen or zero reference, span by span (ATLASP-1).

    Args:
        config: the rule's configuration; its convention names the memory that is read and
            Newton-Schulz.
        sequence: one packed sequence; its reference is frozen or zero.
        memory: at the start of the sequence.
        chunk: tokens that are taken at once, at most; the end of a span ends them too. It changes
            results by rounding only. None for the fastest.

    Returns:
        memory after the last token, y (..., T, d_out).

    Source: seed 000, "atlas parallel"; Atlas (2505.23735) Eqs 15, 32-34; ATLASP-1, ATLASP-6,
    ATLASP-7.
    """
    sequence = sequence.whole()
    read = config.convention.read
    longest = chunk or tokens_at_once(memory.M, memory.M.shape[-2:])
    reads = []
    for first, last in segments(sequence.refresh, longest):
        part = tokens_of(sequence, first, last)
        if part.refresh[0]:
            memory = memory._replace(reference=memory.M)
        before = memory.M
        memory, memories = segment(config, part, memory)
        if read == "chunk_start":
            reads.append(read_one(memory.reference, part.queries))
        elif read != "call_end":
            reads.append(
                read_each(memories if read == "after" else shifted(memories, before), part.queries)
            )
    return memory, read_one(memory.M, sequence.queries) if read == "call_end" else joined(reads)


def segment(config: Any, part: Recurrence, memory: Memory) -> tuple[Memory, Array]:
    """Steps 1 to 3 over tokens of one span (ATLASP-1).

    Returns:
        memory after them, M_t (..., T, d_out, d_phi).
    """
    if memory.momenta is None:
        g, residuals = window_gradients(part, memory)
        S = accumulated(part, g, memory.S)
        memory = memory._replace(
            S=None if part.momentum is None else S[..., -1, :, :], residuals=residuals
        )
    else:
        g = token_gradients(part, memory)
        held = memory.momenta.shape[-3] - (part.window - 1)
        # Z has shape (..., h + T, d_out, d_phi)
        Z = ops.concatenate(
            [memory.momenta[..., held:, :, :], accumulated(part, g, memory.S)], axis=-3
        )
        S = summed(part.weights, Z)
        memory = memory._replace(S=Z[..., -1, :, :], momenta=Z[..., -part.window :, :, :])
    memories = moved(part, directions(config, part, g, S), memory.M)
    return memory._replace(M=memories[..., -1, :, :]), memories


# -- step 1: gradients -----------------------------------------------------------------------------


def window_gradients(part: Recurrence, memory: Memory) -> tuple[Array, Array]:
    """Step 1: the gradient of every token's window under the reference (ATLASP-2, CHUNK-9).

        g_t = sum_j w[t,j] e[t,j] phi_{t-j}^T

    Returns:
        g (..., T, d_out, d_phi), under carry the residuals of the last c tokens when they arrived
        (..., c, d_out).
    """
    e, arrived = residuals(part, memory.reference), None
    if memory.residuals is not None:
        held = memory.residuals.shape[-2] - (part.window - 1)
        # arrived has shape (..., h + T, d_out)
        arrived = ops.concatenate([memory.residuals[..., held:, :], e[..., 0, :]], axis=-2)
        older = np.arange(part.window) > part.position[:, None]
        e = ops.where(older[..., None], windowed(arrived, part), e)
        arrived = arrived[..., -part.window :, :]
    weighted = ops.expand_dims(part.weights, -1) * e
    return ops.swapaxes(weighted, -1, -2) @ windowed(part.keys, part), arrived


def residuals(part: Recurrence, reference: Array) -> Array:
    """Residuals e[t,j] = M_ref phi_{t-j} - v_{t-j} (ATLASP-2).

    Under decay before_error M_ref is multiplied by retain_t; under a zero reference they are -v.

    Returns:
        (..., T, c, d_out).
    """
    values = windowed(part.values, part)
    if part.reference == "zero":
        return -values
    predicted = windowed(read_one(reference, part.keys), part)
    return (
        ops.expand_dims(part.retain, -2) * predicted if part.before_error else predicted
    ) - values


def token_gradients(part: Recurrence, memory: Memory) -> Array:
    """Step 1 under momentum_then_window: the gradient of every token alone (ATLASP-5).

    g_t = s (M_ref phi_t - v_t) phi_t^T
    """
    h = part.window - 1
    s = part.scale * ops.ones_like(part.weights, shape=(part.length, 1))
    alone = part._replace(keys=part.keys[..., h:, :], values=part.values[..., h:, :], weights=s)
    return window_gradients(alone, memory)[0]


# -- steps 2 and 3: scans, and Newton-Schulz between them ------------------------------------------


def accumulated(part: Recurrence, g: Array, S: Array) -> Array:
    """Step 2a: S_t = momentum_t S_{t-1} + rate_in_t g_t, by a scan (ATLASP-3)."""
    step = column(part.rate_in) * g
    return step if part.momentum is None else scan(column(part.momentum), step, axis=-3, initial=S)


def summed(weights: Array, Z: Array) -> Array:
    """P_t = sum_j w[t,j] Z_{t-j}, in place of S_t under momentum_then_window (ATLASP-5).

    Args:
        weights (..., T, c): by lag.
        Z (..., h + T, d_out, d_phi): momenta, those of the h = c - 1 tokens before first.
    """
    T, c = weights.shape[-2:]
    total = None
    for j in range(c):
        term = column(weights[..., j : j + 1]) * Z[..., c - 1 - j : c - 1 - j + T, :, :]
        total = term if total is None else total + term
    return total


def directions(config: Any, part: Recurrence, g: Array, S: Array) -> Array:
    """Step 2b: U_t = NewtonSchulz(S_t) of all tokens as one batch (ATLASP-4).

    Of g_t + momentum_t S_t for nesterov; S_t itself without Newton-Schulz.
    """
    convention = config.convention
    if not convention.has_newton_schulz:
        return S
    if convention.argument == "nesterov":
        S = g + column(part.momentum) * S
    return newton_schulz(S, convention.newton_schulz_settings)


def moved(part: Recurrence, U: Array, M: Array) -> Array:
    """Step 3: M_t = retain_t M_{t-1} - rate_out_t U_t, by a scan (ATLASP-3)."""
    return scan(column(part.retain), -column(part.rate_out) * U, axis=-3, initial=M)
