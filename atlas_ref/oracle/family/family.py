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
    loop = _Loop(structure, inputs, orthogonalise, way, store, touch, hook, begin)
    keys = windows(structure, inputs, inputs.keys, inputs.window_keys, way)
    targets = windows(structure, inputs, inputs.targets, inputs.window_targets, way)
    fresh = fresh_state(structure, inputs)
    state = fresh if inputs.reset[0] else resumed_state(structure, inputs, fresh)
    reads: list[Array] = []
    waiting: list[int] = []  # tokens that read the last memory of their packed sequence
    for t, rows in enumerate(zip(keys, targets, strict=True)):
        if t and inputs.reset[t]:
            reads += [loop.read(state.M, each) for each in waiting]
            state, waiting = fresh, []
        before, state = loop.step(state, t, *rows)
        if structure.read == "call_end":
            waiting.append(t)
            continue
        M = {"before": before.M, "chunk_start": before.reference}.get(structure.read, state.M)
        reads.append(loop.read(M, t))
    reads += [loop.read(state.M, each) for each in waiting]
    return Outputs(
        ops.stack(reads, axis=-2), state.M, state.S, state.reference, state.stored, state.momenta
    )


class _Loop(NamedTuple):
    """What every token is computed from, and the functions that compute it."""

    structure: Structure
    inputs: Inputs
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

    def step(self, state: State, t: int, keys: Array, targets: Array) -> tuple[State, State]:
        """The state before the write, with its span start's memory, and that after token t."""
        structure = self.structure
        state = state if self.begin is None else self.begin(t, state)
        if structure.frozen != "none" and (
            state.reference is None or (state.position == 0 and structure.frozen != "call_start")
        ):
            state = state._replace(reference=state.M)
        write = self._write if self.inputs.active[t] else self._rest
        after = write(state, t, keys, targets)
        if self.store is not None:
            S = None if after.S is None else self.store(after.S)
            after = after._replace(M=self.store(after.M), S=S)
        if structure.frozen != "none":
            position = state.position + 1
            if structure.frozen != "call_start" and structure.span is not None:
                position %= structure.span
            after = after._replace(position=position)
        return state, after

    def read(self, M: Array, t: int) -> Array:
        """y_t from the memory that token t reads (OMEGA-9, OMEGA-12)."""
        M = self.op("read", t, _same, self.at("read", M))
        M = self.orthogonalise(M, t) if self.structure.argument == "accumulated" else M
        return self.op("y", t, steps.read, self.way, M, self.inputs.queries[..., t, :])

    # -- the write ---------------------------------------------------------------------------------

    def _write(self, state: State, t: int, keys: Array, targets: Array) -> State:
        inputs, way = self.inputs, self.way
        e, stored = self._residual(state, t, keys, targets)
        e, S0 = self.at("residual", e), self.at("carried S", state.S)
        a, b, r, m = (_at(x, t) for x in (inputs.a, inputs.b, inputs.retain, inputs.momentum))
        weights, share, momenta = _at(inputs.weights, t), _at(inputs.share, t), None
        if self.structure.boundary == "cut":
            weights = ops.where(self._older(state), 0.0, weights)
        first = self.structure.order == "window_then_momentum"
        rows = (weights, e, keys) if first else (None, e[..., -1:, :], keys[..., -1:, :])
        g = self.op("gradient", t, steps.gradient, way, *rows, inputs.scale)
        g = self.at("gradient", g)
        fades = self.structure.fades and m is not None  # CONV-70
        factor = faded(m, g, way.total) if fades else m
        S = stored_S = self.op("S", t, steps.momentum, way, factor, S0, a, g, share)
        if not first:
            momenta = _slid(state.momenta, S)
            S = self.op("P", t, steps.window_sum, way, weights, momenta)
        U = self.op("U", t, _same, self._update(S, g, m, t))
        M = self.at("carried M", state.M)
        return state._replace(
            M=self.op("M", t, steps.memory, way, r, M, b, U, inputs.ceiling),
            S=U if self.structure.argument == "written_back" else stored_S,
            stored=stored,
            momenta=momenta,
        )

    def _update(self, S: Array, g: Array, m: Array, t: int) -> Array:
        """U from S (OMEGA-8)."""
        if self.structure.argument in ("S", "written_back"):
            return self.orthogonalise(S, t)
        if self.structure.argument == "nesterov":
            g = steps.times(self.inputs.sign, g)
            return self.orthogonalise(g if m is None else self.way.scaled_sum(m, S, g), t)
        return S

    def _rest(self, state: State, t: int, keys: Array, targets: Array) -> State:
        """The rest at an inactive token, which enters the window while M and S stay (CONV-32).

        The residual that the window stores for it is computed without decay (WINDOW-13).
        """
        if state.stored is not None:
            arrival = self._arrival(state, None, keys, targets)
            state = state._replace(stored=ops.slide(state.stored, arrival[..., -1, :]))
        if state.S is not None:
            state = state._replace(S=self.op("kept S", t, _same, state.S))
        if state.momenta is not None:
            state = state._replace(momenta=_slid(state.momenta, state.S))
        return state._replace(M=self.op("kept M", t, _same, state.M))

    # -- residuals ---------------------------------------------------------------------------------

    def _residual(self, state: State, t: int, keys: Array, targets: Array) -> tuple[Array, Array]:
        """Residuals of the window, and under carry those stored at arrival (CONV-12, CONV-14)."""
        counts = None if self.inputs.exists is None else self._counting(state, t)
        decay = _at(self.inputs.decay, t)
        e = self.op("residual", t, self._residuals, state, decay, keys, targets, counts=counts)
        return e, None if state.stored is None else ops.slide(state.stored, e[..., -1, :])

    def _residuals(self, state: State, decay: Array, keys: Array, targets: Array) -> Array:
        e = self._arrival(state, decay, keys, targets)
        if state.stored is None:
            return e
        return ops.where(self._older(state), ops.slide(state.stored, e[..., -1, :]), e)

    def _arrival(self, state: State, decay: Array, keys: Array, targets: Array) -> Array:
        """Residuals of the window under the memory of this token (OMEGA-4)."""
        kind = self.structure.reference
        if kind == "zero":
            return -targets
        M_ref = self.at("reference", state.M if kind == "running" else state.reference)
        return steps.residual(self.way, steps.times(decay, M_ref), keys, targets)

    def _counting(self, state: State, t: int) -> Array:
        """Plain booleans (c, 1): window rows whose residual has an influence.

        There is such a token, it is not cut off, and not its momentum alone counts.
        """
        counts = self.inputs.exists[t][::-1][:, None]
        if self.structure.order == "momentum_then_window":
            c = self.structure.window
            return counts & (np.arange(c) == c - 1)[:, None]
        return counts & ~self._older(state) if self.structure.boundary == "cut" else counts

    def _older(self, state: State) -> Array:
        """Plain booleans (c, 1): window rows whose token belongs to an older span."""
        return (np.arange(self.structure.window)[::-1] > state.position)[:, None]


def _same(x: Array) -> Array:
    return x


def _slid(momenta: Array, S: Array) -> Array:
    """The momenta of the window after one more."""
    return ops.concatenate([momenta[..., 1:, :, :], ops.expand_dims(S, -3)], axis=-3)


def _at(column: Array, t: int) -> Array:
    return None if column is None else column[..., t, :, :]
