"""Settings of a TNT as its plain program has them, habits of other programs among them.

Written from specs/tnt.md (TNT-3 to TNT-9).
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.conventions import Convention
from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.header import Header
from atlas_ref.oracle.tnt import parameters
from atlas_ref.parts.feature_maps import IDENTITY, FeatureMap


class Projection(NamedTuple):
    """How queries of a local memory are moved (TNT-7 to TNT-9)."""

    kind: str = "none"
    range: str = "chunk"
    window: int | None = None
    own: str = "inclusive"
    norm: str = "per_key"
    dependent: float = 1e-8


class Memory(NamedTuple):
    """One memory: its chunks, its shards, its write and its read.

    Attributes:
        name: global, local0, ...
        shard: tokens between resets; None for a memory that nothing resets.
        late: tokens by which a reset comes late: no reading of the paper has any.
        asks: the memory whose query it is asked, in place of its own.
        whole: whether a shard that the document cuts short begins without a reset.
        tail: whether the chunk in which the document ends is written.
        late_start: whether the memory at the start of a chunk is taken after its first write.
        keeps_window: whether its window goes on over a reset.
        one_document: whether it takes all tokens of a call for one document.
    """

    name: str
    span: int
    shard: int | None = None
    read: str = "chunk_start"
    writes: bool = True
    sum: str = "exclusive"
    base: str = "chunk_start"
    reset: str = "before_write"
    reset_momentum: str = "zero"
    chunk_origin: str = "shard"
    projection: Projection = Projection()
    late: int = 0
    asks: str = ""
    whole: bool = False
    tail: bool = True
    late_start: bool = False
    keeps_window: bool = False
    one_document: bool = False

    @property
    def is_global(self) -> bool:
        return self.name == "global"

    def place(self, number: Any) -> Any:
        """Place of a token, or of each, in its chunk (TNT-5)."""
        from_start = number if self.chunk_origin == "document" else self.in_shard(number)
        return from_start % self.span

    def phase(self, number: int) -> int:
        """Place of a token in the span of its run (TNT-3, TNT-5)."""
        if self.sum == "inclusive":  # whose last token is written again by the next chunk
            return 0 if number == 0 else (number - 1) % self.span + 1
        return int(self.place(number))

    def in_shard(self, number: Any) -> Any:
        """Place of a token, or of each, in its shard; its number where nothing resets (TNT-4)."""
        return number if self.shard is None else (number - self.late) % self.shard

    def starts(self, number: Any) -> Any:
        """Whether a reset comes before a token, or each (TNT-4)."""
        nothing = np.zeros(np.shape(number), bool)
        return nothing if self.shard is None else self.in_shard(number) == 0


class Settings(NamedTuple):
    """A TNT: one rule under one convention, and its memories in order.

    Attributes:
        counts_on: whether a document takes its first number from the tokens before it.
    """

    rule: str
    window: int
    c: Convention
    origin: int
    memories: tuple[Memory, ...]
    counts_on: bool = False

    def memory(self, name: str) -> Memory:
        """The memory of a name."""
        return next(m for m in self.memories if m.name == name)

    def value(self, name: str) -> Any:
        """A setting by its name: origin, c.gate, local0.span, local0.projection.kind, ..."""
        outer, _, inner = name.partition(".")
        if not inner:
            return getattr(self, name)
        if outer != "c":
            return attrgetter(inner)(self.memory(outer))
        axis, _, key = inner.partition(".")
        found = getattr(self.c, axis)
        return getattr(found, key, None) if key else found

    def replaced(self, **changes: Any) -> Settings:
        """Settings with other values, by names as `value` takes them."""
        s = self
        for name, value in changes.items():
            outer, _, inner = name.partition(".")
            if not inner:
                s = s._replace(**{name: value})
            elif outer == "c":
                s = s._replace(c=_convention(s.c, inner, value))
            else:
                some = (_memory(m, inner, value) if m.name == outer else m for m in s.memories)
                s = s._replace(memories=tuple(some))
        return s


def _convention(c: Convention, name: str, value: Any) -> Convention:
    _, _, inner = name.partition(".")
    if not inner:
        return c.replaced(**{name: value})
    return c.replaced(newton_schulz=c.newton_schulz_settings.replaced(**{inner: value}))


def _memory(m: Memory, name: str, value: Any) -> Memory:
    _, _, inner = name.partition(".")
    if not inner:
        return m._replace(**{name: value})
    projection = m.projection._replace(**{inner: value})
    if inner == "range" and value != "window":
        projection = projection._replace(window=None)
    return m._replace(projection=projection)


class Run(NamedTuple):
    """An ordinary run, by the keys of a header that the family reads."""

    rule: str
    window: int
    span: int
    phase: int
    level: str = "projected"
    feature_map: FeatureMap = IDENTITY
    window_weights: Any = None


def settings_of(case: Case) -> Settings:
    """The settings of a case."""
    return stated_settings(case.header, case.convention)


def stated_settings(header: Header, convention: Convention | None = None) -> Settings:
    """The settings that a header states.

    Args:
        convention: in force; None for that of the header.
    """
    given, in_force = parameters.parse(header), convention or parameters.convention(header)
    memories = []
    for name in parameters.names(given):
        own: Any = given.global_ if name == "global" else given.locals_[int(name[5:])]
        fields = {each: getattr(own, each) for each in type(own).model_fields}
        if name != "global":
            moved = {each: getattr(own.projection, each) for each in Projection._fields}
            fields["projection"] = Projection(**moved)
        memories.append(Memory(name, **fields))
    return Settings(given.rule, given.window, in_force, given.origin, tuple(memories))
