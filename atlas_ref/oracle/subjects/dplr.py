"""The subject dplr: a memory of diagonal plus low rank, and the members of its family.

Specified in specs/dplr_cases.md (DPLRCASE-1, DPLRCASE-5).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from atlas_ref import backend
from atlas_ref.forms import dplr as forms
from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.tensor_spec import masks
from atlas_ref.oracle.dplr import formulas, masked, members, parameters, program, tensors
from atlas_ref.oracle.dplr.draw import DRAWING
from atlas_ref.oracle.dplr.parameters import Parameters
from atlas_ref.oracle.dplr.readings import overflow
from atlas_ref.oracle.drawing import along_tokens
from atlas_ref.oracle.program.derive import ops as traces
from atlas_ref.oracle.program.derive.readings import search
from atlas_ref.oracle.subjects.base.calls import Calls
from atlas_ref.oracle.subjects.base.search import READINGS
from atlas_ref.oracle.subjects.subject import Subject
from atlas_ref.parts.norms import normalised
from atlas_ref.rules import dplr, momentum_delta, normalised_reads, preconditioned_keys
from atlas_ref.types import Array
from tape import ops

NAMES = "|".join(
    n[3:] for n in tensors.TENSORS if n[3:] not in ("active", "reset") and not n.endswith("_bar")
)
RESULTS = re.compile(rf"out/(y|M|S|z|A)|grad/({NAMES})")
STATE = re.compile("out/(M|S|z|A)")

#: Tokens that chunks of public kernels have.
CHUNKS = (16, 32, 64, 128)

CLAUSES = {
    "out/y": "DPLR-5",
    "out/M": "DPLR-2",
    "out/z": "DPLR-19",
    "out/A": "DPLR-20",
    "out/S": "DPLR-21",
}


def _evaluate(
    inputs: Mapping[str, Array], case: Case, form: str, chunk: int | None
) -> tuple[dict[str, Array], None]:
    own = parameters.parse(case.header)
    x = formulas.apply(own, inputs)
    call = partial(_call, own, form=form, chunk=chunk)
    return masked.run(own, x, tensors.axes_of(x), call), None


def _call(
    own: Parameters, inputs: dict[str, Array], *, form: str, chunk: int | None
) -> dict[str, Array]:
    """Results of given gates and step sizes, a masked token reading the memory (DPLR-7)."""
    x = dict(inputs)
    for name in ("in/k", "in/q"):
        x[name] = _norm(own, name, x[name])
    x = masked.quiet(own, x)
    seconds: dict[str, Array] = {}
    if own.of.second == "A":
        x[members.WRITTEN], seconds["out/A"] = _precondition(x)
    if own.group_order == "round_robin" or own.query_groups > 1:
        own, x = _of_value_heads(own, x)
    if own.query_groups > 1:
        return _read_by_groups(own, x, form, chunk) | seconds
    return _read_by_one(own, x, form, chunk) | seconds


def _read_by_groups(
    own: Parameters, x: dict[str, Array], form: str, chunk: int | None
) -> dict[str, Array]:
    """Results with several query heads a memory: a run for each of them (DPLRCASE-29)."""
    heads = own.states(x["in/q"].shape[-3])
    by_state = [np.flatnonzero(heads == v) for v in range(x["in/v"].shape[-3])]
    runs = []
    for i in range(own.query_groups):
        heads_of = np.array([each[i] for each in by_state])
        q = ops.index(x["in/q"], (..., heads_of, slice(None), slice(None)))
        runs.append(_read_by_one(own, {**x, "in/q": q}, form, chunk))
    y = ops.concatenate([run["out/y"] for run in runs], axis=-3)
    place = np.argsort([each[i] for i in range(own.query_groups) for each in by_state])
    return {**runs[0], "out/y": ops.index(y, (..., place, slice(None), slice(None)))}


def _read_by_one(
    own: Parameters, x: dict[str, Array], form: str, chunk: int | None
) -> dict[str, Array]:
    """Results of tokens with one query for each memory or key head."""
    member = own.of
    fields = members.tokens(member, x, lambda z: dplr.of_groups(z, own.groups))
    for name in ("k", "q", "retain", "log_retain", "bonus"):
        if f"in/{name}" in x:
            fields[name] = x[f"in/{name}"]
    fields["k"] = x.get(members.WRITTEN, x["in/k"])
    if member.second == "S":
        return _with_momentum(own, x)
    if member.gated == "heads" and "retain" not in fields:
        fields["retain"] = members.of_heads(x["in/v"], x["in/q"].shape[-2])
    fields |= masks(x)
    config, tokens = _config(own, x), dplr.Tokens(**fields)
    run = partial(_run, form, chunk)
    if member.second == "z":
        first = _with_sum(own, config, x)
        after, y = normalised_reads.run(config, tokens, first, run=run)
        return {"out/y": y, "out/M": _turn(own, after.M), "out/z": after.z}
    last, y = run(config, tokens, _start(own, config, x))
    return {"out/y": y, "out/M": _turn(own, last.M)}


def _of_value_heads(own: Parameters, x: dict[str, Array]) -> tuple[Parameters, dict[str, Array]]:
    """Keys and queries of each value head (DPLR-6, DPLRCASE-26); queries of their own heads stay."""
    wide = dict(x)
    queries = ("in/q",) if own.query_groups == 1 else ()
    for name in ("in/k", *queries, members.WRITTEN) if own.groups > 1 else ():
        if name in x and own.group_order == "blocks":
            wide[name] = dplr.of_groups(x[name], own.groups)
        elif name in x:
            *lead, heads, rows, d = x[name].shape
            each = ops.expand_dims(x[name], -4)
            each = ops.broadcast_to(each, (*lead, own.groups, heads, rows, d))
            wide[name] = ops.reshape(each, (*lead, own.groups * heads, rows, d))
    return own.replaced(groups=1), wide


def _norm(own: Parameters, name: str, x: Array) -> Array:
    """Keys or queries under the norm in force (DPLRCASE-2)."""
    if own.norm(name) == "none":
        return x
    if own.of.floor:
        return normalised(x, "l2", eps=own.of.floor, guard="clamp")
    square = ops.sum(x * x, axis=-1, keepdims=True)
    return x / ops.sqrt(square + own.norm_eps)


def _with_momentum(own: Parameters, x: Mapping[str, Array]) -> dict[str, Array]:
    """Results of momentum_delta, which has a rule of its own (DPLR-21)."""
    config = _config(own, x)
    names = ("k", "v", "q", "retain", "log_retain", "log_momentum")
    fields = {name: x[f"in/{name}"] for name in names if f"in/{name}" in x}
    fields |= {"p": x["in/erase_key"], "step_size": x["in/eta"], "step_size_memory": x["in/beta"]}
    M = _start(own, config, x).M
    S = _turn(own, x["in/S0"]) if "in/S0" in x else ops.zeros_like(M)
    tokens = momentum_delta.Tokens(**fields, **masks(x))
    after, y = momentum_delta.run(config, tokens, momentum_delta.State(M=M, S=S))
    return {"out/y": y, "out/M": _turn(own, after.M), "out/S": _turn(own, after.S)}


def _precondition(x: Mapping[str, Array]) -> tuple[Array, Array]:
    """Preconditioned keys of key heads, and A after the last of them (DPLR-20)."""
    k = x["in/k"]
    logs, rates = x["in/log_retain_precond"], x["in/beta_precond"]
    tokens = preconditioned_keys.Tokens(k=k, log_retain=logs, step_size=rates, **masks(x))
    zeros = ops.zeros_like(k, shape=(*k.shape[:-2], k.shape[-1]))
    keys = preconditioned_keys.run(tokens, preconditioned_keys.State(A=x.get("in/A0", zeros)))
    return keys.p, keys.state.A


def _run(
    form: str, chunk: int | None, config: dplr.Config, tokens: dplr.Tokens, state: dplr.State
) -> tuple[dplr.State, Array]:
    """The rule in a form."""
    return forms.run(form, config, tokens, state, chunk)


def _with_sum(
    own: Parameters, config: dplr.Config, x: Mapping[str, Array]
) -> normalised_reads.State:
    """The state of normalised reads before the first token (DPLR-19)."""
    M = _start(own, config, x).M
    z = x.get("in/z0")
    zeros = ops.zeros_like(M, shape=(*M.shape[:-2], config.d_in))
    return normalised_reads.State(M=M, z=zeros if z is None else z)


def _config(own: Parameters, x: Mapping[str, Array]) -> dplr.Config:
    sizes = {"d_in": x["in/k"].shape[-1], "d_out": x["in/v"].shape[-1]}
    return dplr.Config(
        **sizes, steps=own.steps, groups=own.groups, decay=own.order, query_scale=own.scale
    )


def _start(own: Parameters, config: dplr.Config, x: Mapping[str, Array]) -> dplr.State:
    if "in/M0" in x:
        return dplr.State(M=_turn(own, x["in/M0"]))
    v = x["in/v"]
    with backend.used(backend.of(*x.values()).name):  # where a first state is made
        return dplr.start(config, v.shape[:-2], dtype=v.dtype)


def _turn(own: Parameters, M: Array) -> Array:
    """A memory from the layout of the case to that of the rule, or back."""
    return M if own.state_layout == "(d_out, d_in)" else M.swapaxes(-1, -2)


def clause(header: Any, name: str) -> str:
    """The clause about a result (DPLRCASE-5)."""
    return "DPLR-10" if name.startswith("grad/") else CLAUSES.get(name, "")


def _void(case: Case) -> dict[str, str]:
    """Parameters without effect, each with its reason (DPLRCASE-5)."""
    own, inputs, reasons = parameters.parse(case.header), case.inputs, {}
    erases = own.of.erase not in ("none", "given") or "in/erase_read" in inputs
    gated = own.of.gated == "heads" or set(formulas.GATES) & inputs.keys()
    if own.decay is not None and not (erases and gated):
        reasons["parameters.decay"] = "nothing is erased" if gated else "nothing decays"
    if own.norm_eps != 1e-6 and own.norm("in/k") == own.norm("in/q") == "none":
        reasons["parameters.norm_eps"] = "there is no norm"
    if own.group_order != "blocks" and not own.has_order(inputs):
        reasons["parameters.group_order"] = "all value heads have one key head, or each its own"
    if own.masked_read != "memory" and np.all(inputs.get("in/active", 1)):
        reasons["parameters.masked_read"] = "no token is masked"
    if own.log_chunk is not None and not set(formulas.GATES) & inputs.keys():
        reasons["parameters.log_chunk"] = "there is no tensor of gates"
    elif own.norm_eps != 1e-6 and own.of.floor:
        reasons["parameters.norm_eps"] = f"the norm has the floor {own.of.floor:g} instead"
    return reasons


def _check_form(case: Case, form: str, chunk: int | None) -> None:
    """Refuse a form that does not compute the case (DPLRCASE-13).

    Raises:
        ValueError: names the form, the reason, and the form to use instead.
    """
    own = parameters.parse(case.header)
    if own.of.second == "S" and form in forms.FORMS and form != "sequential":
        raise ValueError(
            f"form: {form} computes no momentum, which member {own.member} has; use sequential"
        )
    forms.check(form, chunk, by_row=members.by_row(own.of, case.inputs))


def _undeclared_chunks(case: Case) -> list[dict[str, Any]]:
    """Chunks over which a program may cumulate logs of the case's gates (DPLRCASE-23)."""
    own = parameters.parse(case.header)
    given = set(formulas.GATES) & case.inputs.keys()
    return [{"log_chunk": n} for n in CHUNKS] if given and own.log_chunk is None else []


