"""The ops of a case of rule dplr in the order of the loop, each with its inputs (DPLRCASE-11)."""

from __future__ import annotations

from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.dplr.formulas import BESIDE, GATES
from atlas_ref.oracle.dplr.members import NEEDS
from atlas_ref.oracle.dplr.parameters import Parameters, parsed
from atlas_ref.oracle.dplr.program import named
from atlas_ref.oracle.dplr.tensors import axes_of

#: Name, inputs and clause of an op.
Listed = tuple[str, tuple[str, ...], str]

#: Formula of log gates -> its clause.
CLAUSES = {
    "softplus": "GATES-17",
    "bounded": "GATES-18",
    "log_sigmoid": "GATES-19",
    "floored_sigmoid": "GATES-20",
    "exponential": "GATES-21",
}

#: Ops that lie in the layout of the case.
MATRICES = ("decayed", "S", "M")


def listed(case: Case) -> list[Listed]:
    """The ops that some token of a case computes."""
    own, x = parsed(case.header), case.inputs
    gate = next((name for name in GATES if name in x), "")
    gated = bool(gate) or own.of.gated == "heads"
    ops: list[Listed] = []
    if own.norm("in/k") == "l2":
        names = [named("k", j, own.steps) for j in range(own.steps)]
        ops += [(name, ("in/k",), "DPLRCASE-2") for name in names]
    if own.of.second == "A":
        ops += _of_preconditioner(own)
    if own.gate_formula is not None:
        raw = (gate, *(name for name in BESIDE if name in x))
        ops += [("log_gate", raw, CLAUSES[own.gate_formula]), ("gate", ("log_gate",), "DPLR-1")]
    elif gated:
        ops.append(("gate", (gate,) if gate else (), "DPLR-1" if gate else "DPLRCASE-3"))
    for j in range(own.steps) if own.of.second != "S" else ():
        ops += _of_row(own, x, j, gated=gated)
    ops += _of_momentum(own, x, gated=gated) if own.of.second == "S" else []
    if own.norm("in/q") == "l2":
        ops.append(("q", ("in/q",), "DPLRCASE-2"))
    ops += _of_normaliser(own, masked=_masked(x)) if own.of.second == "z" else []
    return [*ops, _of_read(own, x)]


def _of_momentum(own: Parameters, x: Any, *, gated: bool) -> list[Listed]:
    """The error of a token, the momentum that takes it in, and the memory that this moves."""
    if "in/active" in x and not np.any(x["in/active"]):
        return [("S", ("S[t-1]",), "DPLR-7"), ("M", ("M[t-1]",), "DPLR-7")]
    key = "k" if own.norm("in/k") == "l2" else "in/k"
    decayed = "decayed" if gated else "M[t-1]"
    of = decayed if own.order == "before_error" else "M[t-1]"
    ops: list[Listed] = [("decayed", ("M[t-1]", "gate"), "DPLR-21")] if gated else []
    return [
        *ops,
        ("momentum", ("in/log_momentum",), "DPLR-21"),
        ("found", (of, "in/erase_key"), "DPLR-21"),
        ("change", ("found", "in/v", "in/eta"), "DPLR-21"),
        ("S", ("S[t-1]", "momentum", "change", key), "DPLR-21"),
        ("M", (decayed, "S", _rates(x)), "DPLR-21"),
    ]


def _rates(x: Any) -> str:
    """The tensor of step sizes, or of what a formula makes them of."""
    return "in/beta_input" if "in/beta_input" in x else "in/beta"


def _of_preconditioner(own: Parameters) -> list[Listed]:
    """The running sum of squares, and the key under it."""
    key = "k" if own.norm("in/k") == "l2" else "in/k"
    sums = ("A[t-1]", key, "in/log_retain_precond", "in/beta_precond")
    return [("A", sums, "DPLR-20"), ("written_key", ("A", key), "DPLR-20")]


def _of_normaliser(own: Parameters, *, masked: bool) -> list[Listed]:
    """The sum of keys after each row, and what a read is divided by."""
    n, query = own.steps, "q" if own.norm("in/q") == "l2" else "in/q"
    ops: list[Listed] = []
    for j in range(n):
        before = named("z", j - 1, n) if j else named("z", n - 1, n) + "[t-1]"
        key = named("k", j, n) if own.norm("in/k") == "l2" else "in/k"
        ops.append((named("z", j, n), (before, key), "DPLR-19"))
    seen: tuple[str, ...] = (named("z", n - 1, n),)
    if masked and own.masked_read == "written":  # also what the token would have added
        seen += (named("z", n - 1, n) + "[t-1]", *(key for _, (_, key), _ in ops))
    return [*ops, ("normaliser", (*dict.fromkeys(seen), query), "DPLR-19")]


