"""What a loop runs on: inputs, settings and the arithmetic, as values that have names (PROG-2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.family.arithmetic import Arithmetic
from atlas_ref.oracle.subjects.subject import Rounding, Tensor
from atlas_ref.types import Array
from tape import ops

Inputs = Mapping[str, Any]

#: Called with a name, a value and its token, where it has one; the value with which the loop goes on.
Label = Callable[[str, Array, int | None], Array]

#: The axes of a state's matrix in a case whose matrices are transposed.
TRANSPOSED = "(d_in, d_out)"


def unlabelled(name: str, value: Array, t: int | None) -> Array:
    """A value of which nobody asks where it comes from."""
    return value


class Context(NamedTuple):
    """Inputs, settings and arithmetic of one run.

    Attributes:
        tensors: axes of the inputs.
        shapes: of inputs and states in the layout of the rule, "y" of the reads.
        matrices: states and ops that lie in the layout of the case.
        inputs: of the case, or of a reading of it.
        settings: parameters of the case, or of a reading of it.
        rounding: the arithmetic of sums and products, and what rounds beside it.
        label: told of every value that is handed out.
    """

    tensors: Mapping[str, Tensor]
    shapes: Mapping[str, tuple[int, ...]]
    matrices: tuple[str, ...]
    inputs: Inputs
    settings: Any
    rounding: Rounding
    label: Label = unlabelled

    @property
    def arithmetic(self) -> Arithmetic:
        """The arithmetic of sums and products."""
        return self.rounding.way

    @property
    def tokens(self) -> int:
        """The number of tokens."""
        return self.shapes["y"][-2]

    def has(self, *names: str) -> bool:
        """Whether the run has all of these inputs."""
        return all(f"in/{name}" in self.inputs for name in names)

    def rows(self, t: int, *names: str) -> list[Array]:
        """Inputs at a token."""
        return [self.row(t, name) for name in names]

    def row(self, t: int, name: str) -> Array:
        """An input at a token."""
        x, words = self.inputs[f"in/{name}"], self.tensors[f"in/{name}"].axes.split()
        behind = (slice(None),) * (len(words) - 1 - words.index("T"))
        return self.label(f"in/{name}", x[(..., t, *behind)], None)

    def whole(self, name: str) -> Array:
        """An input that has no tokens, as it is."""
        return self.label(f"in/{name}", self.inputs[f"in/{name}"], None)

    def first(self, state: str) -> Array:
        """The state before the first token in the layout of the rule, zero unless given."""
        name = f"in/{state}0"
        if name in self.inputs:
            return self.label(state, self.matrix(state, self.inputs[name]), -1)
        like = self.inputs[next(iter(self.tensors))]
        return self.label(state, ops.zeros_like(like, shape=self.shapes[state]), -1)

    def matrix(self, op: str, x: Array) -> Array:
        """An op from the layout of the case to that of the rule, or back."""
        turned = getattr(self.settings, "state_layout", "") == TRANSPOSED
        return x.swapaxes(-1, -2) if turned and base(op) in self.matrices else x

    def writes(self, t: int) -> bool:
        """Whether a token changes the state."""
        return writes(self.inputs, t)

    def starts(self, t: int) -> bool:
        """Whether a packed sequence starts at a token."""
        return starts(self.inputs, t)

    def asks(self, q: Array) -> Array:
        """A query times the factor `query_scale`."""
        scale = self.settings.query_scale
        return q if scale == 1 else q / np.sqrt(q.shape[-1]).astype(q.dtype)


def writes(inputs: Inputs, t: int) -> bool:
    """Whether a token changes the state, a mask being given."""
    return "in/active" not in inputs or bool(inputs["in/active"][t])


def starts(inputs: Inputs, t: int) -> bool:
    """Whether a packed sequence starts at a token, a mask being given."""
    return "in/reset" in inputs and bool(inputs["in/reset"][t])


def base(op: str) -> str:
    """The name of an op without the number of a level behind it."""
    return op.rstrip("0123456789")
