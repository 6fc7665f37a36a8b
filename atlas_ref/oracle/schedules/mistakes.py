"""What a program may do otherwise from call to call, tried where a schedule shows an error (SCHED-6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from atlas_ref.oracle.cases.case import Case, make
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.judge import ensemble
from atlas_ref.oracle.judge.answers import Answer, Source
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.schedules.run import Plan
from atlas_ref.oracle.schedules.steps import Call
from atlas_ref.oracle.sweep import split
from atlas_ref.oracle.sweep.first import tokens_of

#: Tokens of the blocks that are tried.
BLOCKS = (2, 4, 8, 16, 32, 64, 128)

#: Formats that a state may have been kept in between calls.
FORMATS = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


class Mistake(NamedTuple):
    """A mistake: what follows on "as if", and a program that makes it."""

    words: str
    source: Source


def mistakes(plan: Plan, calls: Sequence[Call]) -> Iterator[Mistake]:
    """Mistakes that these calls can show, those that public reports name most first."""
    later = [each for each in calls if each.first]
    kinds: dict[str, Callable[[int], bool]] = {}
    if any(each.tokens > 1 for each in later) and any(each.tokens == 1 for each in later):
        kinds |= {"several tokens": lambda tokens: tokens > 1, "one token": lambda n: n == 1}
    for kind, concerns in kinds.items():
        words = f"calls of {kind} started from no state"
        yield Mistake(words, partial(_lose, plan, plan.carried, concerns))
    every = partial(_lose, plan, plan.carried, lambda tokens: True)
    yield Mistake("each call started from no state", every)
    for name in plan.carried if len(plan.carried) > 1 else ():
        yield Mistake(
            f"{name} was lost between calls", partial(_lose, plan, (name,), lambda tokens: True)
        )
        for kind, concerns in kinds.items():
            words = f"calls of {kind} started without {name}"
            yield Mistake(words, partial(_lose, plan, (name,), concerns))
    words = "states were those before the last token of a call"
    yield Mistake(words, partial(_leave_earlier, plan, lambda tokens: tokens - 1))
    several = partial(_leave_earlier, plan, lambda tokens: max(1, tokens - 1))
    yield Mistake(f"{words}, of several tokens", several)
    for size in BLOCKS:
        if any(each.tokens > size and each.tokens % size for each in calls):
            words = f"states were those of the last whole block of {size} tokens"
            yield Mistake(words, partial(_leave_earlier, plan, partial(_whole_blocks, size)))
            longer = partial(_leave_earlier, plan, partial(_blocks_of_longer, size))
            yield Mistake(f"{words}, of calls longer than it", longer)
    yield Mistake("matrices of states were handed on transposed", partial(_hand, plan, _transpose))
    for name, kind_ in FORMATS.items():
        source = partial(_hand, plan, partial(_through, kind_))
        yield Mistake(f"states were kept in {name} between calls", source)
    for name, words in _of_short_calls(plan, later).items():
        yield Mistake(words, partial(_read_otherwise, name))


def _of_short_calls(plan: Plan, calls: Sequence[Call]) -> dict[str, str]:
    """Names and words of mistakes that the rule has in calls of few tokens alone."""
    searched, found = SUBJECTS[plan.case.header.rule].searched, dict[str, str]()
    if searched is None:
        return found
    for call in {each.tokens: each for each in calls}.values():
        states = {name: evaluate(plan.prefix(call.first)).tensors[name] for name in plan.carried}
        readings = searched.departures(plan.part(call, states))
        found |= {each.name: each.words for each in readings if each.short}
    return found


def _read_otherwise(name: str, case: Case) -> Answer:
    """A program with a mistake of the rule in the calls that can have it."""
    searched = SUBJECTS[case.header.rule].searched
    assert searched is not None
    run, chosen = searched.run, [each for each in searched.departures(case) if each.name == name]
    return Answer(
        dict(
            ensemble.exact(
                case,
                grad=False,
                plain=lambda inputs, at, rounding: run(inputs, at, rounding, chosen),
            )
        )
    )


def _lose(plan: Plan, names: Sequence[str], concerns: Callable[[int], bool], case: Case) -> Answer:
    """A program that starts some calls without some of the states."""
    if concerns(tokens_of(case)):
        lost = {plan.cut.left(name) for name in names}
        inputs = {name: x for name, x in case.inputs.items() if name not in lost}
        case = make(case.header.plain(), inputs, name=case.name)
    return Answer(evaluate(case).tensors)


def _leave_earlier(plan: Plan, place: Callable[[int], int], case: Case) -> Answer:
    """A program whose states are those after fewer tokens of its call, of none those of before."""
    found, tokens = evaluate(case).tensors, tokens_of(case)
    count = place(tokens)
    if count >= tokens:
        return Answer(found)
    if count > 0:
        before = evaluate(split.part(case, range(count))).tensors
    else:
        before = {
            name: case.inputs.get(plan.cut.left(name), np.zeros_like(found[name]))
            for name in plan.carried
        }
    return Answer({**found, **{name: before[name] for name in plan.carried}})


def _whole_blocks(size: int, tokens: int) -> int:
    return tokens // size * size


def _blocks_of_longer(size: int, tokens: int) -> int:
    return tokens // size * size or tokens


def _hand(plan: Plan, change: Callable[[Any], Any], case: Case) -> Answer:
    """A program that hands states over after a change."""
    found = evaluate(case).tensors
    return Answer({**found, **{name: change(found[name]) for name in plan.carried}})


def _transpose(x: Any) -> Any:
    square = x.ndim > 1 and x.shape[-1] == x.shape[-2] > 1
    return np.swapaxes(x, -1, -2).copy() if square else x


def _through(kind: Any, x: Any) -> Any:
    return x.astype(kind).astype(x.dtype) if x.dtype.kind == "f" else x
