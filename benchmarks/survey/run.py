"""Every implementation on every case of a set, at every precision that it computes in."""

from __future__ import annotations

import collections
import datetime
import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.cases.case import Case, CaseError, load
from atlas_ref.oracle.judge.answers import Source
from atlas_ref.oracle.judge.compare import check
from atlas_ref.oracle.judge.verdicts import Comparison
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.sources.sources import respond
from atlas_ref.oracle.subjects.base.facts import clause
from benchmarks.survey import (
    bracket,
    chunks,
    deep,
    deep_faults,
    family,
    family_faults,
    identity,
    rnn_faults,
)
from benchmarks.survey.catalogue import OTHERS, Entry
from benchmarks.survey.restate import Asked, asked, once

GATES = ("retain", "momentum", "step_size", "step_size_memory")

#: Seeds of the bracket's numbers.
SEEDS = range(bracket.SEEDS)


class Set(NamedTuple):
    """The cases of a folder.

    Attributes:
        cases: those that can be read, by name.
        refused: files that are no case, as negative ones are.
    """

    name: str
    cases: tuple[Case, ...]
    refused: int
    digest: str


def read(folder: Path) -> Set:
    """Every case below a folder, in the order of their names.

    Raises:
        CaseError: there is none.
    """
    cases, refused, digest = [], 0, hashlib.sha256()
    for path in sorted(folder.rglob("*.safetensors")):
        digest.update(
            path.relative_to(folder).as_posix().encode()
            + b"\0"
            + hashlib.sha256(path.read_bytes()).digest()
        )
        try:
            case = load(path)
        except CaseError:
            refused += 1
            continue
        cases.append(case.model_copy(update={"name": path.stem}))
    if not cases:
        raise CaseError(f"{folder}: holds no case")
    return Set(folder.as_posix(), tuple(cases), refused, digest.hexdigest())


