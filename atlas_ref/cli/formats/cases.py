"""What the commands about cases print with `--json`."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from atlas_ref.cli.formats.parts import Number, Reply, Tensor, Words


class Summary(Tensor):
    """A tensor, and the range of its numbers."""

    least: Number
    greatest: Number
    finite: bool


class File(Reply):
    """A case, or results (new, show)."""

    case: str
    header: dict[str, Any]
    convention: dict[str, Any]
    void: Words
    tensors: dict[str, Summary]


class Axis(BaseModel):
    values: list[str]
    meaning: str


class Source(BaseModel):
    source: str
    changes: dict[str, Any]


class Conventions(Reply):
    """All axes and presets."""

    axes: dict[str, Axis]
    presets: dict[str, Source]


class Preset(Reply, Source):
    """One preset, as every rule has it."""

    preset: str
    resolved: dict[str, dict[str, Any]]


class Forms(Reply):
    support: dict[str, Words]
    refused: dict[str, list[str]]


class Evaluated(Reply):
    case: str
    out: str
    tensors: dict[str, Tensor]
    void: Words
    not_finite: list[str]


class Levels(Reply):
    case: str
    levels: list[str]
