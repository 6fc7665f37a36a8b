"""A group of chunks in the masked form: scores between keys, no matrix per token; plain twin:
`atlas_ref.forms.chunked_plain`.

    A   = D * (Psi Phi^T)                                               D: coefficient rows
    Y   = diag(c) Psi M_0^T + diag(f) Psi S_0^T - A E
    M_C = c_C M_0 + f_C S_0 - E^T diag(D[C,:]) Phi,    S_C = n_C S_0 + E^T diag(X[C,:]) Phi

Residuals are E = Phi M_ref^T - V under a frozen reference, and the solution of a unit lower
triangular system under the running one. Everything that does not depend on the state is computed
for all chunks of the group at once; the memory then passes from chunk to chunk. Specified in
specs/chunkwise.md (CHUNK-6 to CHUNK-16) and specs/exact.md.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from atlas_ref.backend import negated, on_host
from atlas_ref.backend.scratch import scratch
from atlas_ref.engine.cuda import exact as exact_kernels
from atlas_ref.engine.cuda import pieces
from atlas_ref.engine.cuda.hook import kernel
from atlas_ref.engine.group.coefficients import GateRows, Rows, coefficient_rows, gate_rows
from atlas_ref.engine.group.layout import Arrays, End, Group, Layout
from atlas_ref.engine.group.triangular import inverse_unit_lower
from atlas_ref.engine.masked.rows import (
    before_rows,
    factor,
    mix,
    read_rows,
    spread,
    spread_transposed,
    transposed,
)
from atlas_ref.types import Array


def end(layout: Layout, group: Group) -> End:
    """The end of a group, copied from its work space."""
    o = group.E.shape[-1]
    states = group.states[:, -1]
    return End(
        M=transposed(states[..., :o]),
        S=transposed(states[..., o:]) if states.shape[-1] > o else None,
        reference=transposed(group.last_reference) if layout.keeps_reference else None,
        residuals=group.arrivals[:, -layout.window :].copy() if layout.carry else None,
    )


def rows_of(layout: Layout, inputs: Arrays) -> Rows:
    """The coefficient rows of a group (CHUNK-4)."""
    gates = gate_rows(
        layout.chunk,
        inputs.retain,
        inputs.momentum,
        inputs.rate_in,
        inputs.rate_out,
        inputs.weights,
    )
    if gates.retain.shape[-1] == 1 and on_host(gates.retain):
        # A step takes the gates of one place in all chunks: side by side. Weights become an array
        # of their own anyway.
        gates = GateRows(
            *(x if x is None or x is gates.weights else scratch.copy(x) for x in gates)
        )
    return Rows(gates, *coefficient_rows(gates, layout.columns, layout.stride))


def forward(layout: Layout, inputs: Arrays, rows: Rows) -> Group:
    """Run a group of chunks (CHUNK-6 to CHUNK-13, EXACT-1 to EXACT-6)."""
    C, nb = layout.chunk, rows.gates.bases
    B, n, d = inputs.queries.shape
    queries = inputs.queries.reshape(B, n // C, C, d)
    phi, asks = spread(layout, inputs.keys), layout.read in ("after", "before")
    scores: Array = scratch.empty((*phi.shape[:2], C, phi.shape[2]), phi) if asks else None
    keyed: Array = scratch.empty((*phi.shape[:3], phi.shape[2]), phi) if layout.running else None
    with scratch.frame():
        phi_T = spread_transposed(layout, inputs.keys)
        if asks:
            np.matmul(queries, phi_T, out=scores)
        if layout.running:
            np.matmul(phi, phi_T, out=keyed)
    A = scratch.times(read_rows(layout, rows.D)[..., nb:], scores[:, :, None]) if asks else None
    inverse = None
    if layout.running:
        with scratch.frame():
            inverse = inverse_unit_lower(
                scratch.times(before_rows(layout, rows.gates, rows.D)[..., nb:], keyed[:, :, None])
            )
    group = Group(*rows, phi, queries, scores, A, keyed, inverse, *(None,) * 8)
    group = _running(layout, inputs, group) if layout.running else _frozen(layout, inputs, group)
    return (
        group if A is None else group._replace(asked=scratch.product(queries, group.states[:, :-1]))
    )


# -- columns ---------------------------------------------------------------------------------------


# -- residuals and states --------------------------------------------------------------------------


def side_by_side(inputs: Arrays) -> Array:
    """[M^T | S^T] (B, d, bases o)."""
    both = [inputs.M] if inputs.momentum is None else [inputs.M, inputs.S]
    return np.concatenate([x.swapaxes(-1, -2) for x in both], axis=-1)


def left_factors(group: Group) -> Array:
    """Factors (B, g, K, G, bases) of residuals in the last memory and momentum: -D_C and X_C."""
    nb = group.gates.bases
    rows = (
        [-group.D[-1, ..., nb:]]
        if group.X is None
        else [-group.D[-1, ..., nb:], group.X[-1, ..., nb:]]
    )
    return np.stack([factor(x) for x in rows], axis=-1)


def scale_residuals(E: Array, left: Array, out: Array) -> None:
    """[-D_C E | X_C E] into `out`: the changes of memory and momentum by the columns."""
    o = E.shape[-1]
    for base in range(left.shape[-1]):
        np.multiply(E, left[..., base], out=out[..., base * o : base * o + o])


class Kept(NamedTuple):
    """The rest of a state after each chunk, [c_C M^T + f_C S^T | n_C S^T], as factors of columns.

    Attributes:
        own (B, g, 1, bases o): c_C and n_C. across (B, g, 1, o): -f_C, None without momentum.
    """

    own: Array
    across: Array


def kept(gates: GateRows, D: Array, X: Array, o: int) -> Kept:
    """The factors of `Kept` from the last coefficient rows."""

    def wide(x: Array) -> Array:  # (B, g, G) -> (B, g, 1, o)
        return np.broadcast_to(x[:, :, None], (*x.shape[:2], 1, o))

    if gates.momentum is None:
        return Kept(wide(D[-1, ..., 0]), None)
    return Kept(
        np.concatenate([wide(D[-1, ..., 0]), wide(X[-1, ..., 1])], axis=-1),
        wide(D[-1, ..., 1]).copy(),
    )


def pass_on(keep: Kept, states: Array, k: int, change: Array) -> None:
    """The state after chunk k from that before it and the change of the chunk."""
    before, after = states[:, k], states[:, k + 1]
    np.multiply(before, keep.own[:, k], out=after)
    after += change
    if keep.across is not None:
        o = keep.across.shape[-1]
        after[..., :o] -= before[..., o:] * keep.across[:, k]


def _some(group: Group, first: int, last: int) -> tuple[Array, Array]:
    """Coefficient rows D and X of some chunks, as views."""
    return group.D[:, :, first:last], None if group.X is None else group.X[:, :, first:last]


def _passed_at_once(
    group: Group, keep: Kept, states: Array, change: Array, first: int, last: int
) -> None:
    states[:, first : last + 1] = pieces.carried(
        states[:, first], change, *_some(group, first, last)
    )


@kernel(_passed_at_once)
def passed_over(
    group: Group, keep: Kept, states: Array, change: Array, first: int, last: int
) -> None:
    """The states after chunks from first to last, from the state before them and their changes.

    Source: CHUNK-8.
    """
    for k in range(first, last):
        pass_on(keep, states, k, change[:, k - first])


def runs(refresh: tuple[bool, ...]) -> list[tuple[int, int]]:
    """Segments of chunks under one reference."""
    starts = [k for k in range(len(refresh)) if k == 0 or refresh[k]]
    return list(zip(starts, [*starts[1:], len(refresh)], strict=True))


def old_columns(layout: Layout, first: int, last: int) -> list[tuple[int, int]]:
    """Chunks of a run whose first columns keep their residual under carry, and the number of these.

    Source: WINDOW-13.
    """
    before = layout.older(first)
    counts = [(k, before - (k - first) * layout.chunk) for k in range(first, last)]
    return [(k, count) for k, count in counts if count > 0]


def _frozen(layout: Layout, inputs: Arrays, group: Group) -> Group:
    """Residuals under a frozen or zero reference: all chunks of a span at once.

    Source: CHUNK-6, CHUNK-8.
    """
    C, h = layout.chunk, layout.window - 1
    B, g, K, d = group.phi.shape
    o = inputs.values.shape[-1]
    Z = side_by_side(inputs)
    E = scratch.empty((B, g, K, o), Z)
    states, scaled = (
        scratch.empty((B, g + 1, *Z.shape[1:]), Z),
        scratch.empty((B, g, K, Z.shape[-1]), Z),
    )
    states[:, 0] = Z
    keep, left = kept(group.gates, group.D, group.X, o), left_factors(group)
    values = spread(layout, inputs.values)
    reference: Array = None if inputs.reference is None else transposed(inputs.reference)
    spans = runs(layout.refresh)
    references: Array = (
        scratch.empty((B, g, d, o), Z) if layout.keeps_reference and len(spans) > 1 else None
    )
    arrivals: Array = None
    if layout.carry:
        arrivals = np.concatenate(
            [inputs.residuals, np.empty_like(inputs.values, shape=(B, g * C, o))], axis=1
        )
    for first, last in spans:
        chunks = slice(first, last)
        if layout.keeps_reference:
            reference = states[:, first, :, :o].copy() if layout.refresh[first] else reference
            if len(spans) == 1:
                references = np.broadcast_to(reference[:, None], (B, g, d, o))
            else:
                references[:, chunks] = reference[:, None]
        if layout.reference == "frozen":
            np.matmul(group.phi[:, chunks], reference[:, None], out=E[:, chunks])
            E[:, chunks] -= values[:, chunks]
        else:
            negated(values[:, chunks], out=E[:, chunks])
        if arrivals is not None:
            arrivals[:, h + first * C : h + last * C] = E[:, chunks, h:].reshape(B, -1, o)
            for k, count in old_columns(layout, first, last):
                E[:, k, :count] = arrivals[:, k * C : k * C + count]
        scale_residuals(E[:, chunks], left[:, chunks], scaled[:, chunks])
        with scratch.frame():
            change = scratch.product(group.phi[:, chunks].swapaxes(-1, -2), scaled[:, chunks])
            passed_over(group, keep, states, change, first, last)
    return group._replace(
        E=E,
        scaled=scaled,
        states=states,
        references=references,
        last_reference=reference,
        arrivals=arrivals,
    )


def kernel_inputs(layout: Layout, inputs: Arrays, group: Group) -> exact_kernels.LoopInputs:
    """The arguments of the kernel of the inter-chunk loop (CUDA-9)."""
    retain = group.gates.retain if layout.before_error else None
    return exact_kernels.LoopInputs(
        group.phi,
        spread(layout, inputs.values),
        group.inverse,
        group.D,
        group.X,
        retain,
        layout.window,
    )


def _running_at_once(layout: Layout, inputs: Arrays, group: Group) -> Group:
    """`_running` with all chunks in one launch."""
    found = exact_kernels.inter_chunk_loop(
        kernel_inputs(layout, inputs, group), side_by_side(inputs)
    )
    o = inputs.values.shape[-1]
    reference: Array = None if inputs.reference is None else inputs.reference.swapaxes(-1, -2)
    references: Array = (
        np.empty_like(found.states[:, 1:, :, :o]) if layout.keeps_reference else None
    )
    for first, last in runs(layout.refresh) if layout.keeps_reference else ():
        reference = found.states[:, first, :, :o].copy() if layout.refresh[first] else reference
        references[:, first:last] = reference[:, None]
    return group._replace(**found._asdict(), references=references, last_reference=reference)


@kernel(_running_at_once)
def _running(layout: Layout, inputs: Arrays, group: Group) -> Group:
    """Residuals under the running reference, by forward substitution chunk after chunk.

    Source: EXACT-1 to EXACT-3, EXACT-7.
    """
    B, g, K, d = group.phi.shape
    o = inputs.values.shape[-1]
    Z = side_by_side(inputs)
    values = spread(layout, inputs.values)
    E = scratch.empty((B, g, K, o), Z)
    states, scaled = (
        scratch.empty((B, g + 1, *Z.shape[1:]), Z),
        scratch.empty((B, g, K, Z.shape[-1]), Z),
    )
    states[:, 0] = Z
    keep = kept(group.gates, group.D, group.X, o)
    reference = None if inputs.reference is None else inputs.reference.swapaxes(-1, -2)
    references: Array = scratch.empty((B, g, d, o), Z) if layout.keeps_reference else None
    before, left = factor_pair(layout, group), left_factors(group)
    answered, change = scratch.empty((B, g, K, Z.shape[-1]), Z), scratch.empty(Z.shape, Z)
    for k in range(g):
        if layout.keeps_reference:
            reference = states[:, k, :, :o].copy() if layout.refresh[k] else reference
            references[:, k] = reference
        rest = combined(np.matmul(group.phi[:, k], states[:, k], out=answered[:, k]), before[:, k])
        rest -= values[:, k]
        with scratch.frame():
            mix(group.inverse[:, k], rest, out=E[:, k])
        scale_residuals(E[:, k], left[:, k], scaled[:, k])
        pass_on(
            keep, states, k, np.matmul(group.phi[:, k].swapaxes(-1, -2), scaled[:, k], out=change)
        )
    return group._replace(
        E=E,
        scaled=scaled,
        answered=answered,
        states=states,
        references=references,
        last_reference=reference,
    )


def factor_pair(layout: Layout, group: Group) -> Array:
    """(B, g, K, G, bases): factors of M_0 and of -S_0 in the residual of each column."""
    return np.moveaxis(before_rows(layout, group.gates, group.D)[..., : group.gates.bases], -3, -2)


def combined(both: Array, factors: Array, out: Array = None) -> Array:
    """c (rows M_0^T) + f (rows S_0^T) from both products, and factors (..., rows, G, bases)."""
    o = both.shape[-1] // factors.shape[-1]
    found: Array = np.multiply(both[..., :o], factors[..., 0], out=out)
    if factors.shape[-1] == 2:
        found -= both[..., o:] * factors[..., 1]
    return found


def reads(layout: Layout, group: Group, y: Array) -> None:
    """Write y (B, n, o) of every token (CHUNK-7, CHUNK-13)."""
    B, g, C, _ = group.queries.shape
    y = y.reshape(B, g, C, -1)  # a view
    if layout.read == "reference":
        np.matmul(group.queries, group.references, out=y)
        return
    with scratch.frame():
        _read(layout, group, mix(group.A, group.E), y)


def _read(layout: Layout, group: Group, mixed: Array, y: Array) -> None:
    """Y = diag(c) Psi M_0^T + diag(f) Psi S_0^T - A E, where `mixed` is A E (CHUNK-7)."""
    factors = np.moveaxis(read_rows(layout, group.D)[..., : group.gates.bases], -3, -2)
    combined(group.asked, factors, out=y)
    y -= mixed
