"""What a program does otherwise: an op wrapped, a setting changed, inputs changed (PROG-4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from atlas_ref.oracle.program.changes import Change
from atlas_ref.oracle.program.context import Context
from atlas_ref.types import Array

#: What stands in the place of an op: (compute, *arguments) -> value.
Wrap = Callable[..., Array]

#: Results of a program from inputs.
Compute = Callable[[dict[str, Any]], dict[str, Array]]


def always(context: Context) -> bool:
    """A reading of every case."""
    return True


class Reading(NamedTuple):
    """One thing that a program does otherwise.

    Attributes:
        name: of the reading: a setting with its value, or the mistake.
        words: what follows on "as if"; "" for a setting.
        matters: (context) -> whether it can be made in a case.
        ops: op -> what stands in its place. Beside ops, start/STATE is the first state where a
            packed sequence starts, read/STATE the state that queries read, from it and the one
            before, and out/NAME a result. A name without the number of a level is all of them.
        inputs: what the inputs are changed into.
        settings: settings with their values.
        around: (computation, inputs) -> results, where a program computes more than once.
        change, before: settings as `identify` states them, and those of the case; empty for a mistake.
        grad: it is in the backward pass, so that gradients alone show it.
        since: the version of the vectors that first has it as a mutant.
        whole: reads depend on tokens behind them, or on how many there are.
    """

    name: str
    words: str = ""
    matters: Callable[[Context], bool] = always
    ops: Mapping[str, Wrap] = {}
    inputs: Change | None = None
    settings: Mapping[str, Any] = {}
    around: Callable[[Compute, dict[str, Any]], dict[str, Array]] | None = None
    change: Mapping[str, Any] = {}
    before: Mapping[str, Any] = {}
    grad: bool = False
    since: str = "1.9.0"
    whole: bool = False
