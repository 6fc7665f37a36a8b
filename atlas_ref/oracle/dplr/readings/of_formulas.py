"""Other formulas of gates and step sizes, and mistakes in them, as data (DPLRCASE-18)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from atlas_ref.oracle.dplr import formulas
from atlas_ref.oracle.dplr.formulas import FORMULAS, SETTINGS
from atlas_ref.oracle.dplr.parameters import Parameters
from atlas_ref.oracle.dplr.readings.reading import Reading, Seen
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


def settings(at: Seen) -> Iterator[dict[str, Any]]:
    """Another formula of the tensors of the case, or another setting of its own (DPLRCASE-18)."""
    own = at.own
    if own.gate_formula is not None:
        for name in FORMULAS[own.gate_formula].settings:
            yield from ({name: value} for value in VALUES[name])
        yield from _others(at)
    if own.beta_formula is not None:
        yield from ({"beta_formula": value} for value in ("sigmoid", "twice_sigmoid"))


def _others(at: Seen) -> Iterator[dict[str, Any]]:
    """Formulas that have the tensors of the case, the first value of each setting."""
    present = {name for name in at.raw if name != "in/beta_input"}
    for name, formula in FORMULAS.items():
        needed = {"in/gate_input", *formula.needs}
        if name != at.own.gate_formula and needed <= present <= needed | set(formula.may):
            chosen = {each: VALUES[each][0] for each in formula.settings}
            other = {"gate_formula": name, **dict.fromkeys(SETTINGS), **chosen}
            yield {key: x for key, x in other.items() if getattr(at.own, key) != x}


def function(own: Parameters, at: Seen) -> tuple[Any, ...]:
    """What decides gates and step sizes: two settings of one function have the same."""
    threshold = own.gate_threshold
    if threshold is not None and not (argument(at) > threshold).any():
        threshold = None
    bounds = (own.gate_lower_bound, own.gate_normalizer or 1.0, own.gate_least)
    return (own.gate_formula, threshold, *bounds, own.beta_formula)


def argument(at: Seen) -> Any:
    """The sum of raw numbers and biases, of which a formula is."""
    x = np.asarray(at.raw["in/gate_input"], np.float64)
    bias = at.raw.get("in/gate_bias")
    channels = x.ndim == len(at.inputs["in/v"].shape)
    return x if bias is None else x + formulas.wide("bias", bias, channels=channels)


def mistakes(at: Seen) -> Iterator[Reading]:
    """Mistakes in a formula of gates (DPLRCASE-18)."""
    if (kind := at.own.gate_formula) is None:
        return
    if "in/gate_bias" in at.raw:
        yield _mistake("bias forgotten", "in/gate_bias was absent")
        if kind == "bounded" and "in/gate_log_rate" in at.raw:
            yield _mistake("bias late", "in/gate_bias was added behind the rate")
    if "in/gate_log_rate" in at.raw:
        yield _mistake("rate forgotten", "in/gate_log_rate was absent")
        yield _mistake("rate without exp", "the rate was in/gate_log_rate without exp")
    yield _mistake("sign forgotten", "the log gate had the other sign")
    if kind == "softplus" and (argument(at) < LOST).any():
        words = "softplus was log(1 + e^x) as it is printed, in float32"
        yield _mistake("softplus in float32", words)
    for format in ("bfloat16", "float16"):
        yield _mistake(f"gate in {format}", f"the log gate was rounded to {format}")


def _mistake(name: str, words: str) -> Reading:
    return Reading(name, words, formula=name)


def held(at: Seen) -> Iterator[Reading]:
    """Gradients that tensors of a formula do not get."""
    for name in at.raw:
        bare = name.removeprefix("in/")
        words = f"no gradient went to {name}"
        yield Reading(f"{bare} held", words, grad=True, raw=_constant(name))


def _constant(name: str) -> Any:
    return lambda inputs: {**inputs, name: ops.stop_gradient(inputs[name])}
