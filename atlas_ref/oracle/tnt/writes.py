"""The ops of a run of the family as those of a memory of a TNT (TNTCASE-9).

The family says at every op what it is computed of; here each has the name of its memory, residuals
stand by lag, and momenta have the sign of the case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from atlas_ref.oracle.program.hook import Hook
from atlas_ref.oracle.tnt.settings import Memory, Settings
from atlas_ref.rules import FAMILY
from atlas_ref.types import Array
from tape import ops

#: Ops of a write.
WRITE = ("residual", "gradient", "S", "P", "U", "M")

#: Ops that have the sign of the momentum.
SIGNED = ("S", "P", "U")

#: Writes of a token that Eq 5 as printed counts in the chunk before as well (TNT-3).
EXTRA = "extra"

#: Arguments of an op of the family in the order in which a trace names what they are made of.
ORDER = {
    "gradient": (2, 3, 1, 4, 0),
    "S": (4, 2, 1, 3, 5, 0),
    "P": (2, 1, 0),
    "U": (0,),
    "M": (2, 4, 3, 1, 5, 0),
    "y": (1, 2, 0),
}


def ops_of_memory(s: Settings, m: Memory) -> tuple[str, ...]:
    """Ops of a write and a read of a memory, in their order."""
    rule = FAMILY[s.rule]
    has = {
        "residual": rule.has_error or rule.has_momentum,
        "gradient": rule.has_error or rule.has_momentum,
        "S": rule.has_momentum,
        "P": rule.has_window and s.c.order == "momentum_then_window",
        "U": s.c.has_newton_schulz and s.c.argument != "accumulated",
        "M": True,
    }
    read = () if m.read == "none" else ("y",)
    return (*(op for op in WRITE if has[op]), *read)


@dataclass(frozen=True, slots=True)
class Ops:
    """The hook of a run of one memory, as `family.Hook` is called.

    Attributes:
        hook: of the program.
        m: the memory.
        known: its ops, as `ops_of_memory` has them.
        rows: the token of the call that stands in each row of the run.
        first: what the first row reads after a write that is lost (TNT-5); None for its own.
    """

    hook: Hook
    m: Memory
    known: Sequence[str]
    rows: Sequence[int]
    first: Array

    def __call__(
        self, op: str, i: int, compute: Callable[..., Array], *arguments: Any, counts: Any = None
    ) -> Array:
        label, t = self.hook.context.label, self.rows[i]
        stays = t if self.m.writes else t - 1  # a reset stands in the place of a write
        if op == "read" and i == 0 and self.first is not None:
            return label(self.first, self._name("M"), stays)
        if op == "kept M":
            return label(compute(*arguments), self._name("M"), stays)
        extra = i + 1 < len(self.rows) and self.rows[i + 1] == t  # the same token follows again
        if op not in self.known or (extra and op == "y"):
            return compute(*arguments)
        name = f"{self.m.name}/{EXTRA}/{op}" if extra else f"{self.m.name}/{op}"
        if op == "residual":
            return self._residual(name, t, compute, *arguments, counts=counts)
        compute, each = _in_order(ORDER[op], compute, self._label_arguments(op, t, arguments))
        if op in SIGNED and self.hook.context.settings.c.momentum_sign == "minus":
            return -self.hook(name, t, lambda *given: -compute(*given), *each)
        return self.hook(name, t, compute, *each)

    def _residual(
        self,
        name: str,
        t: int,
        compute: Callable[..., Array],
        state: Any,
        *arguments: Array,
        counts: Any,
    ) -> Array:
        """Residuals by lag, zero where there is no token or it has no influence (WINDOW-13)."""
        decay, keys, targets = arguments
        label, of, name_of, at = self.hook.context.label, "reference", "M[start]", None
        if self.m.base == "running":
            of, name_of, at = "M", "M", t - 1
        by_lag = counts[::-1]

        def rows(M: Array, keys: Array, targets: Array, decay: Array) -> Array:
            found = compute(state._replace(**{of: M}), decay, keys, targets)
            return ops.where(by_lag, ops.flip(found, -2), 0.0)

        M = label(getattr(state, of), self._name(name_of), at)
        return ops.flip(self.hook(name, t, rows, M, keys, targets, decay, counts=by_lag), -2)

    def _label_arguments(self, op: str, t: int, arguments: Sequence[Any]) -> list[Any]:
        """Arguments of an op with states of before, and a query that was moved, under their names."""
        label, each = self.hook.context.label, list(arguments)
        if op == "S":  # without a gate nothing is carried
            each[2] = None if each[1] is None else label(each[2], self._name("S"), t - 1)
        elif op == "P":
            each[2] = label(each[2], self._name("S[t-j]"), None)
        elif op == "M":
            each[2] = label(each[2], self._name("M"), t - 1)
        elif op == "y":
            if self.m.read == "before":
                each[1] = label(each[1], self._name("M"), t - 1)
            elif self.m.read == "chunk_start":
                each[1] = label(each[1], self._name("M[start]"), None)
            if self.m.projection.kind != "none":
                each[2] = label(each[2], self._name("projected"), t)
        return each

    def _name(self, op: str) -> tuple[str]:
        return (f"{self.m.name}/{op}",)


def exist(rows: int, window: int, before: int) -> Any:
    """Whether there is a token at each lag of each row (T, c), some being there before the first."""
    return np.arange(window) <= np.arange(rows)[:, None] + before


def _in_order(
    order: Sequence[int], compute: Callable[..., Array], arguments: Sequence[Any]
) -> tuple[Callable[..., Array], list[Any]]:
    """A computation of its arguments in another order, and these."""
    back = [order.index(i) for i in range(len(order))]
    return lambda *each: compute(*(each[i] for i in back)), [arguments[i] for i in order]
