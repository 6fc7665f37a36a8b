"""Answers of a subject about cases of sequences, each by the sequence (CASE-45).

`registry` asks these in the place of the subject's own, where a case has in/sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.tensor_spec import Legal, Position
from atlas_ref.oracle.registry import PACKED
from atlas_ref.oracle.sequences import checks, parts
from atlas_ref.oracle.subjects.subject import Rounding, Subject
from atlas_ref.types import Array

Tensors = Mapping[str, Array]


def _legal(subject: Subject, header: Any, convention: Any, names: set[str]) -> Legal:
    table, refused = subject.legal(header, convention, names - checks.TENSORS.keys())
    return {**table, **checks.TENSORS}, refused


def _evaluate(
    subject: Subject, inputs: Tensors, case: Case, form: str, chunk: int | None
) -> tuple[dict[str, Array], Position]:
    ends: list[Position] = []

    def run(own: Tensors, one: Case) -> Tensors:
        results, position = subject.evaluate(own, one, form, chunk)
        ends.append(position)
        return results

    results = parts.evaluate(subject, inputs, case, run)
    # a header has one position: that of all sequences, where they end at the same one
    return results, ends[0] if all(each == ends[0] for each in ends) else None


def _plain(subject: Subject, inputs: Tensors, case: Case, rounding: Rounding) -> dict[str, Array]:
    return parts.evaluate(subject, inputs, case, lambda own, one: subject.plain(own, one, rounding))


def _run(
    subject: Subject, inputs: Tensors, case: Case, rounding: Rounding, readings: Any
) -> dict[str, Array]:
    """Results under readings of the subject's own."""
    searched = subject.searched
    assert searched is not None
    return parts.evaluate(
        subject, inputs, case, lambda own, one: searched.run(own, one, rounding, readings)
    )


def _identify(subject: Subject, *arguments: Any) -> Any:
    """What explains results of sequences (CASE-46), of a room above this one."""
    return PACKED["identify"].identify(subject, *arguments)


def _numbers(subject: Subject, header: Any, inputs: Mapping[str, Any]) -> int:
    return subject.numbers(header, _one(subject, header, inputs))


def _of_one(name: str) -> Callable[..., Any]:
    """What a subject says of a case, asked of all tokens as one call."""

    def of_one(subject: Subject, case: Case, *others: Any) -> Any:
        one = case.replaced(inputs=_one(subject, case.header, case.inputs))
        return getattr(subject, name)(one, *others)

    return of_one


def _one(subject: Subject, header: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return parts.first_of(inputs, parts.stacked_names(subject, header, inputs)[0])


#: Name of an answer of a subject -> (subject, its arguments) -> that about sequences.
ANSWERS: dict[str, Callable[..., Any]] = {
    "checked": checks.check,
    "legal": _legal,
    "evaluate": _evaluate,
    "plain": _plain,
    "run": _run,
    "numbers": _numbers,
    "identify": _identify,
    "continued": lambda subject, case: {},  # a header has one position, sequences have N
    **{
        name: _of_one(name)
        for name in ("needs", "void", "undecided", "undeclared", "features", "missed", "check_form")
    },
}
