"""Smaller cases of rule dplr: plainer members, settings and gates, fewer heads (SWEEP-16).

The axes of a tensor are read off the shapes that the rule wants of it, so that a tensor of a new
member is cut without a table of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.dplr import formulas, program, tensors
from atlas_ref.oracle.dplr.parameters import Parameters, parse
from atlas_ref.oracle.drawing import Candidate, header_of, size, smaller, without
from atlas_ref.oracle.program.derive import moves

#: Members that a case may come to, the smallest first; None for the rule itself.
PLAINER = (None, "linear_attn", "simple_gla", "delta", "gated_delta")

#: Tensors that a case may lack, those that need each other together.
OPTIONAL = (
    ("in/z0", "in/z_bar"),
    ("in/S0", "in/S_bar"),
    ("in/S0",),
    ("in/A0", "in/A_bar"),
    ("in/A0",),
    ("in/z0",),
    ("in/M0", "in/M_bar"),
    ("in/M_bar",),
    ("in/M0",),
    ("in/active",),
    ("in/reset",),
    ("in/retain", "in/log_retain"),
    ("in/erase_read", "in/erase_write", "in/erase_scale"),
    ("in/erase_scale",),
    ("in/gate_log_rate",),
    ("in/gate_bias",),
    ("in/bonus",),
    ("in/y_bar", "in/M_bar"),
)

#: Parameters that count heads and rows -> the axis that is cut with them.
COUNTS = {"groups": "V", "steps": "R", "query_groups": "Q"}


def settings(case: Case) -> Iterator[Candidate | None]:
    """A plainer member, one step and one group, parameters at their defaults, plainer gates."""
    own, given = parse(case.header), case.header.plain().get("parameters", {})
    last = PLAINER.index(own.member) if own.member in PLAINER else len(PLAINER)
    for name in PLAINER[:last]:
        member = {} if name is None else {"member": name}
        yield _with(case, without(given, "member") | member, case.inputs)
    for key, label in COUNTS.items():
        count, places = getattr(own, key), size(tensors.axes(case), case.inputs, label)
        apart = key != "steps" and own.group_order == "round_robin"
        turns = [i // (places // count) if apart else i % count for i in range(places)]
        prefixes = [range(n) for n in smaller(count)]
        for kept in [*prefixes, *(range(i, i + 1) for i in range(1, count))]:
            left = [i for i in range(places) if turns[i] in kept]
            yield SMALLER.cut(case, {label: left}, **{key: len(kept)})
    for key in given:
        if key not in ("member", *COUNTS, *formulas.MADE):
            yield _with(case, without(given, key), case.inputs)
    yield from _gates(case, own)


def _gates(case: Case, own: Parameters) -> Iterator[Candidate | None]:
    """One gate or rate for all channels; gates and step sizes that were made; no log."""
    x, given = case.inputs, case.header.plain().get("parameters", {})
    rates = ("in/beta", "in/beta_input") if own.of.erase in ("error", "momentum") else ()
    for name in ("in/retain", "in/log_retain", *rates):
        if name in x and x[name].ndim == x["in/v"].ndim:
            yield _with(case, given, {**x, name: x[name][..., 0]})
    for key, made in formulas.MADE.items():
        if key not in given:
            continue
        alone = own.replaced(**(dict.fromkeys(formulas.MADE) | {key: given[key]}))
        wide = {n: each.astype(float) for n, each in x.items() if n in (*made.raw, "in/v")}
        value = formulas.apply(alone, wide)[made.name].astype(x[made.raw[0]].dtype)
        left = without(given, key, *made.settings)
        yield _with(case, left, {**without(x, *made.raw), made.name: value})
    if "in/gate_input" in x and x["in/gate_input"].ndim == x["in/v"].ndim:
        yield _with(case, given, formulas.of_tokens(x))
    if (log := x.get("in/log_retain")) is not None:
        gates = np.exp(log.astype(float)).astype(log.dtype)
        yield _with(case, given, {**without(x, "in/log_retain"), "in/retain": gates})


def _with(case: Case, own: Mapping[str, Any], inputs: Mapping[str, Any]) -> Candidate | None:
    """The case with these parameters and inputs."""
    return fit(case, moves.fields(case, parameters=dict(own)), inputs)


def fit(case: Case, fields: dict[str, Any], inputs: Mapping[str, Any]) -> Candidate | None:
    """Tensors that a header has, in its layout; None where it needs another, or is none."""
    given = {
        key: x for key, x in fields.get("parameters", {}).items() if x != 1 or key not in COUNTS
    }
    fields = moves.fields(case, **fields | {"parameters": given})
    try:
        own = parse(header_of(case, fields))
    except ValueError:
        return None
    needed, free = tensors.names(own)
    if not needed <= inputs.keys():
        return None
    found = {name: x for name, x in inputs.items() if name in needed | free}
    if own.state_layout != parse(case.header).state_layout:
        found = moves.in_layout(program.PROGRAM, found)
    return Candidate(fields, found)


def follow(case: Case, places: moves.Places) -> moves.Places:
    """Value heads with their key heads, query heads with theirs (DPLRCASE-26, DPLRCASE-29)."""
    own, found = parse(case.header), dict(places)
    heads, queries = (size(tensors.axes(case), case.inputs, label) for label in "HQ")
    blocks = own.group_order == "blocks"
    if "H" in found:
        keep, groups = found["H"], range(own.groups)
        by_head = [h * own.groups + j for h in keep for j in groups]
        found["V"] = by_head if blocks else [j * heads + h for j in groups for h in keep]
    if "V" in found and own.query_groups > 1:
        states, turns = own.states(queries), range(own.query_groups)
        each = {v: [j for j in range(queries) if states[j] == v] for v in found["V"]}
        by_head = [j for v in found["V"] for j in each[v]]
        found["Q"] = by_head if blocks else [each[v][i] for i in turns for v in found["V"]]
    return found


SMALLER = moves.Smaller(tensors.axes, lambda case: OPTIONAL, (settings,), fit, follow)

#: All of them, in the order of SWEEP-7.
MOVES = moves.of(SMALLER)
