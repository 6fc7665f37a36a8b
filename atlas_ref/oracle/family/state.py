"""What the loop of the family starts from, its state between two tokens, and its results.

Specified in specs/conventions.md (CONV-29 to CONV-38).
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from atlas_ref.oracle.family.arithmetic import Arithmetic
from atlas_ref.parts import window
from atlas_ref.types import Array
from tape import ops


class Structure(NamedTuple):
    """The settings that decide which operations happen, and in which order.

    Attributes:
        window: c.
        reference: of the residual: running, chunk_start, call_start or zero.
        frozen: the span start whose memory is kept: that of the reference, or of the read.
        argument: of Newton-Schulz; none without it.
        fades: whether a large gradient makes the momentum forget (CONV-70).
        boundary: recompute, carry or cut where it has an effect, else recompute.
        span: tokens of a span, or None.
        first: position of the first token of a packed sequence; phase: of the call, or None.
    """

    window: int
    reference: str
    frozen: str
    read: str
    order: str
    argument: str
    fades: bool
    boundary: str
    span: int | None
    first: int
    phase: int | None


class Inputs(NamedTuple):
    """The inputs of the loop; an axis in front may count conventions. None stands for 1, or for
    absent.

    Attributes:
        keys (..., T, d_phi), targets (..., T, d_out), queries (..., T, d_phi): targets are values,
            negated under value_sign plus.
        retain, decay, momentum, a, b (..., T, 1 or d_out, 1): decay is the factor of the reference
            in the residual.
        weights (..., T, c, 1): oldest first, edge included, and gradient_scale unless `scale` has it;
            None for a rule without a window.
        scale (..., 1, 1): gradient_scale under momentum_then_window, and in a trace.
        M0, S0 (..., d_out, d_phi): S in the sign that holds +gradient, or that of `sign`; S0 None
            where no momentum is kept.
        window_keys (..., n, d_phi), window_targets (..., n, d_out), residuals (..., n, d_out):
            initial window contents.
        momenta (..., m, d_out, d_phi), reference (..., d_out, d_phi): of the case, or None.
        active, reset: plain booleans (T,).
        ceiling (..., 1, 1): of the norm of M, plain; infinite where a convention has none.
        share (..., T, 1 or d_out, 1): of a gradient in an average, where `a` does not have it.
        sign (1, 1): of the gradient in S, where it is not +; a and b have it too.
        exists (T, c): plain booleans, whether the token at each lag exists; for a hook that asks
            which residuals count.
    """

    keys: Array
    targets: Array
    queries: Array
    retain: Array
    decay: Array
    momentum: Array
    a: Array
    b: Array
    weights: Array
    scale: Array
    M0: Array
    S0: Array
    window_keys: Array
    window_targets: Array
    residuals: Array
    momenta: Array
    reference: Array
    active: Array
    reset: Array
    ceiling: Array = None
    share: Array = None
    sign: Array = None
    exists: Array = None


class Outputs(NamedTuple):
    """y (..., T, d_out), and the state after the last token.

    S and momenta have the sign of those in `Inputs`.
    """

    y: Array
    M: Array
    S: Array
    M_ref: Array
    residuals: Array
    momenta: Array


class State(NamedTuple):
    """The state between two tokens."""

    M: Array
    S: Array
    reference: Array
    position: int
    stored: Array  # residuals of the window under carry, (..., c, d_out)
    momenta: Array  # (..., c, d_out, d_phi) under momentum_then_window


def windows(
    structure: Structure, inputs: Inputs, rows: Array, before: Array, way: Arithmetic
) -> list[Array]:
    """The rows in the window of each token, oldest first, zero where there are none (CONV-33).

    Args:
        rows (..., T, d): of the tokens; before (..., n, d): of those before the call, or None.

    Returns:
        T arrays (..., c, d).
    """
    c, T, found = structure.window, rows.shape[-2], list[Array]()
    starts = [0, *(t for t in range(1, T) if inputs.reset[t]), T]
    for first, last in itertools.pairwise(starts):
        known = None if first or inputs.reset[0] else before
        n = 0 if known is None else known.shape[-2]
        empty = ops.zeros_like(rows, shape=(*rows.shape[:-2], c - n, rows.shape[-1]))
        held = ops.concatenate([empty, known], axis=-2) if n else empty
        if way.printed:  # whose sum of cotangents leaves the last window to the end
            found += window.slid(held, rows[..., first:last, :])
            continue
        parts = [held[..., 1:, :], rows[..., first:last, :]]
        whole = ops.concatenate([part for part in parts if part.shape[-2]], axis=-2)
        found += [whole[..., t : t + c, :] for t in range(last - first)]
    return found


def fresh_state(structure: Structure, inputs: Inputs) -> State:
    """The state where a packed sequence starts (CONV-33)."""
    c, M = structure.window, inputs.M0
    lead, d_out = M.shape[:-2], M.shape[-2]
    stored = ops.zeros_like(M, shape=(*lead, c, d_out)) if structure.boundary == "carry" else None
    momenta = (
        ops.zeros_like(M, shape=(*lead, c, *M.shape[-2:]))
        if structure.order == "momentum_then_window"
        else None
    )
    return State(M, inputs.S0, None, structure.first, stored, momenta)


def resumed_state(structure: Structure, inputs: Inputs, fresh: State) -> State:
    """The state before a call's first token, from the end of an earlier call (CONV-34, CONV-37)."""
    state = fresh._replace(reference=inputs.reference)
    if structure.phase is not None:
        state = state._replace(position=structure.phase)
    if state.stored is not None and inputs.residuals is not None and inputs.residuals.shape[-2]:
        n = inputs.residuals.shape[-2]
        state = state._replace(
            stored=ops.concatenate([state.stored[..., n:, :], inputs.residuals], axis=-2)
        )
    if state.momenta is not None and inputs.momenta is not None and inputs.momenta.shape[-3]:
        m = inputs.momenta.shape[-3]
        state = state._replace(
            momenta=ops.concatenate([state.momenta[..., m:, :, :], inputs.momenta], axis=-3)
        )
        if inputs.momentum is None:  # an inactive first token repeats the last of them (OMEGA-11)
            state = state._replace(S=inputs.momenta[..., -1, :, :])
    return state
