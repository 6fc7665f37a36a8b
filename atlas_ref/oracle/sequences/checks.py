"""Inputs of a case of sequences: what they may be, each refused in one line (CASE-44)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.tensor_spec import Tensor
from atlas_ref.oracle.cases.tensors import token_count
from atlas_ref.oracle.cases.values import check_values
from atlas_ref.oracle.registry import OF_SNAPSHOTS
from atlas_ref.oracle.sequences.parts import (
    INITIAL,
    SEQUENCES,
    Plan,
    Span,
    first_of,
    spans_of,
    stacked_names,
    token_axes,
)
from atlas_ref.oracle.subjects.subject import Subject

#: Inputs of sequences -> axes, and what stands in when one is absent.
TENSORS = {
    SEQUENCES: Tensor("N+1", "one sequence", low=0, whole=True),
    INITIAL: Tensor("N", "all true", mask=True),
}


def check(subject: Subject, header: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs in order; refuses them as CASE-16, those of each sequence as of a case.

    Raises:
        ValueError: names the tensor, the rule it breaks and what was found.
    """
    _check_header(subject, header, inputs)
    _check_bounds(inputs)
    _check_initial(subject, header, inputs)
    spans = spans_of(inputs)
    stacked, firsts = stacked_names(subject, header, inputs)
    for name in sorted(stacked):
        shape = tuple(inputs[name].shape)
        if shape[:1] != (len(spans),):
            raise ValueError(
                f"{name}: shape {shape}, {len(spans)} sequences need {len(spans)} in front of "
                "its axes"
            )
    one = first_of(inputs, stacked)
    order = _inputs_of_one(subject, header, one, stacked, 0)
    _check_end(inputs)
    whole = Case.trusted(
        name="case",
        header=header,
        convention=subject.convention(header),
        inputs=one,
        recorded={},
    )
    assert subject.calls is not None
    of = Plan(spans, token_axes(subject.calls, whole), frozenset(stacked), frozenset(firsts))
    for span in spans:
        some = Span(span.number, 0, 1) if span.empty else span._replace(fresh=False)
        for each in {some, some._replace(fresh=span.fresh)}:
            _inputs_of_one(subject, header, of.inputs_of(inputs, each), stacked, span.number)
    ends = {name: inputs[name] for name in TENSORS if name in inputs}
    return {**{name: inputs[name] for name in order}, **ends}


def _inputs_of_one(
    subject: Subject, header: Any, own: Mapping[str, Any], stacked: set[str], number: int
) -> dict[str, Any]:
    """The inputs of one sequence; an error of a state says whose it is."""
    try:
        return subject.checked(header, own)
    except ValueError as error:
        of_state = str(error).partition(":")[0] in stacked or number
        raise ValueError(f"{error} (sequence {number})" if of_state else str(error)) from None


def _check_header(subject: Subject, header: Any, inputs: Mapping[str, Any]) -> None:
    name = SEQUENCES if SEQUENCES in inputs else INITIAL
    if subject.calls is None:
        raise ValueError(f"{name}: rule {header.rule} has no calls that are packed into one")
    if name == INITIAL:
        raise ValueError(f"{INITIAL}: belongs beside {SEQUENCES}, which is missing")
    if OF_SNAPSHOTS in inputs:
        raise ValueError(
            f"{OF_SNAPSHOTS}: counts tokens of one call, and {SEQUENCES} packs several; one of them "
            "is needed"
        )
    if "in/reset" in inputs:
        raise ValueError(
            f"{SEQUENCES}: found beside in/reset, and both say where sequences start; one of "
            "them is needed"
        )
    if getattr(header, "schedule", None) is not None:
        raise ValueError(
            f"{SEQUENCES}: found beside a schedule, whose steps are of one call; in/active says "
            "which tokens write"
        )


def _check_bounds(inputs: Mapping[str, Any]) -> None:
    """Refuse bounds that are no whole numbers from 0 that never fall."""
    bounds = inputs[SEQUENCES]
    if bounds.ndim != 1 or bounds.shape[0] < 2:
        raise ValueError(
            f"{SEQUENCES}: shape {tuple(bounds.shape)}, expected (N + 1,) of at least 1 sequence"
        )
    check_values(SEQUENCES, bounds, TENSORS[SEQUENCES])
    if bounds[0] != 0:
        raise ValueError(f"{SEQUENCES}: the first sequence starts at token 0, found {bounds[0]}")
    falls = np.flatnonzero(np.diff(bounds) < 0)
    if falls.size:
        n = int(falls[0])
        raise ValueError(
            f"{SEQUENCES}: starts never fall, found {bounds[n + 1]} behind {bounds[n]} at ({n + 1},)"
        )


def _check_end(inputs: Mapping[str, Any]) -> None:
    last, tokens = int(inputs[SEQUENCES][-1]), token_count(inputs)
    if last != tokens:
        raise ValueError(
            f"{SEQUENCES}: the last number must be {tokens}, as many as there are tokens, found {last}"
        )


def _check_initial(subject: Subject, header: Any, inputs: Mapping[str, Any]) -> None:
    if INITIAL not in inputs:
        return
    mask, count = inputs[INITIAL], inputs[SEQUENCES].shape[0] - 1
    if tuple(mask.shape) != (count,):
        raise ValueError(f"{INITIAL}: shape {tuple(mask.shape)}, {count} sequences need ({count},)")
    check_values(INITIAL, mask, TENSORS[INITIAL])
    if not stacked_names(subject, header, inputs)[1]:
        raise ValueError(f"{INITIAL}: the case has no first state that a sequence could lack")
