"""Parts of what commands print with `--json`: the keys of every object, refusals, numbers."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

#: A number; JSON has no infinity, and none that is no number.
Number = float | Literal["nan", "inf", "-inf"] | None
Index = list[int]
Words = dict[str, str]
Exit = Literal[0, 1, 2, 3]


class Reply(BaseModel):
    """Keys of every object."""

    atlas_ref: str = Field(description="version of the tool")
    format: Literal[1] = Field(description="version of the object")


class BadInput(Reply):
    """Bad input."""

    exit: Literal[2]
    bad_input: list[str]


class NotSupported(Reply):
    """A rule that is not yet supported."""

    exit: Literal[3]
    not_supported: str


class Fault(Reply):
    """A fault of the tool itself."""

    exit: Literal[4]
    fault: str


class Both(BaseModel):
    """A number, twice."""

    decimal: Number
    hex: str


class Tensor(BaseModel):
    """A tensor without its numbers."""

    dtype: str
    shape: list[int]
