"""All rules as settings of one family, over a sequence, for many conventions at once and in any
legal arithmetic.

A convention's signs, rates, scales, norms and layouts leave control flow as it is: `prepare` turns
them into arrays, with an axis in front that counts conventions. The settings that do change control
flow are the `Structure`. The rules in `rules/` stay the truth, and a test ties this evaluation to
them. It ranks candidates for `identify`, is the plain evaluation whose rounding the tolerance rule
measures, and with a hook at every op it is the loop of traces and replays (TOL-3, IDENT-3, REPLAY-1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.family import steps
from atlas_ref.oracle.family.arithmetic import PLAIN, Arithmetic
from atlas_ref.oracle.family.state import (
    Inputs,
    Outputs,
    State,
    Structure,
    fresh_state,
    resumed_state,
    windows,
)
from atlas_ref.parts.momentum import faded
from atlas_ref.types import Array
from tape import ops

#: Newton-Schulz of a matrix at a token.
Orthogonalise = Callable[[Array, int], Array]

#: The change of a quantity at a named place of the write or read: reference, residual, gradient,
#: carried S, carried M, read.
Touch = Callable[[str, Array], Array]

#: Called as hook(op, t, compute, *arguments, counts=which entries have an influence, None for all),
#: where compute(*arguments) is the op at token t: residual, gradient, S, P, U, M, the memory that is
#: read (read), y, and where a token leaves them as they are kept S and kept M. The loop goes on with
#: what it returns.
Hook = Callable[..., Array]

#: Called with an op, its token and its value; the value with which the loop goes on.
Values = Callable[[str, int, Array], Array]

#: Called before each token with the state that it finds; the state with which the loop goes on.
Begin = Callable[[int, State], State]


def value_hook(values: Values) -> Hook:
    """The hook that changes the values of ops."""

    def hook(
        op: str, t: int, compute: Callable[..., Array], *arguments: Any, counts: Any = None
    ) -> Array:
        return values(op, t, compute(*arguments))

    return hook


class _Means(NamedTuple):
    """The functions by which every token is computed."""

    orthogonalise: Orthogonalise
    way: Arithmetic
    store: Callable[[Array], Array] | None
    touch: Touch | None
    hook: Hook | None
    begin: Begin | None

    def op(
        self, name: str, t: int, compute: Callable[..., Array], *arguments: Any, **counts: Any
    ) -> Array:
        if self.hook is None:
            return compute(*arguments)
        return self.hook(name, t, compute, *arguments, **counts)

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
    hook: Hook | None = None,
    begin: Begin | None = None,
) -> Outputs:
    """Drive the family over a sequence, in the order of CONV-29 (IDENT-3).

    Args:
        orthogonalise: Newton-Schulz of the group.
        way: the arithmetic of every product and sum.
        store: rounds M and S between tokens, where the state is kept in a narrower format.
        touch: changes a quantity at a named place, see `Touch`: a planted mistake.
        hook: called at each op of each token, see `Hook`: a trace, or what was recorded.
        begin: called before each token, see `Begin`.
    """
    by = _Means(orthogonalise, way, store, touch, hook, begin)
    keys = windows(structure, inputs, inputs.keys, inputs.window_keys, way)
    targets = windows(structure, inputs, inputs.targets, inputs.window_targets, way)
    fresh = fresh_state(structure, inputs)
    state = fresh if inputs.reset[0] else resumed_state(structure, inputs, fresh)
    reads: list[Array] = []
    waiting: list[int] = []  # tokens that read the last memory of their packed sequence
    for t, rows in enumerate(zip(keys, targets, strict=True)):
        if t and inputs.reset[t]:
            reads += [_read(structure, inputs, state.M, each, by) for each in waiting]
            state, waiting = fresh, []
        before, state = _step(structure, inputs, state, t, *rows, by)
        if structure.read == "call_end":
            waiting.append(t)
            continue
        M = {"before": before.M, "chunk_start": before.reference}.get(structure.read, state.M)
        reads.append(_read(structure, inputs, M, t, by))
    reads += [_read(structure, inputs, state.M, each, by) for each in waiting]
    return Outputs(
        ops.stack(reads, axis=-2), state.M, state.S, state.reference, state.stored, state.momenta
    )


def _step(
    structure: Structure,
    inputs: Inputs,
    state: State,
    t: int,
    keys: Array,
    targets: Array,
    by: _Means,
) -> tuple[State, State]:
    """The state before the write, with its span start's memory, and that after token t."""
    state = state if by.begin is None else by.begin(t, state)
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
    state: State,
    t: int,
    keys: Array,
    targets: Array,
    by: _Means,
) -> State:
    way = by.way
    e, stored = _residual(structure, inputs, state, t, keys, targets, by)
    e = by.at("residual", e)
    S0 = by.at("carried S", state.S)
    a, b, m = _at(inputs.a, t), _at(inputs.b, t), _at(inputs.momentum, t)
    weights, share, momenta = _at(inputs.weights, t), _at(inputs.share, t), None
    if structure.boundary == "cut":
        weights = ops.where(_older(structure, state), 0.0, weights)
    first = structure.order == "window_then_momentum"
    arguments = (weights, e, keys) if first else (None, e[..., -1:, :], keys[..., -1:, :])
    g = by.op("gradient", t, steps.gradient, way, *arguments, inputs.scale)
    g = by.at("gradient", g)
    factor = _factor(structure, m, g, way)
    S = stored_S = by.op("S", t, steps.momentum, way, factor, S0, a, g, share)
    if not first:
        momenta = _slid(state.momenta, S)
        S = by.op("P", t, steps.window_sum, way, weights, momenta)
    U = S
    if structure.argument in ("S", "written_back"):
        U = by.orthogonalise(S, t)
    elif structure.argument == "nesterov":
        g = steps.times(inputs.sign, g)
        U = by.orthogonalise(g if m is None else way.scaled_sum(m, S, g), t)
    U = by.op("U", t, _same, U)
    M, r = by.at("carried M", state.M), _at(inputs.retain, t)
    return state._replace(
        M=by.op("M", t, steps.memory, way, r, M, b, U, inputs.ceiling),
        S=U if structure.argument == "written_back" else stored_S,
        stored=stored,
        momenta=momenta,
    )


