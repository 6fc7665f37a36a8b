"""Other readings of a case of a TNT: a setting changed, or one mistake (TNTCASE-12)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.subjects.subject import Rounding
from atlas_ref.oracle.tnt import loop, ops
from atlas_ref.oracle.tnt.settings import Memory, Settings, settings_of
from atlas_ref.types import Array

Inputs = dict[str, Array]


class Seen(NamedTuple):
    """A case with what decides whether a reading can be made of it."""

    s: Settings
    inputs: Mapping[str, Any]

    @property
    def tokens(self) -> int:
        return int(self.inputs["in/k"].shape[-2])

    @property
    def resumes(self) -> bool:
        """Whether the call goes on within a document."""
        return "in/state/position" in self.inputs

    @property
    def number(self) -> int:
        """Number of the first token of the call (TNT-13)."""
        return int(self.inputs["in/state/position"]) if self.resumes else self.s.origin

    @property
    def locals(self) -> tuple[Memory, ...]:
        return tuple(m for m in self.s.memories if not m.is_global)

    def holds(self, name: str) -> bool:
        """Whether a tensor of tokens is there, shared or of some memory."""
        ends = f"/{name}"
        return any(each.endswith(ends) for each in self.inputs if "/state" not in each)


class Reading(NamedTuple):
    """What a program does otherwise.

    Attributes:
        name: of the reading: a setting with its value, or the mistake.
        words: what follows on "as if"; "" for a setting.
        change: the settings and their values, as `identify` states them; empty for a mistake.
        before: the same settings with the values of the case.
        grad: it is in the backward pass, so that gradients alone show it.
        settings, inputs: what they are changed into.
    """

    name: str
    words: str = ""
    change: Mapping[str, Any] = {}
    before: Mapping[str, Any] = {}
    grad: bool = False
    settings: Callable[[Settings], Settings] | None = None
    inputs: Callable[[Inputs, Settings], Inputs] | None = None

    def applied(self, s: Settings, tensors: Inputs) -> tuple[Settings, Inputs]:
        """Settings and inputs under this reading."""
        tensors = tensors if self.inputs is None else self.inputs(tensors, s)
        return (s if self.settings is None else self.settings(s)), tensors


def read(case: Case, inputs: Mapping[str, Array], chosen: Sequence[Reading]) -> Seen:
    """Settings and inputs of a case under some readings at once."""
    s, tensors = settings_of(case), dict(inputs)
    for each in chosen:
        s, tensors = each.applied(s, tensors)
    return Seen(s, tensors)


def run(
    inputs: Mapping[str, Array], case: Case, rounding: Rounding, chosen: Sequence[Reading]
) -> dict[str, Array]:
    """Results of a case under some readings, as `Subject.plain` has them."""
    at = read(case, inputs, chosen)
    return loop.run(at.s, at.inputs, loop.Means(rounding))


def keeps(case: Case, each: Reading) -> bool:
    """Whether the ops of a reading are the case's own, of the same tokens (TNTCASE-10)."""
    at = read(case, case.inputs, [each])
    own, other = (
        {op: ops.tokens_under(s, inputs, op) for op, _, _ in ops.listed_under(s, inputs)}
        for s, inputs in ((settings_of(case), case.inputs), at)
    )
    return own == other


class Axis(NamedTuple):
    """A setting, the values that are tried, and how the program's settings hold it.

    Attributes:
        name: as a case states it.
        values: for a case; others than its own are readings.
        get, put: the value of some settings; settings with another one.
    """

    name: str
    values: Callable[[Seen], Sequence[Any]]
    get: Callable[[Settings], Any]
    put: Callable[[Settings, Any], Settings]


def of_axes(at: Seen, axes: Sequence[Axis]) -> Iterator[Reading]:
    """A reading for every other value of every axis."""
    for axis in axes:
        own = axis.get(at.s)
        for value in axis.values(at):
            if value != own:
                yield of_value(axis, value, own)


def of_value(axis: Axis, value: Any, own: Any) -> Reading:
    """The reading that one value of an axis is."""
    shown = f"{value:g}" if isinstance(value, float) else value
    return Reading(
        name=f"{axis.name}={shown}",
        change={axis.name: value},
        before={axis.name: own},
        settings=lambda s: axis.put(s, value),
    )


def together(name: str, each: Sequence[Reading]) -> Reading:
    """Some readings of settings as one change."""

    def settings(s: Settings) -> Settings:
        for one in each:
            assert one.settings is not None
            s = one.settings(s)
        return s

    return Reading(
        name=name,
        change={axis: value for one in each for axis, value in one.change.items()},
        before={axis: value for one in each for axis, value in one.before.items()},
        settings=settings,
    )
