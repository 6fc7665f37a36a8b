"""Group after group of chunks over a sequence: what the frozen and the exact form share.

Each group is one opaque block that keeps its arguments and computes the rest again in the backward sweep, so that memory
beyond inputs, outputs and one state per group does not grow with the sequence. Specified in specs/chunkwise.md (CHUNK-15).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from atlas_ref.parallel import dual, dual_backward, dual_plain
from atlas_ref.parallel.chunks import grouped
from atlas_ref.parallel.dual import Arrays, Layout
from atlas_ref.parallel.recomputed import recomputed
from atlas_ref.parallel.recurrence import Memory, Recurrence
from atlas_ref.parallel.scratch import scratch
from atlas_ref.types import Array
from tape import opaque, ops

GROUP_NUMBERS = 2**22  # numbers that the work space of a group may hold
READS = {"after": "after", "before": "before", "chunk_start": "reference", "call_end": "none"}


def walk(config: Any, sequence: Recurrence, memory: Memory, chunk: int) -> tuple[Memory, Array]:
    """Run a sequence without Newton-Schulz in chunks of at most `chunk` tokens.

    Args:
        sequence, memory: with any leading axes.

    Returns:
        memory after the last token, y (..., T, o).
    """
    T, h = sequence.length, sequence.window - 1
    layout = Layout(
        chunk=0,
        window=sequence.window,
        refresh=(),
        reference=sequence.reference,
        before_error=sequence.before_error,
        read=READS[config.convention.read],
        carry=memory.residuals is not None and sequence.reference == "frozen",
        position=0,
    )
    flat = joined(sequence, memory, reference=layout.keeps_reference, residuals=layout.carry)
    M, S, reference, residuals = flat.M, flat.S, flat.reference, flat.residuals
    reads = []
    for group in grouped(sequence.refresh, chunk, _limit(flat, layout, min(chunk, T))):
        layout = layout._replace(chunk=group.length, refresh=group.refresh, position=int(sequence.position[group.first]))
        tokens, rows = slice(group.first, group.last), slice(group.first, group.last + h)
        given = {name: getattr(flat, name)[:, rows] for name in ("keys", "values")}
        given |= {name: getattr(flat, name)[:, tokens] for name in ("queries", "retain", "rate_in", "rate_out", "weights")}
        momentum = None if flat.momentum is None else flat.momentum[:, tokens]
        made = list(block(layout)(*Arrays(**given, momentum=momentum, M=M, S=S, reference=reference, residuals=residuals)))
        if layout.read != "none":
            reads.append(made.pop(0))
        M, S = made.pop(0), None if S is None else made.pop(0)
        reference = made.pop(0) if layout.keeps_reference else None
        last_residuals = made.pop(0) if layout.carry else None
        residuals = None if last_residuals is None else last_residuals[:, 1:]
    if layout.read == "none":
        reads = [flat.queries @ ops.transpose(M)]
    y = reads[0] if len(reads) == 1 else ops.concatenate(reads, axis=1)
    return apart(memory, Memory(M=M, S=S, reference=reference, residuals=last_residuals), y)


def apart(before: Memory, after: Memory, y: Array) -> tuple[Memory, Array]:
    """Results with the leading axes that `before` has, in place of the one axis that `joined` made of them."""
    lead = before.M.shape[:-2]

    def each(x: Array) -> Array:
        return None if x is None else ops.reshape(x, (*lead, *x.shape[1:]))

    return Memory(*map(each, after)), each(y)


def joined(sequence: Recurrence, memory: Memory, *, reference: bool, residuals: bool) -> Arrays:
    """All arrays with their leading axes joined to one."""
    lead = memory.M.shape[:-2]

    def one(x: Array) -> Array:
        return None if x is None else ops.reshape(x, (math.prod(lead), *x.shape[len(lead) :]))

    held = memory.reference
    if reference and held is None:
        held = ops.zeros_like(memory.M)  # not looked at: the first token makes it
    weights = sequence.weights
    return Arrays(
        **{name: one(getattr(sequence, name)) for name in ("keys", "values", "queries", "retain", "momentum", "rate_in", "rate_out")},
        weights=ops.expand_dims(weights, 0) if weights.ndim == 2 else one(weights),
        M=one(memory.M),
        S=one(memory.S),
        reference=one(held) if reference else None,
        residuals=one(memory.residuals) if residuals else None,
    )


def _limit(flat: Arrays, layout: Layout, chunk: int) -> int:
    """Tokens of a group: as many as keep its work space within bounds."""
    B, _, d = flat.queries.shape
    o = flat.values.shape[-1]
    G: int = max(gate.shape[-1] for gate in (flat.retain, flat.momentum, flat.rate_in, flat.rate_out) if gate is not None)
    layout = layout._replace(chunk=chunk)
    each = layout.columns * (5 * G + 2) + (layout.columns * (d + o) + 4 * d * o) // chunk
    return max(chunk, GROUP_NUMBERS // max(1, int(B * each)))


def block(layout: Layout) -> Any:
    """The group as a function of its arrays, with the backward by hand where `dual` computes it."""

    def plain(*arrays: Array) -> tuple[Array, ...]:
        return dual_plain.plain(layout, Arrays(*arrays))

    if layout.before_error and not layout.solved:
        return recomputed(plain)

    def forward(*arrays: Array) -> tuple[Any, Any]:
        given = _of_one_kind(arrays)
        with scratch.frame():
            return dual.outputs(layout, dual.forward(layout, given)), given

    def backward(given: Arrays, bars: tuple[Array, ...]) -> Arrays:
        with scratch.frame():
            return dual_backward.backward(layout, given, dual.forward(layout, given), _named(layout, given, bars))

    return opaque(plain, forward, backward)


def _of_one_kind(arrays: tuple[Array, ...]) -> Arrays:
    """The arguments in their common dtype: a complex step may have moved a few of them only."""
    kind = np.result_type(*[x for x in arrays if x is not None])
    return Arrays(*[x if x is None or x.dtype == kind else x.astype(kind) for x in arrays])


def _named(layout: Layout, given: Arrays, bars: tuple[Array, ...]) -> dual_backward.Bars:
    names = [] if layout.read == "none" else ["y"]
    names += ["M"] if given.momentum is None else ["M", "S"]
    names += ["reference"] if layout.keeps_reference else []
    names += ["residuals"] if layout.carry else []
    return dual_backward.Bars(**dict(zip(names, bars, strict=True)))
