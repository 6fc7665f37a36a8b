"""Settings of TNT: one field for each axis, the recommended value first.

Specified in specs/tnt.md (TNT-1, TNT-2, TNT-12).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from atlas_ref.forms import support
from atlas_ref.messages import shown
from atlas_ref.rules import RULES, Rule, rule_of
from atlas_ref.types import Count, Frozen

if TYPE_CHECKING:
    RuleConfig = Any
else:
    RuleConfig = functools.reduce(operator.or_, (rule.Config for rule in RULES.values()))


def _counted(value: Any) -> Any:
    """A whole number; a literal would take true and 1.0 for one."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"must be 0 or 1, found {shown(value)}")
    return value


#: Number of a document's first token.
Origin = Annotated[Literal[0, 1], BeforeValidator(_counted)]

#: Reads that see tokens after their own (TNT-25).
LATE = ("chunk_end", "call_end")

#: Forms from the fastest on, for a run that names none.
PREFERRED = ("chunkwise", "exact", "atlas_parallel", "kernel", "scan", "sequential")


class Projection(Frozen):
    """Axes of the matrix by which a memory moves its queries (TNT-7 to TNT-10).

    Attributes:
        kind: sum of outer products of keys; the orthogonal projector onto their span; a learned
            matrix; none, the query itself.
        range: keys since the start of the chunk, of the shard or of the document, or the last
            `window` ones of the document.
        window: keys of range window.
        own: whether a query meets the key of its own token.
        norm: each outer product is divided by its key's squared norm; by nothing, which takes keys
            of length one for granted; or their sum by the sum of squared norms.
        dependent: kind orthogonal counts a key as one of the span when its rest is shorter than
            this share of it, above 0 and below 1.
        gate: none, or given: a query is (1 - g) q + g P q, with a gate g of its token (TNT-24).
    """

    kind: Literal["sum_outer", "orthogonal", "learned", "none"] = "sum_outer"
    range: Literal["chunk", "shard", "sequence", "window"] = "chunk"
    window: Count | None = None
    own: Literal["inclusive", "exclusive"] = "inclusive"
    norm: Literal["per_key", "unit_keys_assumed", "sum_of_norms"] = "per_key"
    dependent: Annotated[float, Field(gt=0, lt=1)] = 1e-8
    gate: Literal["none", "given"] = "none"

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if (self.range == "window") != (self.window is not None):
            raise ValueError(
                f"window: {self.window}, but range {self.range} "
                f"{'needs one' if self.range == 'window' else 'has none'}"
            )
        if self.kind == "orthogonal" and self.range == "window":
            raise ValueError(
                "range: window is not defined for kind orthogonal, whose basis loses no key"
            )
        if self.kind == "none" and self.gate != "none":
            raise ValueError(f"gate: {self.gate}, but kind none moves no query")
        return self


class _Memory(Frozen):
    """One memory of a TNT: a rule, its span, and the form of its run (TNT-13).

    Attributes:
        config: of the rule. Its axes reference, read and span_origin, and its span, are set by TNT.
        span: tokens between two refreshes of the reference.
        form: of `atlas_ref.forms`; None for the first of `PREFERRED` that computes the rule.
        chunk: tokens that the form takes at once; it changes no result.
        writes: False for a memory that stays what it is at a start, and is read (TNT-13).
    """

    config: RuleConfig
    span: Count
    form: str | None = None
    chunk: Count | None = None
    writes: bool = True

    @property
    def rule(self) -> Rule:
        """The rule whose configuration this memory has."""
        return rule_of(self.config)

    def _require(self, **axes: Any) -> Any:
        """The rule's settings with axes of TNT; refuses a form that cannot compute them."""
        if self.config.span is not None:
            raise ValueError(
                f"config: span {self.config.span}, but the span of the memory is TNT's: {self.span}"
            )
        made = with_axes(self.config, self.span, axes)
        if self.form is not None:
            support.require(self.rule.name, made.convention, self.form, self.chunk)
        return made


