"""Groups of chunks over a sequence, for the chunkwise and the exact form.

The groups are one opaque block that keeps its arguments and is recomputed for backward, so that
memory beyond inputs, outputs and one state per group does not grow with the sequence. Specified in
specs/chunkwise.md (CHUNK-15).
"""

from __future__ import annotations

import functools
import math
from typing import Any

from atlas_ref.backend import at_once
from atlas_ref.engine import segment
from atlas_ref.engine.group.layout import Arrays, Layout
from atlas_ref.forms import before_error, chunked_plain
from atlas_ref.forms.chunks import grouped
from atlas_ref.forms.recurrence import Memory, Recurrence
from atlas_ref.types import Array
from tape import ops

# coefficients, scores, columns and states of a group; all its arrays take two to six times as many
GROUP_NUMBERS = 2**23
READS = {"after": "after", "before": "before", "chunk_start": "reference", "call_end": "none"}


def run(config: Any, sequence: Recurrence, memory: Memory, chunk: int) -> tuple[Memory, Array]:
    """Run a sequence without Newton-Schulz in chunks of at most `chunk` tokens.

    Args:
        sequence, memory: with any leading axes.

    Returns:
        memory after the last token, y (..., T, o).
    """
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
    groups = [
        layout._replace(
            chunk=group.length, refresh=group.refresh, position=int(sequence.position[group.first])
        )
        for group in grouped(
            sequence.refresh, chunk, functools.cache(functools.partial(_limit, flat, layout))
        )
    ]
    block = (
        before_error.block(groups)
        if layout.before_error and not layout.running
        else segment.block(groups, chunked_plain.plain)
    )
    y, end = block(flat)
    if y is None:
        y = ops.matmul(flat.queries, ops.transpose(end.M))
    return apart(
        memory, Memory(M=end.M, S=end.S, reference=end.reference, residuals=end.residuals), y
    )


def apart(before: Memory, after: Memory, y: Array) -> tuple[Memory, Array]:
    """Results with the leading axes of `before` in place of the one axis of `joined`."""
    lead = before.M.shape[:-2]

    def each(x: Array) -> Array:
        shape = None if x is None else (*lead, *x.shape[1:])
        return x if x is None or x.shape == shape else ops.reshape(x, shape)

    return Memory(*map(each, after)), each(y)


def joined(sequence: Recurrence, memory: Memory, *, reference: bool, residuals: bool) -> Arrays:
    """All arrays with their leading axes joined to one."""
    lead = memory.M.shape[:-2]

    def one(x: Array) -> Array:
        return None if x is None else ops.reshape(x, (math.prod(lead), *x.shape[len(lead) :]))

    # one axis stays as it is: the pullback of a reshape hides that a gradient has no other holder
    def tokens(name: str) -> Array:
        return getattr(sequence, name) if len(lead) == 1 else one(getattr(sequence, name))

    held = memory.reference
    if reference and held is None:
        held = ops.zeros_like(memory.M)  # not looked at: the first token makes it
    weights = sequence.weights
    return Arrays(
        **{
            name: tokens(name)
            for name in ("keys", "values", "queries", "retain", "momentum", "rate_in", "rate_out")
        },
        weights=ops.expand_dims(weights, 0) if weights.ndim == 2 else one(weights),
        M=one(memory.M),
        S=one(memory.S),
        reference=one(held) if reference else None,
        residuals=one(memory.residuals) if residuals else None,
        earlier_keys=one(sequence.earlier_keys),
        earlier_values=one(sequence.earlier_values),
    )


def _limit(flat: Arrays, layout: Layout, chunk: int) -> int:
    """The largest number of tokens of a group of such chunks whose work space is within bounds."""
    B, _, d = flat.queries.shape
    o = flat.values.shape[-1]
    G: int = max(
        gate.shape[-1]
        for gate in (flat.retain, flat.momentum, flat.rate_in, flat.rate_out)
        if gate is not None
    )
    layout = layout._replace(chunk=chunk)
    most, K = at_once(flat.queries, GROUP_NUMBERS), layout.columns
    each = K * (5 * G + 2) + (K * (d + o) + 4 * d * o) // chunk
    if layout.running and G == 1:  # `folded`: masks, P and ask, the state and F, reads
        bases = 1 if flat.momentum is None else 2
        each = 5 * K + (2 * K * bases * d + (bases * d + K) * o) // chunk + bases * d
        # smaller per token than others, and a longer group has more for each thread
        most += most // 4 if bases == 1 else 0
    return max(chunk, most // max(1, int(B * each)))
