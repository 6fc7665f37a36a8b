"""Case files: one input of a rule, neutral to language and library, and its recorded results.

A case is a safetensors file whose header key `atlas_ref` holds a JSON object. Specified in
specs/case.md.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import numpy as np
from pydantic import ValidationError

from atlas_ref.conventions import Convention, effective, resolve, void_axes
from atlas_ref.messages import first_problem
from atlas_ref.oracle.cases import files
from atlas_ref.oracle.cases.files import Arrays
from atlas_ref.oracle.cases.gate_axis import check_gate_axis, stated_by_a_set, wide
from atlas_ref.oracle.cases.header import Header, parse, reserved, title
from atlas_ref.oracle.cases.levels import parts, with_schedule
from atlas_ref.oracle.cases.recorded_headers import in_words_of_a_case, sized
from atlas_ref.oracle.cases.tensor_spec import BLOCK, frozen_tensors
from atlas_ref.oracle.cases.tensors import (
    Tensor,
    axes_in_words,
    check_shapes,
    gated,
    history,
    is_cotangent,
    legal,
    memory_shape,
    tokens,
)
from atlas_ref.oracle.cases.values import check_values
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.rules import FAMILY, sequence
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
        return not reserved(self.header)

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
    def in_force(self) -> dict[str, Any]:
        """The convention as a JSON object; for a block one of each level, by level0, level1, ..."""
        if self.header.rule == BLOCK:
            return {f"level{number}": part.in_force for number, part in enumerate(parts(self))}
        if not self.supported or not self._has_convention:
            return {}
        return self.convention.model_dump(mode="json")

    @property
    def _has_convention(self) -> bool:
        own = SUBJECTS[self.header.rule].own
        return own is None or own.has_convention

    @property
    def void(self) -> dict[str, str]:
        """Settings that were chosen but cannot matter, each with the reason (CASE-18)."""
        h = self.header
        if h.rule == BLOCK:
            return {
                f"level{number}.{axis}": why
                for number, part in enumerate(parts(self))
                for axis, why in part.void.items()
            }
        if own := SUBJECTS[h.rule].own:
            return own.void(h, self.inputs)
        reasons = void_axes(
            self.convention,
            rule=h.rule,
            window=h.window,
            span=h.span,
            phase=h.phase,
            tokens=tokens(self.inputs),
            history=history(self.inputs),
            resets="in/reset" in self.inputs,
            gated=gated(h, self.inputs),
            shape=memory_shape(h, self.inputs),
        )
        default = resolve("spec", rule=h.rule, level=h.level)
        settings = {
            axis: why
            for axis, why in reasons.items()
            if attrgetter(axis)(self.convention) != attrgetter(axis)(default)
        }
        if h.span is not None and not _spans(h, self.convention):
            settings["span"] = "nothing is refreshed by spans"
        if h.gate_axis is not None and not wide(self.inputs):
            settings["gate_axis"] = "every gate is one number per token"
        if h.phase is not None and not (
            _spans(h, self.convention) or effective(self.convention, rule=h.rule).frozen_reference
        ):
            settings["phase"] = "no reference is frozen and no read needs the start of a span"
        return settings


def unsupported(what: str) -> str:
    """Message about a rule or a layer that the format has and this version does not compute."""
    return f"{what}: not yet supported"


def require_supported(case: Case) -> None:
    """Refuse a reserved rule, or a layer that is not yet computed.

    Raises:
        Unsupported: names the case and the rule.
    """
    if not case.supported:
        raise Unsupported(f"{case.name}: {unsupported(reserved(case.header))}")


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
    text, tensors = files.read(name)
    text = sized(text, tensors)
    header = parse(text)
    tensors = in_words_of_a_case(text, tensors)
    fields = header.plain()
    stated = stated_by_a_set(name, fields, tensors)
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
    if reserved(header):
        return Case(
            name=name, header=header, convention=Convention(), inputs=inputs, recorded=recorded
        )
    subject = SUBJECTS[header.rule]
    own = subject.own
    if header.rule == BLOCK or own is not None:
        inputs = (
            own.checked(header, inputs)
            if own is not None
            else subject.checked_levels(
                header, inputs, lambda part, its: _build(name, part, its).inputs
            )
        )
        return Case(
            name=name,
            header=header,
            convention=_convention_of(header),
            inputs=inputs,
            recorded=recorded,
        )
    convention = resolve(header.convention, rule=header.rule, level=header.level)
    in_force = effective(convention, rule=header.rule)
    _check_convention(header, convention)
    inputs = with_schedule(header, inputs)
    table, refused = legal(header, in_force, set(inputs))
    _check_names(header, inputs, table, refused)
    check_shapes(header, inputs, table)
    check_gate_axis(header, inputs)
    inputs = {key: inputs[key] for key in table if key in inputs}
    for key, value in inputs.items():
        check_values(key, value, table[key])
    return Case(name=name, header=header, convention=convention, inputs=inputs, recorded=recorded)


def _convention_of(header: Header) -> Convention:
    """The convention in force where a subject has something in place of the family's tensors."""
    own = SUBJECTS[header.rule].own
    if own is None or not own.has_convention:
        return Convention()
    if own.convention is not None:
        in_force: Convention = own.convention(header)
        return in_force
    return resolve(header.convention, rule=header.rule)


