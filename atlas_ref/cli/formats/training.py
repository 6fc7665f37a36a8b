"""What the commands about training print with `--json`."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from atlas_ref.cli.formats.parts import Reply


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
