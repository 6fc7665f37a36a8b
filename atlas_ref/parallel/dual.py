"""A group of chunks in the dual form: keys meet keys, and no token makes a matrix of its own.

    A   = D * (Psi Phi^T)                                               D: coefficient rows
    Y   = diag(c) Psi M_0^T + diag(f) Psi S_0^T - A E
    M_C = c_C M_0 + f_C S_0 - E^T diag(D[C,:]) Phi,    S_C = n_C S_0 + E^T diag(X[C,:]) Phi

Residuals E are known under a frozen reference, E = Phi M_ref^T - V, and the solution of a unit lower triangular system
under the running one. Everything that does not depend on the state is computed for all chunks of the group at once; the
memory then passes from chunk to chunk. Specified in specs/chunkwise.md (CHUNK-6 to CHUNK-16) and specs/exact.md.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from atlas_ref.backend import as_strided, negated, on_host
from atlas_ref.cuda import exact as walks
from atlas_ref.cuda import pieces
from atlas_ref.cuda.hook import kernel
from atlas_ref.parallel.coefficient_blocks import block_length, rows_by_block
from atlas_ref.parallel.coefficients import GateRows, Rows, coefficient_rows, gate_rows
from atlas_ref.parallel.group import Arrays, End, Group, Layout
from atlas_ref.parallel.triangular import inverse_unit_lower
from atlas_ref.scratch import scratch
from atlas_ref.types import Array


def end(layout: Layout, made: Group) -> End:
    """The end of a group, in arrays of their own, since the group's are work space."""
    o = made.E.shape[-1]
    states = made.states[:, -1]
    return End(
        M=_transposed(states[..., :o]),
        S=_transposed(states[..., o:]) if states.shape[-1] > o else None,
        reference=_transposed(made.last_reference) if layout.keeps_reference else None,
        residuals=made.arrivals[:, -layout.window :].copy() if layout.carry else None,
    )


def _transposed(x: Array) -> Array:
    return x.swapaxes(-1, -2).copy()


def rows_of(layout: Layout, given: Arrays) -> Rows:
    """The coefficient rows of a group (CHUNK-4)."""
    gates = gate_rows(layout.chunk, given.retain, given.momentum, given.rate_in, given.rate_out, given.weights)
    block = block_length(gates, layout.columns)
    if block > 1:
        return Rows(gates, *rows_by_block(gates, layout.columns, layout.stride, block))
    if gates.retain.shape[-1] == 1 and on_host(gates.retain):
        # A step takes the gates of one place in all chunks: side by side. Weights become an array of their own anyway.
        gates = GateRows(*(x if x is None or x is gates.weights else scratch.copy(x) for x in gates))
    return Rows(gates, *coefficient_rows(gates, layout.columns, layout.stride))


