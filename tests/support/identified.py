"""Cases with results of another convention, for the tests of identify."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import atlas_ref
from atlas_ref.conventions import resolve
from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.family import lattice
from atlas_ref.oracle.family.facts import facts
from atlas_ref.oracle.identify.score import seen_as

BARE = {"newton_schulz": "none"}


def made(rule: str, **request: Any) -> Case:
    return new(Request(rule=rule, draw=1, **({"span": 3, "cotangent": True} | request)))


def without(case: Case, *names: str) -> Case:
    return atlas_ref.make(
        case.header.plain(),
        {name: value for name, value in case.inputs.items() if name not in names},
    )


def results(case: Case, changes: Any, *names: str, dtype: Any = np.float32) -> dict[str, Any]:
    """Results of an implementation for a case under a convention."""
    variant = seen_as(case, resolve(changes, rule=case.header.rule, level=case.header.level))
    tensors = evaluate(variant, grad=any(name.startswith("grad/") for name in names)).tensors
    return {name: tensors[name].astype(dtype) for name in names or ("out/y",)}


def same_point(case: Case, one: Any, other: Any) -> bool:
    """Whether two conventions are one function of a case."""
    of = facts(case)
    points = [
        lattice.fold(
            of, lattice.point(resolve(each, rule=case.header.rule, level=case.header.level))
        )
        for each in (one, other)
    ]
    return points[0] == points[1]


def altered(case: Case, changes: Mapping[str, Any]) -> Case:
    """The case with a tensor constant, or left out."""
    inputs = {}
    for name, value in case.inputs.items():
        change = changes.get(name, value)
        if change is not None:
            inputs[name] = np.full(value.shape, change) if isinstance(change, float) else change
    return atlas_ref.make(case.header.plain(), inputs)
