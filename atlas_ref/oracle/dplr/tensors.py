"""Tensors of a case of rule dplr: names, shapes, ranges, and when each is needed (DPLRCASE-4)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.tensor_spec import Tensor
from atlas_ref.oracle.cases.values import (
    check_entries,
    check_log,
    check_values,
    key_heads,
    refuse_unknown,
)
from atlas_ref.oracle.dplr import formulas, parameters
from atlas_ref.oracle.dplr.members import MADE_OF, NEEDS, POSITIVE, SECOND
from atlas_ref.oracle.dplr.parameters import Parameters
from atlas_ref.oracle.drawing import Shape, events, leading
from atlas_ref.parts.rows import mask_shapes
from atlas_ref.types import Array

#: Axes and range of every input; R = T steps, H and G of the leading axes count heads.
TENSORS: dict[str, Tensor] = {
    "in/k": Tensor("... R d_in"),
    "in/v": Tensor("... R d_out"),
    "in/q": Tensor("... T d_in"),
    "in/retain": Tensor("... T, or ... T d_in", "1", 0.0, 1.0),
    "in/log_retain": Tensor("... T, or ... T d_in", "in/retain", high=0.0),
    "in/gate_input": Tensor("... T, or ... T d_in", "by gate_formula", -1e6, 1e6),
    "in/gate_log_rate": Tensor("heads", "0", high=64.0),
    "in/gate_bias": Tensor("heads, or heads d_in", "0", -1e6, 1e6),
    "in/gate_floor": Tensor("heads, or heads d_in", "by gate_formula", 1e-30, 1.0),
    "in/erase_read": Tensor("... R d_in", "no erase"),
    "in/erase_write": Tensor("... R d_in", "no erase"),
    "in/erase_scale": Tensor("... R d_out", "1"),
    "in/eta": Tensor("... T", "by member"),
    "in/log_momentum": Tensor("... T", "by member", high=0.0),
    "in/beta": Tensor("... R, or ... R d_out; of iplr and dplr ... R d_in", "by member"),
    "in/beta_input": Tensor("... R, or ... R d_out", "by beta_formula", -1e6, 1e6),
    "in/erase_key": Tensor("... R d_in", "by member"),
    "in/alpha": Tensor("... R d_in", "by member"),
    "in/kk": Tensor("... R d_in", "by member"),
    "in/a": Tensor("... R d_in", "by member"),
    "in/log_retain_precond": Tensor("heads T", "by member", high=0.0),
    "in/beta_precond": Tensor("heads T", "by member", 0.0),
    "in/erase_gate": Tensor("... R d_in", "by member"),
    "in/write_gate": Tensor("... R d_out", "by member"),
    "in/bonus": Tensor("d_in, or heads d_in", "no read before the write"),
    "in/M0": Tensor("... d_out d_in", "0"),
    "in/S0": Tensor("... d_out d_in", "0"),
    "in/z0": Tensor("... d_in", "0"),
    "in/A0": Tensor("heads d_in", "0", 0.0),
    "in/active": Tensor("T, or rows T", "1", mask=True),
    "in/reset": Tensor("T, or rows T", "0", mask=True),
    "in/y_bar": Tensor("... T d_out", "no gradients"),
    "in/M_bar": Tensor("... d_out d_in", "0"),
    "in/S_bar": Tensor("... d_out d_in", "0"),
    "in/z_bar": Tensor("... d_in", "0"),
    "in/A_bar": Tensor("heads d_in", "0"),
}

Shapes = dict[str, tuple[tuple[int, ...], ...]]


#: Masks, of all rows or of each.
MASKS = ("in/active", "in/reset")


def names(own: Parameters) -> tuple[set[str], set[str]]:
    """Tensors that a case of these settings needs, and those that it may have (DPLRCASE-4)."""
    member = own.of
    needed = {"in/k", "in/v", "in/q", *NEEDS[member.erase], *MADE_OF.get(member.second, ())}
    if member.read != "in/k":
        needed.add(member.read)
    if own.member is not None and member.bonus:
        needed.add("in/bonus")
    free = {"in/M0", "in/active", "in/reset", "in/y_bar", "in/M_bar", *SECOND[member.second]}
    if member.gated is True:
        free |= {"in/retain", "in/log_retain"}
    if member.erase == "given":
        free |= {"in/erase_read", "in/erase_write", "in/erase_scale", "in/bonus"}
    return formulas.names(own, needed, free)


def shapes(own: Parameters, inputs: Mapping[str, Any]) -> Shapes:
    """The shapes that each tensor may have, from those of values and keys (DPLRCASE-4).

    Raises:
        ValueError: values or keys without the axes of tokens, or heads not in whole groups.
    """
    for name in ("in/v", "in/k"):
        if len(inputs[name].shape) < 2 or 0 in inputs[name].shape:
            raise ValueError(f"{name}: shape {inputs[name].shape}, axes (..., R, d) above 0 needed")
    *lead, rows, d_out = inputs["in/v"].shape
    d_in = inputs["in/k"].shape[-1]
    if rows % own.steps:
        raise ValueError(
            f"in/v: {rows} rows, expected whole tokens of parameters.steps = {own.steps}"
        )
    heads = key_heads(tuple(lead), own.groups)
    T, wide = rows // own.steps, (*lead, rows, d_in)
    if own.query_groups > 1 and not lead:
        raise ValueError(
            f"parameters.query_groups: {own.query_groups}, but in/v has no axis of heads"
        )
    reads = lead if own.query_groups == 1 else [*lead[:-1], lead[-1] * own.query_groups]
    queries = heads if own.query_groups == 1 else tuple(reads)
    memory = (*lead, d_out, d_in) if own.state_layout == "(d_out, d_in)" else (*lead, d_in, d_out)
    gates = ((*lead, T), (*lead, T, d_in))
    of_heads = tuple(tuple(lead[i:]) for i in range(len(lead) + 1))
    one = "in/gate_input" in inputs and len(inputs["in/gate_input"].shape) == len(lead) + 1
    biases = of_heads if one else tuple((*each, d_in) for each in of_heads)
    return {
        "in/k": ((*heads, rows, d_in),),
        "in/v": ((*lead, rows, d_out),),
        "in/q": ((*queries, T, d_in),),
        "in/retain": gates,
        "in/log_retain": gates,
        "in/gate_input": gates,
        "in/gate_log_rate": of_heads,
        **dict.fromkeys(("in/gate_bias", "in/gate_floor"), biases),
        "in/beta_input": _rates(own, wide, (*lead, rows, d_out)),
        "in/beta": _rates(own, wide, (*lead, rows, d_out)),
        "in/erase_scale": ((*lead, rows, d_out),),
        "in/write_gate": ((*lead, rows, d_out),),
        "in/bonus": tuple((*each, d_in) for each in of_heads),
        "in/M0": (memory,),
        "in/M_bar": (memory,),
        **dict.fromkeys(SECOND["S"], (memory,)),
        **dict.fromkeys(("in/eta", "in/log_momentum"), ((*lead, T),)),
        **dict.fromkeys(SECOND["z"], ((*lead, d_in),)),
        **dict.fromkeys(SECOND["A"], ((*heads, d_in),)),
        **dict.fromkeys(MADE_OF["A"], ((*heads, T),)),
        **dict.fromkeys(MASKS, mask_shapes(tuple(lead), T)),
        "in/y_bar": ((*reads, T, d_out),),
        **dict.fromkeys(("in/erase_read", "in/erase_write", "in/erase_key", "in/alpha"), (wide,)),
        **dict.fromkeys(("in/kk", "in/a", "in/erase_gate"), (wide,)),
    }


def _rates(own: Parameters, wide: tuple[int, ...], values: tuple[int, ...]) -> Any:
    """The shapes of in/beta: of key channels, of a row, or of a row and of each value."""
    if own.of.erase == "alpha":
        return (wide,)
    return (values[:-1],) if own.of.second == "S" else (values[:-1], values)


def axes(case: Case) -> dict[str, tuple[str, ...]]:
    """Names of the axes of each input (DPLRCASE-4).

    B0, B1 of a batch, Q query heads, V value heads, H key heads, R rows, T tokens, d_in, d_out. The
    shapes that the rule wants are asked for with sizes that no two axes share.
    """
    own, inputs = parameters.parse(case.header), case.inputs
    lead = tuple(range(211, 211 + inputs["in/v"].ndim - 2))
    H, T, d_in, d_out = 101, 103, 107, 109
    heads = ((*lead[:-1], H * each)[-len(lead) :] if lead else () for each in (1, own.groups))
    keys, values = heads
    sizes = {
        "in/k": Shape((*keys, T * own.steps, d_in)),
        "in/v": Shape((*values, T * own.steps, d_out)),
    }
    if "in/gate_input" in inputs:  # whose axes say whether a bias has channels
        wide = inputs["in/gate_input"].ndim == inputs["in/v"].ndim
        sizes["in/gate_input"] = Shape((*values, T, *((d_in,) if wide else ())))
    labels = {H * own.groups * own.query_groups: "Q", H * own.groups: "V", H: "H"}
    labels |= {T * own.steps: "R", T: "T", d_in: "d_in", d_out: "d_out"}
    labels |= {row: f"B{i}" for i, row in enumerate(lead[:-1])}
    wanted = shapes(own, sizes)
    of_rank = {n: [each for each in wanted[n] if len(each) == x.ndim] for n, x in inputs.items()}
    return {n: tuple(labels[place] for place in (*each, ())[0]) for n, each in of_rank.items()}


def axes_of(inputs: Mapping[str, Any]) -> dict[str, str]:
    """Axes of each of these inputs that has tokens or steps, as words."""
    rank = len(inputs["in/v"].shape)
    rows = {name for name in MASKS if name in inputs and len(inputs[name].shape) > 1}
    found = {name: "... T" if name in rows else "T" for name in MASKS}
    bare = {"in/bonus", "in/M0", "in/M_bar", *SECOND["z"], *SECOND["A"], *SECOND["S"]}
    bare |= set(formulas.BESIDE)
    for name in inputs.keys() - found.keys() - bare:
        of_tokens = name in ("in/q", "in/y_bar", *formulas.GATES, *MADE_OF["A"])
        behind = " d" if len(inputs[name].shape) == rank else ""
        found[name] = f"... {'T' if of_tokens else 'R'}{behind}"
    return found


def of_rows(inputs: Mapping[str, Any]) -> set[str]:
    """Inputs that each row of a batch has of its own: all but a bonus of few axes, and shared masks."""
    rank = len(inputs["in/v"].shape)
    least = {"in/bonus": rank - 1, **dict.fromkeys(MASKS, 2)}
    return {name for name, x in inputs.items() if len(x.shape) >= least.get(name, 1)}


def check_inputs(header: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs in order; refuse a missing, misnamed or misshapen one (DPLRCASE-4).

    Raises:
        ValueError: names the tensor, what was found and what is needed.
    """
    own = parameters.parse(header)
    _check_names(own, inputs)
    needed = shapes(own, inputs)
    for name, value in inputs.items():
        if tuple(value.shape) not in needed[name]:
            words = " or ".join(map(str, dict.fromkeys(needed[name])))
            raise ValueError(f"{name}: shape {tuple(value.shape)}, expected {words}")
        if name.startswith("in/log_"):
            check_log(name, value)
        else:
            check_values(name, value, TENSORS[name])
    if own.log_chunk is not None:
        _check_no_zero(own.log_chunk, inputs)
    if "in/bonus" in inputs and own.steps > 1:
        raise ValueError(f"in/bonus: a read before the write has one step, found {own.steps}")
    if own.of.second in ("A", "S") and own.steps > 1:
        raise ValueError(
            f"parameters.steps: {own.steps}, but {own.of.second} of member {own.member} moves once "
            "a token; 1 is needed"
        )
    return {name: inputs[name] for name in TENSORS if name in inputs}