def _same(x: Array) -> Array:
    return x


def _slid(momenta: Array, S: Array) -> Array:
    """The momenta of the window after one more."""
    return ops.concatenate([momenta[..., 1:, :, :], ops.expand_dims(S, -3)], axis=-3)


def _factor(structure: Structure, m: Array, g: Array, way: Arithmetic) -> Array:
    """The factor of S: the momentum, less the square of the gradient where it fades (CONV-70)."""
    return faded(m, g, way.total) if structure.fades and m is not None else m


def _rest(
    structure: Structure,
    inputs: Inputs,
    state: State,
    t: int,
    keys: Array,
    targets: Array,
    by: _Means,
) -> State:
    """The rest at an inactive token, which enters the window while M and S stay (CONV-32).

    The residual that the window stores for it is computed without decay (WINDOW-13).
    """
    if state.stored is not None:
        arrival = _arrival(structure, inputs, state, None, keys, targets, by)
        state = state._replace(stored=ops.slide(state.stored, arrival[..., -1, :]))
    if state.S is not None:
        state = state._replace(S=by.op("kept S", t, _same, state.S))
    if state.momenta is not None:
        state = state._replace(momenta=_slid(state.momenta, state.S))
    return state._replace(M=by.op("kept M", t, _same, state.M))


def _residual(
    structure: Structure,
    inputs: Inputs,
    state: State,
    t: int,
    keys: Array,
    targets: Array,
    by: _Means,
) -> tuple[Array, Array]:
    """Residuals of the window, and under carry those stored at arrival (CONV-12, CONV-14)."""

    def compute() -> Array:
        e = _arrival(structure, inputs, state, _at(inputs.decay, t), keys, targets, by)
        if state.stored is None:
            return e
        return ops.where(_older(structure, state), ops.slide(state.stored, e[..., -1, :]), e)

    counts = None if inputs.exists is None else _counting(structure, inputs, state, t)
    e = by.op("residual", t, compute, counts=counts)
    return e, None if state.stored is None else ops.slide(state.stored, e[..., -1, :])


def _arrival(
    structure: Structure,
    inputs: Inputs,
    state: State,
    decay: Array,
    keys: Array,
    targets: Array,
    by: _Means,
) -> Array:
    """Residuals of the window under the memory of this token (OMEGA-4)."""
    if structure.reference == "zero":
        return -targets
    M_ref = by.at("reference", state.M if structure.reference == "running" else state.reference)
    return steps.residual(by.way, steps.times(decay, M_ref), keys, targets)


def _counting(structure: Structure, inputs: Inputs, state: State, t: int) -> Array:
    """Plain booleans (c, 1): window rows whose residual has an influence.

    There is such a token, it is not cut off, and not its momentum alone counts.
    """
    counts = inputs.exists[t][::-1][:, None]
    if structure.order == "momentum_then_window":
        return counts & (np.arange(structure.window) == structure.window - 1)[:, None]
    return counts & ~_older(structure, state) if structure.boundary == "cut" else counts


def _older(structure: Structure, state: State) -> Array:
    """Plain booleans (c, 1): window rows whose token belongs to an older span."""
    return (np.arange(structure.window)[::-1] > state.position)[:, None]


def _read(structure: Structure, inputs: Inputs, M: Array, t: int, by: _Means) -> Array:
    M = by.op("read", t, _same, by.at("read", M))
    M = by.orthogonalise(M, t) if structure.argument == "accumulated" else M
    return by.op("y", t, steps.read, by.way, M, inputs.queries[..., t, :])


def _at(column: Array, t: int) -> Array:
    return None if column is None else column[..., t, :, :]