def with_axes(config: Any, span: int, axes: Mapping[str, Any]) -> Any:
    """A rule's settings under a span and some axes of the convention, checked anew."""
    fields = {name: getattr(config, name) for name in type(config).model_fields}
    changed = config.convention.replaced(span_origin="first", **axes)
    return type(config)(**{**fields, "span": span, "convention": changed})


class Global(_Memory):
    """The global memory, which no shard resets (TNT-3).

    Attributes:
        sum: whether a chunk's sum ends before the first token of the next one, or takes it too
            (Eq 5 as printed): that token is then written twice.
        read: the memory that a token reads: that of its chunk's start, that after or before its own
            write, none, or that after the last token of its call, which is not causal (TNT-25).
        projection: of its queries; the paper asks it raw ones (TNT-26).
    """

    sum: Literal["exclusive", "inclusive"] = "exclusive"
    read: Literal["chunk_start", "after", "before", "none", "call_end"] = "chunk_start"
    projection: Projection = Projection(kind="none")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        made = self.run_config
        if self.sum == "inclusive" and (
            made.convention.gate != "none"
            or self.rule.window(made) > 1
            or self.read != "chunk_start"
        ):
            raise ValueError(
                "sum: inclusive is defined for gate none, a window of one token and read "
                "chunk_start alone"
            )
        if self.projection.range == "shard":
            raise ValueError("projection: range shard, but the global memory has no shards")
        return self

    @property
    def run_config(self) -> Any:
        """The rule's settings for the run over the tokens."""
        read = "chunk_start" if self.read == "none" else self.read
        span = self.span + (self.sum == "inclusive")
        self._require(reference="chunk_start", read=read)
        return with_axes(self.config, span, {"reference": "chunk_start", "read": read})


class Local(_Memory):
    """A local memory, which every shard starts anew (TNT-4 to TNT-6).

    Attributes:
        shard: S, tokens between two resets.
        projection: of its queries.
        base: the memory from which a write goes on and the one of its residual: the chunk's start
            for both (Eq 3); for every token all gradients of the chunk so far, written onto the
            memory before it (Eq 6 as printed, which counts them again and again); the memory before
            the token for both (a token loop).
        read: the memory after the token's write, before it, or that of its chunk's start; that
            after the last token of its chunk or of its call, which are not causal (TNT-25).
        reset: whether a shard's first token writes after the reset, or the reset takes the place of
            its write (Eq 6 as printed).
        reset_momentum: what the momentum returns to: zero, nothing (it goes on), or a parameter.
        chunk_origin: chunks count from the start of the shard, or of the document, when they cross
            resets.
    """

    shard: Count
    projection: Projection = Projection()
    base: Literal["chunk_start", "previous", "running"] = "chunk_start"
    read: Literal["after", "before", "chunk_start", "chunk_end", "call_end"] = "after"
    reset: Literal["before_write", "instead_of_write"] = "before_write"
    reset_momentum: Literal["zero", "carry", "learned"] = "zero"
    chunk_origin: Literal["shard", "document"] = "shard"

    @model_validator(mode="after")
    def _possible(self) -> Self:
        made = self.run_config
        c = made.convention
        if self.base == "previous" and (
            not self.rule.has_momentum
            or c.gate != "none"
            or self.config.convention.rate != "momentum"
            or self.config.convention.momentum_kind != "sum"
            or c.memory_ceiling != "none"
            or c.has_newton_schulz
            or self.rule.averages_momenta(made)
            or self.chunk_origin != "shard"
        ):
            raise ValueError(
                "base: previous is a momentum of one inside a chunk: a rule with momentum, gate "
                "none, rate momentum, momentum_kind sum, without Newton-Schulz and memory_ceiling, "
                "chunk_origin shard"
            )
        if self.reset == "instead_of_write" and not self.rule.in_family:
            raise ValueError(f"reset: instead_of_write is not defined for {self.rule.name}")
        if self.read in LATE and self.reset != "before_write":
            raise ValueError(f"reset: {self.reset} is not defined for read {self.read}")
        if self.read == "chunk_end" and self.chunk_origin != "shard":
            raise ValueError("read: chunk_end is not defined for chunks that cross resets")
        if self.reset_momentum != "zero" and not self.rule.has_momentum:
            raise ValueError(
                f"reset_momentum: {self.reset_momentum}, but {self.rule.name} has no momentum"
            )
        return self

    @property
    def run_config(self) -> Any:
        """The rule's settings for the run over a shard."""
        axes = {"reference": "running" if self.base == "running" else "chunk_start"}
        if self.base == "previous" and self.reset == "instead_of_write":
            axes["rate"] = "split"
        return self._require(read="call_end" if self.read in LATE else self.read, **axes)

    @property
    def independent(self) -> bool:
        """Whether a shard takes nothing from the one before, so that all run side by side."""
        return self.reset_momentum != "carry" and self.chunk_origin == "shard"


