"""Chunks under the order momentum_then_window, where the window averages momenta instead of
gradients.

    Z_t = momentum_t Z_{t-1} + rate_in_t s e_t phi_t^T        one residual a token, under its own reference
    P_t = sum_j weights[t,j] Z_{t-j},    M_t = retain_t M_{t-1} - rate_out_t P_t

In coefficient rows W N stands in place of N W (CHUNK-11). The momenta of the h tokens before a
chunk are matrices of its first state, as M_0 and Z_0 are. Written in tape ops and recomputed chunk
by chunk for backward.
"""

from __future__ import annotations

from typing import Any

from atlas_ref.engine.associative_scan import scan
from atlas_ref.engine.group.coefficients import unit
from atlas_ref.engine.recompute import recomputed
from atlas_ref.forms.chunked import READS, apart, joined
from atlas_ref.forms.chunks import alone, grouped
from atlas_ref.forms.recurrence import Memory, Recurrence
from atlas_ref.types import Array
from tape import ops


def run(config: Any, sequence: Recurrence, memory: Memory, chunk: int) -> tuple[Memory, Array]:
    """Run a sequence of this order without Newton-Schulz in chunks of at most `chunk` tokens.

    Returns:
        memory after the last token, y (..., T, o).
    """
    sequence = sequence.whole()
    read, h = READS[config.convention.read], sequence.window - 1
    keeps = sequence.reference == "frozen" or read == "reference"
    flat = joined(sequence, memory, reference=keeps, residuals=False)
    M, Z, reference = flat.M, flat.S, flat.reference
    momenta = ops.reshape(memory.momenta, (M.shape[0], *memory.momenta.shape[-3:]))
    reads = []
    block = recomputed(_chunk(sequence, read, h))
    for part in grouped(sequence.refresh, chunk, alone):
        reference = M if keeps and part.refresh[0] else reference
        own = slice(part.first, part.last)
        gates = [
            getattr(flat, name)[:, own]
            for name in ("retain", "momentum", "rate_in", "rate_out", "weights")
        ]
        keys, values = (
            getattr(flat, name)[:, part.first + h : part.last + h] for name in ("keys", "values")
        )
        y, M, Z, momenta = block(
            keys,
            values,
            flat.queries[:, own],
            *gates,
            M,
            Z,
            reference,
            momenta[:, momenta.shape[1] - h :],
        )
        reads.append(y)
    y = flat.queries @ ops.transpose(M) if read == "none" else ops.concatenate(reads, axis=1)
    return apart(memory, Memory(M=M, S=Z, reference=reference, momenta=momenta), y)


def _chunk(sequence: Recurrence, read: str, h: int) -> Any:
    """One chunk as a function: its arrays -> y, M, Z, momenta of its tokens after the h before."""
    running = sequence.reference == "running"

    def plain(
        keys: Array,
        values: Array,
        queries: Array,
        retain: Array,
        momentum: Array,
        rate_in: Array,
        rate_out: Array,
        weights: Array,
        M: Array,
        Z: Array,
        reference: Array,
        momenta: Array,
    ) -> tuple[Array, ...]:
        D, own = _rows(retain, momentum, sequence.scale * rate_in, rate_out, weights, h)
        bases = [M, Z, *[momenta[:, i] for i in range(h)]]
        nb = len(bases)
        if running:
            E = _running(
                D[:, :, :-1], bases, keys, values, retain if sequence.before_error else None
            )
        else:
            E = _frozen(sequence, keys, values, retain, reference)
        y = _read(D, bases, keys, queries, E, read, reference)
        after = _combination(D[:, :, -1], [M, *[-each for each in bases[1:]]], E, -1.0, keys, nb)
        C = keys.shape[1]
        own_momenta = [
            _combination(own[:, :, t], [Z], E, 1.0, keys, 1) for t in range(max(0, C - h - 1), C)
        ]
        kept = ops.concatenate([momenta, ops.stack(own_momenta, axis=1)], axis=1)
        return y, after, own_momenta[-1], kept[:, -(h + 1) :]

    return plain


