"""Calls of one level: some tokens of it, begun anew, or begun where the call before ended."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.tensor_spec import Position
from atlas_ref.types import Array
from tape import ops

#: Inputs with a row for each token, at level token.
BY_TOKEN = {"in/x": -2, "in/active": -1}

#: Inputs about tokens before the first one.
EARLIER = (
    "in/window_k",
    "in/window_v",
    "in/window_gate_before",
    "in/window_residual",
    "in/window_momentum",
    "in/M_ref",
)

#: The evaluation of a level: (inputs, case) -> results and the position after them.
Evaluate = Callable[[Mapping[str, Array], Any], tuple[dict[str, Array], Position]]


class Call(NamedTuple):
    """A level over some tokens.

    Attributes:
        inputs: of the level as a case of its own, without `in/reset`.
        case: its header and convention.
    """

    inputs: Mapping[str, Array]
    case: Case

    @property
    def tokens(self) -> int:
        return int(self.inputs["in/x"].shape[-2])

    def memory(self, name: str, like: Array) -> Array:
        """The memory `M` or `S` before the first token, of the shape and layout of files."""
        given = self.inputs.get(f"in/{name}0")
        return ops.zeros_like(like) if given is None else given

    def of_tokens(self, first: int, last: int) -> Call:
        """The same before other tokens."""
        cut = {
            name: value[..., first:last, :] if BY_TOKEN[name] == -2 else value[first:last]
            for name, value in self.inputs.items()
            if name in BY_TOKEN
        }
        return self._replace(inputs={**self.inputs, **cut})

    def change(self, **tensors: Array) -> Call:
        """With other inputs, by their names without `in/`."""
        new = {f"in/{name}": value for name, value in tensors.items()}
        return self._replace(inputs={**self.inputs, **new})

    def without(self, name: str) -> Call:
        """Without one input."""
        kept = {key: value for key, value in self.inputs.items() if key != name}
        return self._replace(inputs=kept)

    def anew(self) -> Call:
        """As where a document starts: an empty window, a new span, M0 and S0 (CASE-7)."""
        kept = {name: value for name, value in self.inputs.items() if name not in EARLIER}
        header = self.case.header.replaced(phase=None)
        return Call(kept, self.case.replaced(header=header))

    def after(self, results: Mapping[str, Array], position: Position) -> Call:
        """As the results of a call before say (CASE-13)."""
        state = {}
        for name, value in results.items():
            own = name.removeprefix("out/")
            if own != "y":
                state[f"in/{own}0" if own in ("M", "S") else f"in/{own}"] = value
        header = self.case.header.replaced(phase=position)
        return Call({**self.anew().inputs, **state}, self.case.replaced(header=header))


def documents(call: Call, reset: Array | None) -> list[tuple[int, int, Call]]:
    """First token, last token and the call of each packed sequence (CASE-7)."""
    T = call.tokens
    starts = [] if reset is None else [t for t in range(T) if reset[t]]
    first = [] if 0 in starts else [(0, call)]
    begun = [*first, *((t, call.anew()) for t in starts)]
    ends = [t for t, _ in begun[1:]] + [T]
    return [
        (start, end, own.of_tokens(start, end))
        for (start, own), end in zip(begun, ends, strict=True)
    ]


def in_turn(
    evaluate: Evaluate, call: Call, stops: Sequence[int]
) -> tuple[dict[str, Array], Position, list[Array]]:
    """A call as several, each from the results of the one before (CASE-13).

    Args:
        stops: tokens before which it is cut, in order.

    Returns:
        results, position, and the memory before each stop.
    """
    reads, memories, at = [], [], call
    results: dict[str, Array] = {}
    position: Position = None
    for first, last in itertools.pairwise([0, *stops, call.tokens]):
        if first:
            at = call.after(results, position)
            memories.append(results["out/M"])
        results, position = evaluate(*at.of_tokens(first, last))
        reads.append(results["out/y"])
    return {**results, "out/y": join(reads)}, position, memories


def join(reads: list[Array]) -> Array:
    """Reads of calls that follow on each other, (..., T, d_out)."""
    return reads[0] if len(reads) == 1 else ops.concatenate(reads, axis=-2)


def plain_layout(x: Array, case: Case) -> Array:
    """Convert to or from the layout of the file: transposition is its own inverse (CONV-25)."""
    return ops.transpose(x) if case.convention.layout == "transposed" else x
