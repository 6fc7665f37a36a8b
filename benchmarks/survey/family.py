"""The member of rule dplr behind each PyTorch reference of the linear family.

Each is asked one drawn case of the member that its adapter names, from a first memory where it takes
one, with cotangents of all that it returns, in float32. `check` compares values and gradients with
ours; `identify` searches the settings and mistakes of DPLRCASE-9 and DPLRCASE-10 without looking at
the adapter's.
"""

from __future__ import annotations

import functools
import json
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case, make
from atlas_ref.oracle.cases.inputs import round_inputs
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.identify.identify import identify
from atlas_ref.oracle.identify.stated import setting
from atlas_ref.oracle.judge.compare import check
from atlas_ref.oracle.sources.sources import respond
from benchmarks.survey.catalogue import helper, version

ADAPTER, D_IN, D_OUT, TOKENS, HEADS, SEED = "of_linear_family", 5, 4, 8, 2, 11
DTYPE = "float32"
#: Factor of every second key and query where they are normed.
SHORT = 0.01


def references() -> dict[str, Any]:
    """Every reference of the adapter by its name, in the order of the table."""
    adapter = helper(ADAPTER)
    return {name: getattr(adapter, name) for name in adapter.NAMES}


def drawn(reference: Any) -> Case:
    """A case of its member: shared keys, several steps and a first memory where it takes them."""
    how, taken = reference.how, set(reference.arguments.values())
    own: dict[str, Any] = {"member": reference.member, **how.get("settings", {})}
    own |= {"groups": 2} if how.get("grouped") else {}
    own |= {"steps": 2} if "steps" in taken else {}
    tokens = TOKENS if "chunk" in how else TOKENS + 1  # a last chunk that is not full
    sizes: dict[str, Any] = {
        "tokens": tokens,
        "d_in": D_IN,
        "d_out": D_OUT,
        "heads": HEADS,
        "seed": SEED,
    }
    cotangent = bool(how.get("backward", True))
    case = new(Request(rule="dplr", parameters=own, cotangent=cotangent, draw=1, **sizes))
    inputs = dict(case.inputs)
    if not how.get("channels", True):
        inputs["in/retain"] = inputs["in/retain"][..., 0]
    if how.get("options", {}).get("use_qk_l2norm_in_kernel"):
        for name in ("in/k", "in/q"):  # short vectors, which show the eps of a norm
            inputs[name] = inputs[name] * np.where(np.arange(tokens) % 2, SHORT, 1.0)[:, None]
    draw = np.random.Generator(np.random.Philox(SEED))
    shape = (*inputs["in/v"].shape[:-2], D_OUT, D_IN)
    if "M0" in taken:
        inputs["in/M0"] = draw.standard_normal(shape)
    if cotangent and how.get("returns_state", True):
        inputs["in/M_bar"] = draw.standard_normal(shape)
    return make(case.header.plain(), inputs, name="drawn")


@functools.cache
def found() -> dict[str, Any]:
    """A row for every reference, as JSON can hold them."""
    sizes = {"tokens": [TOKENS, TOKENS + 1], "d_in": D_IN, "d_out": D_OUT, "heads": HEADS}
    sizes["chunk"] = helper(ADAPTER).CHUNK
    return {**sizes, "found": [row(name, each) for name, each in references().items()]}


def row(name: str, reference: Any) -> dict[str, Any]:
    """What one reference was found to compute."""
    said = {
        "function": f"{ADAPTER}:{name}",
        "label": reference.label,
        "package": reference.package,
        "version": version(reference.package),
        "source": reference.source,
        "member": reference.member,
        "note": reference.note,
    }
    if not said["version"]:
        return said | {"missing": f"{reference.package} is not installed (extra bench)"}
    case = round_inputs(drawn(reference), DTYPE)
    rows = check(case, source=functools.partial(respond, reference), dtype=DTYPE)
    counts = {
        kind: [sum(each.verdict == "PASS" for each in part), len(part)]
        for kind, start in (("values", "out/"), ("gradients", "grad/"))
        if (part := [each for each in rows if each.tensor.startswith(start)]) or kind == "values"
    }
    result = identify(case, answered(case, reference), dtype=DTYPE)
    return said | {
        "stated": stated(case),
        **counts,
        "verdict": result.verdict,
        "undecided": sorted(result.undecided),
        "searched": result.searched,
        "found": found_in(result),
    }


def answered(case: Case, reference: Any) -> dict[str, Any]:
    """Its results by the names of a case."""
    inputs = {name.removeprefix("in/"): np.array(value) for name, value in case.inputs.items()}
    results = reference(case.header.plain(), inputs)
    return {n if n.startswith("grad/") else f"out/{n}": value for n, value in results.items()}


def found_in(result: Any) -> str:
    """What the search names: the stated, what it changes in it, or a mistake."""
    if result.departures:
        return f"as if {result.departures[0].words}"
    if result.own or result.match is None:
        return "the stated"
    return setting(result.from_own)


def stated(case: Case) -> str:
    """What a case states beside its member, and what it has."""
    own = {n: x for n, x in (case.header.parameters or {}).items() if n != "member"}
    words = [f"{name}={x if isinstance(x, str) else json.dumps(x)}" for name, x in own.items()]
    has = {"in/M0": "a first memory", "in/M_bar": "a cotangent of the last"}
    return ", ".join([*words, *(each for name, each in has.items() if name in case.inputs)])