def _rows(
    retain: Array, momentum: Array, rate_in: Array, rate_out: Array, weights: Array, h: int
) -> tuple[Array, Array]:
    """Coefficient rows of memories and momenta.

    Of -M_0 .. -M_C over [M_0, Z_0, earlier momenta, keys] (B, G, C + 1, columns), and of Z_1 .. Z_C
    over [Z_0, keys].
    """
    B, C = rate_in.shape[:2]
    G = max(gate.shape[-1] for gate in (retain, momentum, rate_in, rate_out))

    def column(gate: Array) -> Array:
        return ops.expand_dims(ops.transpose(gate), -1)  # (B, G or 1, C, 1)

    entering = ops.broadcast_to(column(rate_in) * _units(rate_in, (C, 1 + C), 1), (B, G, C, 1 + C))
    own = scan(column(momentum), entering, axis=2, initial=unit(rate_in, (B, G, 1 + C), 0))
    summed = ops.concatenate([_units(rate_in, (B, G, h, 2 + h + C), 2), _placed(own, h)], axis=2)
    averaged = None
    for lag in range(h + 1):
        term = column(weights[..., lag, None]) * summed[:, :, h - lag : h - lag + C]
        averaged = term if averaged is None else averaged + term
    start = unit(rate_in, (B, G, 2 + h + C), 0)
    D = scan(column(retain), column(rate_out) * averaged, axis=2, initial=start)
    return ops.concatenate([ops.expand_dims(start, 2), D], axis=2), own


def _units(like: Array, shape: tuple[int, ...], first: int) -> Array:
    """Row i holds 1 in column first + i, and 0 elsewhere."""
    return ops.triu(ops.tril(ops.ones_like(like, shape=shape), first), first)


def _placed(rows: Array, h: int) -> Array:
    """Rows over [Z_0, keys] as rows over [M_0, Z_0, earlier momenta, keys]."""
    lead = rows.shape[:-1]
    nothing, none = ops.zeros_like(rows, shape=(*lead, 1)), ops.zeros_like(rows, shape=(*lead, h))
    return ops.concatenate([nothing, rows[..., :1], none, rows[..., 1:]], axis=-1)


def _column(rows: Array, i: int) -> Array:
    """Coefficients (B, G, C, columns) of one column as factors (B, C, G)."""
    return ops.transpose(rows[..., i])


def _bases(rows: Array, bases: list[Array], x: Array) -> Array:
    """c M_0 x minus the products of the chunk's other starting matrices with x (B, C, d)."""
    products = _column(rows, 0) * (x @ ops.transpose(bases[0]))
    for i, each in enumerate(bases[1:], start=1):
        products = products - _column(rows, i) * (x @ ops.transpose(each))
    return products


def _mixed(A: Array, E: Array) -> Array:
    """A (B, G, C, K) times E (B, K, o)."""
    if A.shape[1] == 1:
        return A[:, 0] @ E
    return ops.transpose((A @ ops.expand_dims(ops.transpose(E), -1))[..., 0])


def _frozen(
    sequence: Recurrence, keys: Array, values: Array, retain: Array, reference: Array
) -> Array:
    if sequence.reference == "zero":
        return -values
    predicted = keys @ ops.transpose(reference)
    return (retain * predicted if sequence.before_error else predicted) - values


def _running(rows: Array, bases: list[Array], keys: Array, values: Array, retain: Array) -> Array:
    """Residuals under the running reference: (I + N) E = predictions of the bases - values.

    Source: EXACT-11.
    """
    if retain is not None:
        rows = ops.expand_dims(ops.transpose(retain), -1) * rows
    N = rows[..., len(bases) :] * ops.expand_dims(keys @ ops.transpose(keys), 1)
    right_side = _bases(rows, bases, keys) - values
    if N.shape[1] == 1:
        return ops.solve_triangular(N[:, 0], right_side, unit=True)
    each = ops.solve_triangular(N, ops.expand_dims(ops.transpose(right_side), -1), unit=True)
    return ops.transpose(each[..., 0])


def _read(
    D: Array, bases: list[Array], keys: Array, queries: Array, E: Array, read: str, reference: Array
) -> Array:
    if read == "none":
        return queries @ ops.transpose(bases[0])  # not looked at: every token reads the last memory
    if read == "reference":
        return queries @ ops.transpose(reference)
    rows = D[:, :, 1:] if read == "after" else D[:, :, :-1]
    scores = queries @ ops.transpose(keys)
    return _bases(rows, bases, queries) - _mixed(
        rows[..., len(bases) :] * ops.expand_dims(scores, 1), E
    )


def _combination(
    row: Array, bases: list[Array], E: Array, sign: float, keys: Array, nb: int
) -> Array:
    """The matrix that a coefficient row (B, G, columns) names, with the keys' part times `sign`."""
    matrix = sign * ((ops.transpose(E) * row[..., nb:]) @ keys)
    for i, each in enumerate(bases):
        matrix = matrix + ops.expand_dims(row[..., i], -1) * each
    return matrix