def survey(
    cases: Set, entries: Sequence[Entry], *, tell: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """The data of the page, as JSON can hold it, with implementations of this environment.

    Figures of rounding are given as bounds, so that machines agree on them.
    """
    rows = []
    for entry in entries:
        tell(entry.implementation.label)
        rows.append(entry_row(entry, cases))
    return {**about(cases), "implementations": rows, "others": dict(OTHERS), **beside(tell)}


def about(cases: Set) -> dict[str, Any]:
    """The day of the run, and the set that tables of conventions and failures are about."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "set": {
            "name": cases.name,
            "cases": len(cases.cases),
            "refused": cases.refused,
            "sha256": cases.digest,
        },
    }


def beside(tell: Callable[[str], None]) -> dict[str, Any]:
    """What stands beside the set: the linear family, deep memories, faults, each by its number."""
    tell("the linear family")
    found: dict[str, Any] = {"family": family.found(), "family_faults": family_faults.found()}
    tell("memories of several layers")
    found |= {"deep": deep.found(), "deep_faults": deep_faults.found()}
    tell("layers of atlas-rnn, calls of titans-pytorch")
    return found | {"bracket": _bracket(), "rnn": rnn_faults.found(), "chunks": chunks.found()}


def entry_row(entry: Entry, cases: Set, source: Source | None = None) -> dict[str, Any]:
    """The row of an implementation.

    Args:
        source: what answers for it, where that is not this process.
    """
    one = entry.implementation
    said = {
        "label": one.label,
        "package": one.package,
        "version": entry.version,
        "function": entry.function,
        "rule": one.rule,
    }
    said |= {"convention": one.convention, "source": one.source, "note": one.note}
    if not entry.version:
        return said | {"missing": f"{one.package} is not installed"}
    answering = source or functools.partial(respond, one)
    match = identity.identified(one, source)._asdict()
    match["undecided"] = list(match["undecided"])
    questions = once(each for case in cases.cases if (each := asked(case, one)) is not None)
    not_asked = collections.Counter(each.why for each in questions if each.case is None)
    changes = collections.Counter(words for each in questions for words in each.changes)
    said |= {
        "identified": match,
        "not_asked": dict(sorted(not_asked.items())),
        "changes": dict(sorted(changes.items())),
    }
    results = {dtype: _results(answering, questions, dtype) for dtype in one.dtypes}
    return said | {"results": results}


def _results(source: Source, questions: Sequence[Asked], dtype: str) -> dict[str, Any]:
    kinds: dict[str, collections.Counter[str]] = {
        "values": collections.Counter(),
        "gradients": collections.Counter(),
    }
    failed: dict[str, dict[str, Any]] = {}
    cases = {"as they stand": 0, "restated": 0, "passed": 0}
    for question in questions:
        if question.case is None:
            continue
        rows = check(question.case, source=source, dtype=dtype)
        cases["restated" if question.changes else "as they stand"] += 1
        cases["passed"] += all(row.verdict == "PASS" for row in rows)
        for row in rows:
            kinds["gradients" if row.tensor.startswith("grad/") else "values"][row.verdict] += 1
            if row.verdict != "PASS":
                _note(failed, row, question.case)
    return {
        "cases": cases,
        **{kind: dict(sorted(counts.items())) for kind, counts in kinds.items()},
        "failed": failed,
    }


def _note(failed: dict[str, dict[str, Any]], row: Comparison, case: Case) -> None:
    """Count a failure under its clause, with the worst of them."""
    name = clause(SUBJECTS[case.header.rule].clauses, row.tensor) or "-"
    entry = failed.setdefault(
        name, {"tensors": [], "cases": [], "verdicts": [], "worst": "", "why": []}
    )
    for key, value in (
        ("tensors", row.tensor),
        ("cases", case.name),
        ("verdicts", row.verdict),
        ("why", _why(row, case)),
    ):
        if value and value not in entry[key]:
            entry[key] = sorted([*entry[key], value])
    size = _magnitude(row)
    entry["worst"] = max(entry["worst"], size, key=_order)


def _why(row: Comparison, case: Case) -> str:
    """Words about a failure: what its message says, and gates at their bounds."""
    if row.got is not None and not math.isfinite(row.got):
        zero = [
            n
            for n in ("retain", "momentum", "step_size", "step_size_memory")
            if (np.asarray(case.inputs.get(f"in/{n}", 1)) == 0).any()
        ]
        return "not finite" + (f", with a {' and a '.join(zero)} of 0" if zero else "")
    return row.why


def _magnitude(row: Comparison) -> str:
    """The error as a power of ten, which every machine agrees on, or what stands in its place."""
    if row.error is None or not math.isfinite(row.error):
        return "not finite" if row.got is not None else row.verdict
    return f"1e{math.floor(math.log10(row.error)) + 1}" if row.error else "0"


def _order(size: str) -> float:
    try:
        return float(size)
    except ValueError:
        return math.inf if size else -1.0


def _bracket() -> dict[str, Any]:
    try:
        drifts = [bracket.drift(seed) for seed in SEEDS]
    except ImportError as error:
        return {"missing": str(error)}
    columns = {name: [getattr(each, name) for each in drifts] for name in bracket.Drift._fields}
    rounding = {
        name: _bound(columns[name])
        for name in ("hand_from_autograd", "applied_from_lost", "forms_apart")
    }
    figures = {
        name: [f"{pick(columns[name]):.2f}" for pick in (min, max)]
        for name in ("applied_from_autograd", "norm_ratio", "cosine")
    }
    sizes = {
        "seeds": len(drifts),
        "width": bracket.WIDTH,
        "heads": bracket.HEADS,
        "tokens": bracket.TOKENS,
        "chunk": bracket.CHUNK,
    }
    return {**sizes, **figures, **rounding}


def _bound(values: Sequence[float]) -> str:
    """One digit, rounded up."""
    size = math.floor(math.log10(max(values)))
    return f"{math.ceil(max(values) / 10.0**size)}e{size}"
