"""A call cut in two at a token, the second resumed from what the first returns."""

from __future__ import annotations

from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case, make
from atlas_ref.oracle.evaluate import evaluate
from tests.support.strategies import header_of

#: Axis of time in each sequence tensor, counted from the end.
TIME = {
    "in/k": -2,
    "in/v": -2,
    "in/q": -2,
    "in/y_bar": -2,
    "in/x": -2,
    "in/window_weights": -2,
    "in/window_gate": -1,
}
TIME |= {"in/active": -1, "in/reset": -1}
GATES = ("in/retain", "in/momentum", "in/step_size", "in/step_size_memory")

#: Results of one call that are inputs of the next.
RESUMES = (
    "M",
    "S",
    "M_ref",
    "window_k",
    "window_v",
    "window_gate_before",
    "window_residual",
    "window_momentum",
)
RENAMED = {"M": "M0", "S": "S0"}


def time_axis(case: Case, name: str) -> int | None:
    if name in GATES:
        return -1 if case.inputs[name].ndim == case.inputs["in/k"].ndim - 1 else -2
    return TIME.get(name)


def cut(case: Case, part: slice) -> dict[str, Any]:
    """The inputs with only some tokens."""
    inputs = {}
    for name, value in case.inputs.items():
        axis = time_axis(case, name)
        inputs[name] = value if axis is None else value[(..., part, *[slice(None)] * (-axis - 1))]
    return inputs


def in_two(
    case: Case,
    where: int,
    first: dict[str, Any] | None = None,
    second: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Results of two calls as one; `first` and `second` are settings of `evaluate`, such as a
    form.
    """
    head = evaluate(make(header_of(case), cut(case, slice(0, where))), **(first or {}))
    rest = cut(case, slice(where, None))
    for name in RESUMES:
        rest.pop(f"in/{RENAMED.get(name, name)}", None)
        if f"out/{name}" in head.tensors:
            rest[f"in/{RENAMED.get(name, name)}"] = head.tensors[f"out/{name}"]
    header = header_of(case) | {key: head.header[key] for key in ("phase",) if key in head.header}
    tail = evaluate(make(header, rest), **(second or {}))
    return {
        **tail.tensors,
        "out/y": np.concatenate([head.tensors["out/y"], tail.tensors["out/y"]], axis=-2),
    }
