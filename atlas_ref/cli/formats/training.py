"""What the commands about training print with `--json`."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from atlas_ref.cli.formats.parts import Number, Reply


class HeldOut(BaseModel):
    """The loss of held-out text."""

    loss: float = Field(description="nats per predicted token")
    bits_per_byte: float
    tokens: int


class Trained(Reply):
    """A run, at its end or where it was stopped."""

    exit: Literal[0, 130]
    out: str
    step: int
    steps: int
    loss: float | None = Field(description="of the last step, in nats per predicted token")
    held_out: HeldOut | None
    checkpoint: str
    model: str | None = Field(description="file of the model; null where the run was stopped")


class Drawn(BaseModel):
    """A run in a picture."""

    run: str
    steps: int
    held_out: int = Field(description="number of evaluations")


class Plotted(Reply):
    """A picture of runs."""

    out: str
    runs: list[Drawn]


class Cost(BaseModel):
    """What predictions cost."""

    loss: float = Field(description="nats per predicted token")
    perplexity: Number
    bits_per_byte: float
    tokens: int = Field(description="predictions that count")


class Less(BaseModel):
    """The same text without writes or memory."""

    what: Literal["writes", "memory"]
    loss: Cost | None
    contribution: float | None = Field(description="percent of the perplexity without it")
    why: str | None = Field(description="the model cannot do without")


class Costs(Cost):
    """What text costs a model."""

    causal: bool = Field(description="whether no prediction sees what comes behind it")
    anew: Cost | None = Field(description="the same calls, each from a start")
    without: list[Less]


class Evaluated(Reply, Costs):
    """What text costs a model of a file."""

    exit: Literal[0]
    model: str
    state: Literal["row", "document"]


class Line(Costs):
    """A checkpoint that was evaluated."""

    checkpoint: str
    step: int


class Broken(BaseModel):
    """A checkpoint that could not be evaluated."""

    checkpoint: str
    step: int
    error: str


class Watched(Reply):
    """Checkpoints of a folder, those that a watch has evaluated."""

    exit: Literal[0]
    watched: str
    out: str
    evaluations: list[Line | Broken]


class Sample(BaseModel):
    """A text that a model went on with."""

    seed: int
    text: str = Field(description="without the prompt and the stop token")
    tokens: list[int] = Field(description="with the stop token")
    stopped: bool


class Generated(Reply):
    """Texts that a model went on with."""

    exit: Literal[0]
    model: str
    prompt: str
    samples: list[Sample]
