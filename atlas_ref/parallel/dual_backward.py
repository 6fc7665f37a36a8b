"""The backward pass of a group of chunks, by hand: what `dual` computed is pulled back from the last chunk to the first.

The equations are CHUNK-16 and EXACT-8 to EXACT-10. With F = Phi [M_bar^T | S_bar^T] at the end of each chunk,

    E_bar = -A^T y_bar - D_C * F_M + X_C * F_S
    frozen:  M_ref_bar += E_bar^T Phi,   v_bar = -E_bar
    running: R_bar = L^{-T} E_bar,   N_bar = -R_bar E^T,   v_bar = -R_bar
"""

from __future__ import annotations

import numpy as np

from atlas_ref.backend import negated
from atlas_ref.cuda import exact as walks
from atlas_ref.cuda import pieces
from atlas_ref.cuda.hook import kernel
from atlas_ref.parallel.coefficient_blocks import rows_by_block_backward
from atlas_ref.parallel.coefficients import Rows, coefficient_rows_backward
from atlas_ref.parallel.dual import (
    Kept,
    before_rows,
    factor,
    factor_pair,
    gathered,
    kept,
    left_factors,
    mix,
    old_columns,
    read_rows,
    runs,
    walk_given,
)
from atlas_ref.parallel.dual_bars import Bars, Into, Pulled, RowBars
from atlas_ref.parallel.group import Arrays, End, Group, Layout
from atlas_ref.scratch import scratch
from atlas_ref.types import Array


def row_bars(layout: Layout, rows: Rows) -> RowBars:
    """Room for the cotangents of coefficient rows, zero."""
    retain = scratch.zeros(rows.gates.retain.shape, rows.D) if layout.solved and layout.before_error else None
    return RowBars(scratch.zeros(rows.D.shape, rows.D), None if rows.X is None else np.zeros_like(rows.X[-1]), retain)


def backward(layout: Layout, given: Arrays, made: Group, bars: Bars, summed: RowBars, into: Into) -> End:
    """Cotangents of the arguments of a group but for its gates, and what these need (CHUNK-16, EXACT-8 to EXACT-10).

    Args:
        bars: of the outputs.
        summed, into: where cotangents of coefficient rows, keys, values and queries go.

    Returns:
        those of what the group began with.
    """
    pulled = _through_reads(layout, made, bars, summed, into)
    ends = scratch.empty(made.states[:, 1:].shape, made.states)  # cotangent of the state at the end of each chunk
    F = scratch.empty(made.scaled.shape, made.scaled)
    through = _through_solved if layout.solved else _through_given
    dZ, d_reference, d_residuals = through(layout, given, made, bars, pulled, ends, F, into)
    _through_ends(made, pulled, ends, F)
    if layout.solved:
        with scratch.frame():
            _through_rows(layout, made, pulled, summed, into)
    gathered(layout, pulled.phi, into.keys)
    o = made.E.shape[-1]
    return End(
        M=dZ[..., :o].swapaxes(-1, -2).copy(),
        S=None if given.momentum is None else dZ[..., o:].swapaxes(-1, -2).copy(),
        reference=None if given.reference is None or d_reference is None else d_reference.swapaxes(-1, -2),
        residuals=d_residuals,
    )


def gates_backward(layout: Layout, given: Arrays, rows: Rows, summed: RowBars) -> dict[str, Array]:
    """Cotangents of gates and weights by name, from those of the coefficient rows of all memories (CHUNK-17)."""
    token_by_token = rows.X is None or len(rows.X) == len(rows.D)
    pulled = coefficient_rows_backward if token_by_token else rows_by_block_backward
    with scratch.frame():
        found = pulled(rows.gates, rows.D, rows.X, summed.D, summed.X_last, layout.stride)
    if summed.retain is not None:
        found = found._replace(retain=found.retain + summed.retain)
    names = ["retain", "rate_in", "rate_out"] + ([] if given.momentum is None else ["momentum"])
    made = {name: _per_token(getattr(found, name), getattr(given, name)) for name in names}
    return made | {"weights": _weights(found.weights, given.weights)}


def _per_token(rows: Array, given: Array) -> Array:
    """(C, B, g, G) back to (B, n, G) as the gate was given."""
    moved = np.moveaxis(rows, 0, 2)
    flat = moved.reshape(moved.shape[0], -1, moved.shape[-1])
    return flat if flat.shape == given.shape else flat.sum(axis=-1, keepdims=True)


def _weights(rows: Array, given: Array) -> Array:
    moved = np.moveaxis(rows[..., 0, :], 0, 2)
    flat = moved.reshape(moved.shape[0], -1, moved.shape[-1])[..., ::-1]
    return flat if flat.shape == given.shape else flat.sum(axis=0, keepdims=True)


