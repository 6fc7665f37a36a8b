"""A case of rule dplr as its tokens, one key and query for each value head (VEC-24)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.dplr import formulas, members, parameters
from atlas_ref.types import Array
from tape import ops


class Call(NamedTuple):
    """Tokens of a call, in the rule's own terms (DPLR-2).

    Attributes:
        k, erase_read, erase_write (L, T n, d_in), v (L, T n, d_out), q (L, T, d_in): no erase is
            None.
        gate (L, T, d_in): of every channel; None for 1.
        gate_first: whether the gate comes before the erase.
        bonus: of the read before the write, or None.
        M0 (L, d_out, d_in): first memory.
        active, reset (T,): masks.
        steps: of a token. scale: of a read.
    """

    k: Array
    v: Array
    q: Array
    gate: Array
    erase_read: Array
    erase_write: Array
    bonus: Array
    M0: Array
    active: Any
    reset: Any
    gate_first: bool
    steps: int
    scale: float

    def gate_of(self, t: int) -> Array:
        """The gates of a token; None for 1."""
        return None if self.gate is None else self.gate[..., t, :]


def assemble(inputs: Mapping[str, Array], header: Any) -> Call:
    """The call of a case from its inputs, arrays or tape variables."""
    own = parameters.parse(header)
    return of_settings(own, formulas.apply(own, inputs))


def of_settings(own: Any, inputs: Mapping[str, Array]) -> Call:
    """The call of inputs whose gates and step sizes no formula has to make."""
    x = dict(inputs)
    for name in ("in/k", "in/q"):
        if own.norm(name) == "l2":
            square = ops.sum(x[name] * x[name], axis=-1, keepdims=True)
            x[name] = x[name] / ops.sqrt(square + own.norm_eps)

    def wide(z: Array) -> Array:
        heads = own.key_heads(x["in/v"].shape[-3]) if own.groups > 1 else None
        return z if heads is None else ops.index(z, (..., heads, slice(None), slice(None)))

    v, T = x["in/v"], x["in/q"].shape[-2]
    fields = members.tokens(own.of, x, wide)
    k, q = wide(x["in/k"]), wide(x["in/q"])
    gate = _gate(own, x, T)
    if gate is not None and len(gate.shape) < len(v.shape):
        gate = ops.broadcast_to(ops.expand_dims(gate, -1), q.shape)
    shape = (*v.shape[:-2], v.shape[-1], k.shape[-1])
    M0 = turn(x["in/M0"], own) if "in/M0" in x else ops.zeros_like(v, shape=shape)
    return Call(
        k,
        fields["v"],
        q,
        gate,
        fields.get("erase_read"),
        fields.get("erase_write"),
        x.get("in/bonus"),
        M0,
        np.asarray(x["in/active"]).astype(bool) if "in/active" in x else np.ones(T, bool),
        np.asarray(x["in/reset"]).astype(bool) if "in/reset" in x else np.zeros(T, bool),
        own.order == "before_error",
        own.steps,
        1.0 if own.scale == 1 else 1.0 / math.sqrt(k.shape[-1]),
    )


def lay_out(M: Array, header: Any) -> Array:
    """A memory from the layout of the case to that of the rule, or back."""
    return turn(M, parameters.parse(header))


def turn(M: Array, own: Any) -> Array:
    """The same by settings."""
    return M if own.state_layout == "(d_out, d_in)" else ops.swapaxes(M, -1, -2)


def _gate(own: Any, x: Mapping[str, Array], T: int) -> Array:
    if own.of.gated == "heads":
        return members.of_heads(x["in/v"], T)
    return ops.exp(x["in/log_retain"]) if "in/log_retain" in x else x.get("in/retain")
