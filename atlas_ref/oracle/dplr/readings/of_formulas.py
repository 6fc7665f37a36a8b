"""Other formulas of gates and step sizes, and mistakes in them, as data (DPLRCASE-18)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from atlas_ref.oracle.dplr import formulas
from atlas_ref.oracle.dplr.context import DplrContext
from atlas_ref.oracle.dplr.formulas import FORMULAS, SETTINGS
from atlas_ref.oracle.dplr.parameters import Parameters
from atlas_ref.oracle.dplr.readings import wraps
from atlas_ref.oracle.program.reading import Reading
from tape import ops

#: Settings of formulas that are tried, those of public code among them.
VALUES: dict[str, tuple[float | None, ...]] = {
    "gate_threshold": (None, 20.0),
    "gate_lower_bound": (-5.0, -1.0, -float(np.exp(-0.5))),
    "gate_normalizer": (1.0, 8.0, 16.0),
    "gate_least": (None,),
}

#: Below it log(1 + e^x) as it is printed has lost four of its digits in float32.
LOST = -8.0


def settings(context: DplrContext) -> Iterator[dict[str, Any]]:
    """Another formula of the tensors of the case, or another setting of its own (DPLRCASE-18)."""
    params = context.settings
    if params.gate_formula is not None:
        for name in FORMULAS[params.gate_formula].settings:
            yield from ({name: value} for value in VALUES[name])
        yield from _others(context)
    if params.beta_formula is not None:
        yield from ({"beta_formula": value} for value in ("sigmoid", "twice_sigmoid"))


def _others(context: DplrContext) -> Iterator[dict[str, Any]]:
    """Formulas that have the tensors of the case, the first value of each setting."""
    present = {name for name in context.raw if name != "in/beta_input"}
    for name, formula in FORMULAS.items():
        needed = {"in/gate_input", *formula.needs}
        if name != context.settings.gate_formula and needed <= present <= needed | set(formula.may):
            chosen = {each: VALUES[each][0] for each in formula.settings}
            other = {"gate_formula": name, **dict.fromkeys(SETTINGS), **chosen}
            yield {key: x for key, x in other.items() if getattr(context.settings, key) != x}


def function(params: Parameters, context: DplrContext) -> tuple[Any, ...]:
    """What decides gates and step sizes: two settings of one function have the same."""
    threshold = params.gate_threshold
    if threshold is not None and not (argument(context) > threshold).any():
        threshold = None
    bounds = (params.gate_lower_bound, params.gate_normalizer or 1.0, params.gate_least)
    return (params.gate_formula, threshold, *bounds, params.beta_formula)


def argument(context: DplrContext) -> Any:
    """The sum of raw numbers and biases, of which a formula is."""
    x = np.asarray(context.raw["in/gate_input"], np.float64)
    bias = context.raw.get("in/gate_bias")
    channels = x.ndim == len(context.inputs["in/v"].shape)
    return x if bias is None else x + formulas.wide("bias", bias, channels=channels)


def mistakes(context: DplrContext) -> Iterator[Reading]:
    """Mistakes in a formula of gates (DPLRCASE-18)."""
    if (kind := context.settings.gate_formula) is None:
        return
    if "in/gate_bias" in context.raw:
        yield _mistake("bias forgotten", "in/gate_bias was absent")
        if kind == "bounded" and "in/gate_log_rate" in context.raw:
            yield _mistake("bias late", "in/gate_bias was added behind the rate")
    if "in/gate_log_rate" in context.raw:
        yield _mistake("rate forgotten", "in/gate_log_rate was absent")
        yield _mistake("rate without exp", "the rate was in/gate_log_rate without exp")
    yield _mistake("sign forgotten", "the log gate had the other sign")
    if kind == "softplus" and (argument(context) < LOST).any():
        words = "softplus was log(1 + e^x) as it is printed, in float32"
        yield _mistake("softplus in float32", words)
    for format in ("bfloat16", "float16"):
        yield _mistake(f"gate in {format}", f"the log gate was rounded to {format}")


def _mistake(name: str, words: str) -> Reading:
    return Reading(name, words, ops=wraps.FORMULAS[name])


def constants(context: DplrContext) -> Iterator[Reading]:
    """Gradients that tensors of a formula do not get."""
    for name in context.raw:
        bare = name.removeprefix("in/")
        words = f"no gradient went to {name}"
        yield Reading(f"{bare} held", words, grad=True, raw=_constant(name))


def _constant(name: str) -> Any:
    return lambda inputs: {**inputs, name: ops.stop_gradient(inputs[name])}
