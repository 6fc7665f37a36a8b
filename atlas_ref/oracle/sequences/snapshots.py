"""States behind some tokens of a call, as drafts and caches of prefixes need them (CASE-49, CASE-50).

The state behind p tokens is that of a call of the first p, whatever comes after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from atlas_ref.oracle.cases.case import Case, CaseError, make
from atlas_ref.oracle.cases.tensor_spec import Tensor
from atlas_ref.oracle.cases.tensors import token_count
from atlas_ref.oracle.cases.values import check_values
from atlas_ref.oracle.registry import OF_SNAPSHOTS
from atlas_ref.oracle.sequences import parts
from atlas_ref.oracle.sequences.mistakes import Mistake
from atlas_ref.oracle.subjects.subject import Subject
from atlas_ref.types import Array

if TYPE_CHECKING:
    from atlas_ref.oracle.cases.new import Request

Tensors = Mapping[str, Array]

#: The input: numbers of tokens behind which states are asked for.
TENSORS = {OF_SNAPSHOTS: Tensor("K", "no such states", low=0, whole=True)}

#: Tokens of blocks at whose ends a program may take its states (CASE-50).
BLOCKS = (2, 4, 8, 16, 32, 64, 128)


def without(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of an ordinary call, without the question."""
    return {name: x for name, x in inputs.items() if name != OF_SNAPSHOTS}


def call_of(case: Case) -> Case:
    """The case without the question, an ordinary call."""
    return case.replaced(inputs=without(case.inputs), recorded={})


def places_of(case: Case) -> list[int]:
    """The numbers of tokens behind which states are asked for."""
    return [int(p) for p in case.inputs[OF_SNAPSHOTS]]


def check(subject: Subject, header: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs in order; refuses places that are none (CASE-49).

    Raises:
        ValueError: names the tensor, the rule it breaks and what was found.
    """
    if subject.calls is None:
        raise ValueError(f"{OF_SNAPSHOTS}: rule {header.rule} has no calls that may end earlier")
    if getattr(header, "schedule", None) is not None:
        raise ValueError(f"{OF_SNAPSHOTS}: found beside a schedule, whose steps are of one call")
    places = inputs[OF_SNAPSHOTS]
    if places.ndim != 1 or not places.size:
        raise ValueError(
            f"{OF_SNAPSHOTS}: shape {tuple(places.shape)}, expected (K,) of at least 1"
        )
    check_values(OF_SNAPSHOTS, places, TENSORS[OF_SNAPSHOTS])
    order = subject.checked(header, without(inputs))
    tokens = token_count(inputs)
    _check_places(subject, header, order, [int(p) for p in places], tokens)
    return {**order, OF_SNAPSHOTS: places}


def _check_places(
    subject: Subject, header: Any, inputs: dict[str, Any], places: list[int], tokens: int
) -> None:
    """Refuse places behind the last token, that fall, or at which no call may end."""
    assert subject.calls is not None
    whole = Case.trusted(
        name="case",
        header=header,
        convention=subject.convention(header),
        inputs=inputs,
        recorded={},
    )
    for number, place in enumerate(places):
        if place > tokens:
            raise ValueError(
                f"{OF_SNAPSHOTS}: {place} at ({number},), but there are {tokens} tokens"
            )
        if number and place < places[number - 1]:
            raise ValueError(
                f"{OF_SNAPSHOTS}: places never fall, found {place} behind {places[number - 1]} at "
                f"({number},)"
            )
        if 0 < place < tokens and not subject.calls.may_cut(whole, place):
            raise ValueError(f"{OF_SNAPSHOTS}: no call of this case may end after {place} tokens")


def evaluate(
    subject: Subject,
    inputs: Tensors,
    case: Case,
    run: Callable[[Tensors, Case], Tensors],
    wiring: Sequence[int] | None = None,
) -> dict[str, Array]:
    """Results of a call, and its states behind some tokens, each by a call of the first (CASE-50).

    A state whose shape is not the same at all places, as that of a window, is left out.

    Args:
        inputs: arrays or tape variables.
        run: (inputs, case) -> results of one call.
        wiring: places of a mistake, in place of the case's.
    """
    calls, one, own = subject.calls, call_of(case), without(inputs)
    assert calls is not None
    results = dict(run(own, one))
    axes, tokens = parts.token_axes(calls, one), token_count(one.inputs)
    at: dict[int, Tensors] = {tokens: results}
    order = places_of(case) if wiring is None else wiring
    for place in order:
        if place not in at:
            at[place] = _behind(subject, one, own, axes, place, results, run)
    for name in [name for name in results if calls.left(name)]:
        states = [at[place].get(name) for place in order]
        if all(x is not None and x.shape == results[name].shape for x in states):
            results[f"out/states/{name.removeprefix('out/')}"] = parts.stack(states)
    return results


def _behind(
    subject: Subject,
    one: Case,
    inputs: Tensors,
    axes: Mapping[str, tuple[int, int]],
    place: int,
    like: Tensors,
    run: Callable[[Tensors, Case], Tensors],
) -> Tensors:
    """Last states of a call of the first tokens; of none, what the call starts from."""
    calls, span = subject.calls, parts.Span(0, 0, place)
    assert calls is not None
    of = parts.Plan((span,), axes, frozenset(), frozenset())
    if place:
        return run(of.inputs_of(inputs, span), parts.case_of(one, of, span))
    found = {
        name: parts.last_of_none(calls, of, inputs, span, name, x)
        for name, x in like.items()
        if calls.left(name)
    }
    return {name: x for name, x in found.items() if x is not None}


def mistakes(case: Case) -> Iterator[Mistake]:
    """Every mistake that a program can make about these states, wired by their places (CASE-50)."""
    places, tokens = places_of(case), token_count(case.inputs)
    rows: dict[str, list[int]] = {
        "the states stood in reverse order": places[::-1],
        "each state was that of one token earlier": [max(p - 1, 0) for p in places],
        "each state was that of one token later": [min(p + 1, tokens) for p in places],
        "each state was the last one": [tokens] * len(places),
        "each state was the first one": [0] * len(places),
        "each state was that of the first place": places[:1] * len(places),
    }
    for block in BLOCKS:
        words = f"each state was that of the last whole block of {block} tokens"
        rows[words] = [p // block * block for p in places]
    seen: list[list[int]] = [places]
    for words, wiring in rows.items():
        if wiring not in seen:
            seen.append(wiring)
            yield Mistake(f"{words} (CASE-50)", wiring)


def draw(request: Request, new: Callable[..., Case], *, name: str) -> Case:
    """A case that asks for the states behind its last tokens (CASE-49).

    Raises:
        CaseError: more of them than tokens.
    """
    case = new(request.replaced(states=0), name=name)
    count, tokens = request.states, token_count(case.inputs)
    if count > tokens:
        raise CaseError(f"{name}: states: {count} of a call of {tokens} tokens")
    places = np.arange(tokens - count + 1, tokens + 1, dtype=np.int64)
    return make(case.header.plain(), {**case.inputs, OF_SNAPSHOTS: places}, name=name)
