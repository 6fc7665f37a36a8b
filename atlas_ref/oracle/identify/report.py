"""Input and output of `identify`: result files, and the answer as JSON.

Source: IDENT-1, IDENT-9.
"""

from __future__ import annotations

import os
from typing import Any

from atlas_ref.oracle.cases.case import Case, CaseError, load_results
from atlas_ref.oracle.cases.inputs import same
from atlas_ref.oracle.identify.answer import Fit, Identification
from atlas_ref.oracle.identify.departed import Departed
from atlas_ref.oracle.identify.stated import setting


def results_of(case: Case, path: str | os.PathLike[str]) -> dict[str, Any]:
    """`out/...` and `grad/...` of a result file.

    Raises:
        CaseError: not such a file, of another rule, computed from other inputs, or without results.
    """
    name = os.fspath(path)
    header, tensors = load_results(name)
    if header.rule != case.header.rule:
        raise CaseError(
            f"{name}: rule {header.rule}, but {case.name} is a case of {case.header.rule}"
        )
    for key, value in tensors.items():
        if key.startswith("in/") and not same(value, case.inputs.get(key)):
            raise CaseError(
                f"{name}: {key}: differs from that of {case.name}, so these are results of "
                "another case"
            )
    results = {key: value for key, value in tensors.items() if key.startswith(("out/", "grad/"))}
    if not results:
        raise CaseError(f"{name}: no out/... or grad/... tensor, so there is nothing to identify")
    return results


def plain(answer: Identification, out: str, decided: str = "") -> dict[str, Any]:
    """The report as JSON."""
    return {
        "case": answer.case,
        "out": out,
        "exit": answer.exit_code,
        "verdict": answer.verdict,
        "why": answer.why,
        "match": _fit(answer.match),
        "preset": answer.preset,
        "own": answer.own,
        "from_own": None if answer.match is None else answer.from_own,
        "as_if": [_departed(each) for each in answer.departures],
        "runner_up": _fit(answer.runner_up),
        "times_worse": answer.times_worse,
        "undecided": answer.undecided,
        "indistinguishable": [
            {"changes": twin.changes, "reason": twin.reason, "distance": twin.distance}
            for twin in answer.twins
        ],
        "void": dict(sorted(answer.void.items())),
        "not_tried": answer.untried,
        "not_used": list(answer.unused),
        "failed": list(answer.failed),
        "searched": answer.searched,
        "deciding_case": decided or None,
    }


def _departed(each: Departed) -> dict[str, Any]:
    return {
        "feature": each.feature or None,
        "words": each.words,
        "convention": each.convention,
        "option": setting(each.convention),
        "distance": each.distance,
        "error_over_tolerance": each.ratio,
        "tensor": each.tensor,
    }


def _fit(fit: Fit | None) -> dict[str, Any] | None:
    if fit is None:
        return None
    return {
        "convention": fit.convention,
        "option": setting(fit.convention),
        "distance": fit.distance,
        "error_over_tolerance": fit.ratio,
        "tensor": fit.tensor,
    }
