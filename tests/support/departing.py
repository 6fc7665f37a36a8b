"""Small programs that depart from a case as kernels do, each from the literal loops by one change."""

from __future__ import annotations

import numpy as np

from atlas_ref.oracle.cases.case import Case
from tests.support.traced_cases import DTYPES, recorded
from tests.truth.literal import State
from tests.truth.literal_trace import Traced

Array = np.ndarray


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


class ReversedStart(Traced):
    """The initial window is read from the newest token to the oldest."""

    def start(self, resumed: bool) -> State:
        state = super().start(resumed)
        state.tokens = state.tokens[::-1]
        return state


class SilentLeftOut(Traced):
    """An inactive token does not enter the window."""

    def push(self, state: State, t: int, active: bool) -> None:
        before = state.tokens
        super().push(state, t, active)
        if not active:
            state.tokens = before


#: What these loops wrote down, and what they computed.
Answer = tuple[dict[str, Array], dict[str, Array]]


def answered(case: Case, loops: type[Traced], dtype: str = "float32") -> Answer:
    """`trace/OP`, and `out/y` beside it, of loops on a case."""
    traces = recorded(case, dtype, loops=loops)
    return traces, {"out/y": traces["trace/y"].astype(DTYPES[dtype])}
