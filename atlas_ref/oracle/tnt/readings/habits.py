"""Mistakes and habits that a program of a TNT may have, as data (TNTCASE-13)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from atlas_ref.oracle.tnt.loop import TOKENS
from atlas_ref.oracle.tnt.readings.axes import changed
from atlas_ref.oracle.tnt.readings.reading import Inputs, Reading, Seen
from atlas_ref.oracle.tnt.settings import Memory, Settings
from atlas_ref.rules import FAMILY
from atlas_ref.types import Array
from tape import ops


def habits(at: Seen) -> list[Reading]:
    """Mistakes that can be made in a case."""
    every = [*_of_schedule(at), *_of_chunks(at), *_of_queries(at), *_of_start(at)]
    every += [*_of_documents(at), *_of_tokens(at)]
    return [*every, *(_of_gradients(at) if "in/y_bar" in at.inputs else [])]


def _locals(at: Seen, **fields: Any) -> Iterator[tuple[str, Callable[[Settings], Settings]]]:
    """Each local memory with other settings, and all of them where there are several."""
    for m in at.locals:
        yield m.name, _change(m.name, **fields)
    if len(at.locals) > 1:
        names = {m.name for m in at.locals}
        yield "each local memory", _change(*names, **fields)


def _change(*names: str, **fields: Any) -> Callable[[Settings], Settings]:
    def settings(s: Settings) -> Settings:
        for name in names:
            s = changed(s, name, **fields)
        return s

    return settings


def _of_schedule(at: Seen) -> Iterator[Reading]:
    """Resets that do not come, or come at another token."""
    for words, fields in (
        ("was never reset", {"shard": None}),
        ("was reset one token late", {"late": 1}),
        ("was reset one token early", {"late": -1}),
    ):
        for name, settings in _locals(at, **fields):
            yield Reading(f"{name} {words}", f"{name} {words}", settings=settings)
    for m in at.locals:
        starts = [t for t in range(1, at.tokens) if m.starts(at.number + t)]
        if starts and m.shard is not None and starts[-1] + m.shard > at.tokens:
            words = f"{m.name} was not reset for a last shard that is short"
            yield Reading(words, words, settings=_change(m.name, whole=True))
    if at.s.window > 1:
        for name, settings in _locals(at, keeps_window=True):
            words = f"the window of {name} went on over a reset"
            yield Reading(f"{name} window kept", words, settings=settings)
    if at.locals and at.s.memories[0].is_global:
        first = at.locals[0].shard
        words = "the global memory was reset at the shards of local0"
        yield Reading("global reset", words, settings=_change("global", shard=first))
    if len(at.locals) > 1:
        for field in ("span", "shard"):
            own = getattr(at.locals[0], field)
            if any(getattr(m, field) != own for m in at.locals):
                settings = _change(*(m.name for m in at.locals), **{field: own})
                words = f"each local memory had the {field} of local0"
                yield Reading(f"{field} of local0", words, settings=settings)


def _of_chunks(at: Seen) -> Iterator[Reading]:
    """A chunk that is not written, or whose first memory is another."""
    for m in at.s.memories:
        if m.writes and m.place(at.number + at.tokens):
            words = f"the last chunk of {m.name}, a short one, was not written"
            yield Reading(f"{m.name} without tail", words, settings=_change(m.name, tail=False))
        looks = m.read == "chunk_start" or (m.base != "running" and FAMILY[at.s.rule].has_error)
        if m.writes and looks and m.span > 1 and m.sum == "exclusive":
            words = f"the memory at the start of a chunk of {m.name} held its first write"
            settings = _change(m.name, late_start=True)
            yield Reading(f"{m.name} start of chunk late", words, settings=settings)


def _of_documents(at: Seen) -> Iterator[Reading]:
    """Documents of one call that are not told apart."""
    if not np.asarray(at.inputs.get("in/reset", ()))[1:].any():
        return
    yield Reading("in/reset ignored", "in/reset was absent", inputs=_without("in/reset"))
    words = "chunks and shards were counted on from the document before"
    yield Reading("numbers kept", words, settings=lambda s: s._replace(counts_on=True))
    for m in at.s.memories if len(at.s.memories) > 1 else ():
        words = f"{m.name} went on from the document before"
        yield Reading(f"{m.name} kept", words, settings=_change(m.name, one_document=True))


def _of_queries(at: Seen) -> Iterator[Reading]:
    """Queries of another memory, and reads that are not added as they are."""
    for m in at.locals:
        if at.s.memories[0].is_global and m.projection.kind != "none":
            words = f"the global memory was asked the projected query of {m.name}"
            settings = _change("global", asks=m.name)
            yield Reading(f"global asks {m.name}", words, settings=settings)
    if len(at.s.memories) > 1:
        words = "the reads were averaged"
        yield Reading("mean of reads", words, settings=lambda s: s._replace(combine="mean"))


def _of_start(at: Seen) -> Iterator[Reading]:
    """Where memories start, and what a call finds of the one before."""
    for name in at.inputs:
        if name.endswith(("/M0", "/S0")) and not name.startswith("in/state"):
            yield Reading(f"{name} ignored", f"{name} was absent", inputs=_without(name))
    starts = [f"in/{m.name}/M0" for m in at.locals]
    if len(starts) > 1 and all(name in at.inputs for name in starts):
        words = "each local memory started where local0 does"
        yield Reading("start of local0", words, inputs=_renamed(starts[0], *starts[1:]))
    if not at.resumes:
        return
    words = "a reset returned to the memory at the start of the call"
    yield Reading("reset to the call", words, inputs=_from_state)
    yield Reading("position ignored", "in/state/position was that of a first token", inputs=_first)
    for m in at.s.memories:
        yield from _of_state(at, m)


def _of_state(at: Seen, m: Memory) -> Iterator[Reading]:
    """A part of the state of one memory that the next call does not find."""
    P, S, M, M_ref = (f"in/state/{m.name}/{each}" for each in ("P", "S", "M", "M_ref"))
    if P in at.inputs:
        yield Reading(f"{P} ignored", f"{P} was absent", inputs=_zeroed(P, f"{P}_size"))
    if S in at.inputs:
        yield Reading(f"{S} ignored", f"{S} was absent", inputs=_zeroed(S))
    if M_ref in at.inputs:
        words = f"the chunk in progress of {m.name} started at the call"
        yield Reading(f"{M_ref} ignored", words, inputs=_renamed(M, M_ref))
    window = [name for name in at.inputs if name.startswith(f"in/state/{m.name}/window")]
    if window:
        words = f"the window of {m.name} was empty at the start of the call"
        yield Reading(f"in/state/{m.name}/window ignored", words, inputs=_without(*window))


def _of_tokens(at: Seen) -> Iterator[Reading]:
    """Tokens and gates of another token, or of another memory."""
    if at.tokens > 1:
        for name in ("retain", "momentum", "step_size"):
            if f"in/{name}" in at.inputs:
                words = f"{name} gates were one token late"
                yield Reading(f"{name} late", words, inputs=_late(f"in/{name}", -1))
        words = "tokens read with the query before"
        yield Reading("query late", words, inputs=_late("in/q", -2))
        words = "values had the keys of the token before"
        yield Reading("keys late", words, inputs=_late("in/k", -2))
    yield Reading("key read", "tokens read with their keys", inputs=_renamed("in/k", "in/q"))
    if {"in/retain", "in/momentum"} <= at.inputs.keys():
        words = "the momentum gate multiplied the memory"
        yield Reading("momentum for retain", words, inputs=_renamed("in/momentum", "in/retain"))
        words = "the retain gate multiplied the momentum"
        yield Reading("retain for momentum", words, inputs=_renamed("in/retain", "in/momentum"))
    for m in at.s.memories:
        for each in TOKENS:
            name = f"in/{m.name}/{each}"
            if name in at.inputs and f"in/{each}" in at.inputs:
                words = f"{name} was absent"
                yield Reading(f"{name} ignored", words, inputs=_without(name))


def _of_gradients(at: Seen) -> Iterator[Reading]:
    """Parts of the backward pass that are held fixed: an ordinary run has no path through P."""
    for held, words in (
        ("keys", "no gradient went to the keys of the projection"),
        ("whole", "the projected query was a constant"),
    ):
        for m in at.locals:
            if m.projection.kind != "none":
                settings = _change(m.name, held=held)
                yield Reading(
                    f"{m.name} {held} held", f"{words} of {m.name}", grad=True, settings=settings
                )
    for m in at.locals:
        words = f"the start of {m.name} had the gradient of its first shard alone"
        settings = _change(m.name, held_start=True)
        yield Reading(f"{m.name} start held", words, grad=True, settings=settings)


# -- inputs ----------------------------------------------------------------------------------------


def _without(*names: str) -> Callable[[Inputs, Settings], Inputs]:
    return lambda inputs, s: {each: x for each, x in inputs.items() if each not in names}


def _renamed(source: str, *names: str) -> Callable[[Inputs, Settings], Inputs]:
    return lambda inputs, s: {**inputs, **dict.fromkeys(names, inputs[source])}


def _zeroed(*names: str) -> Callable[[Inputs, Settings], Inputs]:
    return lambda inputs, s: {
        each: ops.zeros_like(x) if each in names else x for each, x in inputs.items()
    }


def _late(name: str, axis: int) -> Callable[[Inputs, Settings], Inputs]:
    """Entries one token late, the first twice."""

    def change(inputs: Inputs, s: Settings) -> Inputs:
        behind = (slice(None),) * (-axis - 1)
        x: Array = inputs[name]
        first, rest = x[(..., slice(0, 1), *behind)], x[(..., slice(0, -1), *behind)]
        return {**inputs, name: ops.concatenate([first, rest], axis=axis)}

    return change


def _from_state(inputs: Inputs, s: Settings) -> Inputs:
    own = {f"in/{m.name}/M0": inputs[f"in/state/{m.name}/M"] for m in s.memories if not m.is_global}
    return {**inputs, **own}


def _first(inputs: Inputs, s: Settings) -> Inputs:
    return {**inputs, "in/state/position": np.asarray(s.origin, np.int64)}
