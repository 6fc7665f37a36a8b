"""The plain loop of a deep memory with a hook at every op of every token (DEEPCASE-12)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.deep import ops
from atlas_ref.oracle.deep.loop import Place
from atlas_ref.oracle.deep.readings import reading
from atlas_ref.oracle.deep.readings.reading import Reading
from atlas_ref.oracle.deep.schedule import Write
from atlas_ref.oracle.deep.write import Rounding
from atlas_ref.oracle.family.arithmetic import Arithmetic
from atlas_ref.types import Array
from tape import ops as tape


def run(
    case: Case,
    inputs: Mapping[str, Array],
    take: Callable[..., Array],
    way: Arithmetic,
    chosen: Sequence[Reading] = (),
) -> dict[str, Array]:
    """Run a case with the hook `take` at every op of every token; its results.

    Args:
        take: called as take(op, t, compute, *args, counts=mask), where compute(*args) is the op at
            token t; rows of a window stand by lag, and `counts` says which exist.
        chosen: readings of the case, which keep its ops.
    """
    hook = _Hook(ops.settings_of(case).window, take)
    return reading.run(case, inputs, Rounding(way), hook, chosen, iterates=True)


class _Hook:
    """Values of a write by lag, padded to the window; values of reads token by token."""

    def __init__(self, window: int, take: Callable[..., Array]) -> None:
        self.window, self.take = window, take

    def __call__(self, op: str, place: Place, compute: Callable[..., Array], *args: Any) -> Array:
        if not isinstance(place, Write):
            return self._read(op, place.first, place.last, lambda: compute(*args))
        if op in ("residual", "cotangent") or op.startswith("write/"):
            return self._rows(op, place, lambda: compute(*args))
        return self.take(op, place.token, compute, *args)

    def _rows(self, op: str, event: Write, compute: Callable[[], Array]) -> Array:
        n = len(event.rows)
        counts = (np.arange(self.window) < n)[:, None]

        def by_lag() -> Array:
            rows = tape.flip(compute(), -2)
            empty = tape.zeros_like(rows, shape=(*rows.shape[:-2], self.window - n, rows.shape[-1]))
            return rows if n == self.window else tape.concatenate([rows, empty], axis=-2)

        value = self.take(op, event.token, by_lag, counts=counts)
        # a sum, so that rows lie in memory alike whatever the hook did, and products round alike
        return tape.flip(value[..., :n, :], -2) + 0.0

    def _read(self, op: str, first: int, last: int, compute: Callable[[], Array]) -> Array:
        whole: list[Array] = []

        def at(t: int) -> Array:
            if not whole:
                whole.append(compute())
            return whole[0][..., t - first, :]

        rows = [self.take(op, t, at, t) for t in range(first, last)]
        return tape.stack(rows, axis=-2)
