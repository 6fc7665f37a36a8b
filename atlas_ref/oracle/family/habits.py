"""Habits of kernels that no convention says: another window, a late decay.

Specified in specs/identify.md (IDENT-15).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.family.departures import HISTORY, change, departure, numbers, without
from atlas_ref.oracle.family.mistake import Mistake
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.parts.gates import bounded, multiplier
from atlas_ref.rules import FAMILY
from atlas_ref.types import Array


def habits(case: Case) -> Iterator[Mistake]:
    """Departures that are about no feature of a case (IDENT-15); level projected alone."""
    if not SUBJECTS[case.header.rule].has_tokens or case.header.level == "token":
        return
    yield from _windows(case)
    if case.convention.gate != "none":
        words = "the decay came after the write, r (M - b U)"
        yield departure("", words, _late_decay)


# -- the window ------------------------------------------------------------------------------------


def _windows(case: Case) -> Iterator[Mistake]:
    if case.header.window == 1:
        return
    words = "the window were one token shorter"
    yield departure("", words, _shorter)
    if "in/window_weights" in case.inputs:
        turned = np.flip(case.inputs["in/window_weights"], -1)
        words = "window weights ran from the oldest token"
        yield departure("", words, lambda each: change(each, {"in/window_weights": turned}))
    elif "in/window_gate" not in case.inputs:
        words = f"{words}, each of weight 1/{case.header.window - 1}"
        yield departure("", words, lambda each: without(_shorter(each), "in/window_weights"))


def _shorter(case: Case) -> Case:
    """The case without the oldest token of its window, and with the weights of the others."""
    c, inputs = case.header.window - 1, dict(case.inputs)
    if "in/window_weights" in inputs:
        inputs["in/window_weights"] = inputs["in/window_weights"][..., :c]
    elif "in/window_gate" not in inputs:
        inputs["in/window_weights"] = np.full((*inputs["in/k"].shape[:-1], c), 1.0 / (c + 1))
    for name, axis in HISTORY.items():
        if name in inputs and inputs[name].shape[axis] > c - 1:
            rows = inputs[name].shape[axis]
            inputs[name] = np.take(inputs[name], range(rows - (c - 1), rows), axis=axis)
    return case.replaced(
        header=case.header.replaced(window=c),
        inputs=inputs,
        recorded={},
    )


# -- decay -----------------------------------------------------------------------------------------


def _late_decay(case: Case) -> Case:
    """M_t = r_t (M_{t-1} - b_t U_t) as r_t M_{t-1} - (r_t b_t) U_t: a second rate holds r_t b_t."""
    c, one = case.convention, np.ones(case.inputs["in/k"].shape[:-1])
    retain = _gate(case, "retain")
    if not FAMILY[case.header.rule].has_error:
        return change(case, {"in/v": _times(retain, numbers(case, "in/v"))})
    h = _gate(case, "step_size") if c.rate != "none" else one
    a = h if c.rate in ("momentum", "both", "split") else one
    b = h if c.rate in ("memory", "both") else one
    b = _gate(case, "step_size_memory") if c.rate == "split" else b
    rates = {"in/step_size": a, "in/step_size_memory": _times(retain, b)}
    return change(case, rates, convention=c.replaced(rate="split"))


def _gate(case: Case, name: str) -> Array:
    """A gate in float64, retain as the factor of M."""
    log = f"in/log_{name}"
    value = np.exp(numbers(case, log)) if log in case.inputs else numbers(case, f"in/{name}")
    bounds = {"retain": case.convention.retain_bounds, "step_size": case.convention.step_bounds}
    value = bounded(value, bounds.get(name, "none"))
    return multiplier(value, case.convention.gate) if name == "retain" else value


def _times(x: Array, y: Array) -> Array:
    """The product of two gates, or of a gate and rows, either with an entry per dimension."""
    most = max(x.ndim, y.ndim)
    one, other = (each if each.ndim == most else each[..., None] for each in (x, y))
    product: Any = one * other
    return product
