"""What the loop of a deep memory runs on beside what every loop does (DEEPCASE-14)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atlas_ref.oracle.deep import schedule
from atlas_ref.oracle.deep.schedule import Plan
from atlas_ref.oracle.program.context import Context, Inputs, no_label


class DeepContext(Context):
    """A context that knows the events of a call of a deep memory."""

    __slots__ = ()

    @property
    def before(self) -> int:
        """Tokens from before the call."""
        keys = self.inputs.get("in/state/keys")
        return 0 if keys is None else int(keys.shape[-2])

    @property
    def plan(self) -> Plan:
        """The events of the call (DEEP-14)."""
        return plan_of(self.settings, self.inputs)

    def note(self, value: Any, t: int, *names: str) -> Any:
        """A value of a write or read at token t that is made of these; None where there is none."""
        if value is None or self.label is no_label:
            return value
        return self.label(value, names, t)

    def present(self, *names: str) -> list[str]:
        """Those of some inputs that the run has."""
        return [name for name in names if name in self.inputs]

    def begins(self, *beginnings: str) -> bool:
        """Whether the run has inputs whose names begin so."""
        return any(name.startswith(beginnings) for name in self.inputs)


def plan_of(settings: Any, inputs: Inputs) -> Plan:
    """The events of a call with these inputs (DEEP-14)."""
    k, keys = inputs["in/k"], inputs.get("in/state/keys")

    def marks(name: str, absent: bool) -> list[bool]:
        given = inputs.get(name)
        return [absent] * k.shape[-2] if given is None else [bool(each) for each in given]

    return schedule.plan_events(
        settings,
        active=marks("in/active", True),
        reset=marks("in/reset", False),
        held=0 if keys is None else keys.shape[-2],
        position=int(inputs.get("in/state/position", 0)),
        referenced=any(name.startswith("in/state/reference/") for name in inputs),
    )


def shapes(inputs: Mapping[str, Any], settings: Any) -> dict[str, tuple[int, ...]]:
    """The shape of the reads."""
    return {"y": (*inputs["in/q"].shape[:-1], inputs["in/v"].shape[-1])}
