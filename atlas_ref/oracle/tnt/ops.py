"""The ops of a TNT memory by memory, each with its inputs (TNTCASE-9)."""

from __future__ import annotations

from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.tnt.loop import of_memory
from atlas_ref.oracle.tnt.settings import Memory, Settings, settings_of
from atlas_ref.rules import FAMILY
from atlas_ref.types import Array

#: Name, inputs and clause of an op.
Listed = tuple[str, tuple[str, ...], str]

#: Ops of a write, without their memory.
WRITE = ("residual", "gradient", "S", "P", "U", "M")

#: Writes of a token that Eq 5 as printed counts in the chunk before as well (TNT-3).
EXTRA = "extra"


def numbers(s: Settings, inputs: Any) -> Any:
    """Number of each token of a call in its document (TNT-13)."""
    T, number = inputs["in/k"].shape[-2], int(inputs.get("in/state/position", s.origin))
    starts = np.asarray(inputs.get("in/reset", np.zeros(T))).astype(bool)
    found = []
    for t in range(T):
        number = s.origin if starts[t] else number
        found.append(number)
        number += 1
    return np.array(found)


def lost(m: Memory, numbers: Array) -> Array:
    """Tokens whose write a reset replaces, so that nothing ever sees it (TNT-5)."""
    replaced = m.reset == "instead_of_write" and m.base != "previous"
    at_once = m.base == "running" or m.span == 1
    return m.starts(numbers) & (replaced and at_once)


def twice(m: Memory, numbers: Array) -> Array:
    """Tokens that two chunks write (TNT-3)."""
    return (numbers % m.span == 0) & (numbers > 0) & (m.sum == "inclusive")


def listed(case: Case) -> list[Listed]:
    """The ops that some token of a case computes."""
    return listed_under(settings_of(case), case.inputs)


def listed_under(s: Settings, inputs: Any) -> list[Listed]:
    """The same under some settings."""
    ops: list[Listed] = []
    reads = []
    for m in s.memories:
        own = _Sources(inputs, m)
        p = m.projection
        if p.kind != "none":
            source = (own("q"), f"in/{m.name}/W_QK") if p.kind == "learned" else own.all("k", "q")
            ops.append((f"{m.name}/projected", source, "TNT-7"))
        if twice(m, numbers(s, inputs)).any():
            ops += _of_write(s, m, own, f"{m.name}/{EXTRA}")
        if m.writes and tokens_of(s, m, inputs, extra=False):
            ops += _of_write(s, m, own, m.name)
        if m.read != "none":
            ops.append(_of_read(m, own, s))
            reads.append(f"{m.name}/y")
    return [*ops, ("y", tuple(reads), "TNT-1")]


class _Sources:
    """The tensor of a case from which a memory takes a quantity."""

    def __init__(self, inputs: Any, m: Memory) -> None:
        self.m, self.inputs = m, inputs
        self.tensors = of_memory(inputs, m.name)

    def __call__(self, name: str) -> str:
        own = f"in/{self.m.name}/{name}"
        return own if own in self.inputs else f"in/{name}"

    def all(self, *names: str) -> tuple[str, ...]:
        return tuple(self(name) for name in names if name in self.tensors)


def _of_write(s: Settings, m: Memory, own: _Sources, prefix: str) -> list[Listed]:
    """The ops of a write, from the residual to the memory."""
    rule, c, clause = FAMILY[s.rule], s.c, FAMILY[s.rule].clauses
    retain = own.all("retain")
    if not (rule.has_error or rule.has_momentum):
        return [(f"{prefix}/M", (f"{m.name}/M[t-1]", *own.all("k", "v"), *retain), clause["M"])]
    at = "t-1" if m.base == "running" else "start"
    first = rule.has_window and c.order == "momentum_then_window"
    weights = own.all("window_weights", "window_gate")
    decays = retain if c.decay == "before_error" else ()
    step = own.all("step_size")
    inner = step if c.rate in ("momentum", "both", "split") else ()
    outer = {"memory": step, "both": step, "split": own.all("step_size_memory")}.get(c.rate, ())
    ops: list[Listed] = [
        (
            f"{prefix}/residual",
            (f"{m.name}/M[{at}]", *own.all("k", "v"), *decays),
            clause["residual"],
        ),
        (
            f"{prefix}/gradient",
            (f"{prefix}/residual", own("k"), *(() if first else weights)),
            clause["gradient"],
        ),
    ]
    last = f"{prefix}/gradient"
    if rule.has_momentum:
        gate = own.all("momentum")
        carried = (f"{m.name}/S[t-1]", *gate) if gate or m.base == "previous" else ()
        ops.append((f"{prefix}/S", (last, *carried, *inner), clause["S"]))
        inner, last = (), f"{prefix}/S"
    if first:
        ops.append((f"{prefix}/P", (f"{m.name}/S[t-j]", *weights), clause["P"]))
        last = f"{prefix}/P"
    if c.has_newton_schulz and c.argument != "accumulated":
        ahead = (f"{prefix}/gradient", *own.all("momentum")) if c.argument == "nesterov" else ()
        ops.append((f"{prefix}/U", (last, *ahead), clause["U"]))
        last = f"{prefix}/U"
    return [*ops, (f"{prefix}/M", (f"{m.name}/M[t-1]", last, *inner, *outer, *retain), clause["M"])]


def _of_read(m: Memory, own: _Sources, s: Settings) -> Listed:
    at = {"after": "", "before": "[t-1]", "chunk_start": "[start]"}[m.read]
    at = at if m.writes else "[start]"
    query = own("q") if m.projection.kind == "none" else f"{m.name}/projected"
    return f"{m.name}/y", (f"{m.name}/M{at}", query), FAMILY[s.rule].clauses["y"]


def tokens_of(s: Settings, m: Memory, inputs: Any, *, extra: bool) -> tuple[int, ...]:
    """Tokens whose writes a memory computes; of the extra ones of Eq 5, these."""
    found = numbers(s, inputs)
    chosen = twice(m, found) if extra else ~lost(m, found)
    return tuple(np.nonzero(chosen)[0].tolist())


def tokens(case: Case, op: str) -> tuple[int, ...] | None:
    """Tokens whose writes compute an op, in order; None for an op of every token."""
    return tokens_under(settings_of(case), case.inputs, op)


def tokens_under(s: Settings, inputs: Any, op: str) -> tuple[int, ...] | None:
    """The same under some settings."""
    name, _, last = op.rpartition("/")
    if last not in WRITE:
        return None
    memory, _, extra = name.partition("/")
    m = next(each for each in s.memories if each.name == memory)
    return tokens_of(s, m, inputs, extra=bool(extra))
