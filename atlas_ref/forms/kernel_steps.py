"""The kernel form token by token: coefficients of the keys, moved by gates, residuals and
Newton-Schulz.

Features enter through the kernel of two keys alone. Reads the settings and coefficients of
`atlas_ref.parts.newton_schulz`, and shares no step with it or with a rule. Specified in
specs/kernel.md.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np

from atlas_ref.forms.recurrence import Recurrence
from atlas_ref.parts.newton_schulz import NewtonSchulz, coefficient_table
from atlas_ref.types import Array
from tape import ops


class Coefficients(NamedTuple):
    """A memory in dual form, with all that a later call needs (KERNEL-1, KERNEL-14).

    Coefficients may have fewer columns than there are keys: those of the newest keys are then 0.

    Attributes:
        keys (..., n, d): keys so far, oldest first.
        M (..., d_out, n): B, coefficients of the memory, M = B Phi.
        S (..., d_out, n): Z, coefficients of the momentum (the sum of +gradients), S = Z Phi; None
            for 0.
        reference (..., d_out, n): coefficients of the memory at the start of the span; None before
            the first token.
        values (..., h, d_out): targets of the last h keys, which the window still holds; None for
            an empty window.
        residuals (..., h, d_out): under carry, the residual of each of them when it arrived.
        momenta (..., d_out, n) each: under momentum_then_window, coefficients of the last momenta,
            oldest first.
        position: place of the next token in its span.
    """

    keys: Array
    M: Array
    S: Array = None
    reference: Array = None
    values: Array = None
    residuals: Array = None
    momenta: tuple[Array, ...] | None = None
    position: int = 0


class Kernels(NamedTuple):
    """Kernels of keys and queries, with the settings of the rule.

    Attributes:
        keys (..., n, n): kernel of every two keys, those of the sequence last.
        queries (..., n, T): kernel of every key with every query.
        features: d_phi, infinite for an infinite map.
        units: number of first keys that are the unit vectors of the feature space: all of these, or
            none.
        newton_schulz: its settings; None for none.
        read: the memory that a query reads: after, before, chunk_start, call_end.
    """

    keys: Array
    queries: Array
    features: float
    units: int
    newton_schulz: NewtonSchulz | None
    read: str


def evaluated(
    sequence: Recurrence, before: Coefficients, kernels: Kernels
) -> tuple[Coefficients, Array]:
    """Run all tokens of a sequence (KERNEL-2, KERNEL-4).

    Returns:
        coefficients after the last token, with every residual of arrival; y (..., T, d_out).
    """
    T = sequence.length
    first = kernels.keys.shape[-1] - T
    now = before if before.S is not None else before._replace(S=ops.zeros_like(before.M))
    memories = []
    for t in range(T):
        if sequence.refresh[t]:
            now = now._replace(reference=now.M)
        earlier = now
        now = _written(
            sequence, earlier, kernels, kernels.keys[..., : first + t + 1, : first + t + 1], t
        )
        memories.append(
            {"before": earlier.M, "chunk_start": earlier.reference}.get(kernels.read, now.M)
        )
    if kernels.read == "call_end":
        memories = [now.M] * T
    reads = []
    for _, group in itertools.groupby(range(T), key=lambda t: id(memories[t])):
        tokens = list(group)
        reads.append(_read(memories[tokens[0]], kernels, tokens[0], tokens[-1] + 1))
    return now, reads[0] if len(reads) == 1 else ops.concatenate(reads, axis=-2)


def _read(B: Array, kernels: Kernels, first: int, last: int) -> Array:
    """y = B kappa(keys, q) of some tokens, through Newton-Schulz where the argument is accumulated.

    Source: KERNEL-4.
    """
    n = B.shape[-1]
    if kernels.newton_schulz is not None and kernels.newton_schulz.argument == "accumulated":
        B = orthogonalised(B, kernels.keys[..., :n, :n], kernels.newton_schulz, kernels.features)
    return ops.transpose(B @ kernels.queries[..., :n, first:last])


def _written(
    sequence: Recurrence, now: Coefficients, kernels: Kernels, gram: Array, t: int
) -> Coefficients:
    """The coefficients after token t, whose key is the last of `gram` (KERNEL-2).

    G   = weights[t,j] e[t,t-j] in the column of the key of token t-j
    Z_t = momentum_t Z_{t-1} + rate_in_t G
    B_t = retain_t B_{t-1} - rate_out_t U,    U = Z_t or its Newton-Schulz
    """
    n, c = gram.shape[-1], sequence.window
    errors, arrived = _residuals(sequence, now, gram, t)
    now = now._replace(residuals=arrived)
    momenta = now.momenta
    if not sequence.active[t]:
        return now if momenta is None else now._replace(momenta=(*momenta, now.S)[-c:])
    r, a, b = (_column(gate, t) for gate in (sequence.retain, sequence.rate_in, sequence.rate_out))
    m = 0.0 if sequence.momentum is None else _column(sequence.momentum, t)
    weights = ops.expand_dims(sequence.weights[..., t, :], -2)  # (..., 1, c), by lag
    if momenta is None:
        G = _newest(ops.flip(weights, -1)[..., c - errors.shape[-1] :] * errors, n)
        summed = S = m * _over(now.S, n) + a * G
    else:
        G = _newest(sequence.scale * errors[..., -1:], n)
        S = m * _over(now.S, n) + a * G
        momenta = (*momenta, S)[-c:]
        summed = sum(
            weights[..., j : j + 1] * _over(each, n) for j, each in enumerate(reversed(momenta))
        )
    settings = kernels.newton_schulz
    U = summed
    if settings is not None and settings.argument != "accumulated":
        U = orthogonalised(
            G + m * summed if settings.argument == "nesterov" else summed,
            gram,
            settings,
            kernels.features,
        )
        if settings.argument == "written_back":
            # over the unit vectors, else what has coefficients but no features left (d_out > d_phi)
            # grows by a_i in every step
            S = U @ gram[..., : kernels.units] if kernels.units else U
    return now._replace(M=r * _over(now.M, n) - b * U, S=S, momenta=momenta)


def _residuals(sequence: Recurrence, now: Coefficients, gram: Array, t: int) -> tuple[Array, Array]:
    """Residuals (..., d_out, window tokens) of the gradient at t, oldest first.

    Under carry they come with all residuals of arrival, (..., tokens, d_out).
    """
    seen = sequence.values.shape[-2] - sequence.length + t + 1
    count = min(sequence.window, seen)
    errors = -ops.transpose(sequence.values[..., seen - count : seen, :])
    if sequence.reference != "zero":
        reference = now.M if sequence.reference == "running" else now.reference
        predicted = reference @ gram[..., : reference.shape[-1], -count:]
        decays = sequence.before_error and sequence.active[t]
        errors = errors + (_column(sequence.retain, t) * predicted if decays else predicted)
    if now.residuals is None:
        return errors, None
    arrived = ops.concatenate([now.residuals, ops.transpose(errors[..., -1:])], axis=-2)
    older = np.arange(count)[::-1] > sequence.position[t]
    return ops.where(older, ops.transpose(arrived[..., -count:, :]), errors), arrived


def _column(gate: Array, t: int) -> Array:
    """A gate of token t as a factor of rows (..., 1 or d_out, 1)."""
    return ops.expand_dims(gate[..., t, :], -1)


def _over(coefficients: Array, n: int) -> Array:
    """Coefficients over n keys, with 0 for the newest."""
    *lead, columns = coefficients.shape
    if columns == n:
        return coefficients
    return ops.concatenate(
        [coefficients, ops.zeros_like(coefficients, shape=(*lead, n - columns))], axis=-1
    )


def _newest(columns: Array, n: int) -> Array:
    """Coefficients over n keys that are 0 except for the newest."""
    *lead, count = columns.shape
    return (
        columns
        if count == n
        else ops.concatenate([ops.zeros_like(columns, shape=(*lead, n - count)), columns], axis=-1)
    )


def orthogonalised(Z: Array, gram: Array, settings: NewtonSchulz, features: float) -> Array:
    """Coefficients of NS(Z Phi) over the same keys, without Z Phi itself or its singular values
    (KERNEL-3).

        ||S||^2 = tr(Z K Z^T),    A = Y K Y^T,    Y <- a Y + (b A + c A^2) Y

    `transpose`, the orientation of matrix products, has no effect here.

    Args:
        Z (..., d_out, n): coefficients of S.
        gram (..., n, n): K, the kernel of every two keys.
        settings: coefficients, steps, eps, norm_factor, guard, scale.
        features: d_phi, infinite for an infinite map; read by the scale `sqrt`.

    Returns:
        (..., d_out, n).

    Source: KERNEL-3; NS-1 to NS-9 with S = Z Phi.
    """
    norm = _norm(Z, gram)
    size = settings.norm_factor * norm
    size = ops.maximum(size, settings.eps) if settings.guard == "clamp" else size + settings.eps
    Y = Z / ops.where(ops.equal(size, 0.0), 1.0, size)
    for a, b, c in coefficient_table(settings):
        A = Y @ gram @ ops.transpose(Y)  # (..., d_out, d_out)
        Y = a * Y + (b * A + c * (A @ A)) @ Y
    if settings.scale == "sqrt":
        Y = Y * math.sqrt(max(1.0, Z.shape[-2] / features))
    elif settings.scale == "norm":
        Y = Y * norm
    return ops.where(ops.less(norm, settings.eps), Z, Y) if settings.guard == "return" else Y


def _norm(Z: Array, gram: Array) -> Array:
    """||Z Phi|| (..., 1, 1), with derivative 0 where it is 0.

    By rounding, the trace of a zero matrix can fall below 0.
    """
    squares = ops.sum((Z @ gram) * Z, axis=(-2, -1), keepdims=True)
    positive = ops.greater(squares, 0.0)
    return ops.where(positive, ops.sqrt(ops.where(positive, squares, 1.0)), 0.0)
