"""Cases of rule dplr in the words of the loops of `tests/truth/dplr_trace.py`."""

from __future__ import annotations

import types
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import make
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.dplr import parameters
from atlas_ref.oracle.evaluate import evaluate
from tests.truth import dplr_trace as literal

#: Value heads of two key heads each take turns, and the step of a complex step.
ROBIN, STEP = {"groups": 2, "group_order": "round_robin"}, 1e-30

MEMORIES = ("M0", "M_bar", "S0", "S_bar")


def of_case(case: Any) -> tuple[dict[str, Any], Any]:
    """Inputs by their bare names with memories (d_out, d_in), and settings in force."""
    own = parameters.parse(case.header)
    x = {name.removeprefix("in/"): value for name, value in case.inputs.items()}
    if own.state_layout == "(d_in, d_out)":
        x |= {name: x[name].swapaxes(-1, -2) for name in MEMORIES if name in x}
    settings = types.SimpleNamespace(
        erase=own.of.erase, order=own.order, steps=own.steps, groups=own.groups,
        scale=1.0 if own.scale == 1 else x["k"].shape[-1] ** -0.5, eps=own.norm_eps,
        k_norm=own.norm("in/k"), q_norm=own.norm("in/q"), by_head=own.of.gated == "heads",
        second=own.of.second, group_order=own.group_order,
        masked_read=own.masked_read,
        query_groups=own.query_groups,
    )  # fmt: skip
    return x, settings


def made(member: str | None, parameters: dict[str, Any] = ROBIN, **sizes: Any) -> Any:
    """A case of three key heads of two value heads each, with silent tokens, a reset and states."""
    own = parameters if member is None else {"member": member, **parameters}
    request = {"tokens": 5, "d_in": 3, "d_out": 2, "heads": 3, "seed": 5, "cotangent": True}
    case = new(Request(rule="dplr", parameters=own, **{"pulse": 2, "reset": 3} | request | sizes))
    draw = np.random.default_rng(6)
    states = {n[4:]: x.shape for n, x in evaluate(case).tensors.items() if n != "out/y"}
    more = {
        f"in/{name}{end}": draw.standard_normal(shape)
        for name, shape in states.items()
        for end in ("0", "_bar")
    }
    more |= {name: np.abs(x) for name, x in more.items() if name in ("in/z0", "in/A0")}
    return make(case.header.plain(), {**case.inputs, **more})


def by_loop(case: Any, x: dict[str, Any]) -> dict[str, Any]:
    """Results of the loop of the clauses, head by head, of inputs that may be complex."""
    bare, own = of_case(case)
    bare |= {name.removeprefix("in/"): value for name, value in x.items()}
    y, M, *second = literal.run(bare, own, lambda op, head, t, value: value)  # of its first queries
    if own.query_groups > 1:
        V, n, q = len(bare["v"]), own.query_groups, bare["q"]
        reads = []
        for j in range(V * n):
            v = j % V if own.group_order == "round_robin" else j // n
            asked = {**bare, "q": np.stack([q[j]] * V)}
            reads.append(literal.run(asked, own, lambda op, head, t, value: value)[0][v])
        y = np.stack(reads)
    return {"out/y": y, "out/M": M} | ({f"out/{own.second}": second[0]} if second else {})


def weighed(case: Any, results: dict[str, Any]) -> Any:
    return sum(np.sum(case.inputs[f"in/{n[4:]}_bar"] * value) for n, value in results.items())


def of(case: Any) -> dict[str, Any]:
    parameters: dict[str, Any] = case.header["parameters"]
    return parameters
