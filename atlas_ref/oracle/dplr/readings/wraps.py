"""Mistakes of a program of rule dplr as wrapped ops, by their names: data (DPLRCASE-10).

A wrap is called as wrap(op, *arguments). It calls the op with other arguments or by another
formula, which a trace sees, or changes what it gives, which none sees.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from atlas_ref.oracle.dplr.context import decay, erase_row, found_in, of_rows, plus
from atlas_ref.oracle.dplr.keys import BARE, of_heads
from atlas_ref.oracle.dplr.members import WRITTEN
from atlas_ref.oracle.dplr.plain_formulas import as_printed_in_float32
from atlas_ref.oracle.program.hook import Op, behind, by
from atlas_ref.oracle.program.reading import Reading, Wrap
from atlas_ref.types import Array
from tape import ops

Ops = Mapping[str, Wrap]

stop = ops.stop_gradient


def with_slope(value: Array, other: Array) -> Array:
    """A value with the derivative of another one."""
    return stop(value) + (other - stop(other))


def absent(op: Op, *arguments: Any) -> Array:
    """An op that a program does not have."""
    return None


def _decay(op: Op, M: Array) -> Array:
    """A memory under the gate of the token."""
    gate = op.values.get("gate")
    return M if gate is None else decay(M, gate)


# -- the gate and the erase at other places ----------------------------------------------------------


def _late(op: Op, M: Array) -> Array:
    """A memory after the decay of the first step of its token, which comes late."""
    gate = None if op.step else op.values.get("gate")
    return M if gate is None else op.other("decayed", decay, M, gate)


def _decayed_late(op: Op, *arguments: Any) -> Array:
    late = _late(op, op.compute(*arguments))
    return op.by(lambda *_: late, *arguments)


def _decayed_between(op: Op, M: Array, *erase: Array) -> Array:
    *vectors, v, k = _apart(op, "found", *erase)
    late = _late(op, erase_row(op.context, M, *vectors))
    return op.by(lambda *_: plus(op.context, late, v, k), M, *vectors, v, k)


def _erased_late(op: Op, M: Array, *erase: Array) -> Array:
    read, *vectors, v, k = _apart(op, "erase_read", *erase)
    M = plus(op.context, M, v, k)
    found = op.other("found", partial(found_in, op.context), M, read)
    return op.by(lambda *_: erase_row(op.context, M, found, *vectors), M, found, *vectors, v, k)


def _apart(
    op: Op, name: str, found: Array, write: Array, scale: Array, added: Array, k: Array
) -> tuple[Array, ...]:
    """An erase and a value apart, also of a row with a step size, whose change is both."""
    if found is not None:
        return found, write, scale, added, k
    v, rate = op.entry("in/v"), of_rows(op.entry("in/beta"), op.entry("in/v"))
    along = (op.entry(WRITTEN), rate) if rate.shape[-1] > 1 else (rate * op.entry(WRITTEN), None)
    return op.values[name], *along, rate * v, k


def _on_keys(op: Op, M: Array, *rest: Array) -> Array:
    """Step sizes of values on key channels."""
    v, k, rate = op.entry("in/v"), rest[-1], of_rows(op.entry("in/beta"), rest[-1])
    M_erased = erase_row(op.context, M, op.values["found"], rate * op.entry(WRITTEN), None)
    return op.by(lambda *_: plus(op.context, M_erased, v, rate * k), M, *rest)


def _reads_with(name: str) -> Ops:
    """An erase that reads with another tensor of keys."""

    def wrap(op: Op, *arguments: Any) -> Array:
        asked, params = op.entry(name), op.context.settings
        if name == BARE and params.groups > 1:
            asked = of_heads(-2, asked, params.key_heads(op.entry("in/v").shape[-2]))
        return op(*arguments[:-1], asked)

    return {"erase_read": wrap}


def _read(op: Op, M: Array, q: Array, divisor: Array, *rest: Array) -> Array:
    """A read of the memory before the token, without what a bonus adds."""
    return op(M, q, divisor, None, None, None, *rest[3:])


#: Mistakes that no step of the rule reads with, or computes.
def _negative(found: Array) -> Array:
    """What an erase finds with the other sign; None of an erase that another mistake left out."""
    return None if found is None else -found


def _less(x: Array, found: Array) -> Array:
    """x without what an erase finds, where it finds anything."""
    return x if found is None else x - found


_NOTHING: Ops = dict.fromkeys(("erase_read", "erase_write", "found"), absent)

#: Name of a mistake -> op -> what stands in its place. What an erase takes away is part of the change
#: where the row has a step size.
VALUES: dict[str, Ops] = {
    "gate after write": {"decayed": lambda op, M, gate: M, "M": _decayed_late},
    "gate after erase": {
        "decayed": lambda op, M, gate: M, "change": absent, "M": _decayed_between
    },
    "gate at steps": {"later": lambda op, M: op(_decay(op, M))},
    "gate when silent": {"rest/M": lambda op, M: op(_decay(op, M))},
    "gate on rows": {"decayed": by(lambda M, gate: gate[..., :, None] * M)},
    "no erase": _NOTHING,
    "no erase of change": {**_NOTHING, "change": by(lambda _, v, rate: of_rows(rate, v) * v)},
    "no erase of momentum": {**_NOTHING, "change": by(lambda _, v, rate: of_rows(rate, v) * -v)},
    "erase adds": {"M": lambda op, M, found, *rest: op(M, _negative(found), *rest)},
    "erase adds of change": {
        "change": lambda op, *each: op.by(lambda f, *rest: op.compute(_negative(f), *rest), *each)
    },
    "late erase": {"found": lambda op, M, read: read, "change": absent, "M": _erased_late},
    "erase of bare key": _reads_with(BARE),
    "erase of key": _reads_with("in/k"),
    "erase of written key": _reads_with(WRITTEN),
    "erase crossed": {
        "erase_read": by(lambda gate, key: key),
        "erase_write": lambda op, key: op(op.entry("in/erase_gate") * key),
    },
    "erase crossed of kk": {
        "erase_read": lambda op, kk: op(kk * op.entry("in/a")),
        "erase_write": by(lambda kk, rate: kk),
    },
    "erase of values": {
        "found": lambda op, M, read: op(ops.swapaxes(M, -1, -2), op.entry("in/v")),
        "change": lambda op, found, v, rate: op(found, op.entry(WRITTEN), rate),
    },
    "eps outside the root": {"length": lambda op, z, inside, outside: op(z, outside, inside)},
    "eps in place of a floor": {"length": behind(lambda length: ops.sqrt(length**2 + 1e-6))},
    "erase without beta": {"change": by(lambda found, v, rate: _less(of_rows(rate, v) * v, found))},
    "write without beta": {
        "change": by(lambda found, v, rate: v if found is None else v - of_rows(rate, v) * found)
    },
    "beta on keys": {"change": absent, "M": _on_keys},
    "round robin": {
        "spread": lambda op, z, heads: op(
            z, np.arange(len(heads)) % (len(heads) // op.context.settings.groups)
        )
    },
    "read before": {
        "y": lambda op, M, *rest: _read(op, op.before["M"], *rest),
        "normaliser": lambda op, z, *rest: op(op.before["z"], *rest),
    },
    "read decayed": {"y": lambda op, M, *rest: _read(op, _decay(op, op.before["M"]), *rest)},
    "read of first step": {
        "y": lambda op, M, *rest: op(
            op.values[op.context.trace_name("M", 0)], *rest
        )
    },
    "scale of keys": {
        "keys": behind(lambda k: k / np.sqrt(k.shape[-1]).astype(k.dtype)),
        "scale": lambda op, y, *rest: y,
    },
    "scale twice": {"scale": lambda op, y, *rest: op(op(y, *rest), *rest)},
    "scale of d_out": {
        "scale": lambda op, y, _, M, q: op(y, np.sqrt(M.shape[-2]).astype(q.dtype), M, q)
    },
    "bonus late": {"y": lambda op, M, *rest: op(op.values["M"], *rest)},
    "bonus decayed": {
        "y": lambda op, M, q, divisor, bonus, *rest: op(
            M if bonus is None else _decay(op, M), q, divisor, bonus, *rest
        )
    },
    "not divided": {"y": lambda op, M, q, divisor, *rest: op(M, q, None, *rest)},
    "sum of before": {"normaliser": lambda op, z, *rest: op(op.before["z"], *rest)},
    "normaliser without scale": {"share": lambda op, share, root: share},
    "normaliser at least 1": {"normaliser": behind(lambda x: ops.where(ops.less(x, 1.0), 1.0, x))},
    "key as it is": {"written_key": by(lambda A, key: key)},
    "squares of before": {"written_key": lambda op, A, key: op(op.before["A"], key)},
    "no centre": {"factor": lambda op, A, centre: op(A, 0.0)},
    "momentum late": {"M": lambda op, M, S, rate: op(M, op.before["S"], rate)},
    "momentum negative": {
        "S": lambda op, S, m, change, key: op(S, m, -change, key),
        "M": lambda op, M, S, rate: op(M, S, -rate),
    },
    "momentum average": {
        "S": lambda op, S, m, change, key: op(S, m, (1.0 - m[..., None]) * change, key)
    },
    "M early": {"out/M": lambda op, M, before: op(op.before["M"], before)},
    **{
        name: dict.fromkeys((f"{end}/M", f"{end}/S"), behind(lambda M: M.swapaxes(-1, -2)))
        for name, end in (("M0 transposed", "first"), ("M transposed", "out"))
    },
    "reset to zero": dict.fromkeys(
        (f"start/{state}" for state in "MSzA"),
        lambda op, first, before: op(ops.zeros_like(first, shape=first.shape), before),
    ),
}  # fmt: skip

#: Name of a mistake in a formula of gates -> point of the formula -> what stands in its place.
FORMULAS: dict[str, Ops] = {
    "bias forgotten": {"formula/sum": lambda op, raw, bias: raw},
    "bias late": {
        "formula/sum": lambda op, raw, bias: raw,
        "formula/scaled": lambda op, z, rate, bias: op(z, rate, bias) + bias,
    },
    "rate forgotten": {"formula/rate": absent},
    "rate without exp": {"formula/rate": lambda op, log_rate: log_rate},
    "sign forgotten": {"formula/log_gate": lambda op, g, dtype: op(-g, dtype)},
    "softplus in float32": {"formula/softplus": lambda op, z: as_printed_in_float32(z, op(z))},
    "softplus without a bound": {
        "formula/softplus": lambda op, z: as_printed_in_float32(z, op(z), top=np.inf)
    },
    "gate in bfloat16": {"formula/log_gate": lambda op, g, _: op(g, "bfloat16")},
    "gate in float16": {"formula/log_gate": lambda op, g, _: op(g, "float16")},
}


# -- gradients -------------------------------------------------------------------------------------


def _heads(op: Op, z: Array, heads: Any) -> Array:
    """Value heads, of which but the first of each key head have no gradient."""
    later = [head in heads[:i] for i, head in enumerate(heads)]

    def compute(z: Array, heads: Any) -> Array:
        each = [z[..., int(head), :, :] for head in heads]
        return ops.stack(
            [stop(x) if late else x for x, late in zip(each, later, strict=True)], axis=-3
        )

    return op.by(compute, z, heads)


def _without_scale(op: Op, y: Array, root: Array, M: Array, q: Array) -> Array:
    """A read whose slope along the query has no scale."""
    rest = found_in(op.context, stop(M), q - q / root)
    return op(y, root, M, q) + (rest - stop(rest))


def _one_rate(found: Array, v: Array, write: Array, erase: Array) -> Array:
    """What a row adds, by a step size of the write and one of the erase."""
    return of_rows(write, v) * v - of_rows(erase, v) * found


def _since_first(op: Op, before: Array, *rest: Array) -> Array:
    """A state of before the token without a gradient, but for the first one."""
    return op(stop(before) if op.t else before, *rest)


def _last_constant(op: Op, *arguments: Array) -> Array:
    """An op whose last argument has no gradient."""
    return op(*arguments[:-1], stop(arguments[-1]))


def _through_reset(op: Op, first: Array, before: Array) -> Array:
    """The value of the first state, with the slope of the one before beside its own."""
    return op(first + (before - stop(before)), before)


#: Name of a mistake of gradients alone -> op -> what stands in its place.
SLOPES: dict[str, Ops] = {
    "gate": {"gate": behind(stop)},
    "log": {"gate": lambda op, w: op.by(lambda log: with_slope(op.compute(log), log), w)},
    "erase": {"found": lambda op, *each: op.by(lambda *x: stop(op.compute(*x)), *each)},
    "erase_read": {"erase_read": behind(stop)},
    "norm": {"length": behind(stop)},
    "memory": dict.fromkeys((f"enter/{state}" for state in "MSzA"), _since_first),
    "normaliser": {"normaliser": behind(stop)},
    "preconditioner": {"factor": behind(stop)},
    "momentum": {"S": _since_first},
    "heads": {"spread": _heads},
    "last": {"out/M": behind(stop)},
    "reset": {"start/M": _through_reset, "start/S": _through_reset},
    "scale": {"scale": _without_scale},
    "rate of erase": {"change": by(lambda found, v, rate: _one_rate(found, v, rate, stop(rate)))},
    "rate of write": {"change": by(lambda found, v, rate: _one_rate(found, v, stop(rate), rate))},
    "key of write": {"M": _last_constant},
    "key of momentum": {"S": _last_constant},
}


def constant_reading(part: str, words: str) -> Reading:
    """The mistake of a part that passes for a constant in the backward pass."""
    return Reading(f"{part} held", words, grad=True, ops=SLOPES[part])