def _spread_out(g: Array, factors: Array) -> Array:
    """[c g | f g] (..., rows, bases o) from g (..., rows, o) and factors (..., rows, G, bases) of M_0 and of -S_0."""
    o, bases = g.shape[-1], factors.shape[-1]
    both = scratch.empty((*g.shape[:-1], bases * o), g)
    np.multiply(g, factors[..., 0], out=both[..., :o])
    if bases == 2:
        np.multiply(g, -factors[..., 1], out=both[..., o:])
    return both


def _factor_bars(g: Array, both: Array, out: Array) -> None:
    """Add the cotangents of the factors of M_0 and of -S_0 into (..., rows, G, bases)."""
    o = g.shape[-1]
    for base in range(out.shape[-1]):
        part = both[..., base * o : base * o + o]
        each = g * part if out.shape[-2] == o else row_dots(g, part)[..., None]
        out[..., base] += each if base == 0 else -each


def _against(g: Array, E: Array, G: int) -> Array:
    """Cotangent (..., G, C, K) of A in A E, from g (..., C, o)."""
    if G == 1:
        return scratch.product(g, scratch.turned(E))[..., None, :, :]
    return scratch.times(g.swapaxes(-1, -2)[..., :, None], E.swapaxes(-1, -2)[..., None, :])


def row_dots(a: Array, b: Array) -> Array:
    """Sums of products along the last axis."""
    return np.einsum("...i,...i->...", a, b)


def _mixed_back(A: Array, g: Array) -> Array:
    """A^T g: (..., G, C, K), (..., C, o) -> (..., K, o)."""
    return mix(A.swapaxes(-1, -2), g)


def _through_reads(layout: Layout, made: Group, bars: Bars, summed: RowBars, into: Into) -> Pulled:
    """From y to scores, residuals, coefficient rows, queries and the states at the start of chunks."""
    states = made.states[:, :-1]
    pulled = Pulled(
        D=summed.D,
        X_last=summed.X_last,
        phi=scratch.zeros(made.phi.shape, states),
        queries=into.queries.reshape(made.queries.shape),
        E=scratch.zeros(made.E.shape, states),
        states=scratch.zeros(states.shape, states),
        references=None,
    )
    if bars.y is None:
        into.queries[...] = 0.0
        return pulled
    g = bars.y.reshape(*made.queries.shape[:-1], -1)
    if layout.read == "reference":
        np.matmul(g, scratch.turned(made.references), out=pulled.queries)
        return pulled._replace(references=scratch.product(made.queries.swapaxes(-1, -2), g))
    with scratch.frame():
        _through_scores(layout, made, g, pulled)
    return pulled


def _through_scores(layout: Layout, made: Group, g: Array, pulled: Pulled) -> None:
    """From y = diag(c) Psi M_0^T + diag(f) Psi S_0^T - A E."""
    nb, rows = made.gates.bases, read_rows(layout, pulled.D)
    coefficients = read_rows(layout, made.D)
    negated(_mixed_back(made.A, g), out=pulled.E)
    dA = _against(-g, made.E, made.A.shape[-3])
    np.multiply(dA, made.scores[:, :, None], out=rows[..., nb:])
    dA *= coefficients[..., nb:]
    d_scores = dA.sum(axis=-3) if dA.shape[-3] > 1 else dA[..., 0, :, :]
    _factor_bars(g, made.asked, np.moveaxis(rows[..., :nb], -3, -2))
    out = _spread_out(g, np.moveaxis(coefficients[..., :nb], -3, -2))
    np.matmul(out, scratch.turned(made.states[:, :-1]), out=pulled.queries)
    pulled.queries[...] += scratch.product(d_scores, made.phi)
    np.matmul(d_scores.swapaxes(-1, -2), made.queries, out=pulled.phi)
    np.matmul(made.queries.swapaxes(-1, -2), out, out=pulled.states)


def _hand_back(keep: Kept, dZ: Array, k: int, into: Array) -> None:
    """Add to the cotangent of the state before chunk k what that after it asks: [c_C dM | f_C dM + n_C dS]."""
    with scratch.frame():
        into += scratch.times(dZ, keep.own[:, k])
        if keep.across is not None:
            o = keep.across.shape[-1]
            into[..., o:] -= scratch.times(dZ[..., :o], keep.across[:, k])


def _handed_at_once(made: Group, keep: Kept, pulled: Pulled, ends: Array, dZ: Array, first: int, last: int) -> Array:
    chunks = slice(first, last)
    X = None if made.X is None else made.X[:, :, chunks]
    dZ, ends[:, chunks] = pieces.carried_backward(dZ, pulled.states[:, chunks], made.D[:, :, chunks], X)
    return dZ


