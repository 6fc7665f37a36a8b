"""The rule dplr as a plain loop in any legal arithmetic (DPLR-2 to DPLR-7, TOL-3).

Written from the clauses; it shares no code with `rules.dplr`. Everything takes arrays and tape
variables. A `Program` says what a program does otherwise (DPLRCASE-10), and has the hook of a trace
(DPLRCASE-11).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.dplr import momentum, plain_formulas
from atlas_ref.oracle.dplr.cumulated import with_cumulated
from atlas_ref.oracle.dplr.members import WRITTEN
from atlas_ref.oracle.dplr.normaliser import Divisors, divisors
from atlas_ref.oracle.dplr.parameters import parsed
from atlas_ref.oracle.dplr.preconditioner import preconditioned
from atlas_ref.oracle.dplr.program import (
    Inputs,
    Program,
    as_it_is,
    chosen,
    computed,
    first_state,
    in_layout,
    last_memory,
    writers,
)
from atlas_ref.types import Array
from tape import ops

#: A state beside the memory after the last token, under its name in files.
Seconds = dict[str, Array]


def run(inputs: Inputs, case: Case, rounding: Any) -> dict[str, Array]:
    """Results of a case, every head, token and step one after the other."""
    own = parsed(case.header)
    made = plain_formulas.computed(own, inputs, rounding.touch)
    return run_program(Program(own), made, rounding)


def run_program(p: Program, inputs: Inputs, rounding: Any) -> dict[str, Array]:
    """Results of a program with these settings and mistakes."""
    own, (x, after) = p.own, _of_value_heads(p, inputs, rounding)
    x = with_cumulated(own, x, rounding)
    first, first_S = (first_state(p, x, name) for name in ("in/M0", "in/S0"))
    by = divisors(p, x, inputs, rounding) if own.of.second == "z" else None
    M, S, reads = first, first_S, []
    for t in range(x["in/v"].shape[-2] // own.steps):
        if "in/reset" in inputs and inputs["in/reset"][t]:
            M, S = _restored(p, first, M), _restored(p, first_S, S)
        if p.held == "memory" and t:
            M, S = ops.stop_gradient(M), ops.stop_gradient(S)
        writes, gate, before = writers(inputs, t), _gate(p, x, t, rounding), momentum.Moved(M, S)
        (M, S), rows = _after_token(p, x, t, gate, before, writes, rounding)
        around = before.M, rows[0] if p.reads == "first step" else M
        read = partial(_read, p, x, t, around, gate, writes, rounding)
        if p.own.masked_read != "memory" and writes is not True:
            read = partial(_masked, p, x, t, gate, before, writes, rounding, read)
        reads.append(p.take("y", t, partial(_divided, p, read, by, t)))
    last = last_memory(p, before.M if p.last_early else M)
    after |= {} if by is None else {"out/z": by.z}
    after |= {"out/S": in_layout(p, S)} if own.of.second == "S" else {}
    return {"out/y": ops.stack(reads, axis=-2), "out/M": last, **after}


def _after_token(
    p: Program, x: Inputs, t: int, gate: Array, state: momentum.Moved, writes: Any, by: Any
) -> tuple[momentum.Moved, list[Array]]:
    """The state after a token, and the memory after each of its steps."""
    M, own = state.M, p.own
    if own.of.second == "S":
        if writes is False:
            after = momentum.at_rest(p, x, t, gate, state, by)
        else:
            after = momentum.after_token(p, x, t, gate, state, x[WRITTEN][..., t, :], writes, by)
        return after, [after.M]
    rows = []
    for j in range(t * own.steps, (t + 1) * own.steps):
        of_row = gate if j == t * own.steps or p.gate_steps else None
        M = _after_row(p, x, j, of_row, M, writes, by)
        rows.append(M)
    return momentum.Moved(M, state.S), rows


def _masked(
    p: Program,
    x: Inputs,
    t: int,
    gate: Array,
    before: momentum.Moved,
    writes: Any,
    by: Any,
    read: Callable[[], Array],
) -> Array:
    """The read of a token that is not active in some row or in any (DPLRCASE-28)."""
    if p.own.masked_read == "zero":
        shape = (*x["in/q"].shape[:-2], x["in/v"].shape[-1])
        return chosen(writes, read, ops.zeros_like(x["in/v"], shape=shape))
    program = p._replace(take=computed)  # what is read alone is no op of the trace
    after, rows = _after_token(program, x, t, gate, before, True, by)
    around = before.M, rows[0] if p.reads == "first step" else after.M
    return chosen(writes, read, _read(program, x, t, around, gate, True, by))


def _divided(p: Program, read: Callable[[], Array], by: Divisors | None, t: int) -> Array:
    """The read of a token, over its divisor where there is one (DPLR-19)."""
    return read() if by is None or p.normaliser == "absent" else read() / by.each[t]


def _restored(p: Program, first: Array, M: Array) -> Array:
    """The memory after a reset."""
    if p.reset_to_zero:
        return ops.zeros_like(first, shape=first.shape)
    # the value is that of the first memory, the slope that of the one before
    return first + (M - ops.stop_gradient(M)) if p.held == "reset" else first


def _seen(
    p: Program, x: Inputs, t: int, before: Array, M: Array, gate: Array, writes: Any, rounding: Any
) -> Array:
    """The memory that the query of a token reads."""
    if p.reads == "before":
        return before
    if p.reads == "decayed":
        return before if gate is None else gate * before
    if "in/bonus" not in x or writes is False:
        return M
    u = x["in/bonus"] * x[WRITTEN][..., t, :]
    of = M if p.bonus_of == "after" else before
    of = gate * of if p.bonus_of == "decayed" and gate is not None else of
    pair = partial(rounding.way.scaled_sum, x["in/v"][..., t, :, None], u[..., None, :], of)
    return chosen(writes, pair, M)


def _read(
    p: Program, x: Inputs, t: int, around: tuple[Array, Array], gate: Array, writes: Any, by: Any
) -> Array:
    """The read of a token from the memories before and after it, by a rounding."""
    seen, q = _seen(p, x, t, *around, gate, writes, by), x["in/q"][..., t, :]
    if p.own.query_groups > 1:
        seen = ops.index(seen, (..., p.own.states(q.shape[-2]), slice(None), slice(None)))
    root = np.sqrt(seen.shape[-2 if p.scale_of_rows else -1]).astype(q.dtype)
    y = by.way.matmul(seen, q[..., None])[..., 0]
    for _ in range(0 if p.own.scale == 1 else p.scales):
        y = y / root
    if p.held != "scale":
        return y
    # a value of 0, of the slope that brings that of the query to the one without the scale
    rest = by.way.matmul(ops.stop_gradient(seen), (q - q / root)[..., None])[..., 0]
    return y + (rest - ops.stop_gradient(rest))


def _of_value_heads(p: Program, inputs: Inputs, rounding: Any) -> tuple[dict[str, Array], Seconds]:
    """Inputs with keys and queries under their norm, one for each value head, and a second state."""
    own, x = p.own, dict(inputs)
    for name in ("in/k", "in/q"):
        if own.norm(name) == "l2":
            length = _length(p, x[name], rounding)
            z = x[name] / (ops.stop_gradient(length) if p.held == "norm" else length)
            x[name] = _hooked(p, name, z)
    if p.scale_of_keys:
        x["in/k"] = x["in/k"] / np.sqrt(x["in/k"].shape[-1]).astype(x["in/k"].dtype)
    x |= {"bare key": inputs["in/k"], WRITTEN: x["in/k"]}
    after: Seconds = {}
    if own.of.second == "A":
        x[WRITTEN], after["out/A"] = preconditioned(p, x, rounding)
    queries = ("in/q",) if own.query_groups == 1 else ()
    for name in ("in/k", *queries, "bare key", WRITTEN):
        x[name] = x[name] if own.groups == 1 else _spread(p, x[name])
    return x, after


def _length(p: Program, z: Array, rounding: Any) -> Array:
    """The length of keys or queries, with eps under the root or a floor."""
    square = rounding.way.matmul(z[..., None, :], z[..., :, None])[..., 0]
    floor = p.own.of.floor
    if not floor:
        inside, outside = (0.0, p.own.norm_eps) if p.bare_eps else (p.own.norm_eps, 0.0)
        return rounding.touch(ops.sqrt(square + inside) + outside)
    short = ops.less(square, floor**2)
    return ops.where(short, floor, rounding.touch(ops.sqrt(ops.where(short, 1.0, square))))


def _hooked(p: Program, name: str, z: Array) -> Array:
    """Keys or queries under their norm, row by row through the hook."""
    rows = []
    for i in range(z.shape[-2]):
        compute = partial(ops.index, z, (..., i, slice(None)))
        rows.append(p.take("q", i, compute) if name == "in/q" else p.row("k", i, compute))
    return ops.stack(rows, axis=-2)


def _spread(p: Program, z: Array) -> Array:
    """Rows of key heads as rows of value heads."""
    heads, each, met = z.shape[-3], [], set[int]()
    for i in range(heads * p.own.groups):
        robin = p.round_robin or p.own.group_order == "round_robin"
        head = i % heads if robin else i // p.own.groups
        row = z[..., head, :, :]
        each.append(ops.stop_gradient(row) if p.held == "heads" and head in met else row)
        met.add(head)
    return ops.stack(each, axis=-3)


def _gate(p: Program, x: Inputs, t: int, rounding: Any) -> Array:
    """The gate of a token as (..., 1, d_in or 1), None for 1."""
    v, by_head = x["in/v"], p.own.of.gated == "heads"
    name = next((each for each in ("in/log_retain", "in/retain") if each in x), "")
    if not (by_head or name):
        return None
    one = by_head or len(x[name].shape) < len(v.shape)
    w = None if by_head else x[name][(..., t) if one else (..., t, slice(None))]
    if p.own.gate_formula is not None and name == "in/log_retain":
        w = p.take("log_gate", t, partial(as_it_is, w))

    def compute() -> Array:
        if by_head:
            heads = 1.0 - 0.5 ** (5.0 + np.arange(v.shape[-3] if len(v.shape) > 2 else 1))
            each = heads.astype(v.dtype) if len(v.shape) > 2 else heads.astype(v.dtype)[0]
            return ops.zeros_like(v, shape=v.shape[:-2]) + each
        if name == "in/retain":
            return w
        each = rounding.touch(ops.exp(w))
        if p.held == "log":  # the value is that of exp, the slope 1
            each = ops.stop_gradient(each) + (w - ops.stop_gradient(w))
        return each

    each = p.take("gate", t, compute)
    each = ops.stop_gradient(each) if p.held == "gate" else each
    if one:
        return each[..., None, None]
    return each[..., :, None] if p.gate_rows else each[..., None, :]


def _after_row(
    p: Program, x: Inputs, j: int, gate: Array, M: Array, writes: Any, rounding: Any
) -> Array:
    """The memory after a row, which a token that is not active leaves as it is."""
    t, step = divmod(j, p.own.steps)
    store = p.store(x, t, rounding) if step + 1 == p.own.steps else as_it_is
    silent = gate * M if p.gate_silent and gate is not None else M
    if writes is False:
        return p.row("M", j, lambda: store(silent))
    after = _written(p, x, j, gate, M, rounding.way)
    return p.row("M", j, lambda: store(chosen(writes, after, silent)))


def _written(p: Program, x: Inputs, j: int, gate: Array, M: Array, way: Any) -> Callable[[], Array]:
    """What computes the memory after one erase and write; ops before it are computed."""
    k = x[WRITTEN][..., j, :]
    k = ops.stop_gradient(k) if p.held == "key of write" else k
    k = _rate(x, j) * k if p.beta_on_keys else k

    def decayed(M: Array) -> Array:
        return M if gate is None else p.row("decayed", j, lambda: gate * M)

    before = M if p.gate_after else decayed(M)
    of = M if p.own.order == "after_error" else before
    apart = p.erase_late or p.gate_after == "erase" or p.beta_on_keys
    if p.own.of.erase == "error" and not apart:
        added = _change(p, x, j, of, way)
    else:
        added = _value(p, x, j)
        if p.erase_late:
            before = of = _plus(way, before, added, k)
        before = _erased(p, x, j, before, of, way)
        if p.erase_late:
            return lambda: before
        before = decayed(before) if p.gate_after == "erase" else before
    if p.gate_after == "write":
        late = decayed(_plus(way, before, added, k))
        return lambda: late
    return lambda: _plus(way, before, added, k)


def _plus(way: Any, M: Array, x: Array, y: Array) -> Array:
    """M + x y^T."""
    return way.scaled_sum(x[..., :, None], y[..., None, :], M)


def _value(p: Program, x: Inputs, j: int) -> Array:
    """The value that a row writes, under its own rate."""
    v, kind = x["in/v"][..., j, :], p.own.of.erase
    if kind == "gates":
        return p.row("value", j, lambda: x["in/write_gate"][..., j, :] * v)
    if kind == "error" and p.no_beta != "write" and not p.beta_on_keys:
        return _rate(x, j) * v
    return v


def _change(p: Program, x: Inputs, j: int, of: Array, way: Any) -> Array:
    """What a row with a step size adds along its key, beta (v - found)."""
    v, rate = x["in/v"][..., j, :], _rate(x, j)
    erase = _erase(p, x, j)
    found = None if erase is None else _found(p, j, of, erase, way)

    if p.erases == "of values":
        k = x[WRITTEN][..., j, :]
        return rate * (k - way.matmul(of.swapaxes(-1, -2), v[..., None])[..., 0])

    def compute() -> Array:
        if found is None:
            return rate * v
        if p.held in ("rate of erase", "rate of write"):
            fixed = ops.stop_gradient(rate)
            erase_rate, write_rate = (fixed, rate) if p.held == "rate of erase" else (rate, fixed)
            return write_rate * v - erase_rate * found
        taken = -found if p.erases == "adds" else found
        if not p.no_beta:
            return rate * (v - taken)
        return v - rate * taken if p.no_beta == "write" else rate * v - taken

    return p.row("change", j, compute)


def _erased(p: Program, x: Inputs, j: int, M: Array, of: Array, way: Any) -> Array:
    """A memory without what the erase of a row finds in another one."""
    erase = _erase(p, x, j)
    if erase is None:
        return M
    found = _found(p, j, of, erase, way)
    taken = erase.taken(found)
    return _plus(way, M, taken if p.erases == "adds" else -taken, erase.write)


def _found(p: Program, j: int, of: Array, erase: Erase, way: Any) -> Array:
    """What an erase finds in a memory."""

    def compute() -> Array:
        found = way.matmul(of, erase.read[..., None])[..., 0]
        return ops.stop_gradient(found) if p.held == "erase" else found

    return p.row("found", j, compute)


class Erase(NamedTuple):
    """What an erase reads, along which vector it takes that away, and the factors of its rows."""

    read: Array
    write: Array
    scale: Array = None

    def taken(self, found: Array) -> Array:
        """What the erase takes away of what it finds (DPLR-18)."""
        return found if self.scale is None else self.scale * found


def _rate(x: Inputs, j: int) -> Array:
    """The step size of a row as (..., 1), or (..., d_out) where each value has its own."""
    rate = x["in/beta"]
    return rate[..., j, :] if len(rate.shape) == len(x["in/v"].shape) else rate[..., j, None]


def _erase(p: Program, x: Inputs, j: int) -> Erase | None:
    """The erase of a row, its vectors through the hook; None for no erase."""
    erase = None if p.erases == "nothing" else _bare_erase(p, x, j)
    if erase is None:
        return None
    read = p.row("erase_read", j, lambda: erase.read)
    read = ops.stop_gradient(read) if p.held == "erase_read" else read
    return Erase(read, p.row("erase_write", j, lambda: erase.write), erase.scale)


def _bare_erase(p: Program, x: Inputs, j: int) -> Erase | None:
    """The erase of a row by the member's formula; None for no erase."""
    kind, k = p.own.of.erase, x[WRITTEN][..., j, :]
    asked = x[p.erase_of if p.erase_of in ("bare key", WRITTEN) else "in/k"][..., j, :]
    if kind == "error":
        read = asked if p.erase_of else x[p.own.of.read][..., j, :]
        if p.no_beta == "erase":
            return Erase(read, k)
        rate = _rate(x, j)
        return (
            Erase(read, k, rate)
            if rate.shape[-1] > 1 and not p.beta_on_keys
            else Erase(read, rate * k)
        )
    if kind == "gates":
        gate = x["in/erase_gate"][..., j, :]
        return Erase(asked, gate * k) if p.erase_crossed else Erase(gate * asked, k)
    if kind == "alpha":
        return Erase(-x["in/alpha"][..., j, :], x["in/beta"][..., j, :])
    if kind == "kk":
        kk, rate = x["in/kk"][..., j, :], x["in/a"][..., j, :]
        return Erase(kk * rate, kk) if p.erase_crossed else Erase(kk, kk * rate)
    if "in/erase_read" in x:
        scale = x["in/erase_scale"][..., j, :] if "in/erase_scale" in x else None
        return Erase(x["in/erase_read"][..., j, :], x["in/erase_write"][..., j, :], scale)
    return None
