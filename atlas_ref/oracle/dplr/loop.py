"""The rule dplr as a plain loop in any legal arithmetic (DPLR-2 to DPLR-7, TOL-3).

Written from the clauses; it shares no code with `rules.dplr`. Everything takes arrays and tape
variables. A `Program` says what a program does otherwise (DPLRCASE-10).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from atlas_ref.oracle.dplr.parameters import Parameters, parsed
from atlas_ref.types import Array
from tape import ops

Inputs = Mapping[str, Array]


class Program(NamedTuple):
    """Settings of a case, and mistakes of a program; a default is the rule itself.

    Attributes:
        own: settings of the case.
        gate_after: the gate comes after the erase or after the write.
        gate_rows: the gate is on value channels.
        gate_steps: every step of a token decays.
        gate_silent: tokens that are not active decay too.
        no_beta: side on which beta is 1.
        erases: what the erase does: it takes away, adds, or is not there.
        erase_of: the key that the erase reads with, without its norm or in place of erase_key.
        erase_late: the erase reads the memory after the write.
        reads: the memory that a query reads: before the token, or decayed alone.
        bonus_late: the read with a bonus is of the memory after the write.
        scales, scale_of_rows: how often a query is scaled, and whether by d_out.
        round_robin: value head i has key head i modulo the key heads.
        reset_to_zero: a reset starts from zero.
        transposed: the first memory has the other layout, or the last.
        held: what gradients do not go through.
    """

    own: Parameters
    gate_after: Literal["", "erase", "write"] = ""
    gate_rows: bool = False
    gate_steps: bool = False
    gate_silent: bool = False
    no_beta: Literal["", "erase", "write"] = ""
    erases: Literal["away", "adds", "nothing"] = "away"
    erase_of: Literal["", "bare key", "key"] = ""
    erase_late: bool = False
    reads: Literal["", "before", "decayed"] = ""
    bonus_late: bool = False
    scales: int = 1
    scale_of_rows: bool = False
    round_robin: bool = False
    reset_to_zero: bool = False
    transposed: Literal["", "first", "last"] = ""
    held: Literal["", "erase", "norm", "memory", "heads", "log"] = ""


def run(inputs: Inputs, case: Any, rounding: Any) -> dict[str, Array]:
    """Results of a case, every head, token and step one after the other."""
    return run_program(Program(parsed(case.header)), inputs, rounding)


def run_program(p: Program, inputs: Inputs, rounding: Any) -> dict[str, Array]:
    """Results of a program with these settings and mistakes."""
    own, x = p.own, _of_value_heads(p, inputs, rounding)
    first = _first(p, x)
    M, reads = first, []
    for t in range(x["in/v"].shape[-2] // own.steps):
        if "in/reset" in inputs and inputs["in/reset"][t]:
            M = ops.zeros_like(first, shape=first.shape) if p.reset_to_zero else first
        if p.held == "memory" and t:
            M = ops.stop_gradient(M)
        writes = "in/active" not in inputs or bool(inputs["in/active"][t])
        gate, seen = _gate(p, x, t, rounding), M
        if writes:
            for j in range(t * own.steps, (t + 1) * own.steps):
                decays = j == t * own.steps or p.gate_steps
                M = _written(p, x, j, gate if decays else None, M, rounding.way)
        elif p.gate_silent and gate is not None:
            M = gate * M
        if writes:
            M = M if rounding.store is None else rounding.store(M)
        reads.append(_read(p, x, t, _seen(p, x, t, seen, M, gate, writes, rounding), rounding))
    turned = (own.state_layout == "(d_in, d_out)") != (p.transposed == "last")
    last = M.swapaxes(-1, -2) if turned else M
    return {"out/y": ops.stack(reads, axis=-2), "out/M": last}


def _first(p: Program, x: Inputs) -> Array:
    """The memory before the first token."""
    M = x.get("in/M0")
    if M is None:
        *lead, _, d_out = x["in/v"].shape
        return ops.zeros_like(x["in/v"], shape=(*lead, d_out, x["in/k"].shape[-1]))
    turned = (p.own.state_layout == "(d_in, d_out)") != (p.transposed == "first")
    return M.swapaxes(-1, -2) if turned else M


def _seen(
    p: Program, x: Inputs, t: int, before: Array, M: Array, gate: Array, writes: bool, rounding: Any
) -> Array:
    """The memory that the query of a token reads."""
    if p.reads == "before":
        return before
    if p.reads == "decayed":
        return before if gate is None else gate * before
    if "in/bonus" not in x or not writes:
        return M
    u = x["in/bonus"] * x["in/k"][..., t, :]
    of = M if p.bonus_late else before
    return rounding.way.scaled_sum(x["in/v"][..., t, :, None], u[..., None, :], of)


def _read(p: Program, x: Inputs, t: int, seen: Array, rounding: Any) -> Array:
    y = rounding.way.matmul(seen, x["in/q"][..., t, :, None])[..., 0]
    if p.own.scale == 1:
        return y
    for _ in range(p.scales):
        y = y / np.sqrt(seen.shape[-2 if p.scale_of_rows else -1]).astype(y.dtype)
    return y


def _of_value_heads(p: Program, inputs: Inputs, rounding: Any) -> dict[str, Array]:
    """Inputs with keys and queries under their norm, one for each value head."""
    own, x = p.own, dict(inputs)
    x["bare key"] = inputs["in/k"]
    for name in ("in/k", "in/q", "bare key"):
        z = x[name]
        if name != "bare key" and own.norm(name) == "l2":
            square = rounding.way.matmul(z[..., None, :], z[..., :, None])[..., 0]
            length = rounding.touch(ops.sqrt(square + own.norm_eps))
            z = z / (ops.stop_gradient(length) if p.held == "norm" else length)
        x[name] = z if own.groups == 1 else _spread(p, z)
    return x


def _spread(p: Program, z: Array) -> Array:
    """Rows of key heads as rows of value heads."""
    heads, each = z.shape[-3], []
    for i in range(heads * p.own.groups):
        row = z[..., i % heads if p.round_robin else i // p.own.groups, :, :]
        each.append(ops.stop_gradient(row) if p.held == "heads" and i % p.own.groups else row)
    return ops.stack(each, axis=-3)


def _gate(p: Program, x: Inputs, t: int, rounding: Any) -> Array:
    """The gate of a token as (..., 1, d_in or 1), None for 1."""
    v = x["in/v"]
    if p.own.of.gated == "heads":
        heads = 1.0 - 0.5 ** (5.0 + np.arange(v.shape[-3] if len(v.shape) > 2 else 1))
        return heads.astype(v.dtype)[:, None, None] if len(v.shape) > 2 else heads.astype(v.dtype)
    if "in/log_retain" in x:
        w = x["in/log_retain"]
        log = w[..., t] if len(w.shape) < len(v.shape) else w[..., t, :]
        each = rounding.touch(ops.exp(log))
        if p.held == "log":  # the value is that of exp, the slope 1
            each = ops.stop_gradient(each) + (log - ops.stop_gradient(log))
    elif "in/retain" in x:
        w = x["in/retain"]
        each = w[..., t] if len(w.shape) < len(v.shape) else w[..., t, :]
    else:
        return None
    if len(w.shape) < len(v.shape):
        return each[..., None, None]
    return each[..., :, None] if p.gate_rows else each[..., None, :]


def _written(p: Program, x: Inputs, j: int, gate: Array, M: Array, way: Any) -> Array:
    """The memory after one erase and write."""
    k, v, kind = x["in/k"][..., j, :], x["in/v"][..., j, :], p.own.of.erase
    pair = None if p.erases == "nothing" else _erase(p, x, j)
    decayed = M if gate is None or p.gate_after else gate * M
    of = M if p.own.order == "after_error" else decayed
    in_one = kind == "error" and p.erases == "away"
    if in_one and not (p.no_beta or p.erase_late or p.gate_after):  # one write of beta (v - found)
        error = x["in/beta"][..., j, None] * (v - _found(p, of, pair, way))
        return way.scaled_sum(error[..., :, None], k[..., None, :], decayed)
    if kind == "gates":
        v = x["in/write_gate"][..., j, :] * v
    if kind == "error" and p.no_beta != "write":
        v = x["in/beta"][..., j, None] * v
    if p.erase_late:
        decayed = of = way.scaled_sum(v[..., :, None], k[..., None, :], decayed)
    if pair is not None:
        found = _found(p, of, pair, way)
        taken = found if p.erases == "adds" else -found
        decayed = way.scaled_sum(taken[..., :, None], pair[1][..., None, :], decayed)
    if p.gate_after == "erase" and gate is not None:
        decayed = gate * decayed
    if not p.erase_late:
        decayed = way.scaled_sum(v[..., :, None], k[..., None, :], decayed)
    return gate * decayed if p.gate_after == "write" and gate is not None else decayed


def _found(p: Program, of: Array, pair: Any, way: Any) -> Array:
    """What an erase finds in a memory."""
    found = way.matmul(of, pair[0][..., None])[..., 0]
    return ops.stop_gradient(found) if p.held == "erase" else found


def _erase(p: Program, x: Inputs, j: int) -> Any:
    """What the erase reads, and along which vector it takes that away; None for no erase."""
    kind, k = p.own.of.erase, x["in/k"][..., j, :]
    asked = x["bare key"][..., j, :] if p.erase_of == "bare key" else k
    if kind == "error":
        read = asked if p.erase_of else x[p.own.of.read][..., j, :]
        return read, k if p.no_beta == "erase" else x["in/beta"][..., j, None] * k
    if kind == "gates":
        return x["in/erase_gate"][..., j, :] * asked, k
    if kind == "alpha":
        return -x["in/alpha"][..., j, :], x["in/beta"][..., j, :]
    if kind == "kk":
        return x["in/kk"][..., j, :], x["in/kk"][..., j, :] * x["in/a"][..., j, :]
    if "in/erase_read" in x:
        return x["in/erase_read"][..., j, :], x["in/erase_write"][..., j, :]
    return None
