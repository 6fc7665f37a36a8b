"""A stretch of groups of chunks as one opaque block: one walk forward, and one back that computes all but the last groups again.

Reads and gradients are written where they belong as they are made, so no array of the sequence is copied or added up once
more, and what is kept between the walks is the arguments, one state a group, and all of the last groups, with which the walk
back begins. Memories never meet: they are shared out over threads. Specified in specs/chunkwise.md (CHUNK-15).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.parallel import dual_plain, worked
from atlas_ref.parallel.dual_bars import Bars
from atlas_ref.parallel.group import Arrays, End, Layout
from atlas_ref.parallel.joins import Joins, joined_shape
from atlas_ref.scratch import Loan, scratch
from atlas_ref.types import Array
from tape import opaque, ops

LASTING = 1  # groups that keep what they computed for the sweep back
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
    made = opaque(_plain(layouts), _forward(layouts), _backward(layouts), value=_value(layouts), fresh=True)
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


class Lasting(NamedTuple):
    """One of the last groups of a stretch, which waits for the sweep back: its arguments, what it computed, and room for both."""

    loan: Loan  # in front: a tuple lets its last item go first, and the loan makes room anew once what it lent is gone
    part: Arrays
    worked: worked.Worked | None


def _value(layouts: Sequence[Layout]) -> Callable[..., Outputs]:
    return lambda *arrays: _run(layouts, _of_one_kind(arrays), lasting=False)[0]


def _forward(layouts: Sequence[Layout]) -> Callable[..., tuple[Outputs, Any]]:
    def forward(*arrays: Array) -> tuple[Outputs, Any]:
        given = _of_one_kind(arrays)
        found, *kept = _run(layouts, given, lasting=True)
        return found, (given, *kept)

    return forward


def _run(layouts: Sequence[Layout], given: Arrays, *, lasting: bool) -> tuple[Outputs, list[End], list[Lasting | None]]:
    """The outputs, the start of each group, and where they shall last, the last groups; None for those that do not."""
    y, end, starts, groups = _reads(layouts[0], given), _start(given), [], []
    for layout, tokens in _places(layouts):
        starts.append(end)
        lasts = lasting and len(starts) > len(layouts) - LASTING
        with scratch.lent() if lasts else scratch.frame() as loan:
            joins = Joins()
            part = _part(layout, given, tokens, end, joins.room)
            end, found = worked.run(layout, part, joins, None if y is None else y[:, tokens], lasting=lasts)
            groups.append(Lasting(loan, part, found) if lasts else None)
    return outputs(y, end), starts, groups


def _reads(layout: Layout, given: Arrays) -> Array:
    """Room for the reads of all tokens; None where nothing is read."""
    B, n, _ = given.queries.shape
    return None if layout.read == "none" else np.empty_like(given.values, order="C", shape=(B, n, given.values.shape[-1]))


def _backward(layouts: Sequence[Layout]) -> Callable[[Any, Outputs], Arrays]:
    def backward(kept: tuple[Arrays, list[End], list[Lasting | None]], bars: Outputs) -> Arrays:
        given, starts, groups = kept
        kind = given.queries.dtype  # where it is complex, cotangents may be real
        y_bar, bar = _named(layouts[0], tuple(x if x is None else x.astype(kind, copy=False) for x in bars))
        found = given._replace(**_each(given, IN_WINDOWS, np.zeros_like), **_each(given, PER_TOKEN, np.empty_like))
        for (layout, tokens), start, last in zip(reversed(list(_places(layouts))), reversed(starts), reversed(groups), strict=True):
            with scratch.frame():
                joins = Joins()
                part = _part(layout, given, tokens, start, joins.room) if last is None else last.part
                into = _part(layout, found, tokens, End(None), _room_behind)
                group_bars = Bars(None if y_bar is None else y_bar[:, tokens], *bar)
                bar = worked.pull_back(layout, part, joins, None if last is None else last.worked, group_bars, into)
                _handed_over(layout, into, found, tokens)
            if bar.residuals is not None and tokens.start:  # the group before hands over one more
                bar = bar._replace(residuals=np.concatenate([np.zeros_like(bar.residuals[:, :1]), bar.residuals], axis=1))
        bar = bar._replace(**_each(bar, ("reference", "residuals"), lambda x: x.copy()))  # which may be views of `bars`
        return found._replace(**bar._asdict())

    return backward


# -- parts of tokens --------------------------------------------------------------------------------


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


def _each(given: Arrays | End, names: Sequence[str], change: Callable[[Array], Array]) -> dict[str, Array]:
    return {name: None if getattr(given, name) is None else change(getattr(given, name)) for name in names}


def _joined(earlier: Array, own: Array) -> Array:
    return ops.concatenate([earlier, own], axis=1)


def _room_behind(earlier: Array, own: Array) -> Array:
    """Room for the cotangents of tokens behind their history."""
    return scratch.zeros(joined_shape(earlier, own), own)


def _handed_over(layout: Layout, into: Arrays, found: Arrays, tokens: slice) -> None:
    """Cotangents of a group that began in the history, from its room to where they belong."""
    if found.earlier_keys is None or tokens.start >= layout.window - 1:
        return
    h = layout.window - 1 - tokens.start
    for name in ("keys", "values"):
        room, earlier, own = getattr(into, name), getattr(found, f"earlier_{name}"), getattr(found, name)
        earlier[:, tokens.start :] += room[:, :h]
        own[:, : tokens.stop] += room[:, h:]


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
