"""What a program does otherwise: an op wrapped, a setting changed, inputs changed (PROG-4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from atlas_ref.oracle.program.changes import Change
from atlas_ref.types import Array

#: What stands in the place of an op: (op, *arguments) -> value, where `op` is a `hook.Op`.
Wrap = Callable[..., Array]

#: Results of a program from inputs.
Compute = Callable[[dict[str, Any]], dict[str, Array]]

#: A program that computes results by another one: (computation, context, inputs) -> results.
Around = Callable[[Compute, Any, dict[str, Any]], dict[str, Array]]


def always(context: Any) -> bool:
    """A reading of every case."""
    return True


class Reading(NamedTuple):
    """One thing that a program does otherwise.

    Attributes:
        name: of the reading: a setting with its value, or the mistake.
        words: what follows on "as if"; "" for a setting.
        matters: (context) -> whether it can be made in a case.
        ops: op -> what stands in its place; beside ops, points of the loop and of its formulas that are
            none of a trace (`hook.Hook.point`). A name without the number of a level is all of them.
        inputs: what the inputs of the loop are changed into, behind the formulas that make some.
        raw: what the inputs of the case are changed into, before these formulas.
        settings: settings with their values, by the names that `replaced` of parameters takes.
        put: what settings are changed into, where a value stands inside of one.
        around: what the program does with a computation of the rule, which it may call more than
            once, as for parts of its tokens.
        change, before: settings as `identify` states them, and those of the case; empty for a mistake.
        grad: it is in the backward pass, so that gradients alone show it.
        backward: it is that of the backward pass alone: values are right.
        whole: reads depend on tokens behind them, or on how many there are.
        narrow: it sums in a narrower format than the case's, where orders of a sum are apart.
        short: calls of few tokens alone can have it, so that a schedule tries it (SCHED-6).
    """

    name: str
    words: str = ""
    matters: Callable[[Any], bool] = always
    ops: Mapping[str, Wrap] = {}
    inputs: Change | None = None
    raw: Change | None = None
    settings: Mapping[str, Any] = {}
    put: Callable[[Any], Any] | None = None
    around: Around | None = None
    change: Mapping[str, Any] = {}
    before: Mapping[str, Any] = {}
    grad: bool = False
    backward: bool = False
    whole: bool = False
    narrow: bool = False
    short: bool = False

    def settings_of(self, settings: Any) -> Any:
        """Settings of a case as this reading has them."""
        changed = settings.replaced(**self.settings) if self.settings else settings
        return changed if self.put is None else self.put(changed)


def of_settings(
    changed: Mapping[str, Any], before: Mapping[str, Any], stated: Mapping[str, str] = {}
) -> Reading:
    """The reading of settings with other values, beside those of the case.

    Args:
        stated: name of a setting -> that in `identify`; `parameters.NAME` where left out.
    """
    names = {name: stated.get(name) or f"parameters.{name}" for name in changed}
    shown = {k: f"{v:g}" if isinstance(v, float) else v for k, v in changed.items()}
    return Reading(
        name=", ".join(f"{names[k]}={v}" for k, v in shown.items()),
        settings=changed,
        change={names[k]: v for k, v in changed.items()},
        before={names[k]: v for k, v in before.items()},
    )
