"""Answers of a subject about cases that are several calls: sequences, and states behind some tokens.

`registry` asks these in the place of the subject's own, where a case has in/sequences (CASE-45) or
in/states_after (CASE-50).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.tensor_spec import Legal, Position, Tensor
from atlas_ref.oracle.registry import PACKED
from atlas_ref.oracle.sequences import checks, parts, snapshots
from atlas_ref.oracle.subjects.subject import Rounding, Subject
from atlas_ref.types import Array

Tensors = Mapping[str, Array]
Answers = dict[str, Callable[..., Any]]

#: Answers that are those of one call, of its case.
OF_ONE = ("needs", "void", "undecided", "undeclared", "features", "missed", "check_form")


class Kind(NamedTuple):
    """A kind of case that is several calls.

    Attributes:
        tensors: inputs that such a case alone has.
        checked: (subject, header, inputs) -> the inputs in order, or why they are refused.
        evaluate: (subject, inputs, case, run) -> results, run being that of one call.
        one: (subject, header, inputs) -> the inputs of one call.
        identify: the function of `sequences.identify` that explains its results.
        is_one: whether its position is that of one call, and the next call goes on from there.
    """

    tensors: Mapping[str, Tensor]
    checked: Callable[..., dict[str, Any]]
    evaluate: Callable[..., dict[str, Array]]
    one: Callable[[Subject, Any, Mapping[str, Any]], dict[str, Any]]
    identify: str
    is_one: bool


def _first(subject: Subject, header: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """All tokens as one call, from the first state of sequence 0."""
    return parts.first_of(inputs, parts.stacked_names(subject, header, inputs)[0])


def answers(kind: Kind) -> Answers:
    """Name of an answer of a subject -> (subject, its arguments) -> that about such a case."""

    def legal(subject: Subject, header: Any, convention: Any, names: set[str]) -> Legal:
        table, refused = subject.legal(header, convention, names - kind.tensors.keys())
        return {**table, **kind.tensors}, refused

    def evaluate(
        subject: Subject, inputs: Tensors, case: Case, form: str, chunk: int | None
    ) -> tuple[dict[str, Array], Position]:
        ends: list[Position] = []

        def run(own: Tensors, one: Case) -> Tensors:
            results, position = subject.evaluate(own, one, form, chunk)
            ends.append(position)
            return results

        results = kind.evaluate(subject, inputs, case, run)
        # a header has one position: that of all sequences, where they end at the same one
        same = kind.is_one or all(each == ends[0] for each in ends)
        return results, ends[0] if same else None

    def plain(
        subject: Subject, inputs: Tensors, case: Case, rounding: Rounding
    ) -> dict[str, Array]:
        return kind.evaluate(
            subject, inputs, case, lambda own, one: subject.plain(own, one, rounding)
        )

    def run(
        subject: Subject, inputs: Tensors, case: Case, rounding: Rounding, readings: Any
    ) -> dict[str, Array]:
        searched = subject.searched
        assert searched is not None
        return kind.evaluate(
            subject, inputs, case, lambda own, one: searched.run(own, one, rounding, readings)
        )

    def of_one(name: str) -> Callable[..., Any]:
        def of_case(subject: Subject, case: Case, *others: Any) -> Any:
            one = kind.one(subject, case.header, case.inputs)
            return getattr(subject, name)(case.replaced(inputs=one, recorded={}), *others)

        return of_case

    def next_call(subject: Subject, case: Case) -> Any:
        # a header has one position, sequences have N
        return of_one("continued")(subject, case) if kind.is_one else {}

    def numbers(subject: Subject, header: Any, inputs: Mapping[str, Any]) -> int:
        return subject.numbers(header, kind.one(subject, header, inputs))

    def identify(subject: Subject, *arguments: Any) -> Any:
        """What explains results, of a room above this one."""
        return getattr(PACKED["identify"], kind.identify)(subject, *arguments)

    return {
        "checked": kind.checked,
        "legal": legal,
        "evaluate": evaluate,
        "plain": plain,
        "run": run,
        "numbers": numbers,
        "identify": identify,
        "continued": next_call,
        **{name: of_one(name) for name in OF_ONE},
    }


SEQUENCES = answers(
    Kind(checks.TENSORS, checks.check, parts.evaluate, _first, "identify", is_one=False)
)
SNAPSHOTS = answers(
    Kind(
        snapshots.TENSORS,
        snapshots.check,
        snapshots.evaluate,
        lambda subject, header, inputs: snapshots.without(inputs),
        "identify_snapshots",
        is_one=True,
    )
)