@kernel(_handed_at_once)
def _handed_over(made: Group, keep: Kept, pulled: Pulled, ends: Array, dZ: Array, first: int, last: int) -> Array:
    """The cotangent of the state before chunks from first to last, out of that after them; `ends` receives that after each."""
    for k in range(last - 1, first - 1, -1):
        ends[:, k] = dZ
        dZ = pulled.states[:, k]
        _hand_back(keep, ends[:, k], k, dZ)
    return dZ


def _add_from_ends(F: Array, left: Array, into: Array) -> None:
    """What the end state asks of residuals: -D_C * F_M + X_C * F_S."""
    o = into.shape[-1]
    for base in range(left.shape[-1]):
        into += F[..., base * o : base * o + o] * left[..., base]


def _first_state(given: Arrays, bars: Bars) -> Array:
    """Cotangent [M_bar^T | S_bar^T] of the state after the last chunk."""
    both = [bars.M] if given.momentum is None else [bars.M, bars.S]
    return np.concatenate([(np.zeros_like(given.M) if x is None else x).swapaxes(-1, -2) for x in both], axis=-1)


def _through_given(
    layout: Layout,
    given: Arrays,
    made: Group,
    bars: Bars,
    pulled: Pulled,
    ends: Array,
    F: Array,
    into: Into,
) -> tuple[Array, Array, Array]:
    """Chunks in reverse under a known reference: one product a span for the residuals."""
    C, h, o = layout.chunk, layout.window - 1, made.E.shape[-1]
    dZ = _first_state(given, bars)
    keep, left = kept(made.gates, made.D, made.X, o), left_factors(made)
    d_reference = np.zeros_like(dZ[..., :o]) if bars.reference is None else bars.reference.swapaxes(-1, -2)
    arrivals = np.zeros_like(given.values) if layout.carry else None
    if arrivals is not None and bars.residuals is not None:
        arrivals[:, -layout.window :] += bars.residuals
    for first, last in reversed(runs(layout.refresh)):
        chunks = slice(first, last)
        dZ = _handed_over(made, keep, pulled, ends, dZ, first, last)
        np.matmul(made.phi[:, chunks], ends[:, chunks], out=F[:, chunks])
        _add_from_ends(F[:, chunks], left[:, chunks], pulled.E[:, chunks])
        dE = pulled.E[:, chunks]
        if arrivals is not None:
            for k, count in old_columns(layout, first, last):
                arrivals[:, k * C : k * C + count] += pulled.E[:, k, :count]
                pulled.E[:, k, :count] = 0.0
            dE[:, :, h:] += arrivals[:, h + first * C : h + last * C].reshape(*dE.shape[:2], C, o)
        if layout.reference == "frozen":
            with scratch.frame():
                pulled.phi[:, chunks] += scratch.product(dE, scratch.turned(made.references[:, first])[:, None])
            with scratch.frame():
                d_reference = d_reference + scratch.product(made.phi[:, chunks].swapaxes(-1, -2), dE).sum(axis=1)
        if pulled.references is not None:
            d_reference = d_reference + pulled.references[:, chunks].sum(axis=1)
        if layout.keeps_reference and layout.refresh[first]:
            dZ[..., :o] += d_reference
            d_reference = np.zeros_like(d_reference)
    gathered(layout, -pulled.E, into.values)
    return dZ, d_reference, None if arrivals is None else arrivals[:, :h]


def _through_solved_at_once(
    layout: Layout,
    given: Arrays,
    made: Group,
    bars: Bars,
    pulled: Pulled,
    ends: Array,
    F: Array,
    into: Into,
) -> tuple[Array, Array, Array]:
    """`_through_solved` with all chunks in one launch; what reads of a span ask of its reference waits at the span's start."""
    o = made.E.shape[-1]
    d_reference = np.zeros_like(made.states[:, 0, :, :o]) if bars.reference is None else bars.reference.swapaxes(-1, -2)
    asked = pulled.states.copy() if layout.keeps_reference else pulled.states  # the kernel may refuse, and leaves all as it is then
    for first, last in reversed(runs(layout.refresh)) if layout.keeps_reference else ():
        if pulled.references is not None:
            d_reference = d_reference + pulled.references[:, first:last].sum(axis=1)
        if layout.refresh[first]:
            asked[:, first, :, :o] += d_reference
            d_reference = np.zeros_like(d_reference)
    found = walks.walk_backward(walk_given(layout, given, made), _first_state(given, bars), pulled.E, asked)
    ends[...], F[...], pulled.E[...] = found.ends, found.F, found.R_bar
    return found.start, d_reference, None


