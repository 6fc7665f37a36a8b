"""One write's step of a network in the place of a momentum, op by op (DEEP-37, DEEP-38)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from atlas_ref.oracle.deep import functions, steps
from atlas_ref.oracle.deep.biases import Part
from atlas_ref.oracle.deep.functions import Function
from atlas_ref.oracle.deep.settings import Settings, rank
from atlas_ref.oracle.program.hook import same
from atlas_ref.types import Array
from tape import ops

Tensors = Mapping[str, Array]

#: An op of the write: its name, its function and arguments -> its value.
Op = Callable[..., Array]


def step(
    s: Settings, f: Function, op: Op, part: Part, V: Tensors, g: Tensors, m: Any, a: Any
) -> tuple[dict[str, Array], dict[str, Array]]:
    """V after a write, and the step in the shapes of the gradients (DEEP-37).

    Args:
        f: the network in some arithmetic.
        part: calls what lays out the entries, which a mistake may wrap.
    """

    def laid(tensors: Tensors) -> dict[str, Array]:
        return {n: part("network/entries", same, x, rank(n)) for n, x in tensors.items()}

    g = laid(g)
    u = ops.concatenate([_row(x, name) for name, x in g.items()], axis=-1)
    v = functions.apply(f, V, u, lambda name, *args: op(f"learn/{name}", *args))
    gy = op("slope", partial(slope, s), v["y"], u)
    found = functions.gradient(f, V, v, u, gy, s.network)

    def moved(axes: int) -> Op:
        return lambda m, S, a, g: steps.momentum(f.way, m, S, a, g, axes)

    after = {
        name: op(f"S/{name}", moved(rank(name)), m, V[name], a, -found[name]) for name in s.network
    }
    seen = after if s.learns_first else V
    y = functions.apply(f, seen, u, lambda name, *args: op(f"move/{name}", *args))["y"]
    return after, laid(_split(y, g))


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
