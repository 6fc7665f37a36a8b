"""Input and output of `identify`: results under test, and the answer as JSON.

Source: IDENT-1, IDENT-9.
"""

from __future__ import annotations

from typing import Any, cast

from atlas_ref.oracle.cases.case import Case, CaseError
from atlas_ref.oracle.identify.answer import Fit, Identification, Verdict
from atlas_ref.oracle.identify.departed import Departed
from atlas_ref.oracle.identify.stated import setting
from atlas_ref.oracle.judge.answers import Answer, Source


def results_of(case: Case, source: Source | None) -> Answer:
    """`out/...` and `grad/...` of a source, or those recorded in the case (IDENT-20).

    Raises:
        CaseError: a file that is none of this case's results; no result at all.
    """
    answer = Answer(dict(case.recorded)) if source is None else source(case)
    if answer.tensors is None:
        return answer
    results = {
        key: value for key, value in answer.tensors.items() if key.startswith(("out/", "grad/"))
    }
    if results:
        return Answer(results)
    if source is None:
        raise CaseError(
            f"{case.name}: no out/... or grad/... tensor is recorded, so there is nothing to "
            "identify; --out, --impl or --exec gives results"
        )
    raise CaseError(
        f"{case.name}: no out/... or grad/... tensor was handed over, so there is nothing to "
        "identify"
    )


def absent(case: Case, answer: Answer) -> Identification:
    """The answer about a case to which an implementation gave none (IDENT-20)."""
    return Identification(case.name, cast(Verdict, answer.verdict), answer.failure or "")


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
        "as_if": [_departure(each) for each in answer.departures],
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


def _departure(each: Departed) -> dict[str, Any]:
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
