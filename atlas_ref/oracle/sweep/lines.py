"""What a line of a log may hold, key by key (SWEEP-9)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from atlas_ref.oracle.judge.verdicts import Verdict
from atlas_ref.types import Frozen

#: A number, or the word of one that JSON does not have.
Number = Annotated[float, Field(allow_inf_nan=False)] | Literal["nan", "inf", "-inf"]
Count = Annotated[int, Field(ge=0)]
Line = Mapping[str, Any]


class Row(Frozen):
    """A comparison of one tensor."""

    tensor: str
    error: Number | None
    tolerance: Number | None
    why: str
    place: list[Count] | None = None
    got: Number | None = None
    want: Number | None = None


class Task(Frozen):
    """The number of a task, which every line begins with."""

    task: str
    case: Count


class Judged(Task):
    """The outcome of a case."""

    task: Literal["judge"]
    verdict: Verdict
    row: Row
    drawn: dict[str, Any] | None
    skipped: list[str] | None = None

    @model_validator(mode="after")
    def _check_words(self) -> Judged:
        """Check that a failure says what was drawn, and a success by how much it passes."""
        if self.verdict in ("PASS", "NOT SUPPORTED"):
            error, tolerance = self.row.error, self.row.tolerance
            near = isinstance(error, float) and isinstance(tolerance, float) and tolerance > 0
            if self.verdict == "PASS" and error is not None and not near:
                raise ValueError("an error and a tolerance above 0 are needed")
        elif self.drawn is None:
            raise ValueError("drawn: missing")
        return self


class Shrunk(Task):
    """A failure at its smallest."""

    task: Literal["shrink"]
    verdict: Verdict
    row: Row
    comparisons: Count
    numbers: Annotated[list[Count], Field(min_length=2, max_length=2)]
    file: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+\.safetensors$")]


#: The lines of a sweep.
OUTCOME: TypeAdapter[Judged | Shrunk] = TypeAdapter(
    Annotated[Judged | Shrunk, Field(discriminator="task")]
)


def holds(kind: TypeAdapter[Any]) -> Callable[[Line], bool]:
    """Whether a line is of a kind."""

    def check(line: Line) -> bool:
        try:
            kind.validate_python(dict(line))
        except ValidationError:
            return False
        return True

    return check
