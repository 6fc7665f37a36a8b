"""One write's step of a network in the place of a momentum, op by op (DEEP-37, DEEP-38)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from atlas_ref.oracle.deep import functions, steps
from atlas_ref.oracle.deep.functions import Function
from atlas_ref.oracle.deep.settings import Settings, rank
from atlas_ref.oracle.program.hook import Hook, same
from atlas_ref.types import Array
from tape import ops

Tensors = Mapping[str, Array]


class Step(NamedTuple):
    """One write's step of a network in some arithmetic, whose ops go through a hook."""

    s: Settings
    f: Function
    hook: Hook
    t: int

    def run(
        self, V: Tensors, g: Tensors, m: Any, a: Any, names: Sequence[str]
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """V after a write, and the step in the shapes of the gradients (DEEP-37).

        Args:
            names: ops that are the gradients.
        """
        s, f, hook, note = self.s, self.f, self.hook, self.hook.context.note
        g = self._entries(g)
        u = ops.concatenate([_row(x, name) for name, x in g.items()], axis=-1)
        u = note(u, self.t, *names)
        v = self._through("learn", V, u)
        gy = hook("slope", self.t, partial(slope, s), v["y"], u)
        found = functions.gradient(f, V, v, u, gy, s.network)
        between = [f"learn/{name}" for name in functions.read_back(f.settings, v)]
        sources = ("slope", *between, *(f"S/{name}[t-1]" for name in s.network), *names)

        def momentum(axes: int) -> Callable[..., Array]:
            return lambda g, S, m, a: steps.momentum(f.way, m, S, a, g, axes)

        after = {
            name: hook(
                f"S/{name}",
                self.t,
                momentum(rank(name)),
                note(-found[name], self.t, *sources),
                V[name],
                m,
                a,
            )
            for name in s.network
        }
        y = self._through("move", after if s.learns_first else V, u)["y"]
        return after, self._entries(_split(y, g))

    def _through(self, place: str, tensors: Tensors, u: Array) -> functions.Values:
        """Every value of the network between u and its image."""
        return functions.apply(
            self.f,
            tensors,
            u,
            lambda name, compute, *args: self.hook(f"{place}/{name}", self.t, compute, *args),
        )

    def _entries(self, tensors: Tensors) -> dict[str, Array]:
        """Entries row by row, as DEEP-37 has them; a mistake may have others."""
        part = self.hook.part
        return {n: part("network/entries", same, x, rank(n)) for n, x in tensors.items()}


def slope(s: Settings, p: Array, u: Array) -> Array:
    """The derivative of the objective by the network's output (DEEP-38)."""
    target = ops.ones_like(u) if s.deep_momentum.objective == "ones" else u
    target = -target if s.c.momentum_sign == "minus" else target
    return p - target if s.deep_momentum.objective == "l2" else -target


def _row(x: Array, name: str) -> Array:
    """The entries of a tensor as one row."""
    lead = x.shape[: len(x.shape) - rank(name)]
    return ops.reshape(x, (*lead, 1, math.prod(x.shape[len(lead) :])))


def _split(y: Array, g: Tensors) -> dict[str, Array]:
    """One row as the tensors whose entries it holds."""
    found, first = {}, 0
    for name, x in g.items():
        own = x.shape[len(x.shape) - rank(name) :]
        last = first + math.prod(own)
        found[name] = ops.reshape(y[..., 0, first:last], (*y.shape[:-2], *own))
        first = last
    return found
