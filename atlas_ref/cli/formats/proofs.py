"""What the commands about certified values, sets of vectors and clauses print with `--json`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from atlas_ref.cli.formats.parts import Exit, Index, Number, Reply, Words
from atlas_ref.vectors.sets import manifest


class Ulps(BaseModel):
    case: str
    tensor: str
    entries: int
    bits: int
    unresolved: int
    worst: Number
    median: Number
    scale: Number


class Unproved(BaseModel):
    case: str
    tensor: str
    index: Index
    low: Number
    high: Number
    what: Literal["unresolved", "contradicted"]


class Off(BaseModel):
    case: str
    tensor: str
    index: Index
    got: Number
    want: Number
    error: Number
    what: Literal["ours is off"]


class Certified(Reply):
    exit: Exit
    tensors: list[Ulps]
    problems: list[Unproved | Off]


class MadeSet(Reply):
    exit: Literal[0]
    folder: str
    files: dict[str, int]
    bytes: int


class Sets(Reply):
    sets: Words
    tokens: dict[str, int] = Field(description="of the longest vector of each set")


class ListedSet(Reply):
    folder: str
    tokens: int = Field(description="of the longest vector listed, 0 where none has a sequence")
    set: str
    version: str
    vectors: list[manifest.Vector]
    negative: list[manifest.Negative]
    large: list[manifest.Large]


class Agreement(BaseModel):
    vector: str
    tensor: str
    error: Number
    ulps: Number


class VerifiedSet(Reply):
    exit: Exit
    folder: str
    version: str
    counts: dict[str, int]
    problems: list[str]
    worst: Agreement | None


class KillMatrix(Reply):
    exit: Exit
    set: str
    version: str
    counts: dict[str, dict[str, int]]
    targets: dict[str, dict[str, Any]]
    alarms: list[list[str]]
    lost: list[list[str]]
    controls: int


class Change(BaseModel):
    kind: str
    name: str
    what: str
    details: list[str]


class Differences(Reply):
    exit: Exit
    changes: list[Change]


class SearchedSet(Reply):
    exit: Exit
    plan: str
    vectors: int
    survivors: dict[str, list[str]]


class Clause(BaseModel):
    clause: str
    title: str
    spec: str
    no_code: str | None
    code: list[str]
    tests: list[str]
    executed: list[list[str]]
    errata: list[str]
    vectors: list[str]
    mutants: list[str]


class Gap(BaseModel):
    path: str
    line: int
    what: str


class Traced(Reply):
    exit: Exit
    gaps: list[Gap]
    clauses: list[Clause]
