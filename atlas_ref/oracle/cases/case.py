"""Case files: one input of a rule, neutral to language and library, and its recorded results.

A case is a safetensors file whose header key `atlas_ref` holds a JSON object. Specified in
specs/case.md.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
from pydantic import ValidationError

from atlas_ref.conventions import Convention
from atlas_ref.messages import first_problem
from atlas_ref.oracle.cases import files
from atlas_ref.oracle.cases.files import Arrays
from atlas_ref.oracle.cases.gate_axis import axis_from_manifest
from atlas_ref.oracle.cases.header import Header, parse, reserved_words, title
from atlas_ref.oracle.cases.recorded_headers import in_later_words, in_words_of_a_case, with_sizes
from atlas_ref.oracle.cases.tensor_spec import frozen_tensors
from atlas_ref.oracle.cases.tensors import is_cotangent
from atlas_ref.oracle.registry import OF_SNAPSHOTS, SUBJECTS
from atlas_ref.types import Frozen


class CaseError(ValueError):
    """Bad input, in one line (CASE-16, CASE-17).

    The line names the file, the tensor or key, the value and the rule that it breaks.
    """


class Unsupported(CaseError):
    """A rule that the format reserves and this version does not compute."""


class Case(Frozen):
    """A validated case.

    Attributes:
        name: file it came from, for messages.
        header: the JSON object.
        convention: the convention in force, resolved for the rule and level.
        inputs: `in/...` tensors, in the dtype of the file.
        recorded: `out/...` and `grad/...` tensors, where results are in the file.
    """

    name: str
    header: Header
    convention: Convention
    inputs: dict[str, Any]
    recorded: dict[str, Any]

    @property
    def supported(self) -> bool:
        return not reserved_words(self.header)

    @property
    def title(self) -> str:
        """The rule, and of a layer its name."""
        return title(self.header)

    def require_one_memory(self, what: str) -> None:
        """Refuse what is not one memory, or not one that a tool takes (LAYER-12, DPLRCASE-7).

        Raises:
            CaseError: names the tool and what to give it, or which command to use, instead.
        """
        subject = SUBJECTS[self.header.rule]
        if subject.instead:
            instead = subject.why_nothing(self.header) or subject.instead
            why = "does not take this rule" if subject.is_memory else "looks into one memory"
            raise CaseError(f"{self.name}: rule {self.header.rule}: {what} {why}; {instead}")

    @property
    def has_sequences(self) -> bool:
        """Whether it is of sequences with states of their own (CASE-44)."""
        return "in/sequences" in self.inputs

    @property
    def has_snapshots(self) -> bool:
        """Whether it asks for states behind some tokens (CASE-49)."""
        return OF_SNAPSHOTS in self.inputs

    def require_one_call(self, what: str) -> None:
        """Refuse a case of several calls: sequences, and states behind some tokens (CASE-47, CASE-50).

        Raises:
            CaseError: names the tool.
        """
        if self.has_snapshots:
            raise CaseError(
                f"{self.name}: in/states_after: {what} looks into one call, and asks for no states "
                "behind some of its tokens; check and identify do"
            )
        if self.has_sequences:
            raise CaseError(
                f"{self.name}: in/sequences: {what} looks into one call, and each sequence is one; "
                "check and identify take all of them"
            )

    @property
    def in_force(self) -> dict[str, Any]:
        """The convention as a JSON object; for a block one of each level, by level0, level1, ..."""
        if not self.supported:
            return {}
        subject = SUBJECTS[self.header.rule]
        if subject.has_levels:
            parts = enumerate(subject.parts(self))
            return {f"level{number}": part.in_force for number, part in parts}
        return self.convention.model_dump(mode="json") if subject.has_convention else {}

    @property
    def void(self) -> dict[str, str]:
        """Settings that were chosen but cannot matter, each with the reason (CASE-18)."""
        return SUBJECTS[self.header.rule].void(self)


def unsupported(what: str) -> str:
    """Message about a rule or a layer that the format has and this version does not compute."""
    return f"{what}: not yet supported"


def require_supported(case: Case) -> None:
    """Refuse a reserved rule, or a layer that is not yet computed.

    Raises:
        Unsupported: names the case and the rule.
    """
    if not case.supported:
        raise Unsupported(f"{case.name}: {unsupported(reserved_words(case.header))}")


def refuse(case: Case, what: str) -> NoReturn:
    """Refuse a case of a rule that a tool does not compute.

    Raises:
        CaseError: names the tool and what to give it instead.
        Unsupported: nothing takes its place.
    """
    case.require_one_memory(what)
    raise Unsupported(f"{case.name}: rule {case.header.rule}: {what} is not yet supported")


def make(header: Mapping[str, Any], tensors: Arrays, *, name: str = "case") -> Case:
    """A case from a header and tensors in memory (CASE-2 to CASE-11).

    Raises:
        CaseError: anything that specs/case.md calls bad input.
    """
    try:
        return _build(name, parse(json.dumps(dict(header))), dict(tensors))
    except (ValueError, TypeError, RecursionError) as error:
        raise named(name, error) from None


def parse_header(header: Mapping[str, Any], *, name: str = "case") -> Header:
    """The JSON object of a case, validated.

    Raises:
        CaseError: an unknown key, a value that does not exist or that the rule does not have.
    """
    try:
        return parse(json.dumps(dict(header)))
    except (ValueError, TypeError, RecursionError) as error:
        raise named(name, error) from None


def load(path: str | os.PathLike[str]) -> Case:
    """Read a case file (CASE-1 to CASE-11).

    Raises:
        CaseError: anything that specs/case.md calls bad input.
    """
    name = os.fspath(path)
    try:
        return _build(name, *_read(name))
    except ValueError as error:
        raise named(name, error) from None


def load_results(path: str | os.PathLike[str]) -> tuple[Header, dict[str, Any]]:
    """Read the header and the tensors of a file that may hold results alone.

    Raises:
        CaseError: not such a file, or a header that no case has.
    """
    name = os.fspath(path)
    try:
        header, tensors = _read(name)
        _check_prefixes(tensors)
    except ValueError as error:
        raise named(name, error) from None
    return header, tensors


def _read(name: str) -> tuple[Header, dict[str, Any]]:
    """The header and the tensors of a file."""
    text, given = files.read(name)
    text, tensors = in_later_words(text, given)
    text = with_sizes(text, tensors)
    header = parse(text)
    tensors = in_words_of_a_case(text, tensors)
    fields = header.plain()
    stated = axis_from_manifest(name, fields, tensors)
    return header if stated is fields else parse(json.dumps(stated)), tensors


def save(path: str | os.PathLike[str], header: Header | Mapping[str, Any], tensors: Arrays) -> None:
    """Write a case or results, whole or not at all (CASE-19).

    Args:
        header: of a case that was read, or the JSON object itself.
        tensors: name -> array, the names with their `in/`, `out/`, `grad/`.

    Raises:
        CaseError: the place cannot be written, or the file format cannot hold the header or a
            tensor.
    """
    name = os.fspath(path)
    try:
        files.write(
            name,
            json.dumps(
                header.plain() if isinstance(header, Header) else dict(header),
                sort_keys=True,
                allow_nan=False,
            ),
            tensors,
        )
    except (ValueError, TypeError) as error:
        raise named(name, error) from None


def named(name: str, error: Exception) -> CaseError:
    """The error in one line, with the file that it is about."""
    text = first_problem(error) if isinstance(error, ValidationError) else str(error)
    return CaseError(f"{name}: {' '.join(text.split())}")


def _check_prefixes(tensors: Mapping[str, Any]) -> None:
    for key, value in tensors.items():
        if not isinstance(key, str) or not key.startswith(
            ("in/", "out/", "grad/", "trace/", "trace_grad/", "chunk/")
        ):
            raise ValueError(
                f"{key!r}: tensor names start with in/, out/, grad/, trace/, trace_grad/ or chunk/"
            )
        if not isinstance(value, np.ndarray):
            raise ValueError(f"{key}: an array is needed, found {type(value).__name__}")


def _build(name: str, header: Header, tensors: dict[str, Any]) -> Case:
    _check_prefixes(tensors)
    inputs = {key: value for key, value in tensors.items() if key.startswith("in/")}
    recorded = {key: value for key, value in tensors.items() if key.startswith(("out/", "grad/"))}
    if reserved_words(header):
        return Case(
            name=name, header=header, convention=Convention(), inputs=inputs, recorded=recorded
        )
    subject = SUBJECTS[header.rule]
    return Case(
        name=name,
        header=header,
        inputs=subject.checked(header, inputs),
        convention=subject.convention(header),
        recorded=recorded,
    )


def between(case: Case) -> dict[str, tuple[int, ...]]:
    """Shapes of results between, `in/attn`, whose gradient a zero that is added to them has."""
    if not case.supported:
        return {}
    shapes = SUBJECTS[case.header.rule].between(case.header, case.inputs)
    return {f"in/{name}": shape for name, shape in shapes.items()}


def differentiable(case: Case) -> list[str]:
    """Names of the inputs that have a gradient: the floating ones but cotangents and constants.

    Source: PHI-20.
    """
    constant = (
        SUBJECTS[case.header.rule].constants(case.header)
        if case.supported
        else frozen_tensors(case.header)
    )
    return [
        key
        for key, value in case.inputs.items()
        if value.dtype.kind not in "biu" and not is_cotangent(key) and key not in constant
    ]