def _check_names(own: Parameters, inputs: Mapping[str, Any]) -> None:
    needed, free = names(own)
    who = "rule dplr" if own.member is None else f"member {own.member}"
    for name in inputs:
        if name in formulas.RAW and name not in needed | free:
            key = "beta_formula" if name == "in/beta_input" else "gate_formula"
            found = getattr(own, key) or "none"
            raise ValueError(f"{name}: belongs to another parameters.{key}, found {found}")
    known = {name: each for name, each in TENSORS.items() if name in needed | free}
    refuse_unknown(inputs, known, {}, f"{who}; it has {', '.join(known)}")
    for name in TENSORS:
        if name in needed and name not in inputs:
            raise ValueError(f"{name}: missing, axes ({TENSORS[name].axes}) are needed for {who}")
    if {"in/retain", "in/log_retain"} <= inputs.keys():
        raise ValueError("in/log_retain: stands in place of in/retain, both are in the case")
    pair = [name in inputs for name in ("in/erase_read", "in/erase_write")]
    if pair[0] != pair[1]:
        absent = "in/erase_write" if pair[0] else "in/erase_read"
        raise ValueError(f"{absent}: missing, an erase has both of its vectors")
    if "in/erase_scale" in inputs and not pair[0]:
        raise ValueError("in/erase_scale: belongs to an erase, there is none")


