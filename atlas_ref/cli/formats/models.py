"""What the commands about models print with `--json`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from atlas_ref.cli.formats.parts import Exit, Reply


class Setting(BaseModel):
    """A setting, and what told it."""

    value: Any
    by: Literal["shapes", "given", "default"]


class Imported(Reply):
    """A model that was imported."""

    exit: Exit
    file: str
    out: str
    parameters: int
    settings: dict[str, Setting]


class Exported(Reply):
    """A model that was exported."""

    exit: Exit
    file: str
    out: str
    arguments: dict[str, Any] = Field(description="of the constructor of the other program")


class Reading(BaseModel):
    """A preset, and the axes on which the reading is not its own."""

    preset: str
    changes: dict[str, Any]


class Tnt(BaseModel):
    """Spans of a memory of a TNT; the global one has no shard."""

    span: int
    shard: int | None


class Level(Reading):
    """A memory of a block."""

    rule: str
    heads: int
    d_in: int
    d_out: int
    window: int | None
    feature_map: dict[str, Any] | None
    period: int
    form: str
    tnt: Tnt | None


class Block(Reading):
    """A block; sizes are those of its attention, None without one."""

    kind: str
    levels: list[Level]
    heads: int | None
    d_head: int | None
    window: int | None
    d_inner: int | None
    parameters: int


class Statistics(BaseModel):
    """Of all numbers of a tensor."""

    mean: float
    std: float
    min: float
    max: float


class Memory(BaseModel):
    """A block with a memory that shares attention, over a call."""

    block: int
    gate: Statistics | None = Field(description="of the gates of tokens")
    mix: Statistics | None = Field(description="of what multiplies attention")
    attention: float = Field(description="root mean square of what attention returns")
    memory: float = Field(description="root mean square of what the memory returns")
    ratio: float | None = Field(description="memory over attention, null where that is 0")


class Memories(BaseModel):
    """What memories that share attention do on ids."""

    ids: list[int] = Field(description="shape")
    loss: float
    disabled: float = Field(description="loss with memories left out")
    neutral: float = Field(description="loss with memories that return 0")
    change: float = Field(description="largest difference of a logit from the neutral one")
    blocks: list[Memory]


class Model(Reply):
    """A model."""

    file: str
    model: Literal["language_model"]
    vocabulary: int
    d_model: int
    tied: bool
    causal: bool
    parameters: int
    dtype: str
    blocks: list[Block]
    source: dict[str, Any]
    config: dict[str, Any] = Field(description="all settings, as the file has them")
    memories: Memories | None = Field(None, description="with --on alone")


class ModuleVerdict(BaseModel):
    """A value that a module returned, or that lies between two, on inputs of its own."""

    module: str
    tensor: str
    verdict: str
    fault: str = Field(description="where the mistake lies: the module, or between two")
    place: str
    entry: list[int]
    got: float | None
    expected: float | None
    ratio: float | None = Field(description="error over tolerance, PASS up to 2")
    basis: str
    together: list[str] = Field(description="modules that were not recorded")
    clause: str
    nearest: str
    inside: str
    why: str


class ReplayedModules(Reply):
    """The verdict of each recorded value, in the order of the model."""

    exit: Exit
    recording: str
    first_wrong: ModuleVerdict | None
    verdicts: list[ModuleVerdict]


class IdentifiedModules(Reply):
    """The readings under which a recorded whole is right."""

    exit: Exit
    recording: str
    readings: list[list[str]] = Field(description="axes with values; several where none is told")
    alike: list[str] = Field(description="axes whose other values give these results too")
    ratio: float = Field(description="error over tolerance of the first, or of the best tried")
    words: str
