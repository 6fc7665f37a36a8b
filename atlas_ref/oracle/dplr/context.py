"""What the loop of rule dplr runs on: settings, tensors by name, and the arithmetic (DPLRCASE-11)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.dplr.parameters import Parameters
from atlas_ref.oracle.family.arithmetic import PLAIN, Arithmetic
from atlas_ref.oracle.subjects.subject import Rounding
from atlas_ref.types import Array
from tape import ops

Inputs = Mapping[str, Array]

#: The gate, or its log.
GATES = ("in/log_retain", "in/retain")

#: Tensors with a row or number for each token, however many steps it has.
TOKENS = ("in/q", *GATES)

#: Called with a value, the tensors or ops that it is, and the token of these ops; the value with which
#: the loop goes on.
Label = Callable[[Array, tuple[str, ...], int], Array]


def unlabelled(value: Array, names: tuple[str, ...], t: int) -> Array:
    """A value of which nobody asks where it comes from."""
    return value


def same(x: Array, *others: Array) -> Array:
    """The first value as it is."""
    return x


def named(op: str, step: int, steps: int) -> str:
    """The name of an op of one step of a token (DPLRCASE-11)."""
    return op if steps == 1 else f"step{step}/{op}"


def chosen(writes: Any, after: Callable[[], Array], before: Array) -> Array:
    """What stands behind a token: `after` where it writes, else `before`."""
    if isinstance(writes, bool):
        return after() if writes else before
    behind = (None,) * (len(before.shape) - writes.ndim)
    return ops.where(writes[(..., *behind)], after(), before)


#: An arithmetic in which nothing is rounded beside sums and products.
EXACT = Rounding(PLAIN, same, same, None)


class Context(NamedTuple):
    """Settings, tensors and arithmetic of one run.

    Attributes:
        params: settings of the case, or of a reading of it.
        tensors: inputs by name; keys and queries of value heads under their norm, once these are made.
        rounding: the arithmetic of sums and products, and what rounds beside it.
        raw: inputs that a formula makes gates and step sizes of.
        sources: tensor -> the inputs that it is made of, or the op that it is; itself where left out.
        label: told of every value that is handed out.
    """

    params: Parameters
    tensors: Inputs
    rounding: Rounding = EXACT
    raw: Mapping[str, Any] = {}
    sources: Mapping[str, tuple[str, ...]] = {}
    label: Label = unlabelled

    @property
    def arithmetic(self) -> Arithmetic:
        return self.rounding.way

    @property
    def tokens(self) -> int:
        return int(self.tensors["in/q"].shape[-2])

    @property
    def masked(self) -> bool:
        """Whether some token is not active in some row."""
        return "in/active" in self.tensors and not np.all(self.tensors["in/active"])

    @property
    def gate(self) -> str:
        """The tensor of the gate; "" where there is none."""
        return next((name for name in GATES if name in self.tensors), "")

    @property
    def gate_word(self) -> str:
        """The tensor of the gate, or what a formula makes, in messages."""
        return self.gate if self.params.gate_formula is None else "the log gate"

    @property
    def gated(self) -> bool:
        return self.params.of.gated == "heads" or bool(self.gate)

    @property
    def by_channel(self) -> bool:
        """Whether each key channel has a gate of its own."""
        rank = len(self.tensors["in/v"].shape)
        return bool(self.gate) and len(self.tensors[self.gate].shape) == rank

    @property
    def erases(self) -> bool:
        return self.params.of.erase not in ("none", "given") or self.has("in/erase_read")

    @property
    def square(self) -> bool:
        return bool(self.tensors["in/k"].shape[-1] == self.tensors["in/v"].shape[-1])

    def has(self, name: str) -> bool:
        return name in self.tensors

    def row(self, name: str, j: int) -> Array:
        """Row j of a tensor; of one with a number or row for each token, that of token j."""
        x = self.tensors[name]
        behind = (slice(None),) * (len(x.shape) == len(self.tensors["in/v"].shape))
        row = x[(..., j, *behind)]
        if self.label is unlabelled:
            return row
        names, steps = self.sources.get(name, (name,)), self.params.steps
        t, step = (j, 0) if name in TOKENS else divmod(j, steps)
        ops_of_row = [n if "/" in n or name in TOKENS else named(n, step, steps) for n in names]
        return self.label(row, tuple(ops_of_row), t)

    def mask(self) -> list[Any]:
        """Whether each token writes; where rows differ, an array of one row for all heads (DPLRCASE-27)."""
        if "in/active" not in self.tensors:
            return [True] * self.tokens
        active = np.asarray(self.tensors["in/active"]).astype(bool)
        rows = [active[..., t] for t in range(self.tokens)]
        return [bool(x.all()) if x.all() == x.any() else x[..., None] for x in rows]

    def starts(self, t: int) -> bool:
        """Whether a packed sequence starts at a token."""
        return "in/reset" in self.tensors and bool(self.tensors["in/reset"][t])

    def store(self, t: int) -> Callable[[Array], Array] | None:
        """The rounding of a state after token t to a narrow format; None elsewhere (DPLRCASE-14)."""
        if self.rounding.store is None:
            return None
        starts = np.flatnonzero(np.asarray(self.tensors.get("in/reset", ()))[: t + 1])
        first = int(starts[-1]) if starts.size else 0
        return self.rounding.store if self.params.rounds(t, first, self.tokens) else None

    def matrix(self, M: Array) -> Array:
        """A memory or momentum from the layout of the case to that of the rule, or back."""
        return M.swapaxes(-1, -2) if self.params.state_layout == "(d_in, d_out)" else M

    def first(self, state: str) -> Array:
        """A state before the first token in the layout of the rule, zero unless given."""
        name, v, k = f"in/{state}0", self.tensors["in/v"], self.tensors["in/k"]
        op = named(state, self.params.steps - 1, self.params.steps)
        if name in self.tensors:
            x = self.tensors[name]
            return self.label(self.matrix(x) if state in "MS" else x, (op,), -1)
        like = k if state == "A" else v
        shape = (*like.shape[:-2], *((v.shape[-1],) if state in "MS" else ()), k.shape[-1])
        return self.label(ops.zeros_like(like, shape=shape), (op,), -1)


# -- steps of a row --------------------------------------------------------------------------------


def decayed(M: Array, gate: Array) -> Array:
    """M diag(w), with one gate for each channel or one for all."""
    channels = len(gate.shape) == len(M.shape) - 1
    return (gate[..., None, :] if channels else gate[..., None, None]) * M


def found_in(context: Context, M: Array, read: Array) -> Array:
    """M a, what an erase finds."""
    return context.arithmetic.matmul(M, read[..., None])[..., 0]


def plus(context: Context, M: Array, x: Array, y: Array) -> Array:
    """M + x y^T."""
    return context.arithmetic.scaled_sum(x[..., :, None], y[..., None, :], M)


def erased(context: Context, M: Array, found: Array, write: Array, scale: Array) -> Array:
    """M - diag(e) found b^T; a scale of None is 1."""
    return plus(context, M, -(found if scale is None else scale * found), write)


def of_rows(rate: Array, v: Array) -> Array:
    """A step size beside the values of its row: one for all, or one for each."""
    return rate if len(rate.shape) == len(v.shape) else rate[..., None]
