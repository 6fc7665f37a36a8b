"""The first tokens of a case and of its results, where a search of all would take long (SRC-27)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case, CaseError, make
from atlas_ref.oracle.cases.tensors import main_result
from atlas_ref.oracle.drawing import Candidate
from atlas_ref.oracle.judge.profile import token_axis
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.sweep.cut import cut


def tokens_of(case: Case) -> int:
    """Tokens of a case; 0 where it has none."""
    names = ("in/q", "in/k", "in/x")
    return next((case.inputs[name].shape[-2] for name in names if name in case.inputs), 0)


def first_tokens(case: Case, count: int) -> Case | None:
    """The case of the first tokens of a case; None where that is none."""
    try:
        own = SUBJECTS[case.header.rule].own
        calls = None if own is None else own.calls
        axes = {} if calls is None else calls.axes(case)
        made = _cut(case, axes, count) if axes else cut(case, "T", range(count))
        return None if made is None else make(made.header, made.tensors, name=case.name)
    except (CaseError, KeyError, ValueError):
        return None


def _cut(case: Case, axes: Mapping[str, str], count: int) -> Candidate:
    """A case along the axes of its tokens, and of the steps of each."""
    tokens, tensors = tokens_of(case), {}
    for name, value in case.inputs.items():
        words = axes.get(name, "").split()
        along = next((word for word in words if word in ("T", "R")), "")
        if along:
            place = words.index(along) - len(words)
            each = value.shape[place] // tokens
            value = np.take(value, range(count * each), axis=place)
        tensors[name] = value
    return Candidate(case.header.plain(), tensors)


def first_results(case: Case, results: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Of results of a whole case those of its first tokens: the causal main result alone."""
    name = main_result(case.header)
    axis = token_axis(case, name)
    if name not in results or axis is None:
        return {}
    return {name: np.take(results[name], range(count), axis=axis)}
