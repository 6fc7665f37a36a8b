"""Settings of a TNT as its header states them (CERT-19).

Written from TNT-3 to TNT-9, TNT-12 and TNTCASE-2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from atlas_ref.certify.rules import WRITES

INSTEAD = "is not yet supported; tolerance measures how results round"

#: Values of the settings that certify has, the default first; None where every value is one of them.
CASE: dict[str, Any] = {
    "rule": ("titans_lmm", *(name for name in WRITES if name != "titans_lmm")),
    "window": None,
    "preset": None,
    "origin": None,
    "global": None,
    "locals": None,
}
GLOBAL: dict[str, Any] = {
    "span": None,
    "read": ("chunk_start", "after", "before", "none"),
    "sum": ("exclusive", "inclusive"),
    "writes": (True, False),
}
LOCAL: dict[str, Any] = {
    "span": None,
    "shard": None,
    "base": ("chunk_start", "previous", "running"),
    "read": ("after", "before", "chunk_start"),
    "reset": ("before_write", "instead_of_write"),
    "reset_momentum": ("zero", "carry", "learned"),
    "chunk_origin": ("shard", "document"),
    "writes": (True, False),
    "projection": None,
}
PROJECTION: dict[str, Any] = {
    "kind": ("sum_outer", "orthogonal", "learned", "none"),
    "range": ("chunk", "shard", "sequence", "window"),
    "window": None,
    "own": ("inclusive", "exclusive"),
    "norm": ("per_key", "unit_keys_assumed", "sum_of_norms"),
    "dependent": None,
}

#: What a preset changes, for the global memory, a local one and its projection (TNT-12).
PRESETS: dict[str, tuple[dict[str, str], dict[str, str], dict[str, str]]] = {
    "paper": ({}, {}, {}),
    "paper-literal": (
        {"sum": "inclusive"},
        {"base": "previous", "reset": "instead_of_write"},
        {},
    ),
    "paper-app-c": ({}, {}, {"range": "shard", "norm": "unit_keys_assumed"}),
}


class Memory(NamedTuple):
    """One memory: its chunks, shards, writes, reads, and the matrix P of its queries.

    Attributes:
        shard: tokens between two resets; None for a memory that nothing resets.
    """

    name: str
    span: int
    shard: int | None
    read: str
    sum: str
    base: str
    reset: str
    reset_momentum: str
    chunk_origin: str
    writes: bool
    kind: str
    range: str
    window: int | None
    own: str
    norm: str
    dependent: float

    def place(self, number: int) -> int:
        """The place of a token in its chunk (TNT-5)."""
        counted = number if self.chunk_origin == "document" else self.in_shard(number)
        return counted % self.span

    def in_shard(self, number: int) -> int:
        """The place of a token in its shard; its number where nothing resets."""
        return number if self.shard is None else number % self.shard

    def starts(self, number: int) -> bool:
        """Whether a reset comes before a token (TNT-4)."""
        return self.shard is not None and number % self.shard == 0

    def twice(self, number: int) -> bool:
        """Whether the chunk before a token writes it too (TNT-3)."""
        return self.sum == "inclusive" and number > 0 and number % self.span == 0

    def phase(self, number: int) -> int:
        """The place of a token in the span of its run, one token longer under inclusive (TNT-3)."""
        if self.sum == "inclusive":
            return 0 if number == 0 else (number - 1) % self.span + 1
        return self.place(number)


class Settings(NamedTuple):
    """A TNT: one rule, and its memories in order."""

    rule: str
    window: int
    origin: int
    memories: tuple[Memory, ...]


def settings_of(header: Any) -> Settings:
    """The settings of a case, with what a preset and the defaults fill in."""
    p = header.parameters
    whole, local, moved = PRESETS[p.get("preset", "paper")]
    memories = []
    if p.get("global") is not None:
        stated = {**whole, **p["global"]}
        memories.append(_memory("global", {"read": GLOBAL["read"][0], **stated}, {"kind": "none"}))
    for i, each in enumerate(p.get("locals", ())):
        stated = {**local, **each}
        memories.append(_memory(f"local{i}", stated, {**moved, **stated.pop("projection", {})}))
    return Settings(
        p.get("rule", CASE["rule"][0]), p.get("window", 1), p.get("origin", 0), tuple(memories)
    )


def _memory(name: str, stated: Mapping[str, Any], projection: Mapping[str, Any]) -> Memory:
    tables = {**GLOBAL, **LOCAL, **PROJECTION}
    open_ = {key: values[0] for key, values in tables.items() if values is not None}
    more = {"shard": None, "window": None, "dependent": 1e-8}
    return Memory(name=name, **{**open_, **more, **stated, **projection})


def refusal(header: Any) -> str:
    """Why a case cannot be certified, and what to do instead; "" where it can (CERT-19)."""
    p = header.parameters
    if p.get("rule") == "deep_memory":
        return (
            "parameters.rule: certify of a TNT has memories that are matrices; certify a memory by "
            "itself, as a case of rule deep_memory"
        )
    found = _unknown("parameters", p, CASE)
    found += _unknown("parameters.global", p.get("global") or {}, GLOBAL)
    for i, each in enumerate(p.get("locals", ())):
        where = f"parameters.locals.{i}"
        found += _unknown(where, each, LOCAL)
        found += _unknown(f"{where}.projection", each.get("projection", {}), PROJECTION)
    return found[0] if found else ""


def _unknown(where: str, stated: Mapping[str, Any], table: Mapping[str, Any]) -> list[str]:
    """Settings, and values of settings, that are not in a table."""
    return [
        f"{where}.{name}: certify under {value!r} {INSTEAD}"
        for name, value in stated.items()
        if name not in table or (table[name] is not None and value not in table[name])
    ]
