"""The plan of a set: the outcome of a search, stored so that it is not repeated (VEC-7).

`plans/<set>.json` names target, topic and seed of every vector, and the mutants that it kills with
a margin.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator

from atlas_ref.messages import first_problem
from atlas_ref.oracle.cases.case import Case, CaseError
from atlas_ref.oracle.cases.json_text import decode
from atlas_ref.storage.files import read_bytes
from atlas_ref.types import Frozen
from atlas_ref.vectors.inputs.draw import drawn
from atlas_ref.vectors.inputs.target import Target
from atlas_ref.vectors.inputs.targets import target_named, topic_named
from atlas_ref.vectors.inputs.topics import Topic
from atlas_ref.vectors.sets.manifest import Kills, Name, Version, both_formats, repeated

PLANS = Path(__file__).parent / "plans"


class Entry(Frozen):
    """One vector of a plan."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    target: str
    topic: str
    seed: Annotated[int, Field(ge=0)]
    kills: Kills

    @field_validator("kills")
    @classmethod
    def _both(cls, kills: Kills) -> Kills:
        return both_formats(kills)

    @property
    def name(self) -> str:
        """TARGET-TOPIC, with the seed where it is not the first."""
        return f"{self.target}-{self.topic}" + (f"-{self.seed}" if self.seed else "")

    def parts(self) -> tuple[Target, Topic]:
        """The target and topic that the words name."""
        target = target_named(self.target)
        return target, topic_named(target, self.topic)

    def case(self) -> Case:
        """The case that is drawn from target, topic and seed."""
        return drawn(*self.parts(), self.seed)


class Plan(Frozen):
    """A set without its numbers.

    Attributes:
        negative, large: names of files that must be refused, and of larger cases.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    set: Name
    version: Version
    vectors: list[Entry]
    negative: list[str]
    large: list[str]

    @model_validator(mode="after")
    def _each_once(self) -> Plan:
        for kind, names in (
            ("vectors", [each.name for each in self.vectors]),
            ("negative", self.negative),
            ("large", self.large),
        ):
            if twice := repeated(names):
                raise ValueError(f"{kind}: {twice!r} stands twice")
        return self


def planned(**fields: Any) -> Plan:
    """A plan of these parts.

    Raises:
        CaseError: one of them is not what a plan holds.
    """
    try:
        return Plan.model_validate(fields)
    except ValidationError as error:
        raise CaseError(first_problem(error)) from None


def plans() -> list[str]:
    """Names of the sets that can be made."""
    return sorted(path.stem for path in PLANS.glob("*.json"))


def load(name: str) -> Plan:
    """The plan of a set, by its name or from a file.

    Raises:
        CaseError: there is none, or it is no plan.
    """
    path = Path(name) if name.endswith(".json") else PLANS / f"{name}.json"
    if not os.path.exists(path):
        raise CaseError(f"vectors make: there is no plan {name!r}; plans are {', '.join(plans())}")
    try:
        return Plan.model_validate(decode(read_bytes(path)))
    except ValidationError as error:
        raise CaseError(f"{path}: {first_problem(error)}") from None
    except ValueError as error:
        raise CaseError(f"{path}: {' '.join(str(error).split())}") from None
