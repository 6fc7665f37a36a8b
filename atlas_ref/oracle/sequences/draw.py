"""A new case of sequences with states of their own (CASE-48)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from atlas_ref.oracle.cases.case import Case, CaseError, make
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.sequences.parts import INITIAL, SEQUENCES, Span, spans_of, stacked_names

if TYPE_CHECKING:
    from atlas_ref.oracle.cases.new import Request

#: Between the seeds of two sequences' states.
STRIDE = 1_000_003

#: Sequences from which on one of them has no first state.
MIXED = 3


def draw(request: Request, new: Callable[..., Case], *, name: str) -> Case:
    """A case of the lengths in `request.sequences`, each sequence with states drawn for it.

    All other tensors are those of a case of as many tokens. Of three sequences and more, the one
    with tokens that is nearest the middle has no first state.

    Args:
        new: makes a case without sequences.

    Raises:
        CaseError: lengths that are none, or settings that say something else.
    """
    tokens = _tokens_of(request, name)
    plain = request.replaced(sequences=(), tokens=tokens)
    case = new(plain, name=name)
    subject = SUBJECTS[request.rule]
    bounds = np.cumsum([0, *request.sequences]).astype(np.int64)
    tensors: dict[str, Any] = {**case.inputs, SEQUENCES: bounds}
    if subject.calls is None:  # refused with the words of such a case
        return make(case.header.plain(), tensors, name=name)
    stacked, firsts = stacked_names(subject, case.header, case.inputs)
    count = len(request.sequences)
    others = [
        new(plain.replaced(seed=request.seed + STRIDE * n), name=name).inputs
        for n in range(1, count if stacked else 1)
    ]
    tensors |= {
        each: np.stack([case.inputs[each], *(other[each] for other in others)]) for each in stacked
    }
    if firsts and count >= MIXED:
        tensors[INITIAL] = np.arange(count) != _nearest_the_middle(spans_of(tensors))
    return make(case.header.plain(), tensors, name=name)


def _tokens_of(request: Request, name: str) -> int:
    """The tokens of all sequences."""
    lengths = request.sequences
    if min(lengths) < 0:
        raise CaseError(f"{name}: sequences: lengths are from 0, found {min(lengths)}")
    if not sum(lengths):
        raise CaseError(f"{name}: sequences: at least one of them needs a token")
    for key, plain in (("reset", 0), ("packed", False), ("periods", ()), ("states", 0)):
        if getattr(request, key) != plain:
            raise CaseError(f"{name}: sequences and {key}: one of them is needed")
    usual = type(request).model_fields["tokens"].default
    if request.tokens not in (usual, sum(lengths)):
        raise CaseError(
            f"{name}: sequences of {sum(lengths)} tokens and tokens {request.tokens}: one of them "
            "is needed"
        )
    return sum(lengths)


def _nearest_the_middle(spans: tuple[Span, ...]) -> int:
    """The sequence with tokens that is nearest the middle one."""
    middle = len(spans) // 2
    return min((n for n, each in enumerate(spans) if not each.empty), key=lambda n: abs(n - middle))
