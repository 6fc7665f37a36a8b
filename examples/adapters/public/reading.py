"""A public implementation: what it computes, as data, and the object that atlas-ref calls.

    atlas-ref check cases/ --impl of_fla_core:gated_delta

An implementation is asked only for what it computes of itself: nothing is converted on the way, so
a verdict is about its own numbers. Everything else that a case may ask is NOT SUPPORTED. Its rule
and convention are claims of this file, which `python -m benchmarks.survey` puts to the test: it
searches the convention behind the results without looking here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.conventions import AXES, Convention, resolve, void_axes

Results = Mapping[str, Any]

#: The gates of a rule that may come as one value per output dimension.
GATES = ("retain", "momentum", "step_size", "step_size_memory")

#: Inputs that none of the implementations here takes.
BEYOND = ("active", "reset", "M_ref", "window_k", "window_weights", "window_gate", "x")

#: Settings of Newton-Schulz that are arguments of every implementation here.
FREE = ("coefficients", "steps", "eps", "transpose", "lower_bound")


class Implementation(NamedTuple):
    """One function of a public package under the rule and convention that it computes.

    Attributes:
        label: as tables show it.
        package: as the package index calls it.
        rule, convention: of atlas-ref, as a case's header would say them.
        source: the equation that rule and convention are a reading of.
        answer: (header, inputs) -> results, without any check of the header.
        dtypes: what it computes in; others would be rounded on the way.
        square: whether keys and values must have one width.
        per_row: gates that it takes per output dimension.
        logs: gates that it takes as logarithms, so that `in/log_...` reaches it as it is.
        states: initial states that it takes.
        returns: results that it has; cotangents of others cannot be taken.
        prepare: makes inputs that it can be asked for, from any; says what it did.
        wants: why inputs are not such that it can be asked for them; empty where they are.
        note: what else there is to know, for the table.
    """

    label: str
    package: str
    rule: str
    convention: dict[str, Any]
    source: str
    answer: Callable[[dict[str, Any], dict[str, Any]], Results]
    dtypes: tuple[str, ...] = ("float32",)
    square: bool = False
    per_row: tuple[str, ...] = ()
    logs: tuple[str, ...] = ()
    states: tuple[str, ...] = ("M0", "S0")
    returns: tuple[str, ...] = ("y", "M", "S")
    prepare: Callable[[dict[str, Any]], tuple[dict[str, Any], str]] | None = None
    wants: Callable[[dict[str, Any]], str] | None = None
    note: str = ""

    def __call__(self, case: dict[str, Any], inputs: dict[str, Any]) -> Results:
        """Answer a case for `--impl`.

        Raises:
            NotImplementedError: the case asks for what this implementation does not compute.
        """
        why = self.refusal(case, inputs)
        if why:
            raise NotImplementedError(why)
        return self.answer(case, inputs)

    def refusal(self, case: Mapping[str, Any], inputs: Mapping[str, Any]) -> str:
        """The reason not to ask it a case; empty where there is none."""
        if case["rule"] != self.rule:
            return f"rule {case['rule']}: it computes {self.rule}"
        if case.get("level", "projected") != "projected" or self._other_map(case):
            return "only level projected, without a feature map"
        why = self._of_convention(case, inputs)
        if why or self.rule == "newton_schulz":
            return why
        return self._of_inputs(inputs)

    def _other_map(self, case: Mapping[str, Any]) -> bool:
        return bool(
            case.get("feature_map", {"kind": "identity"}).get("kind", "identity") != "identity"
            or case.get("window", 1) != 1
        )

    def _of_convention(self, case: Mapping[str, Any], inputs: Mapping[str, Any]) -> str:
        theirs = resolve(case.get("convention", "spec"), rule=self.rule)
        mine = resolve(self.convention, rule=self.rule)
        if self.rule == "newton_schulz":
            return _settings_apart(theirs, mine, self.convention.get("newton_schulz", {}))
        if (
            mine.gate == "none"
            and theirs.gate == "retain"
            and (np.asarray(inputs.get("retain", 0)) == 1).all()
        ):
            theirs = theirs.replaced(gate="none")  # a gate that keeps all is none
        void = set(void_axes(theirs, rule=self.rule)) | {
            "window_at_boundary",
            "window_edge",
            "norm_place",
        }
        for axis in AXES:
            if axis not in void and getattr(theirs, axis) != getattr(mine, axis):
                return f"{axis} {getattr(theirs, axis)}: it computes {getattr(mine, axis)}"
        return ""

    def _of_inputs(self, inputs: Mapping[str, Any]) -> str:
        for name in BEYOND:
            if name in inputs:
                return f"in/{name}"
        for name in ("retain", "momentum"):
            if f"log_{name}" in inputs and name not in self.logs:
                return f"in/log_{name}: it takes the gate itself"
        for name in ("M0", "S0"):
            if name in inputs and name not in self.states:
                return f"in/{name}: it starts from zero"
        for name in ("M", "S"):
            if f"{name}_bar" in inputs and name not in self.returns:
                return f"in/{name}_bar: it returns no {name}"
        for name in GATES:
            if (
                name in inputs
                and inputs[name].ndim == inputs["k"].ndim
                and name not in self.per_row
            ):
                return f"in/{name} per output dimension"
        if self.square and inputs["k"].shape[-1] != inputs["v"].shape[-1]:
            return (
                f"d_in {inputs['k'].shape[-1]} and d_out {inputs['v'].shape[-1]}: it knows one "
                "width"
            )
        return self.wants(dict(inputs)) if self.wants is not None else ""


def _settings_apart(convention: Convention, mine: Convention, stated: Mapping[str, Any]) -> str:
    """The first setting that is another; free ones count where an implementation fixes them."""
    theirs, ours = (
        convention.newton_schulz_settings.model_dump(),
        mine.newton_schulz_settings.model_dump(),
    )
    apart = [
        key
        for key, value in theirs.items()
        if (key in stated or key not in FREE) and value != ours[key]
    ]
    return (
        f"newton_schulz.{apart[0]} {theirs[apart[0]]}: it computes {ours[apart[0]]}"
        if apart
        else ""
    )
