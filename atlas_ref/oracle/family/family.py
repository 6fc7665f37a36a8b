"""All rules as settings of one family, over a sequence, for many conventions at once and in any
legal arithmetic.

A convention's signs, rates, scales, norms and layouts leave control flow as it is: `prepare` turns
them into arrays, with an axis in front that counts conventions. The settings that do change control
flow are the `Structure`. The rules in `rules/` stay the truth, and a test ties this evaluation to
them. It ranks candidates for `identify`, and is the plain evaluation whose rounding the tolerance
rule measures (TOL-3, IDENT-3).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from atlas_ref.oracle.family import steps
from atlas_ref.oracle.family.arithmetic import PLAIN, Arithmetic
from atlas_ref.parts.momentum import faded
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
        weights (..., T, c, 1): oldest first, edge and gradient_scale included.
        scale (..., 1, 1): gradient_scale under momentum_then_window.
        M0, S0 (..., d_out, d_phi): S in the sign that holds +gradient; S0 None where no momentum is
            kept.
        window_keys (..., n, d_phi), window_targets (..., n, d_out), residuals (..., n, d_out):
            initial window contents.
        momenta (..., m, d_out, d_phi), reference (..., d_out, d_phi): of the case, or None.
        active, reset: plain booleans (T,).
        ceiling (..., 1, 1): of the norm of M, plain; infinite where a convention has none.
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


class Outputs(NamedTuple):
    """y (..., T, d_out), and the state after the last token.

    S and momenta have the sign that holds +gradient.
    """

    y: Array
    M: Array
    S: Array
    M_ref: Array
    residuals: Array
    momenta: Array


class _State(NamedTuple):
    M: Array
    S: Array
    reference: Array
    position: int
    stored: Array  # residuals of the window under carry, (..., c, d_out)
    momenta: Array  # (..., c, d_out, d_phi) under momentum_then_window


Orthogonalise = Callable[[Array], Array]

#: The change of a quantity at a named place of the write or read: reference, residual, gradient,
#: carried S, carried M, read.
Touch = Callable[[str, Array], Array]

#: The change of an op of a token: residual, gradient, S, P, U, M, the memory that is read (read), y.
Take = Callable[[str, int, Array], Array]


class _Means(NamedTuple):
    """The functions by which every token is computed."""

    orthogonalise: Orthogonalise
    way: Arithmetic
    store: Callable[[Array], Array] | None
    touch: Touch | None
    take: Take | None

    def op(self, name: str, t: int, x: Array) -> Array:
        return x if self.take is None else self.take(name, t, x)

    def at(self, place: str, x: Array) -> Array:
        return x if self.touch is None or x is None else self.touch(place, x)


def run(
    structure: Structure,
    inputs: Inputs,
    orthogonalise: Orthogonalise,
    *,
    way: Arithmetic = PLAIN,
    store: Callable[[Array], Array] | None = None,
    touch: Touch | None = None,
    take: Take | None = None,
) -> Outputs:
    """Drive the family over a sequence, in the order of CONV-29 (IDENT-3).

    Args:
        orthogonalise: Newton-Schulz of the group.
        way: the arithmetic of every product and sum.
        store: rounds M and S between tokens, where the state is kept in a narrower format.
        touch: changes a quantity at a named place, see `Touch`: a planted mistake.
        take: called with each op of each token, see `Take`: a trace, or what was recorded.
    """
    by = _Means(orthogonalise, way, store, touch, take)
    T = inputs.keys.shape[-2]
    starts = [0, *(t for t in range(1, T) if inputs.reset[t]), T]
    reads: list[Array] = []
    fresh = _fresh(structure, inputs)
    state = fresh if inputs.reset[0] else _resumed(structure, inputs, fresh)
    for number, (first, last) in enumerate(itertools.pairwise(starts)):
        if number:
            state = fresh
        history = number == 0 and not inputs.reset[0]
        keys = _window(
            inputs.keys, inputs.window_keys if history else None, structure.window, first, last
        )
        targets = _window(
            inputs.targets,
            inputs.window_targets if history else None,
            structure.window,
            first,
            last,
        )
        waiting = []
        for t in range(first, last):
            rows = slice(t - first, t - first + structure.window)
            before, state = _step(
                structure, inputs, state, t, keys[..., rows, :], targets[..., rows, :], by
            )
            M = {"before": before.M, "chunk_start": before.reference}.get(structure.read, state.M)
            if structure.read == "call_end":
                waiting.append(t)
            else:
                reads.append(_read(structure, inputs, M, t, by))
        reads += [_read(structure, inputs, state.M, t, by) for t in waiting]
    return Outputs(
        ops.stack(reads, axis=-2), state.M, state.S, state.reference, state.stored, state.momenta
    )


def _fresh(structure: Structure, inputs: Inputs) -> _State:
    c, M = structure.window, inputs.M0
    lead, d_out = M.shape[:-2], M.shape[-2]
    stored = ops.zeros_like(M, shape=(*lead, c, d_out)) if structure.boundary == "carry" else None
    momenta = (
        ops.zeros_like(M, shape=(*lead, c, *M.shape[-2:]))
        if structure.order == "momentum_then_window"
        else None
    )
    return _State(M, inputs.S0, None, structure.first, stored, momenta)


def _resumed(structure: Structure, inputs: Inputs, fresh: _State) -> _State:
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


def _window(rows: Array, before: Array, c: int, first: int, last: int) -> Array:
    """Rows of one packed sequence behind c - 1 earlier ones, zero where there are none."""
    n = 0 if before is None else before.shape[-2]
    empty = ops.zeros_like(rows, shape=(*rows.shape[:-2], c - 1 - n, rows.shape[-1]))
    parts = [empty, *([before] if n else []), rows[..., first:last, :]]
    return ops.concatenate([part for part in parts if part.shape[-2]], axis=-2)


def _step(
    structure: Structure,
    inputs: Inputs,
    state: _State,
    t: int,
    keys: Array,
    targets: Array,
    by: _Means,
) -> tuple[_State, _State]:
    """The state before the write, with its span start's memory, and that after token t."""
    if structure.frozen != "none" and (
        state.reference is None or (state.position == 0 and structure.frozen != "call_start")
    ):
        state = state._replace(reference=state.M)
    write = _write if inputs.active[t] else _rest
    after = write(structure, inputs, state, t, keys, targets, by)
    if by.store is not None:
        after = after._replace(
            M=by.store(after.M), S=None if after.S is None else by.store(after.S)
        )
    if structure.frozen != "none":
        position = state.position + 1
        if structure.frozen != "call_start" and structure.span is not None:
            position %= structure.span
        after = after._replace(position=position)
    return state, after