@kernel(_through_solved_at_once)
def _through_solved(
    layout: Layout,
    given: Arrays,
    made: Group,
    bars: Bars,
    pulled: Pulled,
    ends: Array,
    F: Array,
    into: Into,
) -> tuple[Array, Array, Array]:
    """Chunks in reverse under the running reference; leaves R_bar where E_bar was."""
    o = made.E.shape[-1]
    dZ = _first_state(given, bars)
    keep, left = kept(made.gates, made.D, made.X, o), left_factors(made)
    d_reference = np.zeros_like(dZ[..., :o]) if bars.reference is None else bars.reference.swapaxes(-1, -2)
    before = factor_pair(layout, made)
    inverse_T = made.inverse.swapaxes(-1, -2)
    for k in range(len(layout.refresh) - 1, -1, -1):
        ends[:, k] = dZ
        np.matmul(made.phi[:, k], ends[:, k], out=F[:, k])
        dR = pulled.E[:, k]
        _add_from_ends(F[:, k], left[:, k], dR)
        dZ = pulled.states[:, k]
        _hand_back(keep, ends[:, k], k, dZ)
        with scratch.frame():
            dR[...] = mix(inverse_T[:, k], dR)
            dZ += scratch.product(made.phi[:, k].swapaxes(-1, -2), _spread_out(dR, before[:, k]))
        if pulled.references is not None:
            d_reference = d_reference + pulled.references[:, k]
        if layout.keeps_reference and layout.refresh[k]:
            dZ[..., :o] += d_reference
            d_reference = np.zeros_like(d_reference)
    return dZ, d_reference, None


def _through_ends(made: Group, pulled: Pulled, ends: Array, F: Array) -> None:
    """From the end states of all chunks to columns and coefficients: Z_C = [c M_0 + f S_0 | n S_0] + Phi^T scaled."""
    nb, o = made.gates.bases, made.E.shape[-1]
    states, last = made.states[:, :-1], pulled.D[-1]

    def by_gate(a: Array, b: Array) -> Array:
        """Sums of products over rows, and over columns too where these share a gate."""
        found = np.einsum("...do,...do->...o", a, b)
        return found if last.shape[-2] == o else found.sum(axis=-1, keepdims=True)

    def by_column(a: Array, b: Array) -> Array:
        """Products per key, summed over columns that share a gate: (..., K, o) -> (..., G, K)."""
        return factor(a * b) if last.shape[-2] == o else row_dots(a, b)[..., None, :]

    last[..., nb:] -= by_column(made.E, F[..., :o])
    last[..., 0] += by_gate(ends[..., :o], states[..., :o])
    if made.X is not None:
        last[..., 1] -= by_gate(ends[..., :o], states[..., o:])
        pulled.X_last[..., nb:] += by_column(made.E, F[..., o:])
        pulled.X_last[..., 1] += by_gate(ends[..., o:], states[..., o:])
    with scratch.frame():
        pulled.phi[...] += scratch.product(made.scaled, scratch.turned(ends))


def _through_rows(layout: Layout, made: Group, pulled: Pulled, summed: RowBars, into: Into) -> None:
    """From R_bar, which stands in E_bar's place, to the triangular system: columns, values, coefficient rows, retain."""
    nb, dR = made.gates.bases, pulled.E
    gathered(layout, -dR, into.values)
    before = before_rows(layout, made.gates, made.D)  # (B, g, G, K, bases + K)
    d_before = scratch.zeros(before.shape, before)
    dN = _against(-dR, made.E, before.shape[-3])
    np.multiply(dN, made.keyed[:, :, None], out=d_before[..., nb:])
    dN *= before[..., nb:]
    d_keyed = dN.sum(axis=-3) if dN.shape[-3] > 1 else dN[..., 0, :, :]
    _factor_bars(dR, made.answered, np.moveaxis(d_before[..., :nb], -3, -2))
    out = _spread_out(dR, np.moveaxis(before[..., :nb], -3, -2))
    pulled.phi[...] += scratch.product(out, scratch.turned(made.states[:, :-1]))
    pulled.phi[...] += scratch.product(d_keyed + d_keyed.swapaxes(-1, -2), made.phi)
    through_before(layout, Rows(made.gates, made.D, made.X), d_before, summed)


def through_before(layout: Layout, rows: Rows, d_before: Array, summed: RowBars) -> None:
    """From the coefficients that residuals are taken with, (B, g, G, K, bases + K), to the rows and the decay that made them."""
    if layout.stride > 1:
        d_before = d_before.reshape(*d_before.shape[:-2], layout.chunk, layout.window, -1).sum(axis=-2)
    d_before = np.moveaxis(d_before, -2, 0)
    if not layout.before_error:
        summed.D[:-1] += d_before
        return
    summed.D[:-1] += d_before * rows.gates.retain[..., None]
    summed.retain[...] = (d_before * rows.D[:-1]).sum(axis=-1)
