"""What the commands that judge results print with `--json`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from atlas_ref.cli.formats.parts import Both, Exit, Index, Number, Reply, Words


class First(BaseModel):
    token: int | None
    place: Index
    got: Number
    want: Number


class Profile(BaseModel):
    ratios: list[Number]
    width: int


class Row(BaseModel):
    """The verdict on a tensor (SRC-17)."""

    case: str
    tensor: str
    verdict: Literal[
        "PASS", "MARGINAL", "WRONG", "MISSING", "UNDECIDABLE", "FAILED", "NOT SUPPORTED"
    ]
    error: Number
    tolerance: Number
    place: Index | None
    got: Number
    want: Number
    why: str
    basis: str
    allowed: float
    first: First | None
    profile: Profile | None
    xfail: str


class Place(BaseModel):
    token: int | None
    op: str
    index: Index | None


class Failure(BaseModel):
    """The message about a failing case (SRC-14)."""

    case: str
    rule: str
    verdict: str
    first_wrong: Place
    got: Both | None
    expected: Both | None
    error_over_tolerance: Number
    tolerance: Number
    tolerance_from: str
    found_before: str
    clause: str
    nearest_convention: str
    command: str
    why: str
    feature: str
    also: list[str]
    case_has: list[str]


class Checked(Reply):
    exit: Exit
    bad_input: list[str]
    problems: list[str]
    void: dict[str, Words]
    skipped: dict[str, int]
    results: list[Row]
    failures: list[Failure]


class Supported(BaseModel):
    """A feature that a kernel has or has not (SRC-31)."""

    feature: str
    verdict: str
    why: str


class Tried(Checked):
    """A function asked by a name, with the keys of check (SRC-31)."""

    name: str
    function: str
    dtype: str
    taken: dict[str, Any]
    supports: list[Supported]
    hint: str
    kept: str | None


class Fit(BaseModel):
    convention: dict[str, Any]
    option: str
    distance: Number
    error_over_tolerance: Number
    tensor: str


class Departed(Fit):
    """What explains results where no setting of a convention does (IDENT-14, IDENT-15)."""

    feature: str | None
    words: str


class Twin(BaseModel):
    changes: dict[str, Any]
    reason: str
    distance: Number


class Identified(Reply):
    case: str
    out: str
    exit: Exit
    verdict: str
    why: str
    match: Fit | None
    preset: str | None
    own: bool
    from_own: dict[str, Any] | None
    as_if: list[Departed]
    runner_up: Fit | None
    times_worse: Number
    undecided: dict[str, list[Any]]
    indistinguishable: list[Twin]
    void: Words
    not_tried: Words
    not_used: list[str]
    failed: list[str]
    searched: int
    deciding_case: str | None


class Norms(BaseModel):
    max: Number
    rms: Number
    p99: Number


class Tolerance(Reply):
    case: str
    tensor: str
    dtype: str
    ensemble: dict[str, Norms]
    floor: Norms
    units: float
    amplification: Number
    tolerance: Norms
    allowed: float = Field(alias="pass")
    marginal: float
    cannot_separate: list[str]
    note: str


class Finding(BaseModel):
    """The verdict on an op of a trace (REPLAY-18)."""

    case: str
    op: str
    tensor: str
    verdict: str
    token: int | None
    index: Index
    got: Both | None
    expected: Both | None
    error: Number
    norm: str
    tolerance: Number
    error_over_tolerance: Number
    tolerance_from: str
    found_before: str
    evaluated_together_with: list[str]
    clause: str
    nearest_convention: str
    why: str


class Replayed(Reply):
    exit: Exit
    bad_input: list[str]
    trace: str
    command: str
    first_wrong: Finding | None
    findings: list[Finding]


class Drawn(BaseModel):
    number: int
    verdict: str
    row: dict[str, Any]
    drawn: dict[str, Any]
    file: str | None
    shrunk: dict[str, Any] | None


class Swept(Reply):
    exit: Exit
    rule: str
    seed: int
    cases: int
    counts: dict[str, int]
    failures: list[Drawn]
    nearest: dict[str, Any] | None
    skipped: dict[str, int]
    refused: dict[str, int]
