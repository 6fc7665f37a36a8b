"""Recorded adjoints, each evaluated again from the recorded adjoints of the ops that read the
quantity.

In the loop every quantity with a recorded adjoint is a variable of its own. The backward then goes
one op at a time, and through those ops alone whose adjoint was not recorded. Specified in
specs/replay.md (REPLAY-23).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case, CaseError
from atlas_ref.oracle.cases.tensors import seeds as weighed
from atlas_ref.oracle.family.arithmetic import Arithmetic
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.replay.loop import run_ops
from atlas_ref.oracle.replay.ops import Op
from atlas_ref.oracle.replay.recorded import Recorded, Unread
from atlas_ref.oracle.replay.sequence import leading
from atlas_ref.oracle.replay.trace import in_layout
from atlas_ref.types import Array
from tape import plain, vjp

PREFIX = "trace_grad/"

#: The value with which the loop continued: op -> token (None for all tokens at once) -> value.
Values = Mapping[str, Mapping[int | None, Any]]


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


def expected_adjoints(
    case: Case,
    inputs: Mapping[str, Array],
    values: Values,
    adjoints: Sequence[Recorded],
    way: Arithmetic,
    chosen: tuple[Any, ...] = (),
) -> dict[str, dict[int | None, Any]]:
    """The expected value of every recorded adjoint: `trace_grad/OP` -> token -> value.

    Args:
        values: of every op, recorded or computed.
        adjoints: the recorded ones, in the precision of `inputs`.

    Raises:
        Unread: a reading whose ops have other shapes or tokens than the recorded ones.
    """
    lead = leading(case)
    names = {each.op.removeprefix(PREFIX): each for each in adjoints}
    variables = {_key(op, t): value for op in names for t, value in values.get(op, {}).items()}
    bars = {
        out: in_layout(case, out.removeprefix("out/"), bar)
        for out, bar in weighed(case.header, inputs).items()
    }

    def forward(leaves: dict[str, Array]) -> dict[str, Array]:
        results: dict[str, Array] = {}

        def take(
            op: str, t: int | None, compute: Callable[..., Array], *args: Any, counts: Any = None
        ) -> Array:
            value = compute(*args)
            if op in names:
                results[_key(op, t)] = value
                value = leaves[_key(op, t)]
            else:
                # the recorded value, with the derivative of the computed one
                value = value + (values[op][t] - plain(value))
            return value

        found = run_ops(case, inputs, take, way=way, chosen=chosen)
        return results | {n: x for n, x in found.items() if x.dtype.kind not in "biu"}

    value, backward = vjp(forward, variables)
    seeds = {
        name: bars[name] if name in bars else np.zeros_like(plain(each))
        for name, each in value.items()
    }
    for op, each in names.items():
        for t in values.get(op, {}):
            seed = each.values if t is None else each.at(t, lead)
            if (shape := plain(value[_key(op, t)]).shape) != seed.shape:
                raise Unread(f"{each.tensor}: shape {seed.shape}, the reading has {shape}")
            seeds[_key(op, t)] = seed
    (gradients,) = backward(seeds)
    return {
        PREFIX + op: {t: np.asarray(gradients[_key(op, t)]) for t in values.get(op, {})}
        for op in names
    }


def _key(op: str, t: int | None) -> str:
    return f"{op} at {t}"


def gap(listed: Sequence[Op], name: str, recorded: set[str]) -> tuple[str, ...]:
    """Ops between a quantity and the recorded adjoints after it (REPLAY-14)."""
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
