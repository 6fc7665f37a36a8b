"""Kernels of a TNT that a user might hand over: the literal loops of the tests, and their mistakes.

They know the convention spec without Newton-Schulz, calls from the start of a document, and every
reading for which `tests.truth.tnt_loops` has words.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.truth import tnt_loops as loops

Tensors = dict[str, np.ndarray]

#: Choices of a sweep under which most cases are ones that the loops know.
KNOWN: dict[str, tuple[Any, ...]] = {
    "convention": ({"newton_schulz": "none"},),
    "history": (0,),
    "window_gate": (False,),
    "preset": ("paper", "paper-app-c"),
    "global.sum": (None,),
    **{
        f"locals.{i}.{name}": values
        for i in range(3)
        for name, values in (
            ("base", (None, None, "chunk_start", "running")),
            ("reset", (None, None, None, "before_write")),
            ("projection.dependent", (None,)),
        )
    },
}

#: Words of the loops for those of a case.
READS = {"chunk_start": "start"}
NORMS = {"per_key": "each", "unit_keys_assumed": "none", "sum_of_norms": "sum"}

#: Settings of a memory by the words of a case, and those that a case gives.
Settings = dict[str, Any]
Mistake = Callable[[Settings], Settings]


def _same(settings: Settings) -> Settings:
    return settings


def right(case: dict[str, Any], inputs: Tensors) -> Tensors:
    """y and every memory."""
    return _run(case, inputs)


def never_reset(case: dict[str, Any], inputs: Tensors) -> Tensors:
    """A local memory that its shards do not reset, though its chunks end with them."""
    return _run(case, inputs, lambda s: {**s, "shard": 10**6} if "shard" in s else s)


def tail_dropped(case: dict[str, Any], inputs: Tensors) -> Tensors:
    """No local memory answers in a shard that the call ends before it is whole."""
    return _run(case, inputs, tail=False)


def projection_kept(case: dict[str, Any], inputs: Tensors) -> Tensors:
    """P of the document in the place of P of the chunk."""
    return _run(case, inputs, lambda s: s if s["range"] != "chunk" else {**s, "range": "sequence"})


def origin_ignored(case: dict[str, Any], inputs: Tensors) -> Tensors:
    """Tokens that count from 0 whatever the case says."""
    return _run(case, inputs, lambda s: {**s, "origin": 0})


def key_not_met(case: dict[str, Any], inputs: Tensors) -> Tensors:
    """Queries that do not meet the key of their own token."""
    return _run(case, inputs, lambda s: {**s, "own": "exclusive"})


def running_reference(case: dict[str, Any], inputs: Tensors) -> Tensors:
    """Residuals of local memories against the memory before each token."""
    return _run(case, inputs, lambda s: {**s, "base": "running"})


MISTAKES = (
    never_reset,
    tail_dropped,
    projection_kept,
    origin_ignored,
    key_not_met,
    running_reference,
)


def _run(
    case: dict[str, Any], inputs: Tensors, mistake: Mistake = _same, *, tail: bool = True
) -> Tensors:
    own = case["parameters"]
    if case.get("convention", {}) not in ({}, {"newton_schulz": "none"}):
        raise NotImplementedError("another convention")
    if any(name.startswith("state/") for name in inputs) or "window_gate" in inputs:
        raise NotImplementedError("a call that goes on, or one weight a token")
    kind = inputs["v"].dtype
    wide = np.float64 if kind == np.float64 else np.float32
    x = {name: z if z.dtype.kind in "biu" else z.astype(wide) for name, z in inputs.items()}
    lead = x["v"].shape[:-2]
    y = np.zeros(x["v"].shape, wide)
    found: Tensors = {}
    for name, given in _memories(own):
        settings = mistake(_settings(own, given))
        ends = np.empty((*lead, x["v"].shape[-1], x["k"].shape[-1]), wide)
        for row in np.ndindex(lead):
            reads, ends[row] = _memory(settings, name, x, row, own, tail)
            y[row] += reads
        found[f"out/state/{name}/M"] = ends
    return {"out/y": y.astype(kind), **found}


def _memories(own: Settings) -> list[tuple[str, Settings]]:
    first = [("global", own["global"])] if own.get("global") is not None else []
    return [*first, *((f"local{i}", each) for i, each in enumerate(own.get("locals") or ()))]


def _settings(own: Settings, given: Settings) -> Settings:
    """The settings of a memory, with what the preset and the paper leave open."""
    preset = own.get("preset", "paper")
    if preset == "paper-literal" or "inclusive" in given.values():
        raise NotImplementedError("Eqs 5 and 6 as printed")
    moved = {"kind": "sum_outer", "range": "chunk", "own": "inclusive", "norm": "per_key"}
    moved |= {"window": None}
    if preset == "paper-app-c":
        moved |= {"range": "shard", "norm": "unit_keys_assumed"}
    usual = {"base": "chunk_start", "read": "after" if "shard" in given else "chunk_start"}
    usual |= {"reset": "before_write", "reset_momentum": "zero", "chunk_origin": "shard"}
    usual |= {"writes": True, "origin": own.get("origin", 0)}
    found = usual | moved | given | given.get("projection", {})
    if found["base"] == "previous" or found["reset"] != "before_write":
        raise NotImplementedError("Eq 6 as printed")
    return found


def _memory(
    s: Settings, name: str, x: Tensors, row: Any, own: Settings, tail: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The reads of one row over all its documents, and the memory after the last token."""
    T, d_in = x["k"].shape[-2:]
    starts = [0, *(t for t in range(1, T) if "reset" in x and x["reset"][t]), T]
    first = _start(x.get(f"{name}/M0"), row, (x["v"].shape[-1], d_in), x["v"].dtype)
    S0 = x.get(f"{name}/S0")
    S0 = None if S0 is None else _start(S0, row, first.shape, first.dtype)
    matrix = x.get(f"{name}/W_QK")
    matrix = None if matrix is None else _start(matrix, row, (d_in, d_in), first.dtype)
    reading = _reading(s, matrix)
    reads, M = [], first
    for begin, end in itertools.pairwise(starts):
        tokens = _tokens(own.get("rule", "titans_lmm"), name, x, row, begin, end)
        memory = loops.Memory(tokens, first, s["span"], s.get("shard"), S0)
        result = loops.paper([memory], reading)
        part = result.y
        if not tail and "shard" in s and (rest := (end - begin + s["origin"]) % s["shard"]):
            part[max(0, len(part) - rest) :] = 0.0
        reads.append(part)
        M = result.M[0]
    return np.concatenate(reads), M


