"""Small programs that depart from a case as kernels do, each from the literal loops by one change."""

from __future__ import annotations

from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case
from tests.support.strategies import header_of
from tests.support.traced_cases import DTYPES, recorded
from tests.truth.literal import State, rows
from tests.truth.literal_trace import Traced
from tests.truth.literal_trace import trace as literal_trace

Array = np.ndarray


# -- the window ------------------------------------------------------------------------------------


class ShortWindow(Traced):
    """The oldest token of the window is left out."""

    def window(self, state: State) -> int:
        return min(self.c - 1, len(state.tokens))

    def residuals(self, state: State, t: int) -> Array:
        residuals = np.zeros((self.c, self.d_out), self.zero.dtype)
        for j in range(self.window(state)):
            token = state.tokens[-1 - j]
            residuals[j] = self.residual(self.reference(state), token.phi, token.v, self.retain(t))
        return self.note("residual", t, residuals)

    def gradient(self, state: State, t: int, residuals: Array) -> Array:
        total = self.zero
        for j in range(self.window(state)):
            total = total + self.weight(state, t, j) * np.outer(
                residuals[j], state.tokens[-1 - j].phi
            )
        return self.note("gradient", t, self.scale() * total)


class ReversedWeights(Traced):
    """Weights run from the oldest token."""

    def weight(self, state: State, t: int, j: int) -> Any:
        return super().weight(state, t, self.c - 1 - j)


class ReversedStart(Traced):
    """The initial window is read from the newest token to the oldest."""

    def start(self, resumed: bool) -> State:
        state = super().start(resumed)
        state.tokens = state.tokens[::-1]
        return state


class NoStart(Traced):
    """The window is empty at first."""

    def start(self, resumed: bool) -> State:
        state = super().start(resumed)
        state.tokens = []
        return state


class SilentLeftOut(Traced):
    """An inactive token does not enter the window."""

    def push(self, state: State, t: int, active: bool) -> None:
        before = state.tokens
        super().push(state, t, active)
        if not active:
            state.tokens = before


# -- flags, spans and initial states ---------------------------------------------------------------


class AllActive(Traced):
    """Every token writes."""

    def flag(self, name: str, t: int, default: bool) -> bool:
        return name == "in/active" or super().flag(name, t, default)


class StillDecaying(AllActive):
    """The step size of an inactive token is 0, and its gates count."""

    def rates(self, t: int) -> tuple[Any, Any]:
        silent = not Traced.flag(self, "in/active", t, True)
        return (0.0 * super().rates(t)[0], 1.0) if silent else super().rates(t)


class NoResets(Traced):
    """A packed sequence goes on."""

    def flag(self, name: str, t: int, default: bool) -> bool:
        return name != "in/reset" and super().flag(name, t, default)


class Continuing(AllActive, NoResets):
    """Every token writes, and a packed sequence goes on."""


class Bare(Continuing, NoStart):
    """So does the window, which is empty at first."""


class Running(Traced):
    """The reference is the last memory, whatever the span."""

    def reference(self, state: State) -> Array:
        return state.M


class Staying(Traced):
    """The reference is the first memory, whatever the span."""

    def reference(self, state: State) -> Array:
        return self.matrix("in/M0")


class NoS0(Traced):
    """Momentum starts from 0."""

    def start(self, resumed: bool) -> State:
        state = super().start(resumed)
        state.S = self.zero
        return state


# -- gates -----------------------------------------------------------------------------------------


class FirstGate(Traced):
    """All output dimensions have the gate of the first."""

    def __init__(self, header: Any, convention: Any, tensors: dict[str, Array], move: Any) -> None:
        gates = ("in/retain", "in/momentum", "in/step_size")
        first = {n: x[:, :1] for n, x in tensors.items() if n in gates and x.ndim == 2}
        super().__init__(header, convention, {**tensors, **first}, move)


class KeyGate(Traced):
    """The retain gate scales columns of M: one gate per key channel."""

    def retain(self, t: int) -> Any:
        return 1.0

    def note(self, op: str, t: int, value: Any) -> Array:
        if op == "M":
            before = self.notes["M"][t - 1] if t else self.matrix("in/M0")
            value = value - before + before * super().retain(t)[None, :]
        return super().note(op, t, value)


class LateDecay(Traced):
    """M_t = r_t (M_{t-1} - b_t U_t)."""

    def retain(self, t: int) -> Any:
        return 1.0

    def note(self, op: str, t: int, value: Any) -> Array:
        if op == "M" and self.flag("in/active", t, True):
            value = rows(super().retain(t), value)
        return super().note(op, t, value)


def results(case: Case, loops: type[Traced], dtype: str = "float32") -> dict[str, Array]:
    """`out/y`, `out/M` and `out/S` of loops on a case."""
    inputs = {
        name: value if value.dtype.kind in "bu" else value.astype(np.float64)
        for name, value in case.inputs.items()
    }
    _, found = literal_trace(header_of(case), inputs, kind=np.float64, loops=loops)
    names = [name for name in ("out/y", "out/M", "out/S") if name in found]
    return {name: found[name].astype(DTYPES[dtype]) for name in names}


def traces(case: Case, loops: type[Traced], dtype: str = "float32") -> dict[str, Array]:
    """`trace/OP` of loops on a case."""
    return recorded(case, dtype, loops=loops)
