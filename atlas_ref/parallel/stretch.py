"""A stretch of groups of chunks as one opaque block: one walk forward, and one back that computes each group again.

Reads and gradients are written where they belong as they are made, so no array of the sequence is copied or added up once
more, and what is kept between the walks is the arguments and one state a group. Memories never meet: where residuals are
known beforehand they are shared out over threads. Specified in specs/chunkwise.md (CHUNK-15).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from atlas_ref.backend import on_host
from atlas_ref.parallel import dual, dual_backward, dual_plain, stacked, stacked_backward
from atlas_ref.parallel.dual_backward import Bars, Into
from atlas_ref.parallel.group import Arrays, End, Layout
from atlas_ref.parallel.scratch import scratch
from atlas_ref.threads import in_threads, processors
from atlas_ref.types import Array
from tape import opaque, ops

SHARED_WORK = 2**22  # multiply-adds of scores below which a second thread costs more than it saves
PER_TOKEN = ("queries", "retain", "momentum", "rate_in", "rate_out", "weights")
IN_WINDOWS = ("keys", "values", "earlier_keys", "earlier_values")
Outputs = tuple[Array, ...]
Join = Callable[[Array, Array], Array]


def block(layouts: Sequence[Layout]) -> Callable[[Arrays], tuple[Array, End]]:
    """Groups that follow each other, as a function of the arrays of all their tokens.

    Args:
        layouts: of each group; they differ in chunk, refresh and position alone. A frozen reference does not decay here.

    Returns:
        Arrays -> y (B, n, o), or None where nothing is read, and what the last group leaves.
    """
    made = opaque(_plain(layouts), _forward(layouts), _backward(layouts))
    return lambda given: _named(layouts[0], made(*given))


def _plain(layouts: Sequence[Layout]) -> Callable[..., Outputs]:
    """The stretch in tape ops, group after group."""

    def plain(*arrays: Array) -> Outputs:
        given = Arrays(*arrays)
        reads, end = [], _start(given)
        for layout, tokens in _places(layouts):
            y, end = _named(layout, dual_plain.plain(layout, _part(layout, given, tokens, end, _joined)))
            reads.append(y)
        return outputs(None if reads[0] is None else ops.concatenate(reads, axis=1), end)

    return plain


# -- forward and back ---------------------------------------------------------------------------------


def _forward(layouts: Sequence[Layout]) -> Callable[..., tuple[Outputs, Any]]:
    def forward(*arrays: Array) -> tuple[Outputs, Any]:
        given = _of_one_kind(arrays)
        B, n, _ = given.queries.shape
        y: Array = None if layouts[0].read == "none" else np.empty_like(given.values, order="C", shape=(B, n, given.values.shape[-1]))
        end, starts = _start(given), []
        for layout, tokens in _places(layouts):
            starts.append(end)
            with scratch.frame():
                part = _part(layout, given, tokens, end, _behind)
                end = _group(layout, part, None if y is None else y[:, tokens])
        return outputs(y, end), (given, starts)

    return forward


def _backward(layouts: Sequence[Layout]) -> Callable[[Any, Outputs], Arrays]:
    def backward(kept: tuple[Arrays, list[End]], bars: Outputs) -> Arrays:
        given, starts = kept
        y_bar, bar = _named(layouts[0], bars)
        found = given._replace(**_each(given, IN_WINDOWS, np.zeros_like), **_each(given, PER_TOKEN, np.empty_like))
        for (layout, tokens), start in zip(reversed(list(_places(layouts))), reversed(starts), strict=True):
            with scratch.frame():
                part, into = _part(layout, given, tokens, start, _behind), _part(layout, found, tokens, End(None), _room_behind)
                bar = _group_back(layout, part, Bars(None if y_bar is None else y_bar[:, tokens], *bar), into)
                _handed_over(layout, into, found, tokens)
            if bar.residuals is not None and tokens.start:  # the group before hands over one more
                bar = bar._replace(residuals=np.concatenate([np.zeros_like(bar.residuals[:, :1]), bar.residuals], axis=1))
        return found._replace(**bar._asdict())

    return backward


def _group(layout: Layout, given: Arrays, y: Array) -> End:
    """Run a group; its reads go into y."""

    def some(memories: slice) -> End:
        with scratch.frame():
            made = dual.forward(layout, _of(given, memories), rows.of(memories))
            if y is not None:
                dual.reads(layout, made, y[memories])
            return dual.end(layout, made)

    with scratch.frame():
        rows, shares = dual.rows_of(layout, given), _shares(layout, given)
        if stacked.takes(layout, rows):
            return stacked.end(layout, stacked.forward(layout, given, rows, shares, y))
        return _rejoined(in_threads([functools.partial(some, memories) for memories in shares]))


def _group_back(layout: Layout, given: Arrays, bars: Bars, found: Arrays) -> End:
    """Run a group again and pull it back; cotangents of tokens go into `found`."""
    into = Into(found.keys, found.values, found.queries)

    def some(memories: slice) -> End:
        with scratch.frame():
            part = _of(given, memories)
            made = dual.forward(layout, part, rows.of(memories))
            return dual_backward.backward(layout, part, made, Bars(*_some(bars, memories)), summed.of(memories), into.of(memories))

    with scratch.frame():
        rows, shares = dual.rows_of(layout, given), _shares(layout, given)
        summed = dual_backward.row_bars(layout, rows)
        if stacked.takes(layout, rows):
            made = stacked.forward(layout, given, rows, shares, None)
            bar = stacked_backward.backward(layout, made, bars, summed, into, shares)
        else:
            bar = _rejoined(in_threads([functools.partial(some, memories) for memories in shares]))
        for name, value in dual_backward.gates_backward(layout, given, rows, summed).items():
            getattr(found, name)[...] = value
        return bar


# -- parts of tokens and of memories ------------------------------------------------------------------


def _places(layouts: Sequence[Layout]) -> Iterator[tuple[Layout, slice]]:
    """Each group with its tokens."""
    first = 0
    for layout in layouts:
        last = first + layout.chunk * len(layout.refresh)
        yield layout, slice(first, last)
        first = last


def _start(given: Arrays) -> End:
    """What the first group starts from, as a group before it would have handed it over."""
    return End(given.M, given.S, given.reference, given.residuals)


def _part(layout: Layout, given: Arrays, tokens: slice, start: End, join: Join) -> Arrays:
    """The arguments of one group: its tokens behind their history, and the last h of c residuals."""
    h, residuals = layout.window - 1, start.residuals

    def rows(earlier: Array, own: Array) -> Array:
        if earlier is None:
            return own[:, tokens.start : tokens.stop + h]
        return own[:, tokens.start - h : tokens.stop] if tokens.start >= h else join(earlier[:, tokens.start :], own[:, : tokens.stop])

    if residuals is not None and residuals.shape[1] == layout.window:
        residuals = residuals[:, 1:]
    return Arrays(
        keys=rows(given.earlier_keys, given.keys),
        values=rows(given.earlier_values, given.values),
        **_each(given, PER_TOKEN, lambda x: x[:, tokens]),
        **start._replace(residuals=residuals)._asdict(),
    )


def _each(given: Arrays, names: Sequence[str], change: Callable[[Array], Array]) -> dict[str, Array]:
    return {name: None if getattr(given, name) is None else change(getattr(given, name)) for name in names}


def _joined(earlier: Array, own: Array) -> Array:
    return ops.concatenate([earlier, own], axis=1)


def _behind(earlier: Array, own: Array) -> Array:
    """Tokens behind their history, in work space."""
    return np.concatenate([earlier, own], axis=1, out=_room(earlier, own))


def _room(earlier: Array, own: Array) -> Array:
    return scratch.empty((own.shape[0], earlier.shape[1] + own.shape[1], own.shape[2]), own)


def _room_behind(earlier: Array, own: Array) -> Array:
    """Room for their cotangents."""
    room = _room(earlier, own)
    room[...] = 0.0
    return room


def _handed_over(layout: Layout, into: Arrays, found: Arrays, tokens: slice) -> None:
    """Cotangents of a group that began in the history, from its room to where they belong."""
    if found.earlier_keys is None or tokens.start >= layout.window - 1:
        return
    h = layout.window - 1 - tokens.start
    for name in ("keys", "values"):
        room, earlier, own = getattr(into, name), getattr(found, f"earlier_{name}"), getattr(found, name)
        earlier[:, tokens.start :] += room[:, :h]
        own[:, : tokens.stop] += room[:, h:]


def _shares(layout: Layout, given: Arrays) -> list[slice]:
    """Memories in shares for one thread each, where there is enough to do beside the walk from chunk to chunk."""
    B, n, d = given.queries.shape
    work = B * n * layout.columns * (d + given.values.shape[-1])
    count = 1 if work < SHARED_WORK or not on_host(given.queries) else min(processors(), B)
    bounds = [B * i // count for i in range(count + 1)]
    return [slice(first, last) for first, last in itertools.pairwise(bounds)]


def _of(given: Arrays, memories: slice) -> Arrays:
    return Arrays(*_some(given, memories))


def _some(arrays: Sequence[Array], memories: slice) -> list[Array]:
    """Some memories of every array; one that all share, and one that is not there, as it is."""
    return [x if x is None or x.shape[0] == 1 else x[memories] for x in arrays]


def _rejoined(ends: list[End]) -> End:
    return ends[0] if len(ends) == 1 else End(*(None if each[0] is None else np.concatenate(each) for each in zip(*ends, strict=True)))


# -- outputs, which an opaque block has no names for --------------------------------------------------


def outputs(y: Array, end: End) -> Outputs:
    """y unless nothing is read, M, S with momentum, the reference where one is kept, under carry the last c residuals."""
    return tuple(x for x in (y, *end) if x is not None)


def _named(layout: Layout, outputs: Outputs) -> tuple[Array, End]:
    rest = list(outputs)
    y = None if layout.read == "none" else rest.pop(0)
    residuals = rest.pop() if layout.carry else None
    reference = rest.pop() if layout.keeps_reference else None
    return y, End(rest[0], rest[1] if len(rest) == 2 else None, reference, residuals)


def _of_one_kind(arrays: tuple[Array, ...]) -> Arrays:
    """The arguments in their common dtype: a complex step may have moved a few of them only."""
    kind = np.result_type(*[x for x in arrays if x is not None])
    return Arrays(*[x if x is None or x.dtype == kind else x.astype(kind) for x in arrays])