def _features(case: Case) -> set[str]:
    """Names of the features of SRC-21 that a case has (DPLRCASE-5)."""
    k, v = (case.inputs[name].shape for name in ("in/k", "in/v"))
    has = {
        "pulse": "in/active" in case.inputs,
        "reset": "in/reset" in case.inputs,
        "heads": len(v) > 2 and v[-3] > 1,
        "rectangular": k[-1] != v[-1],
        "state": bool({"in/M0", "in/S0", "in/z0", "in/A0"} & case.inputs.keys()),
    }
    return {name for name, value in has.items() if value}


SUBJECT = Subject(
    name="dplr",
    cotangent="in/y_bar",
    clauses={"out": "DPLR-2", "grad": "DPLR-10", "trace_grad": "DPLR-10"},
    evaluate=_evaluate,
    plain=program.run,
    draw=tensors.draw,
    draw_states=tensors.states,
    instead="atlas-ref eval, check, replay, tolerance, identify, sweep and certify do",
    is_memory=True,
    has_parameters=True,
    check_header=parameters.check_header,
    checked=tensors.check_inputs,
    clause=clause,
    void=_void,
    numbers=tensors.numbers,
    results=RESULTS,
    measured=True,  # beyond 1e-12 in float64 (DPLRCASE-6)
    states=STATE,
    state_dtype=lambda header: parameters.parse(header).state_dtype,
    undeclared=_undeclared_chunks,
    features=_features,
    drawing=DRAWING,
    drawn=("gate", "log", "padded"),
    check_form=_check_form,
    search=READINGS,
    searched=search(program.program_and_parameters, "dplr", overflow.words),
    tried_forms=tuple(forms.FORMS),
    traced=traces.trace(program.program_and_parameters, lambda case: "in/q"),
    calls=Calls(
        cut=partial(along_tokens, tensors.axes),
        left=lambda name: masked.LEFT.get(name, ""),
        begins=lambda name: name in masked.LEFT.values(),
        returns=True,
        blank=lambda name: "",
    ),
)
