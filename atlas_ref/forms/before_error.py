"""A frozen reference that decays before the error, as two recurrences of the masked form.

    e[t,i] = r_t (M_ref phi_i) - v_i

depends on the token t, and so is no residual of a column. But states and reads are linear in
residuals, so those of a span are the sum of the parts of two residuals that do not depend on t:
M_ref phi_i at the rate a_t r_t, beginning with the states before the span, and -v_i at the rate
a_t, beginning with zero. A column that carries its residual has it in place of -v_i. Specified in
specs/chunkwise.md (CHUNK-9, CHUNK-10).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from atlas_ref.engine import segment
from atlas_ref.engine.group.layout import Arrays, End, Layout
from atlas_ref.engine.masked.forward import runs
from atlas_ref.forms import chunked_plain
from atlas_ref.types import Array
from tape import ops


def block(layouts: Sequence[Layout]) -> Callable[[Arrays], tuple[Array, End]]:
    """Consecutive groups under a frozen reference and decay before_error, as in `segment.block`."""
    return lambda inputs: _run(_spans(layouts), inputs)


def _spans(layouts: Sequence[Layout]) -> list[list[Layout]]:
    """The groups of each span; a group of several spans is cut."""
    spans: list[list[Layout]] = [[]]
    for layout in layouts:
        for first, last in runs(layout.refresh):
            part = layout._replace(
                refresh=layout.refresh[first:last], position=layout.position if first == 0 else 0
            )
            if part.refresh[0] and spans[-1]:
                spans.append([])
            spans[-1].append(part)
    return spans


def _run(spans: Sequence[Sequence[Layout]], inputs: Arrays) -> tuple[Array, End]:
    h = spans[0][0].window - 1
    if inputs.earlier_keys is not None:
        keys, values = (
            ops.concatenate(x, axis=1)
            for x in ((inputs.earlier_keys, inputs.keys), (inputs.earlier_values, inputs.values))
        )
        inputs = inputs._replace(keys=keys, values=values, earlier_keys=None, earlier_values=None)
    reads, first = [], 0
    for layouts in spans:
        last = first + sum(layout.chunk * len(layout.refresh) for layout in layouts)
        own, seen = slice(first, last), slice(first, last + h)
        per_token = {name: getattr(inputs, name) for name in segment.PER_TOKEN}
        cut = {name: None if x is None else x[:, own] for name, x in per_token.items()}
        y, end = _span(
            layouts,
            inputs._replace(keys=inputs.keys[:, seen], values=inputs.values[:, seen], **cut),
        )
        inputs = inputs._replace(
            **end._replace(
                residuals=None if end.residuals is None else end.residuals[:, 1:]
            )._asdict()
        )
        reads.append(y)
        first = last
    return None if reads[0] is None else ops.concatenate(reads, axis=1), end


def _span(layouts: Sequence[Layout], inputs: Arrays) -> tuple[Array, End]:
    """Tokens of one span."""
    start = layouts[0]
    if start.refresh[0]:
        inputs = inputs._replace(reference=inputs.M)
    values, weights, residuals = inputs.values, inputs.weights, None
    if start.carry:
        values, weights = _beside_predictions(start, inputs)
        residuals = ops.concatenate([inputs.residuals, _arrived(start, inputs)], axis=1)[
            :, -start.window :
        ]
    nothing = ops.zeros_like(inputs.M)
    inputs = inputs._replace(residuals=None)
    predicted = inputs._replace(
        values=ops.zeros_like(values), rate_in=inputs.rate_in * inputs.retain, weights=weights
    )
    own = inputs._replace(
        values=values, M=nothing, S=None if inputs.S is None else nothing, reference=None
    )
    y, end = _block(layouts, "frozen", start.read)(predicted)
    more, also = _block(layouts, "zero", "none" if start.read == "reference" else start.read)(own)
    S = None if end.S is None else end.S + also.S
    return y if more is None else y + more, End(
        M=end.M + also.M, S=S, reference=inputs.reference, residuals=residuals
    )


def _block(
    layouts: Sequence[Layout], reference: str, read: str
) -> Callable[[Arrays], tuple[Array, End]]:
    parts = [
        each._replace(reference=reference, read=read, before_error=False, carry=False)
        for each in layouts
    ]
    return segment.block(parts, chunked_plain.plain)


def _beside_predictions(layout: Layout, inputs: Arrays) -> tuple[Array, Array]:
    """Under carry: values beside their predictions, and the weights of predictions alone.

    Source: WINDOW-13.
    """
    c, h, n = layout.window, layout.window - 1, inputs.queries.shape[1]
    older = np.arange(h) < h - layout.position
    stored = ops.where(older[:, None], -inputs.residuals, inputs.values[:, :h])
    inside = np.arange(c) <= layout.position + np.arange(n)[:, None]
    return ops.concatenate([stored, inputs.values[:, h:]], axis=1), ops.where(
        inside, inputs.weights, 0.0
    )


def _arrived(layout: Layout, inputs: Arrays) -> Array:
    """The residual of every token of the span at its arrival."""
    h = layout.window - 1
    return (
        inputs.retain * ops.matmul(inputs.keys[:, h:], ops.transpose(inputs.reference))
        - inputs.values[:, h:]
    )