def _check_no_zero(log_chunk: int, inputs: Mapping[str, Any]) -> None:
    """Refuse a gate of 0 where a program cumulates logs: such a program gives NaN (DPLRCASE-15)."""
    for name, zero in (("in/retain", 0.0), ("in/log_retain", -np.inf)):
        if name in inputs:
            must = f"must not be that of a gate of 0 under parameters.log_chunk = {log_chunk}"
            check_entries(name, inputs[name], inputs[name] == zero, must)


def numbers(header: Any, inputs: Mapping[str, Any]) -> int:
    """Numbers of the largest array: the memory or the tokens (CASE-2)."""
    k, v = inputs["in/k"].shape, inputs["in/v"].shape
    most: int = math.prod(v[:-2]) * max(k[-1] * v[-1], v[-2] * max(k[-1], v[-1]))
    return most * parameters.parse(header).query_groups


def draw(
    request: Any, header: Any, generator: Any, d_phi: int
) -> tuple[dict[str, Array], tuple[int, ...]]:
    """Random inputs where nothing grows, and the shape of the cotangent (DPLRCASE-7)."""
    own, lead = parameters.parse(header), leading(request, parameters.parse(header).groups)
    shape = (*lead[:-1], lead[-1] * own.query_groups, request.tokens, request.d_out)
    return rows(request, own, generator) | events(request), shape


