"""What the loop of a TNT runs on, and what decides which readings can be made of a case (TNTCASE-12)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atlas_ref.oracle.program.context import Context
from atlas_ref.oracle.tnt.settings import Memory


class TntContext(Context):
    """A context that knows the documents and the memories of a case of a TNT.

    Its inputs are those of the case: every memory takes its own or those that all share.
    """

    __slots__ = ()

    @property
    def resumes(self) -> bool:
        """Whether the call goes on within a document."""
        return "in/state/position" in self.inputs

    @property
    def number(self) -> int:
        """Number of the first token of the call (TNT-13)."""
        return int(self.inputs["in/state/position"]) if self.resumes else self.settings.origin

    @property
    def locals(self) -> tuple[Memory, ...]:
        return tuple(m for m in self.settings.memories if not m.is_global)

    def holds(self, name: str) -> bool:
        """Whether a tensor of tokens is there, shared or of some memory."""
        ends = f"/{name}"
        return any(each.endswith(ends) for each in self.inputs if "/state" not in each)


def shapes(inputs: Mapping[str, Any], settings: Any) -> dict[str, tuple[int, ...]]:
    """The shape of the reads."""
    return {"y": (*inputs["in/k"].shape[:-1], inputs["in/v"].shape[-1])}
