"""Mutants of a deep memory: its mistakes and other settings, in a plain loop in float32 (VEC-22).

A setting or mistake that is the same function for every number in the place of the case's is no
mutant of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.inputs import converted
from atlas_ref.oracle.identify.nodes import redrawn, relative
from atlas_ref.oracle.judge import ensemble
from atlas_ref.oracle.judge.norms import rounded
from atlas_ref.oracle.subjects import SUBJECTS
from atlas_ref.vectors.mutants.mistake import WAY, Results

#: What stands before the name of a mistake, since other rules have mistakes of the same name.
AHEAD = "deep: "

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

#: Settings that are younger than the published sets, whose mutants never change (VEC-22).
YOUNGER = ("parameters.bias", "parameters.retention")

#: Relative distance of results below which two readings are one function of a case (IDENT-4).
SAME = 1e-7


def has(case: Case) -> bool:
    """Whether the mutants of a case are these: its rule has readings of its own."""
    own = SUBJECTS[case.header.rule].own
    return own is not None and own.searched is not None


def mutants(case: Case, dtype: str) -> Iterator[tuple[str, Results]]:
    """Names and results of every mutant of a case, rounded to `dtype`."""
    for each in readings(case):
        yield named(each), kernel(case, dtype, (each,))


def named(reading: Any) -> str:
    """The name of a mutant: axis=value, or that of a mistake of this rule."""
    return reading.name if reading.change else f"{AHEAD}{reading.name}"


def readings(case: Case) -> list[Any]:
    """Mistakes and other settings that a case can show, each by itself."""
    searched = _searched(case)
    left_out = (*FINE, *YOUNGER)
    every = [each for each in searched.settings(case, ()) if not each.name.startswith(left_out)]
    every += searched.departures(case)
    moved = case.replaced(inputs=redrawn(case.inputs))
    own = _exact(moved, ())
    return [each for each in every if _apart(own, _exact(moved, (each,)))]


def kernel(case: Case, dtype: str, chosen: tuple[Any, ...] = ()) -> Results:
    """Results of a kernel under some readings, term by term in float32, and its gradients."""
    results = ensemble.evaluate(
        case, converted(case, "float32"), WAY, grad=graded(case), plain=_plain(case, chosen)
    )
    return {
        name: rounded(np.asarray(x), dtype)
        for name, x in results.items()
        if np.asarray(x).dtype.kind == "f"
    }


def graded(case: Case) -> bool:
    """Whether a case has cotangents, so that gradients are compared."""
    return "in/y_bar" in case.inputs


def words(name: str) -> str:
    """A mutant in words, for a reader; "" for one of another rule."""
    for subject in SUBJECTS.values():
        searched = None if subject.own is None else subject.own.searched
        bare = name.removeprefix(AHEAD)
        if searched is not None and name != bare and bare in searched.named:
            return searched.named[bare]
    return f"{name} in place of the case's" if name.startswith("parameters.") else ""


def _searched(case: Case) -> Any:
    own = SUBJECTS[case.header.rule].own
    assert own is not None
    return own.searched


def _plain(case: Case, chosen: tuple[Any, ...]) -> Any:
    return lambda inputs, of, rounding: _searched(case).run(inputs, of, rounding, chosen)


def _exact(case: Case, chosen: tuple[Any, ...]) -> Mapping[str, Any]:
    return ensemble.exact(case, grad=graded(case), plain=_plain(case, chosen))


def _apart(own: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether some result differs, or has another shape."""
    return any(
        relative(other.get(name), value) > SAME
        for name, value in own.items()
        if np.asarray(value).dtype.kind == "f"
    )
