"""Gates of a token and products with the state of a block of columns, for the compiled loops; plain
twin: `atlas_ref.forms.chunked_plain`.

Specified in specs/exact.md (EXACT-21).
"""

from __future__ import annotations

from typing import Any

from numba.extending import overload

from atlas_ref.backend.compiled.lanes import (
    add_row_sums,
    add_two_row_sums,
    compiled,
    load,
    rows_at_once,
    store,
    total,
    zeros,
)
from atlas_ref.engine.compiled.arguments import Gates, How
from atlas_ref.types import Array

# -- gates, whose type says whether they are numbers or vectors: Numba takes the overloads ---------


def gate_at(gate: Array, t: int, row: int) -> Any:
    """The gate of a token: a number, or a vector of one an output dimension."""
    return gate[t] if gate.ndim == 1 else load(gate, row)


def add_gate(out: Array, t: int, row: int, value: Any) -> None:
    """Add a vector, one cotangent an output dimension, to that of a gate."""
    if out.ndim == 1:
        out[t] += total(value)
    else:
        store(out, row, value)


def unit(gate: Array, M: Array) -> Any:
    """A gate of one."""
    return gate.dtype.type(1) if gate.ndim == 1 else zeros(M) + 1


@overload(gate_at, strict=False)
def _gate_at(gate: Any, t: Any, row: Any) -> Any:
    if gate.ndim == 1:
        return lambda gate, t, row: gate[t]
    return lambda gate, t, row: load(gate, row)


@overload(unit, strict=False)
def _unit(gate: Any, M: Any) -> Any:
    if gate.ndim == 1:
        one = gate.dtype(1)
        return lambda gate, M: one
    return lambda gate, M: zeros(M) + 1


@overload(add_gate, strict=False)
def _add_gate(out: Any, t: Any, row: Any, value: Any) -> Any:
    if out.ndim == 1:

        def add(out: Array, t: int, row: int, value: Any) -> None:
            out[t] += total(value)

        return add
    return lambda out, t, row, value: store(out, row, value)


@compiled
def gates_at(gates: Gates, how: How, t: int) -> tuple[Any, Any, Any, Any]:
    """The gates r, m, b, a of a token."""
    row = how.blocks * t + how.block
    return (
        gate_at(gates.retain, t, row),
        gate_at(gates.momentum, t, row),
        gate_at(gates.rate_out, t, row),
        gate_at(gates.rate_in, t, row),
    )


@compiled
def entry(S: Any, p: Any, v: Any, w: float, r: Any, b: Any, a: Any, before_error: bool) -> Any:
    """x = a w e, which a key carries into S; without momentum - b a w e, into M."""
    e = (r * p if before_error else p) - v
    if S is None:
        return (b * (a * -w)) * e
    return (a * w) * e


# -- products with the state -----------------------------------------------------------------------


@compiled
def product(M: Array, k: Array) -> Any:
    """M k."""
    p = zeros(M)
    for i in range(len(k)):
        p = p + k[i] * load(M, i)
    return p


@compiled
def products(M: Array, keys: Array, last: int, c: int, out: Array, first: int) -> None:
    """M k_{last-j} of all lags j into the rows `first + j` of out, two at a time."""
    for j in range(0, c - 1, 2):
        k0, k1 = keys[last - j], keys[last - j - 1]
        p0, p1 = zeros(M), zeros(M)
        for i in range(len(k0)):
            m = load(M, i)
            p0 = p0 + k0[i] * m
            p1 = p1 + k1[i] * m
        store(out, first + j, p0)
        store(out, first + j + 1, p1)
    if c % 2:
        store(out, first + c - 1, product(M, keys[last - c + 1]))


@compiled
def add_outer(
    Z: Array, f: Any, keys: Array, last: int, c: int, xs: Array, first: int, out: Array
) -> None:
    """f Z + sum_j k_{last-j} x_j^T into out, which may be Z; two rows at a time."""
    for i in range(0, Z.shape[0], 2):
        z0, z1 = f * load(Z, i), f * load(Z, i + 1)
        for j in range(c):
            k, x = keys[last - j], load(xs, first + j)
            z0 = z0 + k[i] * x
            z1 = z1 + k[i + 1] * x
        store(out, i, z0)
        store(out, i + 1, z1)


@compiled
def add_sums(M: Array, x: Any, out: Array) -> None:
    """Add M^T x, a sum along each row of the state, to out."""
    for i in range(0, M.shape[0], rows_at_once(M)):
        add_row_sums(M, i, x, out)


@compiled
def add_two_sums(M: Array, x: Any, out: Array, x_2: Any, out_2: Array) -> None:
    """`add_sums` of two vectors, with one pass over the state."""
    for i in range(0, M.shape[0], rows_at_once(M)):
        add_two_row_sums(M, i, x, out, x_2, out_2)


@compiled
def copy(state: Array, out: Array) -> None:
    """Copy a state."""
    for i in range(state.shape[0]):
        store(out, i, load(state, i))


@compiled
def scale(state: Array, f: Any) -> None:
    """Multiply a state."""
    for i in range(state.shape[0]):
        store(state, i, f * load(state, i))