class Config(Frozen):
    """A TNT: a global memory, N local ones, the reads added (TNT-1).

    Attributes:
        global_memory: None for local memories alone.
        local_memories: each with its own rule, span, shard and projection.
        origin: number of the first token: with 1 the first chunk and the first shard are a token
            short.
        combine: the sum of the reads, or of each read times a gate of its token (TNT-24).
    """

    global_memory: Global | None
    local_memories: tuple[Local, ...] = ()
    origin: Origin = 0
    combine: Literal["sum", "gated"] = "sum"

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if not self.memories:
            raise ValueError("local_memories: none, and no global memory; at least one is needed")
        for name in ("d_in", "d_out"):
            sizes = [getattr(memory.config, name) for memory in self.memories]
            if len(set(sizes)) > 1:
                raise ValueError(
                    f"local_memories: {name} must be the same in all memories, found "
                    f"{', '.join(map(str, sizes))}"
                )
        return self

    @property
    def memories(self) -> tuple[Global | Local, ...]:
        """The global memory, if there is one, and then the local ones."""
        return (*((self.global_memory,) if self.global_memory else ()), *self.local_memories)

    @property
    def is_causal(self) -> bool:
        """Whether no read depends on a later token (TNT-25)."""
        return not any(memory.read in LATE for memory in self.memories)


def form_of(memory: Global | Local) -> str:
    """The form of a memory's run: the one it names, or the first that computes it."""
    if memory.form is not None:
        return memory.form
    convention = memory.run_config.convention
    return next(
        form for form in PREFERRED if support.refusal(memory.rule.name, convention, form) is None
    )


#: What a reading of the paper changes: fields of `Global`, of `Local` and of `Projection` (TNT-12).
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "paper": {},
    "paper-literal": {
        "global": {"sum": "inclusive"},
        "local": {"base": "previous", "reset": "instead_of_write"},
    },
    "paper-app-c": {"projection": {"range": "shard", "norm": "unit_keys_assumed"}},
}


def preset(
    name: str, config: Any, *, span: int | None, spans: Sequence[int], shards: Sequence[int]
) -> Config:
    """The TNT of a reading of the paper, every memory under the same rule (TNT-12).

    Args:
        name: of `PRESETS`.
        config: of the rule.
        span: C_G of the global memory; None for local memories alone.
        spans, shards: C_i and S_i of each local memory.

    Raises:
        ValueError: an unknown preset, other numbers of spans and shards, or a rule for which the
            reading is not defined.
    """
    if name not in PRESETS:
        clones = "; that is atlas_ref.forms.tnt.clone" if name == "nl-hecate" else ""
        raise ValueError(f"preset: {name!r} is not one of {', '.join(PRESETS)}{clones}")
    if len(spans) != len(shards):
        raise ValueError(f"shards: {len(shards)}, expected one for each of {len(spans)} spans")
    changes = PRESETS[name]
    projection = Projection(**changes.get("projection", {}))
    return Config(
        global_memory=None
        if span is None
        else Global(config=config, span=span, **changes.get("global", {})),
        local_memories=tuple(
            Local(config=config, span=C, shard=S, projection=projection, **changes.get("local", {}))
            for C, S in zip(spans, shards, strict=True)
        ),
    )
