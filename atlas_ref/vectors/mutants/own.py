"""Mutants of rules that have readings of their own: mistakes and other settings (VEC-22, VEC-23).

Each is a plain loop in float32, of a deep memory, of a TNT or of the linear family (VEC-24).

A setting or mistake that is the same function for every number in the place of the case's is no
mutant of it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.inputs import convert
from atlas_ref.oracle.dplr import formulas
from atlas_ref.oracle.family.mistake import WAY, Results
from atlas_ref.oracle.identify.readings.nodes import relative
from atlas_ref.oracle.judge import ensemble
from atlas_ref.oracle.norms import round_to
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.subjects.subject import Searched
from atlas_ref.vectors.inputs import dplr_targets
from atlas_ref.vectors.inputs.draw import drawn
from atlas_ref.vectors.inputs.targets import LATER
from atlas_ref.vectors.mutants import younger

#: Settings that bfloat16 lets pass under some target: those of a guard, an eps, the other form of gelu,
#: and decays near 1.
FINE = (
    "newton_schulz.eps",
    "newton_schulz.guard",
    "parameters.memory.norm_eps",
    "norm_eps",
    "norm_guard",
    "parameters.memory.activation=gelu_tanh",
    "parameters.window_weights={'kind': 'decay', 'base': 0.9",
)

#: Mistakes of a formula of gates that bfloat16 lets pass.
FINE_MISTAKES = ("gate in bfloat16", "gate in float16", "softplus in float32")

#: Results that are tokens of the call, as they came, and its place in the document.
KEPT = re.compile(
    r"out/(window.*|state/(keys|values|token.*|position|\w+/(window_[kv]|window_gate_before|P_keys)))"
)

#: Relative distance of results below which two readings are one function of a case (IDENT-4).
SAME = 1e-7


def has(case: Case) -> bool:
    """Whether the mutants of a case are these: its rule has readings of its own."""
    return SUBJECTS[case.header.rule].searched is not None


def mutants(case: Case, dtype: str) -> Iterator[tuple[str, Results]]:
    """Names and results of every mutant of a case, rounded to `dtype`."""
    for each in readings(case):
        yield named(each, case.header.rule), kernel(case, dtype, (each,))


def named(reading: Any, rule: str) -> str:
    """The name of a mutant: axis=value, or that of a mistake behind the word of this rule."""
    return str(reading.name) if reading.change else f"{ahead(rule)}{reading.name}"


def ahead(rule: str) -> str:
    """What stands before a mistake, since other rules have mistakes of the same name."""
    return f"{_searched(rule).word}: "


def readings(case: Case) -> list[Any]:
    """Mistakes and other settings that a case can show, each by itself."""
    searched = _searched(case.header.rule)
    rule, stated = case.header.rule, frozenset(case.header.parameters or {})
    every = [each for each in searched.settings(case, ()) if tried(each, rule, stated)]
    every += [
        each
        for each in searched.departures(case)
        if each.name not in FINE_MISTAKES and younger.shown(each, case)
    ]
    moved = younger.redrawn(case)
    own = exact(moved, ())
    return [each for each in every if apart(own, exact(moved, (each,)))]


def tried(setting: Any, rule: str, stated: frozenset[str] = frozenset()) -> bool:
    """Whether a setting with its value is a mutant in the published sets.

    Args:
        stated: parameters of the case; a formula of gates is a mutant of another one alone (VEC-25).
    """
    if rule == dplr_targets.RULE:
        member = setting.change.get("parameters.member", dplr_targets.NAMES[0])
        made = next((each for each in formulas.MADE if each in stated), "")
        also = (*formulas.MADE, *formulas.SETTINGS) if made else ()
        names = {f"parameters.{name}" for name in (*dplr_targets.SETTINGS, *also)}
        return member in dplr_targets.NAMES and setting.change.keys() <= names
    if setting.name.startswith(younger.YOUNGER):
        return younger.tried(setting)
    return not setting.name.startswith(FINE)


def kernel(case: Case, dtype: str, chosen: tuple[Any, ...] = ()) -> Results:
    """Results of a kernel under some readings, term by term in float32, and its gradients."""
    results = ensemble.evaluate(
        case, convert(case, "float32"), WAY, grad=graded(case), plain=_plain(case, chosen)
    )
    return {
        name: round_to(np.asarray(x), dtype)
        for name, x in results.items()
        if np.asarray(x).dtype.kind == "f"
    }


def graded(case: Case) -> bool:
    """Whether a case has cotangents, so that gradients are compared."""
    return "in/y_bar" in case.inputs


def words(name: str) -> str:
    """A mutant in words, for a reader; "" for one of another rule."""
    for rule, subject in SUBJECTS.items():
        if subject.searched is None:
            continue
        if name.startswith(ahead(rule)):
            return _words(rule)[name.removeprefix(ahead(rule))]
    return f"{name} in place of the case's" if name.startswith("parameters.") else ""


@functools.cache
def _words(rule: str) -> dict[str, str]:
    """Every mistake of a rule in words, by its name: those of its subject, or of its targets."""
    searched = _searched(rule)
    found = dict(searched.named)
    for target in (each for each in LATER if each.rule == rule and not searched.named):
        for topic in target.topics:
            case = drawn(target, topic, 0)
            found |= {each.name: each.words for each in searched.departures(case)}
    return found


def _searched(rule: str) -> Searched:
    searched = SUBJECTS[rule].searched
    assert searched is not None
    return searched


def _plain(case: Case, chosen: tuple[Any, ...]) -> Any:
    return lambda inputs, of, rounding: _searched(case.header.rule).run(
        inputs, of, rounding, chosen
    )


def exact(case: Case, chosen: tuple[Any, ...] = ()) -> Mapping[str, Any]:
    """Results under some readings in float64, which tell whether two are one function."""
    return ensemble.exact(case, grad=graded(case), plain=_plain(case, chosen))


def apart(own: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether some result of both differs, or has another shape; a state may have other tensors."""
    return any(
        relative(other[name], value) > SAME
        for name, value in own.items()
        if name in other and np.asarray(value).dtype.kind == "f"
    )
