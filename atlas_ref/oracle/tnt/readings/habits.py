"""Mistakes and habits that a program of a TNT may have, as data (TNTCASE-13)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from atlas_ref.oracle.program.changes import Change, change_tensor, copy_tensor, late, without
from atlas_ref.oracle.program.hook import Op, behind, without_gradient
from atlas_ref.oracle.program.reading import Reading
from atlas_ref.oracle.tnt.context import TntContext
from atlas_ref.oracle.tnt.settings import Memory
from atlas_ref.oracle.tnt.tokens import TOKENS
from atlas_ref.rules import FAMILY
from atlas_ref.types import Array
from tape import ops


def habits(context: TntContext) -> list[Reading]:
    """Mistakes that can be made in a case."""
    every = [
        *_of_schedule(context),
        *_of_chunks(context),
        *_of_queries(context),
        *_of_start(context),
    ]
    every += [*_of_documents(context), *_of_tokens(context)]
    return [*every, *(_of_gradients(context) if "in/y_bar" in context.inputs else [])]


def _locals(context: TntContext, **fields: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each local memory with other settings, and all of them where there are several."""
    for m in context.locals:
        yield m.name, _of(m.name, **fields)
    if len(context.locals) > 1:
        yield "each local memory", _of(*(m.name for m in context.locals), **fields)


def _of(*names: str, **fields: Any) -> dict[str, Any]:
    """Settings of some memories, by the names that a reading has for them."""
    return {f"{name}.{field}": value for name in names for field, value in fields.items()}


def _of_schedule(context: TntContext) -> Iterator[Reading]:
    """Resets that do not come, or come at another token."""
    for words, fields in (
        ("was never reset", {"shard": None}),
        ("was reset one token late", {"late": 1}),
        ("was reset one token early", {"late": -1}),
    ):
        for name, settings in _locals(context, **fields):
            yield Reading(f"{name} {words}", f"{name} {words}", settings=settings)
    for m in context.locals:
        starts = [t for t in range(1, context.tokens) if m.starts(context.number + t)]
        if starts and m.shard is not None and starts[-1] + m.shard > context.tokens:
            words = f"{m.name} was not reset for a last shard that is short"
            yield Reading(words, words, settings=_of(m.name, whole=True))
    if context.settings.window > 1:
        for name, settings in _locals(context, keeps_window=True):
            words = f"the window of {name} went on over a reset"
            yield Reading(f"{name} window kept", words, settings=settings)
    if context.locals and context.settings.memories[0].is_global:
        first = context.locals[0].shard
        words = "the global memory was reset at the shards of local0"
        yield Reading("global reset", words, settings=_of("global", shard=first))
    if len(context.locals) > 1:
        for field in ("span", "shard"):
            own = getattr(context.locals[0], field)
            if any(getattr(m, field) != own for m in context.locals):
                settings = _of(*(m.name for m in context.locals), **{field: own})
                words = f"each local memory had the {field} of local0"
                yield Reading(f"{field} of local0", words, settings=settings)


def _of_chunks(context: TntContext) -> Iterator[Reading]:
    """A chunk that is not written, or whose first memory is another."""
    for m in context.settings.memories:
        if m.writes and m.place(context.number + context.tokens):
            words = f"the last chunk of {m.name}, a short one, was not written"
            yield Reading(f"{m.name} without tail", words, settings=_of(m.name, tail=False))
        looks = m.read == "chunk_start" or (
            m.base != "running" and FAMILY[context.settings.rule].has_error
        )
        if m.writes and looks and m.span > 1 and m.sum == "exclusive":
            words = f"the memory at the start of a chunk of {m.name} held its first write"
            settings = _of(m.name, late_start=True)
            yield Reading(f"{m.name} start of chunk late", words, settings=settings)


def _of_documents(context: TntContext) -> Iterator[Reading]:
    """Documents of one call that are not told apart."""
    if not np.asarray(context.inputs.get("in/reset", ()))[1:].any():
        return
    yield Reading("in/reset ignored", "in/reset was absent", inputs=without("in/reset"))
    words = "chunks and shards were counted on from the document before"
    yield Reading("numbers kept", words, settings={"counts_on": True})
    for m in context.settings.memories if len(context.settings.memories) > 1 else ():
        words = f"{m.name} went on from the document before"
        yield Reading(f"{m.name} kept", words, settings=_of(m.name, one_document=True))


def _of_queries(context: TntContext) -> Iterator[Reading]:
    """Queries of another memory, and reads that are not added as they are."""
    for m in context.locals:
        if context.settings.memories[0].is_global and m.projection.kind != "none":
            words = f"the global memory was asked the projected query of {m.name}"
            settings = _of("global", asks=m.name)
            yield Reading(f"global asks {m.name}", words, settings=settings)
    if len(context.settings.memories) > 1:
        words = "the reads were averaged"
        yield Reading("mean of reads", words, ops={"y": _mean})


