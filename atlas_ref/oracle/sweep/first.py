"""The first tokens of a case and of its results, where a search of all would take long (SRC-27)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case, CaseError, make
from atlas_ref.oracle.cases.tensors import main_result, token_count
from atlas_ref.oracle.judge.profile import token_axis
from atlas_ref.oracle.registry import SUBJECTS


def tokens_of(case: Case) -> int:
    """Tokens of a case; 0 where it has none."""
    return token_count(case.inputs)


def first_tokens(case: Case, count: int) -> Case | None:
    """The case of the first tokens of a case; None where that is none."""
    if case.has_sequences or case.has_snapshots:
        return None
    try:
        calls = SUBJECTS[case.header.rule].calls
        made = None if calls is None else calls.cut(case, range(count))
        return None if made is None else make(made.header, made.tensors, name=case.name)
    except (CaseError, KeyError, ValueError):
        return None


def first_results(case: Case, results: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Of results of a whole case those of its first tokens: the causal main result alone."""
    name = main_result(case.header)
    axis = token_axis(case, name)
    if name not in results or axis is None:
        return {}
    return {name: np.take(results[name], range(count), axis=axis)}