def _check_convention(header: Header, convention: Convention) -> None:
    if header.rule not in FAMILY:
        return
    sequence.require_span(convention, header.span)
    if (
        header.phase is not None
        and header.span is not None
        and header.phase >= header.span
        and _spans(header, convention)
    ):
        raise ValueError(f"phase: must be below the span {header.span}, found {header.phase}")
    if convention.rate == "split" and header.level == "token":
        raise ValueError("convention: rate split has no second rate at level token")
    if convention.argument == "written_back" and convention.order == "momentum_then_window":
        raise ValueError(
            "convention: newton_schulz.argument written_back is not defined for order "
            "momentum_then_window"
        )


def _spans(header: Header, convention: Convention) -> bool:
    """Whether positions wrap at the span, so that span and phase matter together (CONV-30)."""
    in_force = effective(convention, rule=header.rule)
    return in_force.reference != "call_start" and "chunk_start" in (
        in_force.reference,
        in_force.read,
    )


def _check_names(
    header: Header, inputs: Arrays, table: dict[str, Tensor], refused: dict[str, str]
) -> None:
    if not inputs:
        raise ValueError(
            "no in/... tensor: these are results or an empty file, and a case needs inputs"
        )
    for key in inputs:
        if key in refused:
            raise ValueError(f"{key}: not part of this case: {refused[key]}")
        if key not in table:
            raise ValueError(
                f"{key}: unknown tensor for rule {header.rule}, level {header.level}; it has "
                f"{', '.join(table)}"
            )
    stands_in = {"in/retain": "in/log_retain", "in/momentum": "in/log_momentum"}
    for key, tensor in table.items():
        if tensor.need == "yes" and key not in inputs and stands_in.get(key) not in inputs:
            raise ValueError(f"{key}: missing, axes {axes_in_words(tensor.axes)} are needed")


def between(case: Case) -> dict[str, tuple[int, ...]]:
    """Shapes of results between, `in/attn`, whose gradient a zero that is added to them has."""
    own = SUBJECTS[case.header.rule].own if case.supported else None
    shapes = {} if own is None else own.between(case.header, case.inputs)
    return {f"in/{name}": shape for name, shape in shapes.items()}


def differentiable(case: Case) -> list[str]:
    """Names of the inputs that have a gradient: the floating ones but cotangents and constants.

    Source: PHI-20.
    """
    own = SUBJECTS[case.header.rule].own if case.supported else None
    constant = frozen_tensors(case.header) if own is None else own.constants(case.header)
    return [
        key
        for key, value in case.inputs.items()
        if value.dtype.kind not in "biu" and not is_cotangent(key) and key not in constant
    ]
