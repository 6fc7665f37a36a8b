"""What the commands about probes print with `--json`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from atlas_ref.cli.formats.parts import Exit, Number, Reply


class Point(BaseModel):
    """One number of pairs, means over draws."""

    pairs: int
    by_angle: float = Field(description="pairs whose nearest value is the right one")
    by_error: float = Field(description="pairs with an error of at most the bound")
    spread: float = Field(description="standard deviation of by_angle over draws")
    error: Number = Field(description="root of the mean squared error, relative to the values")
    expected_by_angle: float | None
    expected_error: float | None


class Curve(BaseModel):
    """A memory."""

    memory: str
    limit: int = Field(description="most pairs that it can read back exactly")
    points: list[Point]


class Capacity(Reply):
    """Pairs that memories read back."""

    exit: Exit
    settings: dict[str, Any]
    memories: list[Curve]
    out: str | None


class Cell(BaseModel):
    """Answers at one length and depth."""

    length: int = Field(description="tokens of a text")
    depth: float = Field(description="percent of the hay before the needle")
    exact: float = Field(description="share of texts whose whole answer is the likeliest")
    tokens: float = Field(description="share of tokens of answers that are")
    chance: float = Field(description="exact, without the needle")
    loss: float = Field(description="nats per token of an answer")
    gain: float = Field(description="nats per token that the needle saves")
    distance: int
    beyond: bool = Field(description="further back than attention alone leads to")


class Contribution(BaseModel):
    """What a memory adds behind an attention window, as seed 001 measures it."""

    window: int
    percent: float | None = Field(description="of the perplexity without memory")
    why: str | None = Field(description="there is no number")


class Needle(Reply):
    """Facts that a model read once."""

    exit: Literal[0]
    model: str
    reach: int = Field(description="tokens back that attention alone leads to")
    cells: list[Cell]
    contribution: Contribution
    out: str | None


class Lesson(BaseModel):
    """A number of pairs that a model learns to recall; sums are of all lessons so far."""

    pairs: int
    steps: int = Field(description="steps of all lessons up to the end of this one")
    accuracy: float = Field(description="share of right answers of the last examination")
    loss: float | None = Field(description="of the last step, in nats")
    reached: bool = Field(description="whether the accuracy is enough")
    seconds: float = Field(description="of the processor, up to the end of this lesson")
    tokens: int = Field(description="of this lesson, that were learnt from")
    rate: float | None = Field(description="tokens a second of this lesson's steps")


class Run(BaseModel):
    """A model of one memory and seed."""

    memory: str
    seed: int
    lessons: list[Lesson]


class Recall(Reply):
    """How soon models learn to recall pairs."""

    exit: Exit
    settings: dict[str, Any]
    runs: list[Run]
