"""Compare results under test with ours: one verdict per tensor.

Specified in specs/case.md and specs/sources.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.cases.case import Case, CaseError, between, differentiable, unsupported
from atlas_ref.oracle.cases.features import declared_features, features
from atlas_ref.oracle.cases.header import reserved_words
from atlas_ref.oracle.cases.inputs import STORED, round_inputs
from atlas_ref.oracle.cases.tensor_spec import frozen_tensors, last_of
from atlas_ref.oracle.cases.tensors import RESULTS, main_result
from atlas_ref.oracle.evaluate import evaluate, under
from atlas_ref.oracle.judge import declared as declarations
from atlas_ref.oracle.judge import states
from atlas_ref.oracle.judge.answers import Answer, Source
from atlas_ref.oracle.judge.arrays import compare_arrays, is_whole, judged
from atlas_ref.oracle.judge.profile import Allowed, by_token, first_wrong, profile, token_axis
from atlas_ref.oracle.judge.tolerance import PASS, Tolerance, require_state, tolerances
from atlas_ref.oracle.judge.verdicts import Comparison
from atlas_ref.oracle.registry import SUBJECTS

__all__ = [
    "Checked",
    "Comparison",
    "check",
    "checked",
    "chosen",
    "exit_code",
]

#: Error in float64 that rounding may have made where a rule grows it (DEEPCASE-9).
GROWN = 1e-3

#: Formats whose tolerance is measured (CASE-22), and those of them that inputs are rounded to.
MEASURED = ("float32", "bfloat16", "float16")
NARROW = ("bfloat16", "float16")

#: Reason given for an absent result.
ABSENT = "this result was not handed over"

Numbers = np.ndarray[Any, Any]


class Checked(NamedTuple):
    """A case with its verdicts, and the answer that they are about.

    Attributes:
        case: under the convention and in the dtype of the comparison.
        answer: results under test.
        dtype: the precision that the implementation works in, if stated.
        skipped: features of the case that the implementation was declared not to have.
        state_dtype: the precision of its state, if stated.
        again: asks the same source about another case, or judges other results of it where they
            are given; None where nothing is compared.
        asked: whether a source was asked, which may answer another case too.
    """

    case: Case
    answer: Answer
    rows: list[Comparison]
    dtype: str | None = None
    skipped: tuple[str, ...] = ()
    state_dtype: str | None = None
    again: Callable[..., Checked] | None = None
    asked: bool = False


def check(
    case: Case,
    *,
    source: Source | None = None,
    only: Sequence[str] | None = None,
    dtype: str | None = None,
    state_dtype: str | None = None,
    convention: str | Mapping[str, Any] | None = None,
    form: str = "sequential",
    chunk: int | None = None,
    without: Sequence[str] = (),
) -> list[Comparison]:
    """Compare results with ours, those recorded in the case unless a source computes them
    (CASE-23).

    Args:
        source: where results come from, see `atlas_ref.oracle.sources.sources`.
        only: names to compare, with or without `out/` ("y", "M", "grad/k"); all that are handed
            over when None.
        dtype: the precision that the implementation works in: float64, float32, bfloat16 or
            float16. Inputs are rounded to it first, for the implementation and for ours. When None,
            inputs stay and each result is judged by its own dtype.
        state_dtype: the precision that the implementation keeps M and S in, where it is not
            float32.
        convention: take ours under this convention instead of the case's: a preset, or axes that
            change the case's own.
        form, chunk: compute ours in this form, see `evaluate`.
        without: features that the implementation does not have; a case with one of them is NOT
            SUPPORTED, and the implementation is not asked.

    Raises:
        CaseError: the case records no results and there is no source; results that the rule does
            not have; `only` names what no rule has; a dtype or convention that does not exist; a
            form that does not compute the case.
    """
    return checked(
        case,
        source=source,
        only=only,
        dtype=dtype,
        state_dtype=state_dtype,
        convention=convention,
        form=form,
        chunk=chunk,
        without=without,
    ).rows


def checked(
    case: Case,
    *,
    source: Source | None = None,
    only: Sequence[str] | None = None,
    dtype: str | None = None,
    state_dtype: str | None = None,
    convention: str | Mapping[str, Any] | None = None,
    form: str = "sequential",
    chunk: int | None = None,
    without: Sequence[str] = (),
) -> Checked:
    """The verdicts of `check`, with their case and answer."""
    selection = None if only is None else chosen([only] if isinstance(only, str) else only, case)
    if not case.supported:
        why = unsupported(reserved_words(case.header))
        return Checked(
            case, Answer.no_support(why), [Comparison(case.name, "-", "NOT SUPPORTED", why=why)]
        )
    require_state(case, state_dtype)
    if convention is not None:
        case = under(case, convention)
    if skipped := tuple(name for name in declared_features(without) if name in features(case)):
        why = f"skipped: without {', '.join(skipped)}"
        row = Comparison(case.name, "-", "NOT SUPPORTED", why=why)
        return Checked(case, Answer.no_support(why), [row], skipped=skipped)
    if dtype is not None:
        case = round_inputs(case, dtype)
    if source is None and not case.recorded:
        raise CaseError(
            f"{case.name}: no out/... or grad/... tensor is recorded, so there is nothing to check; "
            "--impl, --exec or --against names what is checked"
        )
    answer = Answer(dict(case.recorded)) if source is None else source(case)
    if answer.tensors is None:
        return Checked(
            case, answer, [Comparison(case.name, "-", answer.verdict, why=answer.failure or "")]
        )
    got = {
        name: value for name, value in answer.tensors.items() if name.startswith(("out/", "grad/"))
    }
    selected = [name for name in got if selection is None or name in selection]
    ours = evaluate(
        case, grad=any(name.startswith("grad/") for name in selected), form=form, chunk=chunk
    ).tensors
    _check_names(case, got, ours)
    _check_ops(case, answer.tensors)
    main = main_result(case.header)
    expected = {*selected, main} if selection is None or main in selection else {*selected}
    expected |= _needs(case, ours, got) if selection is None else set()
    names = [name for name in ours if name in expected]
    results = {name: got[name] for name in names if name in got}
    rows = _judge(case, results, ours, Computed(dtype, state_dtype, form, chunk))

    def again(other: Case, given: Mapping[str, Numbers] | None = None, **stated: Any) -> Checked:
        ask = source if given is None else _handing(given)
        options = {"only": only, "dtype": dtype, "state_dtype": state_dtype, "without": without}
        return checked(other, source=ask, form=form, chunk=chunk, **{**options, **stated})

    verdicts = [
        rows.get(name) or Comparison(case.name, name, "MISSING", why=ABSENT) for name in names
    ]
    return Checked(
        case,
        answer,
        SUBJECTS[case.header.rule].in_time(case, verdicts),
        dtype,
        state_dtype=state_dtype,
        again=again,
        asked=source is not None,
    )


def _handing(given: Mapping[str, Numbers]) -> Source:
    """A source that hands the same results over whatever it is asked."""
    return lambda case: Answer(dict(given))


class Computed(NamedTuple):
    """Precision of the implementation, and form of our own results."""

    dtype: str | None
    state_dtype: str | None
    form: str
    chunk: int | None


def _judge(
    case: Case, results: Mapping[str, Numbers], ours: Mapping[str, Numbers], computed: Computed
) -> dict[str, Comparison]:
    """A verdict for each result (CASE-20, CASE-22).

    float64 is judged by a fixed tolerance, narrower formats by a measured one.
    """
    kinds = {
        name: "whole" if is_whole(ours[name]) else computed.dtype or value.dtype.name
        for name, value in results.items()
    }
    rows: dict[str, Comparison] = {}
    for kind in dict.fromkeys(kinds.values()):
        mine = {name: value for name, value in results.items() if kinds[name] == kind}
        # results in this format come from inputs in it
        own = round_inputs(case, kind) if kind in NARROW else case
        if why := SUBJECTS[case.header.rule].undecided(own, kind):
            rows |= {name: Comparison(case.name, name, "UNDECIDABLE", why=why) for name in mine}
            continue
        if kind not in MEASURED:
            fixed = {
                name: compare_arrays(case.name, name, value, ours[name], *_fixed_tolerance(case))
                for name, value in mine.items()
            }
            rows |= {name: _place(case, row, mine[name], ours[name]) for name, row in fixed.items()}
            mine = {name: mine[name] for name, row in fixed.items() if _may_grow(case, kind, row)}
            if not mine:
                continue
        want = ours
        if computed.dtype is None and kind in NARROW:
            grad = any(name.startswith("grad/") for name in mine)
            want = evaluate(own, grad=grad, form=computed.form, chunk=computed.chunk).tensors
        measured = _measure(case, kind, mine, want, computed)
        if kind != "float64":
            again = partial(_measure, kind=kind, mine=mine, want=want, computed=computed)
            measured |= declarations.missing_declaration(case, measured, again)
        for name, row in measured.items():
            rows[name] = row if name not in rows or row.verdict != "WRONG" else rows[name]
    return rows


def _measure(
    case: Case,
    kind: str,
    mine: Mapping[str, Numbers],
    want: Mapping[str, Numbers],
    computed: Computed,
) -> dict[str, Comparison]:
    """Verdicts on results in one format by the measured tolerance (CASE-22)."""
    allowed = tolerances(
        case,
        dtype=kind,
        state_dtype=computed.state_dtype,
        states=computed.dtype is not None,
        only=list(mine),
        results=want,
    )
    rows = {}
    for name, value in mine.items():
        row = judged(case.name, name, value, want[name], allowed[name])
        row = row._replace(allowed=PASS, basis=f"{row.basis}, of which PASS is up to {PASS:g}")
        rows[name] = _place(case, row, value, want[name], allowed[name])
    return rows


def _may_grow(case: Case, kind: str, row: Comparison) -> bool:
    """Whether a result in float64 is judged by the case too: what rounds may grow (DEEPCASE-9)."""
    return (
        kind == "float64"
        and SUBJECTS[case.header.rule].measured
        and row.verdict == "WRONG"
        and row.error is not None
        and row.error <= GROWN
    )


def _place(
    case: Case, row: Comparison, got: Numbers, want: Numbers, tolerance: Tolerance | None = None
) -> Comparison:
    """A verdict with its error along the tokens and its first wrong entry (SRC-12, SRC-13)."""
    if (
        got.shape != want.shape
        or got.dtype.name not in STORED
        or (tolerance is None and row.tolerance is None)
    ):
        return row
    got, want = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(all="ignore"):
        gap = states.gap(got, want, "" if tolerance is None else tolerance.handed)
        if tolerance is not None:
            most = Allowed(PASS * tolerance.max, PASS * tolerance.rms)
        else:  # a norm over all entries: no entry alone is beyond it, and a token is on the average
            size = (
                float(np.sqrt(np.mean(want**2)))
                if want.any()
                else 1.0 / math.sqrt(max(want.size, 1))
            )
            most = Allowed(math.inf, (row.tolerance or 0.0) * size)
        axis = token_axis(case, row.tensor)
        tokens = by_token(gap, axis, most)
    first = None if row.verdict == "PASS" else first_wrong(gap, axis, tokens, got, want)
    return row._replace(profile=profile(tokens, axis), first=first)


def _check_names(case: Case, got: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    names = _results_of(case, ours)
    for name in got:
        if name not in names:
            alike = ", ".join(
                dict.fromkeys(n for n in names if n.startswith(name.split("/")[0] + "/"))
            )
            why = _frozen_reason(case.header, name)
            raise CaseError(f"{case.name}: {name}: not a result of this case; it has {alike}{why}")


def _needs(case: Case, ours: Mapping[str, Any], got: Mapping[str, Any]) -> set[str]:
    """Results that an answer has to have beside the main one: all of a schedule (SCHED-9), and states
    behind some tokens of each last state in it (CASE-50).
    """
    if SUBJECTS[case.header.rule].complete:
        return {name for name in ours if name.startswith("out/")}
    states = {name for name in ours if last_of(name) != name}
    return {name for name in states if last_of(name) in got} or states


def _check_ops(case: Case, tensors: Mapping[str, Any]) -> None:
    """Refuse an op that the case does not have, which no replay would look at."""
    given = [name for name in tensors if name.startswith(("trace/", "trace_grad/"))]
    traced = SUBJECTS[case.header.rule].traced
    if not given or traced is None:
        return
    names = [op for op, *_ in traced.ops(case)]
    for name in given:
        if name.partition("/")[2] not in names:
            has = ", ".join(names)
            raise CaseError(f"{case.name}: {name}: not an op of this case; it has {has}")


def _frozen_reason(header: Any, gradient: str) -> str:
    """Why a case has no such gradient, where its feature map is not learned, else nothing."""
    name = gradient.replace("grad/", "in/", 1)
    if name not in frozen_tensors(header):
        return ""
    return "; the map is not learned, so its tensors have no gradient"


def _results_of(case: Case, ours: Iterable[str]) -> list[str]:
    """Names of every result of a case, gradients behind ours."""
    inputs = [*differentiable(case), *between(case)]
    return list(dict.fromkeys([*ours, *("grad/" + name.removeprefix("in/") for name in inputs)]))


def chosen(only: Sequence[str], case: Case | None = None) -> set[str]:
    """Full names of the results to compare.

    Args:
        case: whose results are told where a name is none, if its rule has results of its own.

    Raises:
        CaseError: a name that is no result of any rule.
    """
    from atlas_ref.oracle.schema.schema import is_result  # which asks every subject

    names = {name if name.startswith(("out/", "grad/")) else f"out/{name}" for name in only}
    unknown = sorted(name for name in names if not is_result(name))
    if unknown:
        told = f"results are {', '.join(RESULTS)}, and grad/ before an input's name"
        if case is not None and case.supported and SUBJECTS[case.header.rule].results is not None:
            told = f"{case.name} has {', '.join(_results_of(case, evaluate(case).tensors))}"
        raise CaseError(f"only: {unknown[0]}: no rule has such a result; {told}")
    return names


def _fixed_tolerance(case: Case) -> tuple[float, str]:
    """The tolerance of results in float64, and its basis in words (CASE-20, LAYER-10)."""
    subject = SUBJECTS[case.header.rule]
    return subject.tolerance_of(case.header) or subject.tolerance


def exit_code(comparisons: Iterable[Comparison]) -> int:
    """The exit code of some verdicts (CASE-26).

    0 when every compared tensor is PASS or expected not to be, 1 when one is not, 3 when nothing
    could be compared.
    """
    compared = [c for c in comparisons if c.verdict != "NOT SUPPORTED"]
    if not compared:
        return 3
    return 0 if all(c.verdict == "PASS" or c.xfail for c in compared) else 1
