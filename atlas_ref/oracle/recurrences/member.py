"""What a member of rule recurrence declares: its tensors, its rule, a plain loop, draws (RECUR-6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from atlas_ref.oracle.cases.tensor_spec import Tensor
from atlas_ref.oracle.subjects.subject import Rounding
from atlas_ref.types import Array
from tape import ops

Inputs = Mapping[str, Any]
Results = dict[str, Array]
Shapes = dict[str, tuple[int, ...]]

#: Axes of the matrices of a state, as the rule has them or turned.
Layout = Literal["(d_out, d_in)", "(d_in, d_out)"]

#: Tensors that every member has beside its own.
SHARED = {
    "in/active": Tensor("T", "1", mask=True),
    "in/reset": Tensor("T", "0", mask=True),
    "in/y_bar": Tensor("... T d_out", "no gradients"),
}


class Settings(NamedTuple):
    """Settings of a case that a member may have (RECUR-5)."""

    query_scale: Any
    turned: bool
    mini_batch: int
    norm_eps: float
    groups: int
    position: int

    def asks(self, q: Array) -> Array:
        """A query times its factor."""
        return q if self.query_scale == 1 else q / np.sqrt(q.shape[-1]).astype(q.dtype)

    def matrix(self, M: Array) -> Array:
        """A matrix of the state from the layout of the case to that of the rule, or back."""
        return M.swapaxes(-1, -2) if self.turned else M


class Member(NamedTuple):
    """One member (RECUR-6).

    Attributes:
        source: code that it is taken from.
        tensors: its own inputs in order, with their ranges; a log of a gate may be -inf.
        states: names of the state, each with an input NAME0, a cotangent NAME_bar and a result.
        matrices: those of them that have a layout.
        settings: parameters that it has beside `member`.
        clause: of its recurrence.
        shapes: (inputs, settings) -> shapes of its inputs and states in the layout of the rule, by the name
            without `in/`; "y" of its reads.
        evaluate: (inputs, settings) -> results, by the rule.
        plain: (inputs, settings, rounding) -> the same by a plain loop.
        draw: (request, settings, generator) -> its inputs where nothing grows.
        words: word of a recorded tensor -> name without `in/`; those of states bare.
        counts: word of a recorded parameter -> setting.
        flat: name without `in/` -> axis of one that a recording has more.
        first: (name of a state, numbers, settings) -> one that it can have before the first token;
            None where that is zero.
        check: (inputs, settings) -> refuse what no shape and no range says, by ValueError.
        continued: (inputs, settings) -> parameters of the call that follows (RECUR-13).
    """

    source: str
    tensors: Mapping[str, Tensor]
    states: tuple[str, ...]
    matrices: tuple[str, ...]
    settings: tuple[str, ...]
    clause: str
    shapes: Callable[[Inputs, Settings], Shapes]
    evaluate: Callable[[Inputs, Settings], Results]
    plain: Callable[[Inputs, Settings, Rounding], Results]
    draw: Callable[[Any, Settings, Any], dict[str, Array]]
    words: Mapping[str, str]
    counts: Mapping[str, str] = {}
    flat: Mapping[str, int] = {}
    first: Callable[[str, Any, Settings], Any] = lambda name, x, own: x
    check: Callable[[Inputs, Settings], None] = lambda x, own: None
    continued: Callable[[Inputs, Settings], Mapping[str, Any]] = lambda x, own: {}


def at_token(x: Inputs, t: int, *names: str) -> list[Array]:
    """Rows of inputs at a token."""
    return [x[f"in/{name}"][..., t, :] for name in names]


def begun(x: Inputs, name: str, shape: tuple[int, ...], like: str = "in/v") -> Array:
    """A first state in the layout of the case, zero unless given."""
    return x[f"in/{name}0"] if f"in/{name}0" in x else ops.zeros_like(x[like], shape=shape)


def masks(x: Inputs) -> dict[str, Any]:
    """Tokens that are active, and resets, where a case has them."""
    return {
        name: np.asarray(x[f"in/{name}"]).astype(bool)
        for name in ("active", "reset")
        if f"in/{name}" in x
    }


def writes(x: Inputs, t: int) -> bool:
    """Whether a token changes the state (RECUR-1)."""
    return "in/active" not in x or bool(x["in/active"][t])


def starts(x: Inputs, t: int) -> bool:
    """Whether a packed sequence starts at a token (RECUR-1)."""
    return "in/reset" in x and bool(x["in/reset"][t])


def stored(rounding: Rounding, x: Array) -> Array:
    """A state between two tokens, as a program keeps it (TOL-8)."""
    return x if rounding.store is None else rounding.store(x)
