"""Adjoints that somebody recorded, each evaluated again from the recorded adjoints of what reads the quantity.

The loop runs with every quantity whose adjoint was recorded made a variable of its own; the pullback then goes back one op
at a time, and through those ops alone whose adjoint was not recorded. Specified in specs/replay.md (REPLAY-23).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case, CaseError
from atlas_ref.oracle.evaluate import WEIGHED
from atlas_ref.oracle.family.arithmetic import Arithmetic
from atlas_ref.oracle.replay import loop as trace_loop
from atlas_ref.oracle.replay.ops import Op
from atlas_ref.oracle.replay.recorded import Recorded
from atlas_ref.oracle.replay.trace import in_layout
from atlas_ref.oracle.subjects import SUBJECTS
from atlas_ref.types import Array
from tape import plain, vjp

PREFIX = "trace_grad/"

#: Values that every op had for the loop: op -> token (None for all tokens at once) -> value.
Taken = Mapping[str, Mapping[int | None, Any]]


def clause(rule: str, op: str) -> str:
    """The clause about an adjoint."""
    if op[:1] == "X" and (op[1:].isdigit() or op == "X"):
        return "NS-20"
    clauses = SUBJECTS[rule].clauses
    return clauses.get(f"trace_grad/{op}", clauses.get("trace_grad", "OMEGA-25"))


def require_cotangents(case: Case) -> None:
    """Refuse adjoints of a case that weighs no output.

    Raises:
        CaseError: names the missing cotangent.
    """
    main = SUBJECTS[case.header.rule].cotangent
    if main not in case.inputs:
        raise CaseError(f"{case.name}: {main}: missing, adjoints need it")


def expected(
    case: Case, inputs: Mapping[str, Array], taken: Taken, given: Sequence[Recorded], way: Arithmetic
) -> dict[str, dict[int | None, Any]]:
    """What every recorded adjoint should be: `trace_grad/OP` -> token -> value.

    Args:
        taken: what the loop went on with at every op, recorded or computed.
        given: the recorded adjoints, in the precision of `inputs`.
    """
    lead = trace_loop.leading(case)
    names = {each.op.removeprefix(PREFIX): each for each in given}
    variables = {_key(op, t): value for op in names for t, value in taken.get(op, {}).items()}
    bars = {out: in_layout(case, out.removeprefix("out/"), inputs[bar]) for out, bar in WEIGHED.items() if bar in inputs}

    def forward(moved: dict[str, Array]) -> dict[str, Array]:
        found: dict[str, Array] = {}

        def take(op: str, t: int | None, compute: Callable[..., Array], *args: Any, counts: Any = None) -> Array:
            value = compute(*args)
            if op in names:
                found[_key(op, t)] = value
                value = moved[_key(op, t)]
            else:
                value = value + (taken[op][t] - plain(value))  # what was recorded, with the derivative of what was computed
            if op in ("X", "phi"):
                found[f"out/{op}"] = value
            return value

        end = trace_loop.walk(case, inputs, take, way=way)
        found |= {name: value for name, value in (("out/y", end.y), ("out/M", end.M), ("out/S", end.S)) if value is not None}
        return found

    value, pullback = vjp(forward, variables)
    seeds = {name: bars[name] if name in bars else np.zeros_like(plain(each)) for name, each in value.items()}
    for op, each in names.items():
        for t in taken.get(op, {}):
            seeds[_key(op, t)] = each.values if t is None else each.of(t, lead)
    (found,) = pullback(seeds)
    return {PREFIX + op: {t: np.asarray(found[_key(op, t)]) for t in taken.get(op, {})} for op in names}


def _key(op: str, t: int | None) -> str:
    return f"{op} at {t}"


def gap(listed: Sequence[Op], name: str, recorded: set[str]) -> tuple[str, ...]:
    """Ops that read a quantity, or what is made of it, before an adjoint that was recorded (REPLAY-14)."""
    readers: dict[str, set[str]] = {op.name: set() for op in listed}
    for op in listed:
        for source in op.inputs:
            if source.partition("[")[0] in readers:
                readers[source.partition("[")[0]].add(op.name)
    missing: set[str] = set()
    waiting = [name]
    while waiting:
        for op_name in readers[waiting.pop()]:
            if op_name not in recorded and op_name not in missing:
                missing.add(op_name)
                waiting.append(op_name)
    return tuple(op.name for op in listed if op.name in missing and op.name != name)
