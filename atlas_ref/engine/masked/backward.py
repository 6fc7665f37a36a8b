"""The backward of a masked group of chunks; plain twin: the gradient of
`atlas_ref.forms.chunked_plain`.

The equations are CHUNK-16 and EXACT-8 to EXACT-10. With F = Phi [M_bar^T | S_bar^T] at the end of
each chunk,

    E_bar = -A^T y_bar - D_C * F_M + X_C * F_S
    frozen:  M_ref_bar += E_bar^T Phi,   v_bar = -E_bar
    running: R_bar = L^{-T} E_bar,   N_bar = -R_bar E^T,   v_bar = -R_bar
"""

from __future__ import annotations

import numpy as np

from atlas_ref.backend import negated
from atlas_ref.backend.scratch import scratch
from atlas_ref.engine.cuda import exact as exact_kernels
from atlas_ref.engine.cuda import pieces
from atlas_ref.engine.cuda.hook import kernel
from atlas_ref.engine.group.coefficients import Rows
from atlas_ref.engine.group.cotangents import Cotangents, CotangentSums, Into, RowCotangents
from atlas_ref.engine.group.layout import Arrays, End, Group, Layout
from atlas_ref.engine.masked.forward import (
    Kept,
    factor_pair,
    kept,
    kernel_inputs,
    left_factors,
    old_columns,
    runs,
)
from atlas_ref.engine.masked.gates_backward import through_rows
from atlas_ref.engine.masked.rows import (
    against,
    factor,
    factor_cotangents,
    gathered,
    mix,
    read_rows,
    row_dots,
    spread_out,
)
from atlas_ref.types import Array


def row_cotangents(layout: Layout, rows: Rows) -> RowCotangents:
    """Zeros for the cotangents of coefficient rows."""
    retain = (
        scratch.zeros(rows.gates.retain.shape, rows.D)
        if layout.running and layout.before_error
        else None
    )
    return RowCotangents(
        scratch.zeros(rows.D.shape, rows.D),
        None if rows.X is None else np.zeros_like(rows.X[-1]),
        retain,
    )


def backward(
    layout: Layout,
    inputs: Arrays,
    group: Group,
    cotangents: Cotangents,
    d_rows: RowCotangents,
    into: Into,
) -> End:
    """Cotangents of a group, its coefficient rows in place of its gates (CHUNK-16, EXACT-8 to
    EXACT-10).

    Args:
        bars: of the outputs.
        summed, into: arrays for the cotangents of coefficient rows, keys, values and queries.

    Returns:
        the cotangents of the start of the group.
    """
    sums = _through_reads(layout, group, cotangents, d_rows, into)
    # cotangent of the state at the end of each chunk
    ends = scratch.empty(group.states[:, 1:].shape, group.states)
    F = scratch.empty(group.scaled.shape, group.scaled)
    through = _through_running if layout.running else _through_frozen
    dZ, d_reference, d_residuals = through(layout, inputs, group, cotangents, sums, ends, F, into)
    _through_ends(group, sums, ends, F)
    if layout.running:
        with scratch.frame():
            through_rows(layout, group, sums, d_rows, into)
    gathered(layout, sums.phi, into.keys)
    o = group.E.shape[-1]
    return End(
        M=dZ[..., :o].swapaxes(-1, -2).copy(),
        S=None if inputs.momentum is None else dZ[..., o:].swapaxes(-1, -2).copy(),
        reference=None
        if inputs.reference is None or d_reference is None
        else d_reference.swapaxes(-1, -2),
        residuals=d_residuals,
    )


def _mixed_back(A: Array, g: Array) -> Array:
    """A^T g: (..., G, C, K), (..., C, o) -> (..., K, o)."""
    return mix(A.swapaxes(-1, -2), g)


def _through_reads(
    layout: Layout, group: Group, cotangents: Cotangents, d_rows: RowCotangents, into: Into
) -> CotangentSums:
    """From y to scores, residuals, coefficient rows, queries and states at the start of chunks."""
    states = group.states[:, :-1]
    sums = CotangentSums(
        D=d_rows.D,
        X_last=d_rows.X_last,
        phi=scratch.zeros(group.phi.shape, states),
        queries=into.queries.reshape(group.queries.shape),
        E=scratch.zeros(group.E.shape, states),
        states=scratch.zeros(states.shape, states),
        references=None,
    )
    if cotangents.y is None:
        into.queries[...] = 0.0
        return sums
    g = cotangents.y.reshape(*group.queries.shape[:-1], -1)
    if layout.read == "reference":
        np.matmul(g, scratch.transposed(group.references), out=sums.queries)
        return sums._replace(references=scratch.product(group.queries.swapaxes(-1, -2), g))
    with scratch.frame():
        _through_scores(layout, group, g, sums)
    return sums


