"""A frozen reference that decays before the error, as two recurrences that the dual form knows.

    e[t,i] = r_t (M_ref phi_i) - v_i

depends on the token that looks, and so is no residual of a column. But states and reads are linear in residuals, so those of
a span are the sum of what two residuals leave that do not depend on it: M_ref phi_i at the rate a_t r_t, beginning with the
states before the span, and -v_i at the rate a_t, beginning with nothing. A column that carries its residual brings it in
place of -v_i. Specified in specs/chunkwise.md (CHUNK-9, CHUNK-10).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from atlas_ref.parallel import stretch
from atlas_ref.parallel.dual import runs
from atlas_ref.parallel.group import Arrays, End, Layout
from atlas_ref.types import Array
from tape import ops


def block(layouts: Sequence[Layout]) -> Callable[[Arrays], tuple[Array, End]]:
    """Groups that follow each other under a frozen reference and decay before_error, as `stretch.block` has them."""
    return lambda given: _run(_spans(layouts), given)


def _spans(layouts: Sequence[Layout]) -> list[list[Layout]]:
    """The groups of each span; where several spans share one, it is cut."""
    spans: list[list[Layout]] = [[]]
    for layout in layouts:
        for first, last in runs(layout.refresh):
            part = layout._replace(refresh=layout.refresh[first:last], position=layout.position if first == 0 else 0)
            if part.refresh[0] and spans[-1]:
                spans.append([])
            spans[-1].append(part)
    return spans


def _run(spans: Sequence[Sequence[Layout]], given: Arrays) -> tuple[Array, End]:
    h = spans[0][0].window - 1
    if given.earlier_keys is not None:
        keys, values = (ops.concatenate(x, axis=1) for x in ((given.earlier_keys, given.keys), (given.earlier_values, given.values)))
        given = given._replace(keys=keys, values=values, earlier_keys=None, earlier_values=None)
    reads, first = [], 0
    for layouts in spans:
        last = first + sum(layout.chunk * len(layout.refresh) for layout in layouts)
        own, seen = slice(first, last), slice(first, last + h)
        per_token = {name: getattr(given, name) for name in stretch.PER_TOKEN}
        cut = {name: None if x is None else x[:, own] for name, x in per_token.items()}
        y, end = _span(layouts, given._replace(keys=given.keys[:, seen], values=given.values[:, seen], **cut))
        given = given._replace(**end._replace(residuals=None if end.residuals is None else end.residuals[:, 1:])._asdict())
        reads.append(y)
        first = last
    return None if reads[0] is None else ops.concatenate(reads, axis=1), end


def _span(layouts: Sequence[Layout], given: Arrays) -> tuple[Array, End]:
    """Tokens of one span."""
    start = layouts[0]
    if start.refresh[0]:
        given = given._replace(reference=given.M)
    values, weights, residuals = given.values, given.weights, None
    if start.carry:
        values, weights = _beside_predictions(start, given)
        residuals = ops.concatenate([given.residuals, _arrived(start, given)], axis=1)[:, -start.window :]
    nothing = ops.zeros_like(given.M)
    given = given._replace(residuals=None)
    predicted = given._replace(values=ops.zeros_like(values), rate_in=given.rate_in * given.retain, weights=weights)
    own = given._replace(values=values, M=nothing, S=None if given.S is None else nothing, reference=None)
    y, end = _block(layouts, "frozen", start.read)(predicted)
    more, also = _block(layouts, "zero", "none" if start.read == "reference" else start.read)(own)
    S = None if end.S is None else end.S + also.S
    return y if more is None else y + more, End(M=end.M + also.M, S=S, reference=given.reference, residuals=residuals)


def _block(layouts: Sequence[Layout], reference: str, read: str) -> Callable[[Arrays], tuple[Array, End]]:
    return stretch.block([each._replace(reference=reference, read=read, before_error=False, carry=False) for each in layouts])


def _beside_predictions(layout: Layout, given: Arrays) -> tuple[Array, Array]:
    """Under carry: minus what a column brings beside its prediction, and the weights of predictions alone (WINDOW-13)."""
    c, h, n = layout.window, layout.window - 1, given.queries.shape[1]
    older = np.arange(h) < h - layout.position
    stored = ops.where(older[:, None], -given.residuals, given.values[:, :h])
    inside = np.arange(c) <= layout.position + np.arange(n)[:, None]
    return ops.concatenate([stored, given.values[:, h:]], axis=1), ops.where(inside, given.weights, 0.0)


def _arrived(layout: Layout, given: Arrays) -> Array:
    """The residual of every token of the span at its arrival."""
    h = layout.window - 1
    return given.retain * ops.matmul(given.keys[:, h:], ops.transpose(given.reference)) - given.values[:, h:]
