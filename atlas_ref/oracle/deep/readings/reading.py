"""Other readings of a case of a deep memory: one setting changed, or one mistake (DEEPCASE-14).

A reading changes what the plain loop is given: its settings, its inputs, a part of the memory
function, or an op. Readings may be combined.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.deep import loop
from atlas_ref.oracle.deep.functions import Function
from atlas_ref.oracle.deep.loop import Place
from atlas_ref.oracle.deep.ops import pieces, settings_of
from atlas_ref.oracle.deep.schedule import Plan
from atlas_ref.oracle.deep.settings import Settings
from atlas_ref.oracle.deep.write import Rounding
from atlas_ref.types import Array

Inputs = dict[str, Array]

#: End of the name of a value that there is several times: write/a_1, write/a_2.
NUMBER = re.compile(r"_\d+$")


class Seen(NamedTuple):
    """A case with what decides whether a reading can be made of it."""

    case: Case
    s: Settings

    @property
    def inputs(self) -> Mapping[str, Any]:
        inputs: Mapping[str, Any] = self.case.inputs
        return inputs

    @property
    def tokens(self) -> int:
        return int(self.inputs["in/k"].shape[-2])

    @property
    def held(self) -> int:
        """Tokens from before the call."""
        keys = self.inputs.get("in/state/keys")
        return 0 if keys is None else int(keys.shape[-2])

    @property
    def plan(self) -> Any:
        return loop.plan(self.s, self.inputs)


def seen(case: Case, chosen: Sequence[Reading] = ()) -> Seen:
    """A case with its settings, changed by some readings."""
    s, tensors = _read(settings_of(case), case.inputs, chosen)
    return Seen(case.replaced(inputs=tensors), s)


def with_parts(**parts: Callable[..., Any]) -> Callable[[Settings], Settings]:
    """Settings with functions of the bias, the retention or the network in place of their own."""
    return lambda s: s._replace(parts={**s.parts, **parts})


def always(at: Seen) -> bool:
    """A reading that can be made of every case."""
    return True


class Reading(NamedTuple):
    """What a program does otherwise.

    Attributes:
        name: of the reading: an axis with its value, or the mistake.
        words: what follows on "as if"; "" for a setting.
        change: the setting and its value, as `identify` states them; empty for a mistake.
        before: the same setting with the value of the case.
        made_in: whether it can be made in a case.
        grad: it is in the backward pass, so that gradients alone show it.
        narrow: it sums in a narrower format than the case's, where orders of a sum are apart.
        settings, inputs: what they are changed into, both from the settings of the case.
        function: parts of the memory function in place of its own, by name of `Function`.
        ops: op, or the beginning of its name -> (the op's function, its arguments) -> value.
        events: (events, settings) -> the events of the call.
    """

    name: str
    words: str = ""
    change: Mapping[str, Any] = {}
    before: Mapping[str, Any] = {}
    made_in: Callable[[Seen], bool] = always
    grad: bool = False
    narrow: bool = False
    settings: Callable[[Settings], Settings] | None = None
    inputs: Callable[[Inputs, Settings], Inputs] | None = None
    function: Mapping[str, Any] = {}
    ops: Mapping[str, Callable[..., Array]] = {}
    events: Callable[[Plan, Seen], Plan] | None = None


def run(
    case: Case,
    inputs: Mapping[str, Array],
    rounding: Rounding = loop.PLAINLY,
    hook: Callable[..., Array] = loop.computed,
    chosen: Sequence[Reading] = (),
    *,
    iterates: bool = False,
) -> dict[str, Array]:
    """The results of a case under some readings at once.

    Args:
        hook, iterates: as of `loop.run`.
    """
    s, tensors = _read(settings_of(case), inputs, chosen)
    function = Function(s.function, rounding.way, rounding.touch)
    planted = {op: change for each in chosen for op, change in each.ops.items()}
    for each in chosen:
        function = function._replace(**each.function)
    return loop.run(
        s,
        tensors,
        rounding,
        _planted(hook, planted),
        function,
        iterates=iterates,
        events=lambda plan: _moved(plan, Seen(case.replaced(inputs=tensors), s), chosen),
    )


def _read(
    s: Settings, inputs: Mapping[str, Array], chosen: Sequence[Reading]
) -> tuple[Settings, Inputs]:
    """Settings and inputs under some readings."""
    tensors = dict(inputs)
    for each in chosen:
        tensors = tensors if each.inputs is None else each.inputs(tensors, s)
        s = s if each.settings is None else each.settings(s)
    return s, tensors


def _moved(plan: Plan, at: Seen, chosen: Sequence[Reading]) -> Plan:
    """Events under some readings."""
    for each in chosen:
        plan = plan if each.events is None else each.events(plan, at)
    return plan


def keeps(case: Case, each: Reading) -> bool:
    """Whether the ops of a reading have the tokens and shapes of the case's own."""
    own = settings_of(case)
    s, tensors = _read(own, case.inputs, [each])
    if _shapes(s) != _shapes(own):
        return False
    plans = (loop.plan(own, case.inputs), _moved(loop.plan(s, tensors), Seen(case, s), [each]))
    before, after = ([(e.token, len(e.rows)) for e in plan.writes] for plan in plans)
    return before == after


def _shapes(s: Settings) -> tuple[Any, ...]:
    """What the names and shapes of ops follow from."""
    c = s.c
    steps = c.newton_schulz_settings.steps if c.has_newton_schulz else 0
    ops = (pieces(s.function), s.fast, s.clip == "none", s.adaptive, steps)
    network = () if s.deep_momentum is None else tuple(pieces(s.deep_momentum.function))
    return (*ops, s.window, s.coupling, network)


def _planted(
    hook: Callable[..., Array], changes: Mapping[str, Callable[..., Array]]
) -> Callable[..., Array]:
    """A hook that puts other functions in the place of some ops, by name or its first part."""
    if not changes:
        return hook

    def take(op: str, place: Place, compute: Callable[..., Array], *args: Any) -> Array:
        names = (op, NUMBER.sub("", op), op.partition("/")[0])
        change = next((changes[name] for name in names if name in changes), None)
        if change is None:
            return hook(op, place, compute, *args)
        return hook(op, place, lambda *args: change(compute, *args), *args)

    return take


# -- settings --------------------------------------------------------------------------------------


class Axis(NamedTuple):
    """A setting, the values that are tried, and how the loop's settings hold it.

    Attributes:
        name: as a case states it.
        values: for a case; others than its own are readings.
        get, put: the value of some settings; settings with another one.
        said: a value as a case states it, with the name of the setting.
    """

    name: str
    values: Callable[[Seen], Sequence[Any]]
    get: Callable[[Settings], Any]
    put: Callable[[Settings, Any], Settings]
    said: Callable[[Any], tuple[str, Any]] | None = None


def readings(at: Seen, axes: Sequence[Axis]) -> Iterator[Reading]:
    """A reading for every other value of every axis."""
    for axis in axes:
        own = axis.get(at.s)
        for value in axis.values(at):
            if value != own:
                yield _reading(axis, value, own)


def _reading(axis: Axis, value: Any, own: Any) -> Reading:
    (name, said), (_, before) = (
        (axis.name, each) if axis.said is None else axis.said(each) for each in (value, own)
    )
    return Reading(
        name=f"{name}={said:g}" if isinstance(said, float) else f"{name}={said}",
        change={name: said},
        before={name: before},
        settings=lambda s: axis.put(s, value),
    )
