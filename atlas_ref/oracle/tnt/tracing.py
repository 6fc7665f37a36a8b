"""The plain runs of a TNT with a hook at every op of every token (TNTCASE-9)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.family.arithmetic import Arithmetic
from atlas_ref.oracle.program.run import exact, seen
from atlas_ref.oracle.tnt import loop, ops
from atlas_ref.oracle.tnt.program import stated
from atlas_ref.oracle.tnt.settings import Memory, Settings
from atlas_ref.types import Array
from tape import ops as tape

#: Ops that have the sign of the momentum.
SIGNED = ("S", "P", "U")


def run(
    case: Case,
    inputs: Mapping[str, Array],
    take: Callable[..., Array],
    way: Arithmetic,
    chosen: Sequence[Any] = (),
) -> dict[str, Array]:
    """Run a case with the hook `take` at every op of every token; its results (TNTCASE-10).

    Args:
        take: called as take(op, t, compute, *args, counts=mask), where compute(*args) is the op at
            token t; rows of a window stand by lag, and `counts` says which have an influence.
        chosen: readings of the case, which keep its ops.
    """
    context: Any = seen(*stated(case), inputs, exact(way), chosen)
    means = loop.Means(context.rounding, _Hook(case, context.settings, take))
    return {f"out/{name}": x for name, x in loop.run(context, means).items()}


class _Hook:
    """Values of the family as a trace has them: by lag, and in the signs of the case."""

    def __init__(self, case: Case, s: Settings, take: Callable[..., Array]) -> None:
        self.s, self.take = s, take
        self.listed = {name for name, _, _ in ops.listed(case)}
        self.numbers = ops.numbers(s, case.inputs)
        self.history = {
            name.split("/")[2]: x.shape[-2]
            for name, x in case.inputs.items()
            if name.startswith("in/state/") and name.endswith("/window_k")
        }
        self.sign = -1.0 if s.c.momentum_sign == "minus" else 1.0

    def __call__(self, op: str, t: int, x: Array) -> Array:
        if op not in self.listed:
            return x
        last = op.rpartition("/")[2]
        if last == "residual":
            memory = next(m for m in self.s.memories if m.name == op.partition("/")[0])
            counts = self._counts(memory, t)
            by_lag = tape.where(counts, tape.flip(x, -2), 0.0)
            return tape.flip(self.take(op, t, lambda: by_lag, counts=counts), -2)
        if last in SIGNED and self.sign < 0:
            return -self.take(op, t, lambda: -x)
        return self.take(op, t, lambda: x)

    def _counts(self, m: Memory, t: int) -> Any:
        """Rows of the window whose tokens have an influence, by lag (WINDOW-13)."""
        c, lags = self.s.c, np.arange(self.s.window)
        started = [i for i in range(1, t + 1) if self._starts(m, i)]
        seen = t - started[-1] if started else t + self._before(m)
        counts = lags <= seen
        if c.order == "momentum_then_window":
            counts &= lags == 0
        elif c.window_at_boundary == "cut" and m.base != "running":
            counts &= lags <= int(m.place(self.numbers[t]))
        return counts[:, None]

    def _starts(self, m: Memory, t: int) -> bool:
        """Whether a document or a shard starts at a token of the call."""
        anew = self.numbers[t] != self.numbers[t - 1] + 1
        return bool(anew or m.starts(self.numbers[t]))

    def _before(self, m: Memory) -> int:
        """Window tokens from before the call that its first run sees."""
        return 0 if m.starts(self.numbers[0]) else self.history.get(m.name, 0)
