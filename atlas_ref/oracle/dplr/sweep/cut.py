"""Smaller cases of rule dplr: fewer tokens, settings, tensors, heads and channels (SWEEP-16).

The axes of a tensor are read off the shapes that the rule wants of it, so that a tensor of a new
member is cut without a table of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.dplr import formulas, tensors
from atlas_ref.oracle.dplr.parameters import Parameters, parse
from atlas_ref.oracle.drawing import Arrays, Candidate, Move, fewer, header_of, smaller, without

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


#: Parameters that count rows and heads, which are cut with them.
COUNTS = ("groups", "steps", "query_groups")

#: Tensors that lie in the layout of the case.
MEMORIES = ("in/M0", "in/M_bar", "in/S0", "in/S_bar")


class _Shape(NamedTuple):
    """A tensor that has a shape and nothing else."""

    shape: tuple[int, ...]


def tokens(case: Case) -> Iterator[Candidate]:
    """The first token, halves, then all but one token."""
    for keep in fewer(_size(case, "T")):
        yield _cut(case, {"T": keep})


def settings(case: Case) -> Iterator[Candidate | None]:
    """A plainer member, one step and one group, parameters at their defaults, plainer gates."""
    header, own = case.header.plain(), parse(case.header)
    given = header.get("parameters", {})
    if "note" in header:
        yield Candidate(without(header, "note"), dict(case.inputs))
    yield from _members(case, own, given)
    for key, label in (("groups", "V"), ("steps", "R"), ("query_groups", "Q")):
        count = getattr(own, key)
        if count == 1:  # there may be no axis of heads at all
            continue
        apart = key != "steps" and own.group_order == "round_robin"
        size = _size(case, label)
        turns = [i // (size // count) if apart else i % count for i in range(size)]
        prefixes = [range(fewer_each) for fewer_each in smaller(count)]
        for kept in [*prefixes, *(range(i, i + 1) for i in range(1, count))]:
            places = [i for i in range(size) if turns[i] in kept]
            yield _cut(case, {label: places}, **{key: len(kept)})
    for key in given:
        if key not in ("member", *COUNTS, "gate_formula", "beta_formula"):
            yield _without(case, key)
    for name in ("in/retain", "in/log_retain"):
        if name in case.inputs and case.inputs[name].ndim == case.inputs["in/v"].ndim:
            scalar = {**case.inputs, name: case.inputs[name][..., 0]}
            yield Candidate(header, scalar)
    for name in ("in/beta", "in/beta_input"):
        if name in case.inputs and own.of.erase in ("error", "momentum"):
            rate = case.inputs[name]
            if rate.ndim == case.inputs["in/v"].ndim:
                yield Candidate(header, {**case.inputs, name: rate[..., 0]})
    yield from _give(case, own, given)
    raw = case.inputs.get("in/gate_input")
    if raw is not None and raw.ndim == case.inputs["in/v"].ndim:
        yield Candidate(header, formulas.of_tokens(case.inputs))
    if "in/log_retain" in case.inputs:
        left, log = dict(case.inputs), case.inputs["in/log_retain"]
        del left["in/log_retain"]
        yield Candidate(header, {**left, "in/retain": np.exp(log.astype(float)).astype(log.dtype)})


def optional(case: Case) -> Iterator[Candidate]:
    """Without some tensors that a case may lack."""
    for names in OPTIONAL:
        left = without(case.inputs, *names)
        if len(left) < len(case.inputs):
            yield Candidate(case.header.plain(), left)


def heads(case: Case) -> Iterator[Candidate]:
    """One row of a batch, one key head with its value heads; no such axis where there is one."""
    axes = _axes(parse(case.header), case.inputs)
    lead = axes["in/v"][:-2]
    for label in (*lead[:-1], "H") if lead else ():
        for keep in fewer(_size(case, label)):
            yield _cut(case, {label: keep})
    if lead and len(case.inputs["in/v"]) == 1 and parse(case.header).query_groups == 1:
        first = {"V", "H"} if lead[0] == "V" else {lead[0]}
        found = {
            name: x[0] if first & set(axes[name][:1]) else x for name, x in case.inputs.items()
        }
        yield Candidate(case.header.plain(), found)


def widths(case: Case) -> Iterator[Candidate]:
    """Fewer channels of values, of keys, or of both."""
    d_out, d_in = _size(case, "d_out"), _size(case, "d_in")
    for keep in fewer(d_out):
        yield _cut(case, {"d_out": keep})
    for keep in fewer(d_in):
        yield _cut(case, {"d_in": keep})
    for size in smaller(min(d_in, d_out)):
        yield _cut(case, {"d_in": range(size), "d_out": range(size)})


#: All of them, in the order of SWEEP-7.
MOVES: tuple[Move, ...] = (tokens, settings, optional, heads, widths, tokens)


# -- parts -----------------------------------------------------------------------------------------


def _members(case: Case, own: Parameters, given: Mapping[str, Any]) -> Iterator[Candidate | None]:
    """The case of a plainer member, without tensors that this one does not have."""
    last = PLAINER.index(own.member) if own.member in PLAINER else len(PLAINER)
    for name in PLAINER[:last]:
        member = {} if name is None else {"member": name}
        changed = without(given, "member") | member
        needed, free = tensors.names(Parameters(**changed))
        if needed <= case.inputs.keys():
            kept = {each: x for each, x in case.inputs.items() if each in needed | free}
            yield Candidate(_with(case, changed), kept)


def _give(case: Case, own: Parameters, given: Mapping[str, Any]) -> Iterator[Candidate]:
    """The case with its gates, or its step sizes, as their formula makes them."""
    for key, made in formulas.MADE.items():
        if key not in given:
            continue
        alone = own.replaced(**(dict.fromkeys(formulas.MADE) | {key: given[key]}))
        wide = {n: x.astype(float) for n, x in case.inputs.items() if n in (*made.raw, "in/v")}
        value, kind = formulas.apply(alone, wide)[made.name], case.inputs[made.raw[0]].dtype
        left = without(case.inputs, *made.raw)
        settings = _with(case, without(given, key, *made.settings))
        yield Candidate(settings, {**left, made.name: value.astype(kind)})


def _with(case: Case, given: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of the header with these parameters."""
    left = without(case.header.plain(), "parameters")
    return left | ({"parameters": dict(given)} if given else {})


