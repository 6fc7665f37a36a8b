"""What a program of rule dplr does: settings, mistakes, and the hook at every op (DPLRCASE-10)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from atlas_ref.oracle.dplr.parameters import Parameters
from atlas_ref.types import Array
from tape import ops

Inputs = Mapping[str, Array]

#: Called with an op, its token and what computes it; the value with which the program goes on.
Take = Callable[[str, int, Callable[[], Array]], Array]


def computed(op: str, t: int, compute: Callable[[], Array]) -> Array:
    """The value of an op as it is."""
    return compute()


def as_it_is(x: Array) -> Array:
    """A state that is not rounded."""
    return x


def named(op: str, step: int, steps: int) -> str:
    """The name of an op of one step of a token (DPLRCASE-11)."""
    return op if steps == 1 else f"step{step}/{op}"


def writers(x: Inputs, t: int) -> Any:
    """Whether a token writes; where rows differ, an array of one row for all heads (DPLRCASE-27)."""
    if "in/active" not in x:
        return True
    active = np.asarray(x["in/active"])[..., t].astype(bool)
    return bool(active.all()) if active.all() == active.any() else active[..., None]


def chosen(writes: Any, after: Callable[[], Array], before: Array) -> Array:
    """What stands behind a token: `after` where it writes, else `before`."""
    if isinstance(writes, bool):
        return after() if writes else before
    behind = (None,) * (len(before.shape) - writes.ndim)
    return ops.where(writes[(..., *behind)], after(), before)


#: What gradients may not go through.
Held = Literal[
    "", "erase", "erase_read", "norm", "memory", "heads", "log", "gate", "normaliser",
    "preconditioner", "last", "reset", "scale", "momentum", "rate of erase", "rate of write",
    "key of write",
]  # fmt: skip


class Program(NamedTuple):
    """Settings of a case, and mistakes of a program; a default is the rule itself.

    Attributes:
        own: settings of the case.
        gate_after: the gate comes after the erase or after the write.
        gate_rows: the gate is on value channels.
        gate_steps: every step of a token decays.
        gate_silent: tokens that are not active decay too.
        no_beta: side on which beta is 1.
        beta_on_keys: beta of each value scales key channels.
        erases: what the erase does: it takes away, adds, or is not there; or what a row adds is
            k - M^T v, with keys and values in each other's place.
        erase_of: the key that the erase reads with, without its norm, in place of erase_key, or as
            it is written.
        erase_crossed: the factor of one vector of an erase is on the other one.
        erase_late: the erase reads the memory after the write.
        reads: the memory that a query reads: before the token, decayed alone, or after one step.
        bonus_of: the read with a bonus is of the memory after the write, or of the decayed one.
        bare_eps: the eps of a norm is added to the length in place of its square.
        scales, scale_of_rows: how often a query is scaled, and whether by d_out.
        scale_of_keys: keys are scaled too.
        round_robin: value head i has key head i modulo the key heads.
        reset_to_zero: a reset starts from zero.
        transposed: the first memory has the other layout, or the last.
        last_early: the last memory is that of before the last token.
        normaliser: what a normalised read is divided by: nothing, what its query without the
            scale finds in the sum of keys, or 1 where that is less; a sum of before the token.
        sum_from_zero: the sum of keys starts from zero.
        precond: what stands for the preconditioner: nothing, that of before the token, or one
            around A = 1.
        momentum: what the memory moves by: the momentum of before the token, one of the other
            sign, or a running average.
        held: what gradients do not go through; at a reset, what they go through beside the start.
        take: the hook at every op.
    """

    own: Parameters
    gate_after: Literal["", "erase", "write"] = ""
    gate_rows: bool = False
    gate_steps: bool = False
    gate_silent: bool = False
    no_beta: Literal["", "erase", "write"] = ""
    beta_on_keys: bool = False
    erases: Literal["away", "adds", "nothing", "of values"] = "away"
    erase_of: Literal["", "bare key", "key", "written key"] = ""
    erase_crossed: bool = False
    erase_late: bool = False
    reads: Literal["", "before", "decayed", "first step"] = ""
    bonus_of: Literal["", "after", "decayed"] = ""
    bare_eps: bool = False
    scales: int = 1
    scale_of_rows: bool = False
    scale_of_keys: bool = False
    round_robin: bool = False
    reset_to_zero: bool = False
    transposed: Literal["", "first", "last"] = ""
    normaliser: Literal["", "absent", "bare", "at least 1", "before"] = ""
    sum_from_zero: bool = False
    precond: Literal["", "nothing", "before", "no centre"] = ""
    momentum: Literal["", "before", "negative", "average"] = ""
    last_early: bool = False
    held: Held = ""
    take: Take = computed

    def store(self, x: Inputs, t: int, rounding: Any) -> Callable[[Array], Array]:
        """The rounding of a state after token t to a narrow format; none elsewhere (DPLRCASE-14)."""
        starts = np.flatnonzero(np.asarray(x.get("in/reset", ()))[: t + 1])
        first = int(starts[-1]) if starts.size else 0
        rounds = self.own.rounds(t, first, x["in/q"].shape[-2])
        stored: Callable[[Array], Array] | None = rounding.store if rounds else None
        return as_it_is if stored is None else stored

    def row(self, op: str, j: int, compute: Callable[[], Array]) -> Array:
        """An op of row j, through the hook."""
        t, step = divmod(j, self.own.steps)
        return self.take(named(op, step, self.own.steps), t, compute)


def first_state(p: Program, x: Inputs, name: str) -> Array:
    """The memory or the momentum before the first token, (L, d_out, d_in)."""
    M = x.get(name)
    if M is None:
        *lead, _, d_out = x["in/v"].shape
        return ops.zeros_like(x["in/v"], shape=(*lead, d_out, x["in/k"].shape[-1]))
    transposed = (p.own.state_layout == "(d_in, d_out)") != (p.transposed == "first")
    return M.swapaxes(-1, -2) if transposed else M


def last_memory(p: Program, M: Array) -> Array:
    """The last memory in the layout of the case."""
    return in_layout(p, ops.stop_gradient(M) if p.held == "last" else M)


def in_layout(p: Program, M: Array) -> Array:
    """A last memory or momentum in the layout of the case."""
    transposed = (p.own.state_layout == "(d_in, d_out)") != (p.transposed == "last")
    return M.swapaxes(-1, -2) if transposed else M