def _of_start(context: TntContext) -> Iterator[Reading]:
    """Where memories start, and what a call finds of the one before."""
    for name in context.inputs:
        if name.endswith(("/M0", "/S0")) and not name.startswith("in/state"):
            yield Reading(f"{name} ignored", f"{name} was absent", inputs=without(name))
    starts = [f"in/{m.name}/M0" for m in context.locals]
    if len(starts) > 1 and all(name in context.inputs for name in starts):
        words = "each local memory started where local0 does"
        yield Reading("start of local0", words, inputs=copy_tensor(starts[0], *starts[1:]))
    if not context.resumes:
        return
    words = "a reset returned to the memory at the start of the call"
    yield Reading("reset to the call", words, inputs=_from_state(context))
    words = "in/state/position was that of a first token"
    first = change_tensor(
        "in/state/position", lambda x: np.asarray(context.settings.origin, np.int64)
    )
    yield Reading("position ignored", words, inputs=first)
    for m in context.settings.memories:
        yield from _of_state(context, m)


def _of_state(context: TntContext, m: Memory) -> Iterator[Reading]:
    """A part of the state of one memory that the next call does not find."""
    P, S, M, M_ref = (f"in/state/{m.name}/{each}" for each in ("P", "S", "M", "M_ref"))
    if P in context.inputs:
        yield Reading(f"{P} ignored", f"{P} was absent", inputs=_with_zeros(P, f"{P}_size"))
    if S in context.inputs:
        yield Reading(f"{S} ignored", f"{S} was absent", inputs=_with_zeros(S))
    if M_ref in context.inputs:
        words = f"the chunk in progress of {m.name} started at the call"
        yield Reading(f"{M_ref} ignored", words, inputs=copy_tensor(M, M_ref))
    window = [name for name in context.inputs if name.startswith(f"in/state/{m.name}/window")]
    if window:
        words = f"the window of {m.name} was empty at the start of the call"
        yield Reading(f"in/state/{m.name}/window ignored", words, inputs=without(*window))


def _of_tokens(context: TntContext) -> Iterator[Reading]:
    """Tokens and gates of another token, or of another memory."""
    if context.tokens > 1:
        for name in ("retain", "momentum", "step_size"):
            if f"in/{name}" in context.inputs:
                words = f"{name} gates were one token late"
                yield Reading(
                    f"{name} late",
                    words,
                    inputs=change_tensor(f"in/{name}", partial(late, axis=-1)),
                )
        words = "tokens read with the query before"
        yield Reading("query late", words, inputs=change_tensor("in/q", partial(late, axis=-2)))
        words = "values had the keys of the token before"
        yield Reading("keys late", words, inputs=change_tensor("in/k", partial(late, axis=-2)))
    yield Reading("key read", "tokens read with their keys", inputs=copy_tensor("in/k", "in/q"))
    if {"in/retain", "in/momentum"} <= context.inputs.keys():
        words = "the momentum gate multiplied the memory"
        yield Reading("momentum for retain", words, inputs=copy_tensor("in/momentum", "in/retain"))
        words = "the retain gate multiplied the momentum"
        yield Reading("retain for momentum", words, inputs=copy_tensor("in/retain", "in/momentum"))
    for m in context.settings.memories:
        for each in TOKENS:
            name = f"in/{m.name}/{each}"
            if name in context.inputs and f"in/{each}" in context.inputs:
                words = f"{name} was absent"
                yield Reading(f"{name} ignored", words, inputs=without(name))


def _of_gradients(context: TntContext) -> Iterator[Reading]:
    """Parts of the backward pass that are held fixed: an ordinary run has no path through P."""
    for held, words, place, wrap in (
        ("keys", "no gradient went to the keys of the projection", "keys", without_gradient),
        ("whole", "the projected query was a constant", "projected", behind(ops.stop_gradient)),
    ):
        for m in context.locals:
            if m.projection.kind != "none":
                wraps = {f"{m.name}/{place}": wrap}
                name = f"{m.name} {held} held"
                yield Reading(name, f"{words} of {m.name}", grad=True, ops=wraps)
    for m in context.locals:
        words = f"the start of {m.name} had the gradient of its first shard alone"
        wraps = {f"{m.name}/restart": without_gradient}
        yield Reading(f"{m.name} start held", words, grad=True, ops=wraps)


def _mean(op: Op, *reads: Array) -> Array:
    """The mean of reads in the place of their sum."""
    return op.with_change(lambda y: y * (1.0 / max(1, len(reads))), *reads)


def _from_state(context: TntContext) -> Change:
    """Local memories that start where the call found them."""
    names = [m.name for m in context.locals]
    return lambda inputs: {
        **inputs,
        **{f"in/{name}/M0": inputs[f"in/state/{name}/M"] for name in names},
    }


def _with_zeros(*names: str) -> Change:
    return lambda inputs: {
        each: ops.zeros_like(x) if each in names else x for each, x in inputs.items()
    }