def _start(z: Any, row: Any, shape: tuple[int, ...], kind: Any) -> np.ndarray:
    """Where a row starts, of a tensor that rows may share."""
    if z is None:
        return np.zeros(shape, kind)
    front = z.ndim - len(shape)
    place = tuple(0 if z.shape[i] == 1 else row[i - front] for i in range(front))
    return np.asarray(z[place])


def _tokens(rule: str, name: str, x: Tensors, row: Any, begin: int, end: int) -> loops.Inputs:
    """What a memory is given of the tokens of a document."""
    found = {}
    for each in ("k", "v", "q", "retain", "momentum", "step_size", "window_weights"):
        z = x.get(f"{name}/{each}", x.get(each))
        if z is not None:
            found[each] = z[row][begin:end]
    weights = found.pop("window_weights", None)
    found["weights"] = weights if rule == "omega" else None
    return loops.Inputs(**found)


def _reading(s: Settings, matrix: Any) -> loops.Reading:
    """The settings of a memory by the words of the loops."""
    of_global = "shard" not in s
    read = READS.get(s["read"], s["read"])
    return loops.Reading(
        range=s["window"] if s["range"] == "window" else s["range"],
        own=s["own"] == "inclusive",
        norm=NORMS[s["norm"]],
        span=s["kind"] == "orthogonal",
        W_QK=matrix if s["kind"] == "learned" else None,
        project=s["kind"] != "none",
        origin=s["origin"],
        absolute=s["chunk_origin"] == "document",
        carry=s["reset_momentum"] == "carry",
        running=s["base"] == "running",
        still=not s["writes"],
        global_still=not s["writes"],
        global_read=read if of_global else "start",
        local_read="after" if of_global else read,
    )
