"""Settings of a run: the model, its text, the optimiser, and the loop, as one JSON object.

Specified in specs/train.md (TRAIN-7).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from atlas_ref.optim import DEFAULT, OF_RUNS
from atlas_ref.types import Frozen

#: Most of a size of a model or a batch, and of the tokens of a batch: more is a slip, and no
#: machine's.
MOST, MOST_TOKENS = 2**20, 2**24
Size = Annotated[int, Field(ge=1, le=MOST)]
Few = Annotated[int, Field(ge=1, le=2**10)]
Count = Annotated[int, Field(ge=0, le=MOST)]
Many = Annotated[int, Field(ge=1, le=2**53)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
if TYPE_CHECKING:
    Name = str
else:
    Name = Literal[OF_RUNS]


class Model(Frozen):
    """The model, which `models.model` makes (TRAIN-8).

    Attributes:
        model: kind of the blocks; omega is lmm with the rule of that name.
        rule: of the memories; None for the kind's own.
        preset: readings of layers; None for the kind's own.
        dim, layers, heads, d_head, window, persistent, segment: sizes; d_head None is dim / heads.
        kernel: taps of the convolutions of queries, keys and values; 1 for none.
        omega_window, omega_gate, poly_mode, poly_degree, poly_rank: of memories that have them.
        expansion: hidden numbers of a feed-forward are 2/3 of it times dim.
        memory: False for blocks without memory.
        ns_steps, ttl_step, ttl_adaptive: of Atlas-MAG's writes; None for the preset's own.
        ttl, ttl_momentum, ttl_retain: whether Atlas-MAG's memories learn, and the momentum and the share
            of the memory that is kept; None for the public ones.
        context_window: tokens that Atlas-MAG's loss and projection look at; None for the public 256.
        memory_mlp: of Atlas-MAG: gelu, two matrices, or geglu, three.
        tnt_global_span: of the global memory of a TNT; None for none.
        tnt_local_spans: of each local memory; without it and without a global memory no TNT.
        tnt_shards: tokens between two resets of each local memory, or of all.
        tnt_params: whether the memories of a TNT share projections and gates.
        tnt_preset: the reading of the paper that a TNT has (TNT-12).
        periods: of the levels of each memory, in tokens; without them it is one memory (TRAIN-24).
    """

    model: Literal["mag", "mal", "mac", "lmm", "omega", "atlas-mag"] = "mag"
    rule: str | None = None
    preset: str | None = None
    dim: Size = 128
    layers: Few = 4
    heads: Size = 4
    d_head: Size | None = None
    window: Size = 64
    persistent: Count = 0
    segment: Size = 16
    kernel: Few = 4
    omega_window: Size | None = None
    omega_gate: bool = False
    poly_mode: Literal["off", "elementwise", "tensor"] = "off"
    poly_degree: Size | None = None
    poly_rank: Count | None = None
    expansion: Size = 4
    memory: bool = True
    ns_steps: Size | None = None
    ttl_step: Number | None = None
    ttl_adaptive: bool | None = None
    ttl: bool = True
    ttl_momentum: Share | None = None
    ttl_retain: Annotated[float, Field(ge=0, le=1)] | None = None
    context_window: Size | None = None
    memory_mlp: Literal["gelu", "geglu"] = "gelu"
    tnt_global_span: Size | None = None
    tnt_local_spans: tuple[Size, ...] = ()
    tnt_shards: tuple[Size, ...] = ()
    tnt_params: Literal["shared", "per_memory"] = "shared"
    tnt_preset: str = "paper"
    periods: tuple[Size, ...] = ()


class Text(Frozen):
    """The text, which `data.load` reads (TRAIN-1 to TRAIN-6).

    Attributes:
        paths: files and folders.
        only, skip: patterns of names in folders: of files that are taken, and of what is not.
        limit: bytes that are read of them all.
        held_out: files and folders that are held out; none to draw some.
        share, split_seed: of the text that is drawn to be held out, and the seed.
        tokenizer: a `tokenizers` file; None for bytes.
        mixture: subsets of a mixture below one path.
        subsets: those of the mixture that are taken; none for all.
        weights: of each path or subset; none for one corpus of all, or the mixture's own.
    """

    paths: Annotated[tuple[str, ...], Field(min_length=1)]
    only: tuple[str, ...] = ("*",)
    skip: tuple[str, ...] = ()
    limit: Many | None = None
    held_out: tuple[str, ...] = ()
    share: Share = 0.05
    split_seed: Seed = 0
    tokenizer: str | None = None
    mixture: str | None = None
    subsets: tuple[str, ...] = ()
    weights: tuple[Positive, ...] = ()

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.mixture is None and self.weights and len(self.weights) != len(self.paths):
            raise ValueError(f"weights: {len(self.weights)}, expected one for each of the paths")
        if self.subsets and self.mixture is None:
            raise ValueError("subsets: belong to a mixture")
        return self


class Optimiser(Frozen):
    """The outer optimiser (TRAIN-9).

    Attributes:
        name: of `optim.OPTIMISERS`, which says which take hidden matrices, and AdamW the rest.
        rate, decay, clip: clip 0 for none. decay None is 0.1 for Atlas-MAG and 0.01 else.
        hidden_rate: of the matrices; None for 0.02.
        schedule, warmup, floor: warmup None is 1 % of the steps, at most 100.
        by_level: whether the parameters of a level move once in its period, by the sum of their
            gradients (TRAIN-24).
    """

    name: Name = DEFAULT
    rate: Positive = 1e-3
    hidden_rate: Positive | None = None
    decay: Number | None = None
    clip: Number = 1.0
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    warmup: Annotated[int, Field(ge=0)] | None = None
    floor: Annotated[float, Field(ge=0, le=1)] = 0.1
    by_level: bool = False


class Settings(Frozen):
    """All that a run is, but what it learns (TRAIN-7).

    Attributes:
        rows, tokens, accumulation: B rows of T predicted tokens, and so many batches to a step.
        steps: of the optimiser.
        seed: of parameters and of rows.
        state: fresh, each batch starts anew; carried, it goes on where the one before ended; None
            for carried where the model keeps its memories in public code, else fresh.
        documents: whether memories start anew where a document starts; None where they can.
        evaluate_every, evaluate_batches: steps between evaluations, and their batches; 0 for none.
        save_every, keep: steps between checkpoints, and how many of the last ones stay.
        log_every: steps between lines of the log.
        begins_from: a run, a checkpoint or a model's file whose parameters the run begins with;
            None for parameters that are drawn.
        learns: all parameters, or those alone that local memories of a TNT share with no other.
    """

    model: Model = Model()
    text: Text
    optimiser: Optimiser = Optimiser()
    rows: Size = 8
    tokens: Size = 256
    accumulation: Size = 1
    steps: Many = 1000
    seed: Seed = 0
    state: Literal["fresh", "carried"] | None = None
    documents: bool | None = None
    evaluate_every: Annotated[int, Field(ge=0)] = 100
    evaluate_batches: Size = 16
    save_every: Many = 100
    keep: Many = 5
    log_every: Many = 1
    begins_from: str | None = None
    learns: Literal["all", "locals"] = "all"

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (count := self.rows * self.tokens) > MOST_TOKENS:
            raise ValueError(f"tokens: {count} in a batch, at most {MOST_TOKENS} are taken")
        return self

    @property
    def carried(self) -> bool:
        """Whether states go on from batch to batch (TRAIN-6)."""
        own = self.model
        keeps = own.model == "atlas-mag" and own.memory and own.preset in (None, "atlas-mag")
        return self.state == "carried" or (self.state is None and keeps)
