"""What a loop runs on: inputs, settings and the arithmetic, as values that have names (PROG-2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.cases.tensor_spec import Tensor
from atlas_ref.oracle.family.arithmetic import Arithmetic
from atlas_ref.oracle.subjects.subject import Rounding, Touch
from atlas_ref.types import Array
from tape import ops

Inputs = Mapping[str, Any]

#: Called with a value, the inputs or ops that it is, and the token of these ops; the value with which
#: the loop goes on.
Label = Callable[[Array, Sequence[str], Any], Array]

#: The axes of a state's matrix in a case whose matrices are transposed.
TRANSPOSED = "(d_in, d_out)"


def no_label(value: Array, names: Sequence[str], t: Any) -> Array:
    """A value of which nobody asks where it comes from."""
    return value


def select(writes: Any, after: Callable[[], Array], before: Array) -> Array:
    """What stands behind a token: `after` where it writes, else `before`."""
    if isinstance(writes, bool):
        return after() if writes else before
    behind = (None,) * (len(before.shape) - writes.ndim)
    return ops.where(writes[(..., *behind)], after(), before)


class Rows(NamedTuple):
    """The rows of a window that a token looks at, the oldest first; a trace has them by lag.

    Attributes:
        t: the token.
        present, window: rows that there are, and that there could be.
    """

    t: int
    present: int
    window: int

    @property
    def tokens(self) -> int:
        """The token of the ops."""
        return self.t

    def hand(
        self, take: Callable[..., Array], op: str, compute: Callable[..., Array], *arguments: Any
    ) -> Array:
        """An op of every row, as a hook gives it back; `counts` says which rows there are."""
        n = self.present
        counts = (np.arange(self.window) < n)[:, None]

        def by_lag(*each: Any) -> Array:
            rows = ops.flip(compute(*each), -2)
            shape = (*rows.shape[:-2], self.window - n, rows.shape[-1])
            missing = ops.zeros_like(rows, shape=shape)
            return rows if n == self.window else ops.concatenate([rows, missing], axis=-2)

        value = take(op, self.t, by_lag, *arguments, counts=counts)
        # a sum, so that rows lie in memory alike whatever the hook did, and products round alike
        return ops.flip(value[..., :n, :], -2) + 0.0


class Reads(NamedTuple):
    """Tokens from first to before last, which one computation serves."""

    first: int
    last: int

    @property
    def tokens(self) -> range:
        """The tokens of the ops."""
        return range(self.first, self.last)

    def hand(
        self, take: Callable[..., Array], op: str, compute: Callable[..., Array], *arguments: Any
    ) -> Array:
        """An op of every token, each as a hook gives it back."""
        whole: list[Array] = []

        def at(t: int, *each: Any) -> Array:
            if not whole:
                whole.append(compute(*each))
            return whole[0][..., t - self.first, :]

        rows = [take(op, t, at, t, *arguments) for t in range(self.first, self.last)]
        return ops.stack(rows, axis=-2)


#: A token, or one of these.
Place = int | Rows | Reads


class Context(NamedTuple):
    """Inputs, settings and arithmetic of one run.

    Attributes:
        tensors: axes of the inputs.
        shapes: of inputs and states in the layout of the rule, "y" of the reads.
        matrices: states and ops that lie in the layout of the case.
        inputs: of the case, of a reading of it, or what formulas and the loop make of these.
        settings: parameters of the case, or of a reading of it.
        rounding: the arithmetic of sums and products, and what rounds beside it.
        label: told of every value that is handed out.
        raw: inputs of the case of which a formula makes others.
        sources: input -> the inputs that it is made of, or the op that it is; itself where left out.
        steps: of each token.
        step_ops: ops that each step computes, which have the step in front of their name.
    """

    tensors: Mapping[str, Tensor]
    shapes: Mapping[str, tuple[int, ...]]
    matrices: tuple[str, ...]
    inputs: Inputs
    settings: Any
    rounding: Rounding
    label: Label = no_label
    raw: Inputs = {}
    sources: Mapping[str, tuple[str, ...]] = {}
    steps: int = 1
    step_ops: tuple[str, ...] = ()

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
        """An input at a token; of one with rows of steps, at a row."""
        return self.entry(t, f"in/{name}")

    def entry(self, j: int, name: str) -> Array:
        """The entry of a token or a row of any tensor, by its whole name."""
        row = self.inputs[name][(..., j, *(slice(None),) * self.behind(name))]
        if self.label is no_label:
            return row
        names, token = [], j
        for source in self.sources.get(name, (name,)):
            op, token, _ = (source, j, 0) if source.startswith("in/") else self.place(source, j)
            names.append(op)
        return self.label(row, names, token)

    def behind(self, name: str) -> int:
        """The number of axes of a tensor behind that of tokens or rows."""
        words = self.tensors[name].axes.split()
        return len(words) - 1 - words.index("T")

    def whole(self, name: str) -> Array:
        """An input that has no tokens, as it is."""
        return self.label(self.inputs[f"in/{name}"], (f"in/{name}",), None)

    def place(self, op: str, j: Any) -> tuple[str, Any, int]:
        """The name of an op in a trace, its token and its step.

        Args:
            j: the row of an op of `step_ops`, which is one step of a token, else the token.
        """
        if self.steps == 1 or op not in self.step_ops:
            return op, j, 0
        t, step = divmod(j, self.steps)
        return self.trace_name(op, step), t, step

    def trace_name(self, op: str, step: int) -> str:
        """The name of an op in a trace, which begins with its step where a token has several."""
        return op if self.steps == 1 or op not in self.step_ops else f"step{step}/{op}"

    def first(self, state: str) -> Array:
        """The state before the first token in the layout of the rule, zero unless given."""
        name, op = f"in/{state}0", self.trace_name(state, self.steps - 1)
        if name in self.inputs:
            return self.label(self.matrix(state, self.inputs[name]), (op,), -1)
        like = self.inputs[next(iter(self.tensors))]
        return self.label(ops.zeros_like(like, shape=self.shapes[state]), (op,), -1)

    def matrix(self, op: str, x: Array) -> Array:
        """An op from the layout of the case to that of the rule, or back."""
        return x.swapaxes(-1, -2) if self.is_transposed(op) else x

    def is_transposed(self, op: str) -> bool:
        """Whether an op lies transposed in the layout of the case."""
        layout = getattr(self.settings, "state_layout", "")
        return bool(layout == TRANSPOSED and base(op) in self.matrices)

    def mask(self) -> list[Any]:
        """Whether each token changes the state, as `writes` says it."""
        return [writes(self.inputs, t) for t in range(self.tokens)]

    def writes(self, t: int) -> Any:
        """Whether a token changes the state; where rows differ, an array of one row for all heads."""
        return writes(self.inputs, t)

    def starts(self, t: int) -> Any:
        """Whether a packed sequence starts at a token; where rows differ, as `writes` says it."""
        return starts(self.inputs, t)

    def store(self, t: int) -> Touch | None:
        """The rounding of a state after a token to its format; None where it is not rounded."""
        return self.rounding.store

    def asks(self, q: Array) -> Array:
        """A query times the factor `query_scale`."""
        scale = self.settings.query_scale
        return q if scale == 1 else q / np.sqrt(q.shape[-1]).astype(q.dtype)


def writes(inputs: Inputs, t: int) -> Any:
    """Whether a token changes the state, a mask being given; of rows that differ, which of them."""
    if "in/active" not in inputs:
        return True
    return _mark_of(inputs["in/active"], t)


def starts(inputs: Inputs, t: int) -> Any:
    """Whether a packed sequence starts at a token, a mask being given; of rows that differ, in which."""
    return "in/reset" in inputs and _mark_of(inputs["in/reset"], t)


def _mark_of(mask: Any, t: int) -> Any:
    """Whether a mask marks a token; where rows differ, in which, as one row for all heads."""
    if len(mask.shape) == 1:
        return bool(mask[t])
    x = np.asarray(mask[..., t]).astype(bool)
    return bool(x.all()) if x.all() == x.any() else x[..., None]


def base(op: str) -> str:
    """The name of an op without the number of a level or layer behind it."""
    return op.rstrip("0123456789").removesuffix("_")
