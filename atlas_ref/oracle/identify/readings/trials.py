"""A case on which some readings of a subject that has its own are apart, from y alone (IDENT-8)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case, CaseError
from atlas_ref.oracle.cases.inputs import round_inputs
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.cases.tensors import main_result
from atlas_ref.oracle.identify.observation import Observation
from atlas_ref.oracle.identify.readings.judge import Judge
from atlas_ref.oracle.judge.tolerance import MARGINAL
from atlas_ref.oracle.norms import norms
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.subjects.subject import Searched

#: Numbers of tokens to try, and seeds of each.
TOKENS, SEEDS = (3, 5, 8, 13, 21), 2

#: Tolerances that two readings must be apart.
APART = 2.0 * MARGINAL


def deciding_reading(case: Case, fits: Sequence[tuple[Any, ...]], dtype: str) -> Case | None:
    """The case with the fewest tokens whose y separates every two readings beyond rounding.

    Args:
        case: one that they agree on; the new one has its settings and sizes.
        fits: readings, each as what it changes together.
        dtype: format in which results will be compared.

    Returns:
        None where no trial decides.
    """
    searched = SUBJECTS[case.header.rule].searched
    assert searched is not None
    for trial in _trials(case):
        narrow = round_inputs(trial, dtype)
        if _separates(narrow, fits, searched, dtype):
            return trial
    return None


def _trials(case: Case) -> Iterator[Case]:
    """Cases of a document that is begun anew, with and without tokens from before."""
    k, v, h = case.inputs["in/k"], case.inputs["in/v"], case.header
    for tokens in TOKENS:
        for seed in range(SEEDS):
            for history in (0, 1):
                request = Request(
                    draw=1,
                    rule=h.rule,
                    tokens=tokens,
                    d_in=k.shape[-1],
                    d_out=v.shape[-1],
                    heads=2,
                    seed=seed,
                    reset=tokens - tokens // 3 if tokens > 2 else 0,
                    history=history,
                    window_gate="in/window_gate" in case.inputs,
                    parameters=dict(h.parameters or {}),
                    convention=h.convention,
                    dtype="float32",
                )
                try:
                    yield new(request, name="deciding")
                except CaseError:  # no token from before fits the window
                    continue


def _separates(case: Case, fits: Sequence[tuple[Any, ...]], searched: Searched, dtype: str) -> bool:
    """Whether y differs by more than the format rounds between every two readings."""
    name = main_result(case.header)
    judge = Judge(case, Observation({name: np.zeros(0)}, {}, {name: dtype}, ()), searched)
    reads = [np.asarray(judge.results(each, grad=False)[name], np.float64) for each in fits]
    if any(not np.isfinite(each).all() or each.shape != reads[0].shape for each in reads):
        return False
    bound = judge.tolerances(fits[0], grad=False)[name].norms
    return all(
        norms(one - other).over(bound) > APART
        for place, one in enumerate(reads)
        for other in reads[place + 1 :]
    )
