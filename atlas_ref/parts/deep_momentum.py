"""Deep momentum: a network that learns, write by write, to map a gradient to a step.

    p_n     = m(u_n; V_n)                          u_n: all entries of the gradient of a write
    V_(n+1) = momentum_n V_n - a_n d objective(p_n) / dV
    s_n     = m(u_n; V_(n+1))                      what moves the memory

Specified in specs/deep_memory.md (DEEP-37, DEEP-38). Source: Nested Learning (2512.24695) Eq 50.
"""

from __future__ import annotations

from typing import Literal

from atlas_ref.parts.memory_functions import MemoryFunction
from atlas_ref.types import Array, Frozen
from tape import ops

#: What stands before the names of the network's tensors among those that a call brings.
PREFIX = "momentum/"


class DeepMomentum(Frozen):
    """A network in the place of the momentum S, and what it learns (DEEP-37).

    Attributes:
        function: m(u; V), as many entries in as out; all of its tensors learn.
        objective: l2, the gradient itself by least squares; dot, a large product with the gradient;
            ones, a large sum of its entries, as Eq 50 prints it (DEEP-38).
    """

    function: MemoryFunction = MemoryFunction(kind="mlp", activation="silu")
    objective: Literal["l2", "dot", "ones"] = "l2"


def slope(settings: DeepMomentum, predicted: Array, u: Array, *, minus: bool) -> Array:
    """The derivative of the objective by the network's output (DEEP-38).

    l2: p - u, dot: -u, ones: -1; with -u and -1 in the place of u and 1 under momentum_sign minus.

    Args:
        predicted, u (..., 1, N): p and u.
        minus: whether the network learns the negative gradient.
    """
    target = ops.ones_like(u) if settings.objective == "ones" else u
    away = target if minus else -target
    return predicted + away if settings.objective == "l2" else away