def rows(request: Any, own: Parameters, generator: Any) -> dict[str, Array]:
    """Random rows of tokens and their steps where nothing grows."""
    T, n = request.tokens, own.steps
    lead = leading(request, own.groups)
    sizes = {
        "in/k": np.empty((*leading(request), T * n, request.d_in)),
        "in/v": np.empty((*lead, T * n, request.d_out)),
    }
    made, needed = shapes(own, sizes), names(own)[0]
    if own.of.erase == "given":
        needed |= {"in/erase_read", "in/erase_write"}
    tensors: dict[str, Array] = {}
    for name in (each for each in TENSORS if each in needed):
        x = generator.standard_normal(made[name][-1 if name == "in/bonus" else 0])
        x = np.abs(x) if own.of.second == "z" and name != "in/v" else x
        tensors[name] = x if name in ("in/v", "in/q") else x / np.sqrt(request.d_in)
    if own.gate_formula is not None or own.beta_formula is not None:
        tensors |= formulas.draw(own, made, generator)
    if own.of.gated is True and own.gate_formula is None:
        tensors["in/retain"] = generator.uniform(0.8, 1.0, made["in/retain"][1])
    tensors = _with_gate(request, own, tensors)
    if own.of.second == "A":
        shape = made["in/beta_precond"][0]
        tensors["in/log_retain_precond"] = np.log(generator.uniform(0.8, 1.0, shape))
        tensors["in/beta_precond"] = generator.uniform(0.1, 0.9, shape)
    if own.of.second == "S":
        tensors["in/log_momentum"] = np.log(generator.uniform(0.3, 0.8, made["in/eta"][0]))
        tensors["in/eta"] = generator.uniform(0.1, 0.5, made["in/eta"][0])
    if own.of.erase in ("error", "momentum") and own.beta_formula is None:
        tensors["in/beta"] = generator.uniform(0.1, 0.9, made["in/beta"][0])
    return tensors


def _with_gate(request: Any, own: Parameters, tensors: dict[str, Array]) -> dict[str, Array]:
    """The tensors with the gate that was asked for, or that the member's code has (DPLRCASE-20).

    Gates are drawn for channels; one of a head is that of the first, so that no other tensor moves.

    Raises:
        ValueError: a gate or its log where there is none to choose.
    """
    who = "rule dplr" if own.member is None else f"member {own.member}"
    if own.of.gated is not True:
        for name, asked in (("gate", request.gate), ("log", request.log)):
            if asked is not None:
                raise ValueError(f"{name}: {who} has no tensor of gates")
        return tensors
    usual = own.of.gate if request.draw > 1 else "channel"
    head = (request.gate or usual) == "head"
    if own.gate_formula is not None:
        if request.log is not None:
            raise ValueError(f"log: parameters.gate_formula {own.gate_formula} makes the log")
        return formulas.of_tokens(tensors) if head else tensors
    gates = tensors.pop("in/retain")
    gates = gates[..., 0] if head else gates
    log = usual == "head" if request.log is None else request.log
    return {**tensors, **({"in/log_retain": np.log(gates)} if log else {"in/retain": gates})}


def states(
    request: Any, header: Any, inputs: Mapping[str, Array], generator: Any
) -> dict[str, Array]:
    """States before the first token, and cotangents of those after the last (DPLRCASE-21)."""
    own = parameters.parse(header)
    needed, found = shapes(own, inputs), dict[str, Array]()
    for first, bar in (("in/M0", "in/M_bar"), *filter(None, (SECOND[own.of.second],))):
        shape = needed[first][0]
        drawn = 0.3 * generator.standard_normal(shape)
        found[first] = np.abs(drawn) if first in POSITIVE else drawn
        found[bar] = generator.standard_normal(shape)
    return found
