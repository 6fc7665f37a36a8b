"""Reasons why a case cannot tell two settings apart (IDENT-6).

They are the equivalence classes of specs/conventions.md, with their conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from atlas_ref.oracle.family.candidates import longest
from atlas_ref.oracle.family.lattice import PLACE, PREFIX, Point
from atlas_ref.oracle.identify.properties import Numbers

#: Relative distance below which two results in float64 differ by rounding alone.
ROUNDING = 1e-13


Reason = tuple[str, str]
Test = Callable[[Numbers, Any, Any, frozenset[str]], Reason | None]


def _gate(n: Numbers, a: Any, b: Any, names: frozenset[str]) -> Reason | None:
    if {a, b} == {"retain", "forget"} and n.half:
        return "CONV-40", "every retain gate is 1/2"
    ones = {"retain": 1.0, "forget": 0.0}
    other = next((x for x in (a, b) if x != "none"), None)
    if "none" in (a, b) and other is not None and n.every("retain", ones[other]):
        return "CONV-40", f"every {other} gate is {ones[other]:g}"
    return None


def _decay(n: Numbers, a: Any, b: Any, names: frozenset[str]) -> Reason | None:
    if n.no_decay:
        return "CONV-41", "nothing decays"
    if n.has_one_reference and n.zero("in/M0", "in/M_ref"):
        return "CONV-41", "the reference is M0 = 0"
    return None


def _rate(n: Numbers, a: Any, b: Any, names: frozenset[str]) -> Reason | None:
    pair = {a, b}
    if pair == {"both", "split"} and n.equal("step_size", "step_size_memory"):
        return "CONV-43", "both rates are equal"
    if pair == {"split", "momentum"} and n.every("step_size_memory", 1.0):
        return "CONV-43", "the second rate is 1"
    if pair <= {"momentum", "memory", "both", "none"} and n.every("step_size", 1.0):
        return "CONV-43", "every step size is 1"
    if pair == {"split", "memory"} and n.every("step_size", 1.0):
        return "CONV-43", "the first rate is 1"
    first = n.convention.order == "window_then_momentum"
    if pair == {"momentum", "memory"} and not n.convention.has_newton_schulz:
        if n.still and (first or n.header.window == 1):
            return "CONV-42", "there is no momentum"
        if n.constant("step_size") and n.from_rest:
            return "CONV-42", "the step size is constant and S0 is 0"
    if pair == {"memory", "both"} and n.convention.has_newton_schulz and n.scalar("step_size"):
        if n.constant("step_size") and n.from_rest and n.convention.argument == "S":
            return (
                "CONV-54",
                "the step size is constant and S0 is 0, so Newton-Schulz hides it up to eps",
            )
        if n.still:
            return "CONV-54", "there is no momentum, so Newton-Schulz hides the step size up to eps"
    return None


def _momentum_sign(n: Numbers, a: Any, b: Any, names: frozenset[str]) -> Reason | None:
    if n.from_rest and "out/S" not in names and "grad/S0" not in names:
        return "CONV-44", "S0 is 0, and S was not handed over"
    if n.still and "out/S" not in names:
        return "CONV-44", "there is no momentum, and S was not handed over"
    return None


def _momentum_kind(n: Numbers, a: Any, b: Any, names: frozenset[str]) -> Reason | None:
    """Reason why two kinds of momentum are one function (CONV-65, CONV-70)."""
    if "delta_momentum" in (a, b):
        none = n.column("momentum") is None
        return ("CONV-70", "the case has no momentum") if none else None
    if n.still:
        return "CONV-65", "there is no momentum"
    c = n.convention
    hides = c.has_newton_schulz and c.argument == "S" and c.newton_schulz_settings.scale != "norm"
    rests = n.from_rest and not {"out/S", "grad/S0"} & names and not n.every("momentum", 1.0)
    if hides and rests and n.constant("momentum") and n.scalar("momentum"):
        return (
            "CONV-65",
            "momentum is constant and S0 is 0, so Newton-Schulz hides the factor up to eps",
        )
    return None


def _bounds(gate: str, n: Numbers, a: Any, b: Any, names: frozenset[str]) -> Reason | None:
    free = n.convention.replaced(retain_bounds="none", step_bounds="none")
    value = None if n.prepared is None else n.prepared.column(gate, free)
    if value is None:
        return None
    value = value if n.active is None else value[..., n.active, :, :]
    inside = all(np.all((x[0] <= value) & (value <= x[1])) for x in (a, b) if x != "none")
    return ("CONV-66", f"no {gate} is outside its bounds") if inside else None


def _memory_ceiling(n: Numbers, a: Any, b: Any, names: frozenset[str]) -> Reason | None:
    if n.prepared is None:
        return None
    length = longest(n.prepared, n.convention.replaced(memory_ceiling="none"))
    below = all(length <= x for x in (a, b) if x != "none")
    return ("CONV-67", "no memory is longer than the ceiling") if below else None


def _reference(n: Numbers, a: Any, b: Any, names: frozenset[str]) -> Reason | None:
    pair, h = {a, b}, n.header
    if "surrogate" in pair:
        return None  # a learned vector is no residual of any memory
    if pair == {"chunk_start", "running"} and h.span == 1:
        return "CONV-46", "the span is one token"
    if pair == {"chunk_start", "running"} and n.one_write_per_span:
        return "CONV-46", "no span has two writes, so that its start is always the last memory"
    if pair == {"chunk_start", "call_start"} and n.covers_call:
        return "CONV-47", "one span covers the call"
    if (
        "running" not in pair
        and n.zero("in/M0", "in/M_ref")
        and (n.covers_call or "chunk_start" not in pair)
    ):
        return "CONV-45", "M0 is 0" + (
            " and one span covers the call" if "chunk_start" in pair else ""
        )
    if n.tokens == 1:
        return "CONV-56", "there is one token"
    return None


def _span_origin(n: Numbers, a: Any, b: Any, names: frozenset[str]) -> Reason | None:
    return ("CONV-47", "one span covers the call, wherever it starts") if n.covers_call else None


def _order(n: Numbers, a: Any, b: Any, names: frozenset[str]) -> Reason | None:
    return ("CONV-48", "the window is one token") if n.header.window == 1 else None


def _argument(n: Numbers, a: Any, b: Any, names: frozenset[str]) -> Reason | None:
    if n.still and {a, b} == {"S", "written_back"}:
        return "CONV-49", "there is no momentum"
    if n.still and {a, b} <= {"S", "written_back", "nesterov"}:
        return "CONV-53", "there is no momentum, so Newton-Schulz sees the same direction"
    return None


def _gradient_scale(n: Numbers, a: Any, b: Any, names: frozenset[str]) -> Reason | None:
    d_out = n.prepared.v(n.convention).shape[-1] if n.prepared is not None else 0
    one, two = (2.0 / max(d_out, 1) if isinstance(x, str) else x for x in (a, b))
    if one == two:
        return "CONV-50", f"d_out is {d_out}"
    if n.convention.has_newton_schulz and (n.from_rest or n.still):
        why = "S0 is 0" if n.from_rest else "there is no momentum"
        return "CONV-53", f"{why}, so Newton-Schulz hides a factor of the gradient up to eps"
    return None


def _layout(n: Numbers, a: Any, b: Any, names: frozenset[str]) -> Reason | None:
    if n.symmetric and not names & {"out/M", "out/S", "out/M_ref"}:
        return "CONV-51", "every matrix given is zero or symmetric, and none was handed over"
    return None


def _coefficients(n: Numbers, a: Any, b: Any, names: frozenset[str]) -> Reason | None:
    return ("CONV-52", "every momentum has rank one") if n.still and n.header.window == 1 else None


def _window_edge(n: Numbers, a: Any, b: Any, names: frozenset[str]) -> Reason | None:
    if n.convention.has_newton_schulz and n.still:
        return "CONV-55", "there is no momentum, so Newton-Schulz hides the factor"
    return None


def _read_fields(n: Numbers, a: Any, b: Any, names: frozenset[str]) -> Reason | None:
    if "out/y" not in names:
        return "CONV-11", "y was not handed over"
    if {a, b} == {"chunk_start", "before"} and n.header.span == 1:
        return "CONV-57", "the span is one token"
    if {a, b} == {"call_end", "after"}:
        return "CONV-57", "the call is one token"
    return None


def _k_norm(n: Numbers, a: Any, b: Any, names: frozenset[str]) -> Reason | None:
    """Keys of that length already, which the norm moves by its eps alone."""
    if n.prepared is None or "none" not in (a, b):
        return None
    k = np.asarray(n.prepared.k(n.convention))
    kind = a if b == "none" else b
    length = np.sqrt(np.sum(k * k, axis=-1) if kind == "l2" else np.mean(k * k, axis=-1))
    return (
        ("CONV-24", "every key has that norm already")
        if np.all(np.abs(length - 1.0) < 1e-5)
        else None
    )


def _norm_eps(n: Numbers, a: Any, b: Any, names: frozenset[str]) -> Reason | None:
    return "CONV-24", "no key or query that is normed is short enough for the eps to show"


def _query(n: Numbers, a: Any, b: Any, names: frozenset[str]) -> Reason | None:
    return (
        ("CONV-35", "y was not handed over, and nothing else reads the query")
        if "out/y" not in names
        else None
    )


def _trace(n: Numbers, a: Any, b: Any, names: frozenset[str]) -> Reason | None:
    return "NS-19", "no matrix is small enough for eps or the guard to show"


def _first_memory(n: Numbers, axis: str, names: frozenset[str]) -> Reason | None:
    c = n.convention
    if (
        c.read == "chunk_start"
        and n.has_one_reference
        and names <= {"out/y", "out/M_ref"}
        and axis not in ("read", "layout")
    ):
        return "CONV-11", "every token reads M0"
    return None


TESTS: dict[str, Test] = {
    "gate": _gate,
    "decay": _decay,
    "gradient_scale": _gradient_scale,
    "rate": _rate,
    "momentum_sign": _momentum_sign,
    "momentum_kind": _momentum_kind,
    "retain_bounds": partial(_bounds, "retain"),
    "step_bounds": partial(_bounds, "step_size"),
    "memory_ceiling": _memory_ceiling,
    "read": _read_fields,
    "reference": _reference,
    "span_origin": _span_origin,
    "order": _order,
    "layout": _layout,
    "window_edge": _window_edge,
    "query_scale": _query,
    "q_norm": _query,
    "k_norm": _k_norm,
    "norm_eps": _norm_eps,
    "norm_guard": _norm_eps,
    PREFIX + "argument": _argument,
    PREFIX + "coefficients": _coefficients,
    PREFIX + "steps": _coefficients,
    PREFIX + "eps": _trace,
    PREFIX + "guard": _trace,
}


def why(
    numbers: Numbers,
    ours: Point,
    changes: Mapping[str, Any],
    names: frozenset[str],
    distance: float,
) -> str:
    """Reasons in words why a case does not separate a point from its changes (IDENT-6).

    Clauses come first, where they are known.

    Args:
        names: of the results under test.
        distance: between the two in float64, relative.
    """
    both = _together(numbers, changes, names)
    reasons = [
        both or _alone(numbers, axis, ours[PLACE[axis]], value, names)
        for axis, value in changes.items()
    ]
    words = dict.fromkeys(
        f"{each[0]}: {each[1]}" if each is not None else "these numbers do not separate them"
        for each in reasons
    )
    apart = "equal up to rounding" if distance <= ROUNDING else f"{distance:.1g} apart in float64"
    return f"{'; '.join(words)} ({apart})"


def _together(n: Numbers, changes: Mapping[str, Any], names: frozenset[str]) -> Reason | None:
    """Reason why two changes undo each other."""
    c = n.convention
    fixed = c.reference == "zero" or (n.has_one_reference and n.zero("in/M0", "in/M_ref"))
    if (
        set(changes) == {"direction", "value_sign"}
        and fixed
        and n.from_rest
        and "out/S" not in names
    ):
        return "CONV-62", "the reference and S0 are 0, so that one sign undoes the other"
    return None


def _alone(n: Numbers, axis: str, ours: Any, theirs: Any, names: frozenset[str]) -> Reason | None:
    return _first_memory(n, axis, names) or (
        TESTS[axis](n, ours, theirs, names) if axis in TESTS else None
    )