def _through_scores(layout: Layout, group: Group, g: Array, sums: CotangentSums) -> None:
    """From y = diag(c) Psi M_0^T + diag(f) Psi S_0^T - A E."""
    nb, rows = group.gates.bases, read_rows(layout, sums.D)
    coefficients = read_rows(layout, group.D)
    negated(_mixed_back(group.A, g), out=sums.E)
    dA = against(-g, group.E, group.A.shape[-3])
    np.multiply(dA, group.scores[:, :, None], out=rows[..., nb:])
    dA *= coefficients[..., nb:]
    d_scores = dA.sum(axis=-3) if dA.shape[-3] > 1 else dA[..., 0, :, :]
    factor_cotangents(g, group.asked, np.moveaxis(rows[..., :nb], -3, -2))
    out = spread_out(g, np.moveaxis(coefficients[..., :nb], -3, -2))
    np.matmul(out, scratch.transposed(group.states[:, :-1]), out=sums.queries)
    sums.queries[...] += scratch.product(d_scores, group.phi)
    np.matmul(d_scores.swapaxes(-1, -2), group.queries, out=sums.phi)
    np.matmul(group.queries.swapaxes(-1, -2), out, out=sums.states)


def _hand_back(keep: Kept, dZ: Array, k: int, into: Array) -> None:
    """Add [c_C dM | f_C dM + n_C dS] to the cotangent of the state before chunk k."""
    with scratch.frame():
        into += scratch.times(dZ, keep.own[:, k])
        if keep.across is not None:
            o = keep.across.shape[-1]
            into[..., o:] -= scratch.times(dZ[..., :o], keep.across[:, k])


def _hand_over_at_once(
    group: Group, keep: Kept, sums: CotangentSums, ends: Array, dZ: Array, first: int, last: int
) -> Array:
    chunks = slice(first, last)
    X = None if group.X is None else group.X[:, :, chunks]
    dZ, ends[:, chunks] = pieces.carried_backward(
        dZ, sums.states[:, chunks], group.D[:, :, chunks], X
    )
    return dZ


@kernel(_hand_over_at_once)
def _hand_over(
    group: Group, keep: Kept, sums: CotangentSums, ends: Array, dZ: Array, first: int, last: int
) -> Array:
    """The cotangent of the state before some chunks from that after them.

    Writes that after each into `ends`.
    """
    for k in range(last - 1, first - 1, -1):
        ends[:, k] = dZ
        dZ = sums.states[:, k]
        _hand_back(keep, ends[:, k], k, dZ)
    return dZ


def _add_from_ends(F: Array, left: Array, into: Array) -> None:
    """Add the part of the residuals' cotangents from the end states: -D_C * F_M + X_C * F_S."""
    o = into.shape[-1]
    for base in range(left.shape[-1]):
        into += F[..., base * o : base * o + o] * left[..., base]


def _first_state(inputs: Arrays, cotangents: Cotangents) -> Array:
    """Cotangent [M_bar^T | S_bar^T] of the state after the last chunk."""
    both = [cotangents.M] if inputs.momentum is None else [cotangents.M, cotangents.S]
    return np.concatenate(
        [(np.zeros_like(inputs.M) if x is None else x).swapaxes(-1, -2) for x in both], axis=-1
    )


def _through_frozen(
    layout: Layout,
    inputs: Arrays,
    group: Group,
    cotangents: Cotangents,
    sums: CotangentSums,
    ends: Array,
    F: Array,
    into: Into,
) -> tuple[Array, Array, Array]:
    """The inter-chunk loop in reverse under a frozen reference.

    One product a span computes the residuals.
    """
    C, h, o = layout.chunk, layout.window - 1, group.E.shape[-1]
    dZ = _first_state(inputs, cotangents)
    keep, left = kept(group.gates, group.D, group.X, o), left_factors(group)
    d_reference = (
        np.zeros_like(dZ[..., :o])
        if cotangents.reference is None
        else cotangents.reference.swapaxes(-1, -2)
    )
    arrivals = np.zeros_like(inputs.values) if layout.carry else None
    if arrivals is not None and cotangents.residuals is not None:
        arrivals[:, -layout.window :] += cotangents.residuals
    for first, last in reversed(runs(layout.refresh)):
        chunks = slice(first, last)
        dZ = _hand_over(group, keep, sums, ends, dZ, first, last)
        np.matmul(group.phi[:, chunks], ends[:, chunks], out=F[:, chunks])
        _add_from_ends(F[:, chunks], left[:, chunks], sums.E[:, chunks])
        dE = sums.E[:, chunks]
        if arrivals is not None:
            for k, count in old_columns(layout, first, last):
                arrivals[:, k * C : k * C + count] += sums.E[:, k, :count]
                sums.E[:, k, :count] = 0.0
            dE[:, :, h:] += arrivals[:, h + first * C : h + last * C].reshape(*dE.shape[:2], C, o)
        if layout.reference == "frozen":
            with scratch.frame():
                sums.phi[:, chunks] += scratch.product(
                    dE, scratch.transposed(group.references[:, first])[:, None]
                )
            with scratch.frame():
                d_reference = d_reference + scratch.product(
                    group.phi[:, chunks].swapaxes(-1, -2), dE
                ).sum(axis=1)
        if sums.references is not None:
            d_reference = d_reference + sums.references[:, chunks].sum(axis=1)
        if layout.keeps_reference and layout.refresh[first]:
            dZ[..., :o] += d_reference
            d_reference = np.zeros_like(d_reference)
    gathered(layout, -sums.E, into.values)
    return dZ, d_reference, None if arrivals is None else arrivals[:, :h]


