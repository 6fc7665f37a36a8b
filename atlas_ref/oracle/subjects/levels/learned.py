"""A learned schedule in a case: gates of the tokens decide which levels write.

    g_l[t] = sigmoid(W_l x_t + b_l),    a_l[t] = 1 where g_l[t] > threshold, else 0,    d a_l[t] = d g_l[t]

Written from CMS-20, CMS-21 and CASE-37, not from `atlas_ref.levels`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.levels import active
from atlas_ref.oracle.cases.tensor_spec import Position
from atlas_ref.oracle.family import family
from atlas_ref.oracle.family.arithmetic import PLAIN, Arithmetic
from atlas_ref.oracle.subjects import memory
from atlas_ref.oracle.subjects.levels.calls import (
    Call,
    Evaluate,
    documents,
    join,
    plain_layout,
)
from atlas_ref.oracle.subjects.subject import Rounding
from atlas_ref.rules import Rule
from atlas_ref.types import Array
from tape import ops, plain

#: Tensors of the gates, and their axes.
GATES = {"in/param/W_active": "k d_model", "in/param/b_active": "k"}

#: Unit of rounding of the arithmetic that a format is computed in (CASE-22).
UNITS = {"float64": 2.0**-53}

#: A document of one level: (call, share of a write at each token) -> results, position.
Run = Callable[[Call, Array], tuple[dict[str, Array], Position]]


def check_header(header: Any) -> None:
    """Refuse a combination of reads that needs a schedule known beforehand (CASE-37).

    Raises:
        ValueError: names the key.
    """
    if header.combine == "masked":
        raise ValueError(
            "combine: masked needs periods, under schedule.learned all levels are combined"
        )


def check_level(number: int, rule: Rule, convention: Any) -> None:
    """Refuse a level of which a write changes more than memory and momentum (CASE-37).

    Raises:
        ValueError: names the level, the setting and what was found.
    """
    found = {
        f"read {convention.read}": convention.read not in ("after", "before"),
        f"reference {convention.reference}": convention.frozen_reference,
        f"order {convention.order}": rule.has_window and convention.order == "momentum_then_window",
    }
    for setting, is_more in found.items():
        if is_more:
            raise ValueError(
                f"levels[{number}]: convention: {setting} is not possible under schedule.learned, "
                "where a write must change memory and momentum alone"
            )


def fastest(periods: Sequence[int]) -> int:
    """The level that always writes: the first one of the least period (CMS-20)."""
    return min(range(len(periods)), key=lambda i: periods[i])


def logits(inputs: Mapping[str, Array], way: Arithmetic = PLAIN) -> Array:
    """W_l x_t + b_l for every token and level, (B, T, k) (CMS-20)."""
    W, b = (inputs[name] for name in GATES)
    return way.matmul(inputs["in/x"], ops.transpose(W)) + b


def shares(inputs: Mapping[str, Array], schedule: Any, rounding: Rounding | None = None) -> Array:
    """Share of a write at each token, (B, T, k): 1 or 0, whose derivative is that of its gate.

    The fastest level and steps before `until` have none.

    Args:
        rounding: of a member of the ensemble: the gate is rounded, what it decides is not.

    Source: CMS-21, CASE-37.
    """
    z = logits(inputs, PLAIN if rounding is None else rounding.way)
    gates = ops.sigmoid(z) if rounding is None else rounding.touch(ops.sigmoid(z))
    values = np.real(plain(gates))
    if rounding is None:
        opened = values > schedule.learned.threshold
    else:
        wide = {name: _float64(inputs[name]) for name in ("in/x", *GATES)}
        opened = 1.0 / (1.0 + np.exp(-logits(wide))) > schedule.learned.threshold
    share = opened.astype(values.dtype) + (gates - values)
    given, by_gate = decided_before(schedule, values.shape[1])
    return ops.where(by_gate, share, ops.where(given, 1.0, ops.zeros_like(values)))


def decided_before(schedule: Any, tokens: int) -> tuple[Array, Array]:
    """Masks (T, k): where a level writes whatever its gate, and where its gate decides (CMS-20)."""
    late = schedule.first_step + np.arange(tokens) >= schedule.learned.until
    always = np.arange(len(schedule.periods)) == fastest(schedule.periods)
    by_gate = late[:, None] & ~always
    return np.where(late[:, None], always, active(schedule, tokens)), by_gate


def _float64(x: Array) -> Array:
    return np.real(plain(x)).astype(np.float64)


def results(
    calls: Sequence[Call], share: Array, reset: Array | None, run: Run
) -> list[tuple[dict[str, Array], Position]]:
    """Results of each level, and the position after them (CMS-20, CASE-37).

    Args:
        calls: every level over all tokens.
        share (B, T, k): of a write.
        reset (T,): tokens at which a document starts, or None.
    """
    found = []
    for number, call in enumerate(calls):
        reads: list[Array] = []
        for first, last, own in documents(call, reset):
            result, position = run(own, share[:, first:last, number])
            reads.append(result["out/y"])
        found.append(({**result, "out/y": join(reads)}, position))
    return found


def by_calls(evaluate: Evaluate) -> Run:
    """Run tokens one by one, each as a call that writes and one that does not (CMS-21).

    M_t = (1 - a_t) M_{t-1} + a_t M'_t, S_t likewise; the second call takes the token into the window
    and reads.
    """
    one, none = np.ones(1, np.uint8), np.zeros(1, np.uint8)

    def run(call: Call, share: Array) -> tuple[dict[str, Array], Position]:
        reads, at = [], call
        for t in range(call.tokens):
            token = at.of_tokens(t, t + 1)
            wrote, _ = evaluate(*token.change(active=one))
            mixed = {
                f"{name}0": _mix(share[:, t], token.memory(name, wrote[f"out/{name}"]), written)
                for name in ("M", "S")
                if (written := wrote.get(f"out/{name}")) is not None
            }
            result, position = evaluate(*token.change(active=none, **mixed))
            before = call.case.convention.read == "before"
            reads.append((wrote if before else result)["out/y"])
            at = Call(call.inputs, call.case).after(result, position)
        return {**result, "out/y": join(reads)}, position

    return run


def plainly(rounding: Rounding) -> Run:
    """Run tokens as one loop of the family that writes at all of them, and mix on the way (TOL-3)."""

    def run(call: Call, share: Array) -> tuple[dict[str, Array], Position]:
        own = _Mixer(call, share)
        hook = family.value_hook(own.values)
        found = memory.plain(call.inputs, call.case, rounding, touch=own.touch, hook=hook)
        return memory.name_results(call.case, found._replace(S=own.momentum(found.S))), None

    return run


class _Mixer:
    """Hooks of the family's loop that let a token write by its share (CMS-21).

    The loop carries the momentum of a write to the next token, where it is mixed.
    """

    def __init__(self, call: Call, share: Array) -> None:
        self.call, self.share, self.written = call, share, 0
        self.M: Array = None
        self.S: Array = None

    def values(self, op: str, t: int, x: Array) -> Array:
        """The memory after token t."""
        if op != "M":
            return x
        if self.M is None:
            self.M = plain_layout(
                self.call.memory("M", plain_layout(x, self.call.case)), self.call.case
            )
        self.M = _mix(self.share[:, t], self.M, x)
        return self.M

    def touch(self, place: str, x: Array) -> Array:
        """The momentum that token t carries on."""
        if place == "carried S":
            x = self.momentum(x)
            self.written += 1
        return x

    def momentum(self, x: Array) -> Array:
        """The momentum after the tokens so far, from that of the last write."""
        self.S = (
            x if not self.written or x is None else _mix(self.share[:, self.written - 1], self.S, x)
        )
        return self.S


def _mix(share: Array, before: Array, after: Array) -> Array:
    """(1 - a) before + a after, with a of each row (CMS-21)."""
    a = ops.reshape(share, (-1, 1, 1, 1))
    return (1.0 - a) * before + a * after


def no_decision(case: Case, dtype: str) -> str:
    """Why the decision of a gate is none in the arithmetic of a format; "" where all are (CASE-37).

    A gate is too near to the threshold where rounding of W_l x_t + b_l may turn it.
    """
    schedule = case.header.schedule
    assert schedule is not None
    assert schedule.learned is not None
    threshold = schedule.learned.threshold
    wide = {name: _float64(case.inputs[name]) for name in ("in/x", *GATES)}
    sizes = logits({name: np.abs(value) for name, value in wide.items()})
    z, aim = logits(wide), math.log(threshold / (1.0 - threshold))
    unit = UNITS.get(dtype, 2.0**-24)
    bound = unit * ((wide["in/x"].shape[-1] + 2) * sizes + 8.0 * (1.0 + abs(aim)))
    near = (np.abs(z - aim) <= bound) & decided_before(schedule, z.shape[1])[1]
    if not near.any():
        return ""
    row, t, level = (int(i) for i in np.argwhere(near)[0])
    return (
        f"the gate of level {level} at token {t} of row {row} is too near to the threshold "
        f"{threshold:g} for the arithmetic of {dtype}"
    )