def _write(
    structure: Structure,
    inputs: Inputs,
    state: _State,
    t: int,
    keys: Array,
    targets: Array,
    by: _Means,
) -> _State:
    way = by.way
    e, stored = _residual(structure, inputs, state, t, keys, targets, by, active=True)
    e = by.op("residual", t, by.at("residual", e))
    S0 = by.at("carried S", state.S)
    a, b, m = _at(inputs.a, t), _at(inputs.b, t), _at(inputs.momentum, t)
    weights = inputs.weights[..., t, :, :]
    if structure.boundary == "cut":
        weights = ops.where(_older(structure, state), 0.0, weights)
    momenta = None
    if structure.order == "momentum_then_window":
        g = steps.gradient(way, inputs.scale, e[..., -1:, :], keys[..., -1:, :])
        g = by.op("gradient", t, by.at("gradient", g))
        stored_S = by.op("S", t, steps.momentum(way, _factor(structure, m, g, way), S0, a, g))
        momenta = ops.concatenate(
            [state.momenta[..., 1:, :, :], ops.expand_dims(stored_S, -3)], axis=-3
        )
        S = by.op("P", t, _weighted_sum(way, weights, momenta))
    else:
        g = by.op("gradient", t, by.at("gradient", steps.gradient(way, weights, e, keys)))
        S = stored_S = by.op("S", t, steps.momentum(way, _factor(structure, m, g, way), S0, a, g))
    U = S
    if structure.argument in ("S", "written_back"):
        U = by.orthogonalise(S)
    elif structure.argument == "nesterov":
        U = by.orthogonalise(g if m is None else way.scaled_sum(m, S, g))
    U = by.op("U", t, U)
    M = steps.memory(way, _at(inputs.retain, t), by.at("carried M", state.M), b, U)
    M = steps.held(way, M, inputs.ceiling)
    return state._replace(
        M=by.op("M", t, M),
        S=U if structure.argument == "written_back" else stored_S,
        stored=stored,
        momenta=momenta,
    )


def _factor(structure: Structure, m: Array, g: Array, way: Arithmetic) -> Array:
    """The factor of S: the momentum, less the square of the gradient where it fades (CONV-70)."""
    return faded(m, g, way.total) if structure.fades and m is not None else m


def _rest(
    structure: Structure,
    inputs: Inputs,
    state: _State,
    t: int,
    keys: Array,
    targets: Array,
    by: _Means,
) -> _State:
    """The rest at an inactive token, which enters the window while M and S stay (CONV-32)."""
    if state.momenta is not None:
        return state._replace(
            momenta=ops.concatenate(
                [state.momenta[..., 1:, :, :], ops.expand_dims(state.S, -3)], axis=-3
            )
        )
    if state.stored is not None:
        return state._replace(
            stored=_residual(structure, inputs, state, t, keys, targets, by, active=False)[1]
        )
    return state


def _residual(
    structure: Structure,
    inputs: Inputs,
    state: _State,
    t: int,
    keys: Array,
    targets: Array,
    by: _Means,
    *,
    active: bool,
) -> tuple[Array, Array]:
    """Residuals of the window, and under carry those stored at arrival (CONV-12, CONV-14)."""
    if structure.reference == "zero":
        residual = -targets
    else:
        M_ref = by.at("reference", state.M if structure.reference == "running" else state.reference)
        residual = steps.residual(
            by.way, steps.times(_at(inputs.decay, t) if active else None, M_ref), keys, targets
        )
    if state.stored is None:
        return residual, None
    stored = ops.concatenate([state.stored[..., 1:, :], residual[..., -1:, :]], axis=-2)
    return ops.where(_older(structure, state), stored, residual), stored


def _older(structure: Structure, state: _State) -> Array:
    """Plain booleans (c, 1): window rows whose token belongs to an older span."""
    return (np.arange(structure.window)[::-1] > state.position)[:, None]


def _weighted_sum(way: Arithmetic, weights: Array, momenta: Array) -> Array:
    """sum_j w_j Z_j, term after term; weights (..., c, 1), momenta (..., c, d_out, d_phi)."""
    order = range(momenta.shape[-3])[::-1] if way.order == "reverse" else range(momenta.shape[-3])
    total = None
    for j in order:
        weight, Z = weights[..., j, :, None], momenta[..., j, :, :]
        total = weight * Z if total is None else way.scaled_sum(weight, Z, total)
    return total


def _read(structure: Structure, inputs: Inputs, M: Array, t: int, by: _Means) -> Array:
    M = by.op("read", t, by.at("read", M))
    M = by.orthogonalise(M) if structure.argument == "accumulated" else M
    return by.op("y", t, steps.read(by.way, M, inputs.queries[..., t, :]))


def _at(column: Array, t: int) -> Array:
    return None if column is None else column[..., t, :, :]