def _through_running_at_once(
    layout: Layout,
    inputs: Arrays,
    group: Group,
    cotangents: Cotangents,
    sums: CotangentSums,
    ends: Array,
    F: Array,
    into: Into,
) -> tuple[Array, Array, Array]:
    """`_through_running` in one launch; cotangents of a reference from the reads are added at the
    start of its span.
    """
    o = group.E.shape[-1]
    d_reference = (
        np.zeros_like(group.states[:, 0, :, :o])
        if cotangents.reference is None
        else cotangents.reference.swapaxes(-1, -2)
    )
    # the kernel may refuse, and leaves all as it is then
    asked = sums.states.copy() if layout.keeps_reference else sums.states
    for first, last in reversed(runs(layout.refresh)) if layout.keeps_reference else ():
        if sums.references is not None:
            d_reference = d_reference + sums.references[:, first:last].sum(axis=1)
        if layout.refresh[first]:
            asked[:, first, :, :o] += d_reference
            d_reference = np.zeros_like(d_reference)
    found = exact_kernels.inter_chunk_loop_backward(
        kernel_inputs(layout, inputs, group), _first_state(inputs, cotangents), sums.E, asked
    )
    ends[...], F[...], sums.E[...] = found.ends, found.F, found.R_bar
    return found.start, d_reference, None


@kernel(_through_running_at_once)
def _through_running(
    layout: Layout,
    inputs: Arrays,
    group: Group,
    cotangents: Cotangents,
    sums: CotangentSums,
    ends: Array,
    F: Array,
    into: Into,
) -> tuple[Array, Array, Array]:
    """The inter-chunk loop in reverse under the running reference; overwrites E_bar with R_bar."""
    o = group.E.shape[-1]
    dZ = _first_state(inputs, cotangents)
    keep, left = kept(group.gates, group.D, group.X, o), left_factors(group)
    d_reference = (
        np.zeros_like(dZ[..., :o])
        if cotangents.reference is None
        else cotangents.reference.swapaxes(-1, -2)
    )
    before = factor_pair(layout, group)
    inverse_T = group.inverse.swapaxes(-1, -2)
    for k in range(len(layout.refresh) - 1, -1, -1):
        ends[:, k] = dZ
        np.matmul(group.phi[:, k], ends[:, k], out=F[:, k])
        dR = sums.E[:, k]
        _add_from_ends(F[:, k], left[:, k], dR)
        dZ = sums.states[:, k]
        _hand_back(keep, ends[:, k], k, dZ)
        with scratch.frame():
            dR[...] = mix(inverse_T[:, k], dR)
            dZ += scratch.product(group.phi[:, k].swapaxes(-1, -2), spread_out(dR, before[:, k]))
        if sums.references is not None:
            d_reference = d_reference + sums.references[:, k]
        if layout.keeps_reference and layout.refresh[k]:
            dZ[..., :o] += d_reference
            d_reference = np.zeros_like(d_reference)
    return dZ, d_reference, None


def _through_ends(group: Group, sums: CotangentSums, ends: Array, F: Array) -> None:
    """From Z_C = [c M_0 + f S_0 | n S_0] + Phi^T scaled to columns and coefficients."""
    nb, o = group.gates.bases, group.E.shape[-1]
    states, last = group.states[:, :-1], sums.D[-1]

    def by_gate(a: Array, b: Array) -> Array:
        """Sums of products over rows, and over columns too where these share a gate."""
        found = np.einsum("...do,...do->...o", a, b)
        return found if last.shape[-2] == o else found.sum(axis=-1, keepdims=True)

    def by_column(a: Array, b: Array) -> Array:
        """Products per key, summed over columns that share a gate: (..., K, o) -> (..., G, K)."""
        return factor(a * b) if last.shape[-2] == o else row_dots(a, b)[..., None, :]

    last[..., nb:] -= by_column(group.E, F[..., :o])
    last[..., 0] += by_gate(ends[..., :o], states[..., :o])
    if group.X is not None:
        last[..., 1] -= by_gate(ends[..., :o], states[..., o:])
        sums.X_last[..., nb:] += by_column(group.E, F[..., o:])
        sums.X_last[..., 1] += by_gate(ends[..., o:], states[..., o:])
    with scratch.frame():
        sums.phi[...] += scratch.product(group.scaled, scratch.transposed(ends))