def _of_row(own: Parameters, x: Any, j: int, *, gated: bool) -> list[Listed]:
    """The ops of one erase and write, the memory last."""
    kind, n = own.of.erase, own.steps
    clause = "DPLR-3" if own.order == "before_error" else "DPLR-2"
    clause = "DPLR-4" if j else clause
    before = named("M", j - 1, n) if j else named("M", n - 1, n) + "[t-1]"
    if "in/active" in x and not np.any(x["in/active"]):
        return [(named("M", j, n), (before,), "DPLR-7")]
    key = named("k", j, n) if own.norm("in/k") == "l2" else "in/k"
    written = "written_key" if own.of.second == "A" else key
    ops: list[Listed] = []
    current = before
    if gated and not j:
        ops.append((named("decayed", j, n), (before, "gate"), clause))
        current = named("decayed", j, n)
    added: tuple[str, ...] = ("in/v", written)
    if kind != "none" and (kind != "given" or "in/erase_read" in x):
        vectors = [(named(each, j, n), _source(own, each, key)) for each in _vectors(kind)]
        ops += [(name, source, "DPLR-8" if own.member else "DPLR-2") for name, source in vectors]
        of = before if own.order == "after_error" else current
        ops.append((named("found", j, n), (of, vectors[0][0]), clause))
        scale = ("in/erase_scale",) if "in/erase_scale" in x else ()
        added = (named("found", j, n), named("erase_write", j, n), *scale, *added)
    if kind == "gates":
        ops.append((named("value", j, n), ("in/v", "in/write_gate"), "DPLR-8"))
        added = (*added[:2], named("value", j, n), written)
    if kind == "error":
        ops.append((named("change", j, n), (added[0], "in/v", _rates(x)), "DPLR-8"))
        added = (named("change", j, n), written)
    return [*ops, (named("M", j, n), (current, *added), clause)]


def _vectors(kind: str) -> tuple[str, ...]:
    """Vectors of an erase that are ops: a change along the key has the one that is read."""
    return ("erase_read",) if kind == "error" else ("erase_read", "erase_write")


def _source(own: Parameters, vector: str, key: str) -> tuple[str, ...]:
    """The tensors that a vector of an erase is made of (DPLRCASE-3)."""
    kind, read = own.of.erase, vector == "erase_read"
    if kind == "error":
        return (key if own.of.read == "in/k" else own.of.read,)
    if kind == "gates":
        return ("in/erase_gate", key) if read else (key,)
    if kind == "given":
        return (f"in/{vector}",)
    one, other = NEEDS[kind]
    return (one if read else other,) if kind == "alpha" else (one,) if read else (one, other)


def _of_read(own: Parameters, x: Any) -> Listed:
    name, inputs, clause = _of_active(own, x)
    if own.masked_read == "memory" or not _masked(x):
        return name, inputs, clause
    if own.masked_read == "written":  # also what the token would have written (DPLRCASE-28)
        inputs = (*inputs, *(each for each in _of_pair(own, x) if each not in inputs))
    return name, inputs, "DPLRCASE-28"


def _masked(x: Any) -> bool:
    """Whether some token is not active."""
    return "in/active" in x and not np.all(x["in/active"])


def _of_pair(own: Parameters, x: Any) -> tuple[str, ...]:
    """What a token writes is made of, and the memory before it."""
    made = {"in/active", "in/reset", "in/q", "in/y_bar", *GATES}
    made |= {"in/k"} if own.norm("in/k") == "l2" else set()
    rows = [each for each in axes_of(x) if each not in made]
    key = [named("k", j, own.steps) for j in range(own.steps)] if "in/k" in made else []
    gate = ["gate"] if own.of.gated == "heads" or set(GATES) & x.keys() else []
    seconds = {
        "A": ["A[t-1]"],
        "S": ["S[t-1]"],
        "z": [named("z", own.steps - 1, own.steps) + "[t-1]"],
    }
    last = named("M", own.steps - 1, own.steps) + "[t-1]"
    return (last, *seconds.get(own.of.second, []), *gate, *key, *sorted(rows))


def _of_active(own: Parameters, x: Any) -> Listed:
    """The read of a token that is active."""
    n, query = own.steps, "q" if own.norm("in/q") == "l2" else "in/q"
    if own.of.second == "z":
        return "y", (named("M", n - 1, n), query, "normaliser"), "DPLR-19"
    if "in/bonus" not in x:
        return "y", (named("M", n - 1, n), query), "DPLR-5"
    key = "k" if own.norm("in/k") == "l2" else "in/k"
    return "y", ("M[t-1]", query, "in/bonus", "in/v", key), "DPLR-5"


def tokens(case: Case, op: str) -> tuple[int, ...]:
    """Tokens along the axis of an op, all of them."""
    return tuple(range(case.inputs["in/q"].shape[-2]))