def _without(case: Case, *names: str) -> Candidate:
    """The case with parameters at their defaults, its memories in the layout of then."""
    fields = _with(case, without(case.header.plain().get("parameters", {}), *names))
    turned = parse(header_of(case, fields)).state_layout != parse(case.header).state_layout
    found = {
        name: x.swapaxes(-1, -2) if turned and name in MEMORIES else x
        for name, x in case.inputs.items()
    }
    return Candidate(fields, found)


def _cut(case: Case, places: dict[str, Sequence[int]], **changed: int) -> Candidate:
    """The case with some places of named axes alone; what follows an axis is cut with it."""
    own = parse(case.header)
    if "T" in places:
        places = {**places, "R": [t * own.steps + j for t in places["T"] for j in range(own.steps)]}
    if "H" in places:
        groups, heads = range(own.groups), _size(case, "H")
        blocks = [h * own.groups + j for h in places["H"] for j in groups]
        robin = [j * heads + h for j in groups for h in places["H"]]
        places = {**places, "V": blocks if own.group_order == "blocks" else robin}
    if "V" in places and own.query_groups > 1:
        states = own.states(_size(case, "Q"))
        each = {v: [j for j in range(len(states)) if states[j] == v] for v in places["V"]}
        blocks = [j for v in places["V"] for j in each[v]]
        robin = [each[v][i] for i in range(own.query_groups) for v in places["V"]]
        places = {**places, "Q": blocks if own.group_order == "blocks" else robin}
    axes, found = _axes(own, case.inputs), {}
    for name, x in case.inputs.items():
        for axis, label in enumerate(axes[name]):
            if label in places:
                x = np.take(x, list(places[label]), axis=axis)
        found[name] = x
    given = case.header.plain().get("parameters", {})
    kept = {key: value for key, value in (given | changed).items() if changed.get(key) != 1}
    return Candidate(_with(case, kept), found)


def _size(case: Case, label: str) -> int:
    """Places of a named axis."""
    axes = _axes(parse(case.header), case.inputs)
    sizes = (x.shape[axes[n].index(label)] for n, x in case.inputs.items() if label in axes[n])
    return int(next(sizes))


def _axes(own: Parameters, inputs: Arrays) -> dict[str, tuple[str, ...]]:
    """Names of the axes of every input.

    B0, B1 of a batch, Q query heads, V value heads, H key heads, R rows, T tokens, d_in, d_out.

    The shapes that the rule wants are asked for with sizes that no two axes share.
    """
    lead = tuple(range(211, 211 + len(inputs["in/v"].shape) - 2))
    H, T, d_in, d_out = 101, 103, 107, 109
    front = () if not lead else (*lead[:-1], H * own.groups)
    key_front = () if not lead else (*lead[:-1], H)
    sizes = {
        "in/k": _Shape((*key_front, T * own.steps, d_in)),
        "in/v": _Shape((*front, T * own.steps, d_out)),
    }
    raw = inputs.get("in/gate_input")
    if raw is not None:  # whose axes say whether a bias has channels
        channels = (d_in,) if raw.ndim == inputs["in/v"].ndim else ()
        sizes["in/gate_input"] = _Shape((*front, T, *channels))
    labels = {H * own.groups * own.query_groups: "Q"} if own.query_groups > 1 else {}
    labels |= {H * own.groups: "V", H: "H", T * own.steps: "R", T: "T"}
    labels |= {d_in: "d_in", d_out: "d_out"}
    labels |= {size: f"B{i}" for i, size in enumerate(lead[:-1])}
    found = {}
    for name, shapes in tensors.shapes(own, sizes).items():
        if name in inputs:
            of_rank = (each for each in shapes if len(each) == inputs[name].ndim)
            shape = next(of_rank, ())
            found[name] = tuple(labels.get(size, "") for size in shape)
    return found


__all__ = ["MOVES", "heads", "optional", "settings", "tokens", "widths"]
