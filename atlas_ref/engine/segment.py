"""A segment of groups of chunks as one opaque block; plain twin: `atlas_ref.forms.chunked_plain`,
group after group.

Reads and gradients are written into their final arrays, so no array of the sequence is copied or
summed again. For backward are kept the arguments, one state a group, and all of the last groups,
with which the backward begins. It recomputes the others. Specified in specs/chunkwise.md
(CHUNK-15).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.backend.scratch import Arena, scratch
from atlas_ref.engine import dispatch
from atlas_ref.engine.compiled import tokens as compiled_tokens
from atlas_ref.engine.group.cotangents import Cotangents
from atlas_ref.engine.group.layout import Arrays, End, Layout
from atlas_ref.types import Array
from tape import opaque, ops

KEPT_GROUPS = 1  # last groups whose results are kept for backward
PER_TOKEN = ("queries", "retain", "momentum", "rate_in", "rate_out", "weights")
IN_WINDOWS = ("keys", "values", "earlier_keys", "earlier_values")
Outputs = tuple[Array, ...]
Plain = Callable[[Layout, Arrays], Outputs]
Join = Callable[[Array, Array], Array]


def block(layouts: Sequence[Layout], plain: Plain) -> Callable[[Arrays], tuple[Array, End]]:
    """Consecutive groups as one function of the arrays of all their tokens (CHUNK-15).

    Args:
        layouts: of each group; they differ in chunk, refresh and position alone. A frozen reference
            does not decay here.
        plain: the plain twin: outputs of one group in tape ops, also for second derivatives.

    Returns:
        Arrays -> y (B, n, o), or None where nothing is read, and the end of the last group.
    """
    run = opaque(
        _plain(layouts, plain),
        _forward(layouts),
        _backward(layouts),
        value=_value(layouts),
        fresh=True,
    )
    return lambda inputs: _named(layouts[0], run(*inputs))


def _plain(layouts: Sequence[Layout], plain: Plain) -> Callable[..., Outputs]:
    """The segment in tape ops, group after group."""

    def groups(*arrays: Array) -> Outputs:
        inputs = Arrays(*arrays)
        reads, end = [], _start(inputs)
        for layout, tokens in _places(layouts):
            y, end = _named(layout, plain(layout, _part(layout, inputs, tokens, end, _joined)))
            reads.append(y)
        return outputs(None if reads[0] is None else ops.concatenate(reads, axis=1), end)

    return groups


# -- forward and back ------------------------------------------------------------------------------


class KeptGroup(NamedTuple):
    """One of the last groups, kept for backward: its arguments, its results, and the arena of
    both.
    """

    # in front: a tuple lets its last item go first, and the arena makes room anew once its arrays
    # are gone
    arena: Arena
    part: Arrays
    results: dispatch.KeptResults | None


def _value(layouts: Sequence[Layout]) -> Callable[..., Outputs]:
    def value(*arrays: Array) -> Outputs:
        inputs = _of_one_kind(arrays)
        by_token = _by_token(layouts[0], inputs, keeps=False)
        return _run(layouts, inputs, keeps=False)[0] if by_token is None else by_token[0]

    return value


def _forward(layouts: Sequence[Layout]) -> Callable[..., tuple[Outputs, Any]]:
    def forward(*arrays: Array) -> tuple[Outputs, Any]:
        inputs = _of_one_kind(arrays)
        by_token = _by_token(layouts[0], inputs, keeps=True)
        if by_token is not None:
            results, kept = by_token
            return results, (inputs, kept)
        results, *rest = _run(layouts, inputs, keeps=True)
        return results, (inputs, *rest)

    return forward


def _by_token(layout: Layout, inputs: Arrays, *, keeps: bool) -> tuple[Outputs, Any] | None:
    """Outputs by the compiled loop, and what its backward needs; None where it does not run."""
    if not compiled_tokens.takes(layout, inputs, keeps=keeps):
        return None
    results = compiled_tokens.run(layout, inputs, keeps=keeps)
    if results is None:
        return None
    y, end, kept = results
    return outputs(y, end), kept


def _run(
    layouts: Sequence[Layout], inputs: Arrays, *, keeps: bool
) -> tuple[Outputs, list[End], list[KeptGroup | None]]:
    """The outputs, the start of each group, and each group, None where it is not kept for
    backward.
    """
    y, end, starts, groups = _reads(layouts[0], inputs), _start(inputs), [], []
    for layout, tokens in _places(layouts):
        starts.append(end)
        is_kept = keeps and len(starts) > len(layouts) - KEPT_GROUPS
        with scratch.arena() if is_kept else scratch.frame() as arena:
            part = _part(layout, inputs, tokens, end, _behind)
            end, results = dispatch.run(
                layout, part, None if y is None else y[:, tokens], keeps=is_kept
            )
            groups.append(KeptGroup(arena, part, results) if is_kept else None)
    return outputs(y, end), starts, groups


def _reads(layout: Layout, inputs: Arrays) -> Array:
    """An empty array for the reads of all tokens; None where nothing is read."""
    B, n, _ = inputs.queries.shape
    return (
        None
        if layout.read == "none"
        else np.empty_like(inputs.values, order="C", shape=(B, n, inputs.values.shape[-1]))
    )


def _backward(layouts: Sequence[Layout]) -> Callable[[Any, Outputs], Arrays]:
    def backward(kept: Any, of_outputs: Outputs) -> Arrays:
        inputs, *rest = kept
        kind = inputs.queries.dtype  # where it is complex, cotangents may be real
        of_y, of_end = _named(
            layouts[0], tuple(x if x is None else x.astype(kind, copy=False) for x in of_outputs)
        )
        if len(rest) == 1:
            by_token: Arrays | None = compiled_tokens.backward(
                layouts[0], inputs, rest[0], Cotangents(of_y, *of_end)
            )
            if by_token is not None:
                return by_token
            _, *rest = _run(layouts, inputs, keeps=True)
        starts, groups = rest
        gradients: Arrays = inputs._replace(
            **_each(inputs, IN_WINDOWS, np.zeros_like), **_each(inputs, PER_TOKEN, np.empty_like)
        )
        for (layout, tokens), start, group in zip(
            reversed(list(_places(layouts))), reversed(starts), reversed(groups), strict=True
        ):
            with scratch.frame():
                part = (
                    _part(layout, inputs, tokens, start, _behind) if group is None else group.part
                )
                of_tokens = _part(layout, gradients, tokens, End(None), _room_behind)
                cotangents = Cotangents(None if of_y is None else of_y[:, tokens], *of_end)
                of_end = dispatch.backward(
                    layout, part, None if group is None else group.results, cotangents, of_tokens
                )
                _add_history(layout, of_tokens, gradients, tokens)
            if of_end.residuals is not None and tokens.start:  # the group before leaves one more
                of_end = of_end._replace(
                    residuals=np.concatenate(
                        [np.zeros_like(of_end.residuals[:, :1]), of_end.residuals], axis=1
                    )
                )
        # which may be views of cotangents
        of_end = of_end._replace(**_each(of_end, ("reference", "residuals"), lambda x: x.copy()))
        return gradients._replace(**of_end._asdict())

    return backward


# -- parts of tokens -------------------------------------------------------------------------------


def _places(layouts: Sequence[Layout]) -> Iterator[tuple[Layout, slice]]:
    """Each group with its tokens."""
    first = 0
    for layout in layouts:
        last = first + layout.chunk * len(layout.refresh)
        yield layout, slice(first, last)
        first = last


def _start(inputs: Arrays) -> End:
    """The start of the first group, in the form of the end of a group."""
    return End(inputs.M, inputs.S, inputs.reference, inputs.residuals)


def _part(layout: Layout, inputs: Arrays, tokens: slice, start: End, join: Join) -> Arrays:
    """The arguments of one group: its tokens behind their history, and the last h of c
    residuals.
    """
    h, residuals = layout.window - 1, start.residuals

    def rows(earlier: Array, own: Array) -> Array:
        if earlier is None:
            return own[:, tokens.start : tokens.stop + h]
        return (
            own[:, tokens.start - h : tokens.stop]
            if tokens.start >= h
            else join(earlier[:, tokens.start :], own[:, : tokens.stop])
        )

    if residuals is not None and residuals.shape[1] == layout.window:
        residuals = residuals[:, 1:]
    return Arrays(
        keys=rows(inputs.earlier_keys, inputs.keys),
        values=rows(inputs.earlier_values, inputs.values),
        **_each(inputs, PER_TOKEN, lambda x: x[:, tokens]),
        **start._replace(residuals=residuals)._asdict(),
    )


def _each(
    inputs: Arrays | End, names: Sequence[str], change: Callable[[Array], Array]
) -> dict[str, Array]:
    return {
        name: None if getattr(inputs, name) is None else change(getattr(inputs, name))
        for name in names
    }


def _joined(earlier: Array, own: Array) -> Array:
    return ops.concatenate([earlier, own], axis=1)


def _behind(earlier: Array, own: Array) -> Array:
    """Tokens (B, n, x) behind their history (B, h, x), in work space."""
    room = scratch.empty(_joined_shape(earlier, own), own)
    return np.concatenate([earlier, own], axis=1, out=room)


def _room_behind(earlier: Array, own: Array) -> Array:
    """Arrays for the cotangents of tokens behind their history."""
    return scratch.zeros(_joined_shape(earlier, own), own)


def _joined_shape(earlier: Array, own: Array) -> tuple[int, ...]:
    return (own.shape[0], earlier.shape[1] + own.shape[1], own.shape[2])


def _add_history(layout: Layout, of_tokens: Arrays, gradients: Arrays, tokens: slice) -> None:
    """Add the cotangents of a group that began in the history to those of history and tokens."""
    if gradients.earlier_keys is None or tokens.start >= layout.window - 1:
        return
    h = layout.window - 1 - tokens.start
    for name in ("keys", "values"):
        room, earlier, own = (
            getattr(of_tokens, name),
            getattr(gradients, f"earlier_{name}"),
            getattr(gradients, name),
        )
        earlier[:, tokens.start :] += room[:, :h]
        own[:, : tokens.stop] += room[:, h:]


# -- outputs, which an opaque block has no names for -----------------------------------------------


def outputs(y: Array, end: End) -> Outputs:
    """The outputs that are there, in order: y, M, S, the reference, and under carry the last c
    residuals.
    """
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