def forward(layout: Layout, given: Arrays, rows: Rows) -> Group:
    """Run a group of chunks (CHUNK-6 to CHUNK-13, EXACT-1 to EXACT-6)."""
    C, nb = layout.chunk, rows.gates.bases
    B, n, d = given.queries.shape
    queries = given.queries.reshape(B, n // C, C, d)
    phi, asks = spread(layout, given.keys), layout.read in ("after", "before")
    scores: Array = scratch.empty((*phi.shape[:2], C, phi.shape[2]), phi) if asks else None
    keyed: Array = scratch.empty((*phi.shape[:3], phi.shape[2]), phi) if layout.solved else None
    with scratch.frame():
        phi_T = spread_transposed(layout, given.keys)
        if asks:
            np.matmul(queries, phi_T, out=scores)
        if layout.solved:
            np.matmul(phi, phi_T, out=keyed)
    A = scratch.times(read_rows(layout, rows.D)[..., nb:], scores[:, :, None]) if asks else None
    inverse = None
    if layout.solved:
        with scratch.frame():
            inverse = inverse_unit_lower(scratch.times(before_rows(layout, rows.gates, rows.D)[..., nb:], keyed[:, :, None]))
    made = Group(*rows, phi, queries, scores, A, keyed, inverse, *(None,) * 8)
    made = _solved(layout, given, made) if layout.solved else _given(layout, given, made)
    return made if A is None else made._replace(asked=scratch.product(queries, made.states[:, :-1]))


# -- columns ------------------------------------------------------------------------------------------


def spread(layout: Layout, rows: Array) -> Array:
    """Rows (B, h + n, x) as columns of each chunk, (B, g, K, x): a view where tokens share them."""
    C, c = layout.chunk, layout.window
    B, length, x = rows.shape
    g = (length - c + 1) // C
    across, down, right = rows.strides
    if layout.stride == 1:
        return as_strided(rows, (B, g, layout.columns, x), (across, C * down, down, right))
    windows = as_strided(rows, (B, g, C, c, x), (across, C * down, down, down, right))
    return windows.reshape(B, g, C * c, x)


def spread_transposed(layout: Layout, rows: Array) -> Array:
    """The same as (B, g, x, K), contiguous along K, as matrix products want it."""
    return scratch.turned(spread(layout, rows))


def _gathered_at_once(layout: Layout, columns: Array, rows: Array) -> None:
    pieces.gathered(columns, rows, layout.chunk, layout.window, own_columns=layout.stride != 1)


@kernel(_gathered_at_once)
def gathered(layout: Layout, columns: Array, rows: Array) -> None:
    """Add columns (B, g, K, x) into the rows (B, h + n, x) that `spread` made them of."""
    C, c = layout.chunk, layout.window
    B, g, _, x = columns.shape
    h, n = c - 1, g * C
    if layout.stride != 1:
        each = columns.reshape(B, n, c, x)
        for place in range(c):
            rows[:, place : place + n] += each[:, :, place]
        return
    rows[:, h:] += columns[:, :, h:].reshape(B, n, x)
    if h <= C:
        rows[:, :n].reshape(B, g, C, x)[:, :, :h] += columns[:, :, :h]
        return
    for k in range(g):
        rows[:, k * C : k * C + h] += columns[:, k, :h]


def read_rows(layout: Layout, D: Array) -> Array:
    """Coefficients that each token reads with, (B, g, G, C, bases + K)."""
    return np.moveaxis(D[1:] if layout.read == "after" else D[:-1], 0, -2)


def before_rows(layout: Layout, gates: GateRows, D: Array) -> Array:
    """Coefficients of the memory that the residual of each column is taken under, (B, g, G, K, bases + K) (EXACT-1)."""
    rows = D[:-1] * gates.retain[..., None] if layout.before_error else D[:-1]
    rows = np.moveaxis(rows, 0, -2)
    return rows if layout.stride == 1 else np.repeat(rows, layout.window, axis=-2)


def factor(coefficients: Array) -> Array:
    """Coefficients (..., G, rows) as factors (..., rows, G) of what has o columns."""
    return coefficients.swapaxes(-1, -2)


def mix(A: Array, E: Array, out: Array = None) -> Array:
    """A (..., G, C, K) times E (..., K, o): one matrix for all columns, or one for each."""
    if A.shape[-3] == 1:
        return scratch.product(A[..., 0, :, :], E) if out is None else np.matmul(A[..., 0, :, :], E, out=out)
    found = scratch.product(A, scratch.turned(E)[..., None])[..., 0].swapaxes(-1, -2)
    if out is None:
        return found
    out[...] = found
    return out


# -- residuals and states -----------------------------------------------------------------------------


def side_by_side(given: Arrays) -> Array:
    """[M^T | S^T] (B, d, bases o)."""
    both = [given.M] if given.momentum is None else [given.M, given.S]
    return np.concatenate([x.swapaxes(-1, -2) for x in both], axis=-1)


def left_factors(made: Group) -> Array:
    """(B, g, K, G, bases): -D_C and X_C, the factors by which residuals are left in memory and momentum."""
    nb = made.gates.bases
    rows = [-made.D[-1, ..., nb:]] if made.X is None else [-made.D[-1, ..., nb:], made.X[-1, ..., nb:]]
    return np.stack([factor(x) for x in rows], axis=-1)


def scale_residuals(E: Array, left: Array, out: Array) -> None:
    """[-D_C E | X_C E]: what the columns leave in memory and momentum."""
    o = E.shape[-1]
    for base in range(left.shape[-1]):
        np.multiply(E, left[..., base], out=out[..., base * o : base * o + o])


class Kept(NamedTuple):
    """What a state keeps over each chunk, [c_C M^T + f_C S^T | n_C S^T], as factors of columns.

    Attributes:
        own (B, g, 1, bases o): c_C and n_C. across (B, g, 1, o): -f_C, None without momentum.
    """

    own: Array
    across: Array


def kept(gates: GateRows, D: Array, X: Array, o: int) -> Kept:
    """The factors of `Kept` out of the last coefficient rows."""

    def wide(x: Array) -> Array:  # (B, g, G) -> (B, g, 1, o)
        return np.broadcast_to(x[:, :, None], (*x.shape[:2], 1, o))

    if gates.momentum is None:
        return Kept(wide(D[-1, ..., 0]), None)
    return Kept(np.concatenate([wide(D[-1, ..., 0]), wide(X[-1, ..., 1])], axis=-1), wide(D[-1, ..., 1]).copy())


def pass_on(keep: Kept, states: Array, k: int, change: Array) -> None:
    """The state after chunk k from that before it and what the chunk adds."""
    before, after = states[:, k], states[:, k + 1]
    np.multiply(before, keep.own[:, k], out=after)
    after += change
    if keep.across is not None:
        o = keep.across.shape[-1]
        after[..., :o] -= before[..., o:] * keep.across[:, k]


def _some(made: Group, first: int, last: int) -> tuple[Array, Array]:
    """Coefficient rows D and X of some chunks, as views."""
    return made.D[:, :, first:last], None if made.X is None else made.X[:, :, first:last]


def _passed_at_once(made: Group, keep: Kept, states: Array, change: Array, first: int, last: int) -> None:
    states[:, first : last + 1] = pieces.carried(states[:, first], change, *_some(made, first, last))


@kernel(_passed_at_once)
def passed_over(made: Group, keep: Kept, states: Array, change: Array, first: int, last: int) -> None:
    """The states after chunks from first to last, out of the state before them and what each adds (CHUNK-8)."""
    for k in range(first, last):
        pass_on(keep, states, k, change[:, k - first])


def _left_at_once(made: Group, left: Array, E: Array, scaled: Array, first: int, last: int) -> None:
    pieces.scaled_residuals(E[:, first:last], *_some(made, first, last), scaled[:, first:last])


@kernel(_left_at_once)
def leave(made: Group, left: Array, E: Array, scaled: Array, first: int, last: int) -> None:
    """What the columns of chunks from first to last leave in memory and momentum (CHUNK-8)."""
    scale_residuals(E[:, first:last], left[:, first:last], scaled[:, first:last])


def runs(refresh: tuple[bool, ...]) -> list[tuple[int, int]]:
    """Stretches of chunks under one reference."""
    starts = [k for k in range(len(refresh)) if k == 0 or refresh[k]]
    return list(zip(starts, [*starts[1:], len(refresh)], strict=True))


def old_columns(layout: Layout, first: int, last: int) -> list[tuple[int, int]]:
    """Chunks of a run whose first columns keep the residual of their arrival under carry, and how many (WINDOW-13)."""
    h = layout.window - 1
    before = h - min(h, layout.position if first == 0 else 0)  # tokens of older spans before the run
    counts = [(k, before - (k - first) * layout.chunk) for k in range(first, last)]
    return [(k, count) for k, count in counts if count > 0]


def _given(layout: Layout, given: Arrays, made: Group) -> Group:
    """Residuals under a reference that is known: all chunks of a span at once (CHUNK-6, CHUNK-8)."""
    C, h = layout.chunk, layout.window - 1
    B, g, K, d = made.phi.shape
    o = given.values.shape[-1]
    Z = side_by_side(given)
    E = scratch.empty((B, g, K, o), Z)
    states, scaled = scratch.empty((B, g + 1, *Z.shape[1:]), Z), scratch.empty((B, g, K, Z.shape[-1]), Z)
    states[:, 0] = Z
    keep, left = kept(made.gates, made.D, made.X, o), left_factors(made)
    values = spread(layout, given.values)
    reference: Array = None if given.reference is None else _transposed(given.reference)
    spans = runs(layout.refresh)
    references: Array = scratch.empty((B, g, d, o), Z) if layout.keeps_reference and len(spans) > 1 else None
    arrivals: Array = None
    if layout.carry:
        arrivals = np.concatenate([given.residuals, np.empty_like(given.values, shape=(B, g * C, o))], axis=1)
    for first, last in spans:
        chunks = slice(first, last)
        if layout.keeps_reference:
            reference = states[:, first, :, :o].copy() if layout.refresh[first] else reference
            if len(spans) == 1:
                references = np.broadcast_to(reference[:, None], (B, g, d, o))
            else:
                references[:, chunks] = reference[:, None]
        if layout.reference == "frozen":
            np.matmul(made.phi[:, chunks], reference[:, None], out=E[:, chunks])
            E[:, chunks] -= values[:, chunks]
        else:
            negated(values[:, chunks], out=E[:, chunks])
        if arrivals is not None:
            arrivals[:, h + first * C : h + last * C] = E[:, chunks, h:].reshape(B, -1, o)
            for k, count in old_columns(layout, first, last):
                E[:, k, :count] = arrivals[:, k * C : k * C + count]
        leave(made, left, E, scaled, first, last)
        with scratch.frame():
            change = scratch.product(made.phi[:, chunks].swapaxes(-1, -2), scaled[:, chunks])
            passed_over(made, keep, states, change, first, last)
    return made._replace(E=E, scaled=scaled, states=states, references=references, last_reference=reference, arrivals=arrivals)


def walk_given(layout: Layout, given: Arrays, made: Group) -> walks.Given:
    """What the walk over chunks takes by a kernel (CUDA-9)."""
    retain = made.gates.retain if layout.before_error else None
    return walks.Given(made.phi, spread(layout, given.values), made.inverse, made.D, made.X, retain, layout.window)


def _solved_at_once(layout: Layout, given: Arrays, made: Group) -> Group:
    """`_solved` with all chunks in one launch."""
    found = walks.walk(walk_given(layout, given, made), side_by_side(given))
    o = given.values.shape[-1]
    reference: Array = None if given.reference is None else given.reference.swapaxes(-1, -2)
    references: Array = np.empty_like(found.states[:, 1:, :, :o]) if layout.keeps_reference else None
    for first, last in runs(layout.refresh) if layout.keeps_reference else ():
        reference = found.states[:, first, :, :o].copy() if layout.refresh[first] else reference
        references[:, first:last] = reference[:, None]
    return made._replace(**found._asdict(), references=references, last_reference=reference)


@kernel(_solved_at_once)
def _solved(layout: Layout, given: Arrays, made: Group) -> Group:
    """Residuals under the running reference, by forward substitution chunk after chunk (EXACT-1 to EXACT-3, EXACT-7)."""
    B, g, K, d = made.phi.shape
    o = given.values.shape[-1]
    Z = side_by_side(given)
    values = spread(layout, given.values)
    E = scratch.empty((B, g, K, o), Z)
    states, scaled = scratch.empty((B, g + 1, *Z.shape[1:]), Z), scratch.empty((B, g, K, Z.shape[-1]), Z)
    states[:, 0] = Z
    keep = kept(made.gates, made.D, made.X, o)
    reference = None if given.reference is None else given.reference.swapaxes(-1, -2)
    references: Array = scratch.empty((B, g, d, o), Z) if layout.keeps_reference else None
    before, left = factor_pair(layout, made), left_factors(made)
    answered, change = scratch.empty((B, g, K, Z.shape[-1]), Z), scratch.empty(Z.shape, Z)
    for k in range(g):
        if layout.keeps_reference:
            reference = states[:, k, :, :o].copy() if layout.refresh[k] else reference
            references[:, k] = reference
        rest = combined(np.matmul(made.phi[:, k], states[:, k], out=answered[:, k]), before[:, k])
        rest -= values[:, k]
        with scratch.frame():
            mix(made.inverse[:, k], rest, out=E[:, k])
        scale_residuals(E[:, k], left[:, k], scaled[:, k])
        pass_on(keep, states, k, np.matmul(made.phi[:, k].swapaxes(-1, -2), scaled[:, k], out=change))
    return made._replace(E=E, scaled=scaled, answered=answered, states=states, references=references, last_reference=reference)


def factor_pair(layout: Layout, made: Group) -> Array:
    """(B, g, K, G, bases): what each column takes of M_0 and of -S_0 in its residual."""
    return np.moveaxis(before_rows(layout, made.gates, made.D)[..., : made.gates.bases], -3, -2)


def combined(both: Array, factors: Array, out: Array = None) -> Array:
    """c (rows M_0^T) + f (rows S_0^T) from [rows M_0^T | rows S_0^T] (..., rows, bases o) and (..., rows, G, bases)."""
    o = both.shape[-1] // factors.shape[-1]
    found: Array = np.multiply(both[..., :o], factors[..., 0], out=out)
    if factors.shape[-1] == 2:
        found -= both[..., o:] * factors[..., 1]
    return found


def reads(layout: Layout, made: Group, y: Array) -> None:
    """Write y (B, n, o) of every token (CHUNK-7, CHUNK-13)."""
    B, g, C, _ = made.queries.shape
    y = y.reshape(B, g, C, -1)  # a view
    if layout.read == "reference":
        np.matmul(made.queries, made.references, out=y)
        return
    with scratch.frame():
        _read(layout, made, mix(made.A, made.E), y)


def _read_at_once(layout: Layout, made: Group, mixed: Array, y: Array) -> None:
    pieces.combined_reads(made.asked, mixed, made.D[1:] if layout.read == "after" else made.D[:-1], y)


@kernel(_read_at_once)
def _read(layout: Layout, made: Group, mixed: Array, y: Array) -> None:
    """Y = diag(c) Psi M_0^T + diag(f) Psi S_0^T - A E, where the last is known (CHUNK-7)."""
    factors = np.moveaxis(read_rows(layout, made.D)[..., : made.gates.bases], -3, -2)
    combined(made.asked, factors, out=y)
    y -= mixed
