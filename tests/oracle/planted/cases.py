"""The cases for planted mistakes: small, dyadic, exact in bfloat16 and float16.

They avoid the values that hide a mistake.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case, make
from atlas_ref.oracle.cases.new import Request, new
from tests.oracle.planted.restatement import Rule

#: Values that every gate is drawn from: none at 1/2 where forget is retain, none constant.
RETAIN = (0.625, 0.75, 0.875, 0.9375)
MOMENTUM = (0.25, 0.375, 0.5, 0.625, 0.75)
STEP = (0.125, 0.1875, 0.25, 0.375, 0.5)

#: name -> request; heads of 2, square where a transpose must fit, tall and wide elsewhere.
REQUESTS: dict[str, dict[str, Any]] = {
    "omega": {"rule": "omega", "tokens": 7, "d_in": 3, "d_out": 3, "window": 3},
    "omega tall": {"rule": "omega", "tokens": 6, "d_in": 2, "d_out": 4, "window": 2},
    "omega small": {
        "rule": "omega",
        "tokens": 5,
        "d_in": 3,
        "d_out": 3,
        "window": 2,
        "convention": {"rate": "momentum"},
    },
    "omega plain": {
        "rule": "omega",
        "tokens": 7,
        "d_in": 3,
        "d_out": 3,
        "window": 3,
        "convention": {"newton_schulz": "none"},
    },
    "titans_lmm": {"rule": "titans_lmm", "tokens": 7, "d_in": 3, "d_out": 3},
    "delta": {"rule": "delta", "tokens": 7, "d_in": 3, "d_out": 3},
    "hebbian": {"rule": "hebbian", "tokens": 7, "d_in": 3, "d_out": 3},
}

#: Of "omega small", where the norm of S comes near the eps of Newton-Schulz.
TINY = 2.0**-22


def case_of(name: str) -> Case:
    """One of `REQUESTS`, with dyadic inputs."""
    made = new(Request(draw=1, heads=2, seed=5, cotangent=True, **REQUESTS[name]), name=name)
    draw = np.random.Generator(np.random.Philox(17))
    inputs: dict[str, Any] = {}
    for key, value in made.inputs.items():
        inputs[key] = np.clip(np.round(value * 8) / 8, -2, 2)
    for key, choices in (("in/retain", RETAIN), ("in/momentum", MOMENTUM), ("in/step_size", STEP)):
        if key in inputs:
            inputs[key] = draw.choice(choices, inputs[key].shape)
    if "in/window_weights" in inputs:
        inputs["in/window_weights"] = draw.integers(2, 9, inputs["in/window_weights"].shape) / 8.0
    if name == "omega small":
        for key in ("in/step_size", "in/S0"):
            inputs[key] = inputs[key] * TINY
    return make(made.header.plain(), inputs, name=name)


def rule_of(case: Case) -> Rule:
    """The settings of a case that the restatement needs."""
    return Rule(
        case.header.rule, rate=case.convention.rate, newton_schulz=case.convention.has_newton_schulz
    )


def inputs_of(case: Case) -> dict[str, Any]:
    """Tensors by their names without `in/`."""
    return {name.removeprefix("in/"): value for name, value in case.inputs.items()}
