"""Mistakes at the boundary of chunks, calls and packed sequences, as calls of a program (DPLRCASE-25).

A program that computes some tokens after others is called for each of its parts, with the states
that it enters them with.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np

from atlas_ref.oracle.dplr import members, tensors
from atlas_ref.oracle.dplr.chunks import form
from atlas_ref.oracle.dplr.chunks import tokens as of_chunks
from atlas_ref.oracle.dplr.context import GATES, DplrContext
from atlas_ref.oracle.dplr.masked import LEFT
from atlas_ref.oracle.norms import round_to
from atlas_ref.oracle.program.changes import Inputs
from atlas_ref.oracle.program.reading import Around, Compute, Reading
from atlas_ref.parts import rows as rows_apart
from atlas_ref.types import Array
from tape import ops

#: Tokens of chunks, blocks and calls of public code.
SIZES = (16, 32, 64, 128)

#: Tokens of a chunk in calls that are shorter than any of `SIZES`.
SHORT = (4, 8)

#: Mistakes that results in float64 do not show, and one of the backward pass.
OTHERS = (form.DIVISION, "cumulated gates in bfloat16", "dM dropped")

#: Words for states beside the memory.
SECONDS = {"S": "momentum", "z": "sum of keys", "A": "running sum of squares"}

#: States that a part enters with, from those of the part before and those of the case.
Enter = Callable[[Inputs, Inputs], Inputs]


def mistakes(context: DplrContext) -> Iterator[Reading]:
    """What is lost, kept or read at a boundary, by the tokens of a part."""
    parts = [size for size in SIZES if size < context.tokens]
    second = context.settings.of.second
    for size in parts:
        every = f"every {size} tokens"
        if second:
            word = SECONDS[second]
            yield _reading(f"the {word} was lost {every}", _parts(size, _without(second)))
        yield _reading(f"the memory was lost {every}", _parts(size, _nothing))
        if set(LEFT.values()) & context.inputs.keys():
            yield _reading(f"the memory was the first one again {every}", _parts(size, _again))
        words = f"chunks of {size} tokens read the chunk before them and no earlier one"
        yield _reading(words, _history(size, size))
        yield _reading(f"a token read the last {size} tokens alone", _history(1, size - 1))
        yield _reading(f"the memory was rounded to bfloat16 {every}", _parts(size, _narrow))
    yield _reading("the memory was rounded to bfloat16 after each token", _parts(1, _narrow))
    if second and "in/reset" in context.inputs:
        word = SECONDS[second]
        yield _reading(f"the {word} ran on through a reset", _through(f"out/{second}"))
        yield _reading(f"the memory ran on through a reset, its {word} did not", _through("out/M"))
    if "in/reset" not in context.inputs:
        yield from _of_end(context)
    yield from _of_padding(context)
    if "in/reset" in context.inputs and "in/M0" in context.inputs and context.gate:
        for size in parts:
            words = f"a sequence decayed its first memory from the start of a chunk of {size} on"
            yield _reading(words, _decayed_from(size))


def _reading(words: str, around: Around) -> Reading:
    return Reading(words, words, around=_by_rows(around, "in/reset"))


def _by_rows(around: Around, *masks: str) -> Around:
    """The same of every row by itself, where rows have masks of their own (DPLRCASE-27)."""

    def whole(compute: Compute, context: DplrContext, x: Inputs) -> Inputs:
        parts = rows_apart.groups({name: x[name] for name in masks if name in x})
        if not parts:
            return around(compute, context, x)
        own, each = tensors.of_rows(x), []
        for part in parts:
            taken = {name: part.take(z) if name in own else z for name, z in x.items()}
            each.append(around(compute, context, {**taken, **part.masks}))
        return {name: rows_apart.join(parts, [one[name] for one in each]) for name in each[0]}

    return whole


# -- parts of a call -------------------------------------------------------------------------------


def take(x: Inputs, rows: list[int]) -> Inputs:
    """The inputs of some tokens, without their resets."""
    axes, tokens, found = tensors.axes_of(x), x["in/q"].shape[-2], {}
    for name, value in x.items():
        words = axes.get(name, "").split()
        along = next((word for word in words if word in ("T", "R")), "")
        if along and name != "in/reset":
            place = words.index(along) + len(value.shape) - len(words)
            each = value.shape[place] // tokens
            places = [t * each + j for t in rows for j in range(each)]
            value = ops.index(value, (*(slice(None),) * place, np.asarray(places)))
        if name != "in/reset":
            found[name] = value
    return found


def _entering(x: Inputs, states: Inputs) -> Inputs:
    return {**{n: v for n, v in x.items() if n not in LEFT.values()}, **states}


def first_states(x: Inputs) -> Inputs:
    return {name: x[name] for name in LEFT.values() if name in x}


def handover(results: Inputs) -> Inputs:
    """The states that a call hands over, as inputs of the next one."""
    return {LEFT[name]: value for name, value in results.items() if name in LEFT}


def sequences(x: Mapping[str, Array]) -> list[tuple[int, int]]:
    """First and last tokens of packed sequences."""
    resets = np.flatnonzero(np.asarray(x.get("in/reset", ()))).tolist()
    return list(itertools.pairwise(sorted({0, *resets, x["in/q"].shape[-2]})))


def _parts(size: int, enter: Enter) -> Around:
    """A program whose parts of some tokens enter with other states than those left."""

    def around(compute: Compute, context: DplrContext, x: Inputs) -> Inputs:
        reads, first, found = [], first_states(x), dict[str, Array]()
        for begin, end in sequences(x):
            states = first
            for start in range(begin, end, size):
                if start > begin:
                    states = enter(handover(found), first)
                rows = list(range(start, min(start + size, end)))
                found = compute(_entering(take(x, rows), states))
                reads.append(found["out/y"])
        if enter is _narrow:  # it is handed over as it is stored
            found = {**found, **{n: round_to(found[n], "bfloat16") for n in LEFT if n in found}}
        return {**found, "out/y": ops.concatenate(reads, axis=-2)}

    return around


def stop(size: int) -> Around:
    """A program in which no gradient goes from a part to the states before it."""
    part = _parts(size, lambda states, first: {n: ops.stop_gradient(x) for n, x in states.items()})
    return _by_rows(part, "in/reset")


def _nothing(states: Inputs, first: Inputs) -> Inputs:
    return {}


def _again(states: Inputs, first: Inputs) -> Inputs:
    return first


def _narrow(states: Inputs, first: Inputs) -> Inputs:
    return {name: round_to(x, "bfloat16") for name, x in states.items()}


def _without(second: str) -> Enter:
    return lambda states, first: {n: x for n, x in states.items() if n != f"in/{second}0"}


def _history(size: int, behind: int) -> Around:
    """A program whose parts start some tokens earlier, from nothing."""

    def around(compute: Compute, context: DplrContext, x: Inputs) -> Inputs:
        reads, first, found = [], first_states(x), dict[str, Array]()
        for begin, end in sequences(x):
            for start in range(begin, end, size):
                since, until = max(begin, start - behind), min(start + size, end)
                states = first if since == begin else {}
                found = compute(_entering(take(x, list(range(since, until))), states))
                reads.append(found["out/y"][..., start - since :, :])
        return {**found, "out/y": ops.concatenate(reads, axis=-2)}

    return around


def _through(name: str) -> Around:
    """A program in which one state runs on through resets."""

    def around(compute: Compute, context: DplrContext, x: Inputs) -> Inputs:
        reads, first, found = [], first_states(x), dict[str, Array]()
        for begin, end in sequences(x):
            kept = {LEFT[name]: found[name]} if begin else {}
            part = take(x, list(range(begin, end)))
            found = compute(_entering(part, {**first, **kept}))
            reads.append(found["out/y"])
        return {**found, "out/y": ops.concatenate(reads, axis=-2)}

    return around


# -- the end of a call -----------------------------------------------------------------------------


def _of_end(context: DplrContext) -> Iterator[Reading]:
    """A last memory of some tokens earlier, whole chunks or all of them."""
    count = context.tokens
    short = [count % size for size in SIZES if size < count and count % size]
    for behind in dict.fromkeys([*short, *range(2, 9), count]):
        if not 1 < behind <= count or (behind == count and "in/M0" not in context.inputs):
            continue
        words = f"out/M lacked the last {behind} tokens" if behind < count else "out/M was in/M0"
        yield _reading(words, partial(_early, behind))


def _early(behind: int, compute: Compute, context: DplrContext, x: Inputs) -> Inputs:
    found = compute(x)
    if behind >= context.tokens:  # the search also asks the first tokens of a case alone
        return {**found, "out/M": x.get("in/M0", 0 * found["out/M"])}
    before = compute(take(x, list(range(context.tokens - behind))))
    return {**found, **{name: before[name] for name in LEFT if name in before}}


#: What the rows behind a last chunk that is short are: their gate, and whether they write.
PADDING = {
    "copies of the last token": ("one", True),
    "copies of the last token and its gate": ("copy", True),
    "zeros with the gate of the last token": ("copy", False),
}


def _of_padding(context: DplrContext) -> Iterator[Reading]:
    if len(context.inputs.get("in/reset", np.zeros(1)).shape) > 1:
        return  # rows have last sequences of their own
    begin, end = sequences(context.inputs)[-1]
    for size in SIZES:
        short = (end - begin) % size
        if short and size < 2 * context.tokens + SIZES[0]:
            for words, (gate, writes) in PADDING.items():
                said = f"a last chunk of {size} was filled up with {words}"
                if gate == "copy" and not context.gate:
                    continue
                yield _reading(said, partial(_pad, size - short, gate, writes))


def _pad(
    count: int, gate: str, writes: bool, compute: Compute, context: DplrContext, x: Inputs
) -> Inputs:
    """A program that takes in rows behind the last token."""
    begin, end = sequences(x)[-1]
    found, part = compute(x), take(x, [*range(begin, end), *[end - 1] * count])
    of = (np.arange(end - begin + count) < end - begin).astype(x["in/v"].dtype)
    if gate == "one" and context.gate:
        rows = of if context.gate in GATES and not context.by_channel else of[:, None]
        full = part[context.gate]
        part[context.gate] = rows * full + (1 - rows) * (0 if "log" in context.gate else 1)
    if not writes:
        for name in ("in/k", "in/v", "in/erase_read", "in/alpha", "in/kk", "in/erase_key"):
            if name in part:
                part[name] = np.repeat(of, context.settings.steps)[:, None] * part[name]
    last = compute(part)
    return {**found, **{name: last[name] for name in LEFT if name in last}}


def _decayed_from(size: int) -> Around:
    """A program whose sequences decay what they start from since the start of a chunk."""

    def around(compute: Compute, context: DplrContext, x: Inputs) -> Inputs:
        reads, found = [], dict[str, Array]()
        for begin, end in sequences(x):
            first = first_states(x)
            since = begin // size * size
            if since < begin:
                first["in/M0"] = first["in/M0"] * _gates(context, x, since, begin)
            found = compute(_entering(take(x, list(range(begin, end))), first))
            reads.append(found["out/y"])
        return {**found, "out/y": ops.concatenate(reads, axis=-2)}

    return around


def _gates(context: DplrContext, x: Inputs, begin: int, end: int) -> Array:
    """The product of gates of some tokens, for a memory in the layout of the case."""
    gate = x[context.gate][
        (..., slice(begin, end), slice(None))[: None if context.by_channel else 2]
    ]
    axis = -2 if context.by_channel else -1
    logs = gate if "log" in context.gate else ops.log(gate)
    whole = ops.exp(ops.sum(logs, axis=axis))
    if not context.by_channel:
        return whole[..., None, None]
    return (
        whole[..., None, :]
        if context.settings.state_layout == "(d_out, d_in)"
        else whole[..., :, None]
    )


# -- chunk forms -----------------------------------------------------------------------------------


def of_chunk_forms(context: DplrContext) -> Iterator[Reading]:
    """Every mistake of a chunk form, by the tokens of a chunk."""
    if context.settings.of.second or members.by_row(context.settings.of, context.inputs):
        return
    for size in chunk_sizes(context):
        undecayed = form.UNDECAYED if context.gate else {}
        for wrong, words in {**form.MISTAKES, **undecayed}.items():
            if wrong not in OTHERS:
                said = f"in chunks of {size} {words}"
                whole = wrong == "tail dropped"
                yield Reading(said, said, around=_of_form(size, wrong), whole=whole)


def chunk_sizes(context: DplrContext) -> list[int]:
    """Tokens of chunks that are tried: the next one above all tokens is one chunk of padding."""
    below = [size for size in (*SHORT, *SIZES) if size < context.tokens]
    above = [size for size in SIZES if size >= context.tokens]
    return [*(below if context.tokens <= SIZES[0] else below[len(SHORT) :]), *above[:1]]


def _of_form(size: int, wrong: str) -> Around:
    def around(compute: Compute, context: DplrContext, inputs: Inputs) -> Inputs:
        call = of_chunks.of_settings(context.settings, inputs)
        y, M = form.run(call, size, wrong)
        return {"out/y": y, "out/M": of_chunks.turn(M, context.settings)}

    return _by_rows(around, *tensors.MASKS)
