"""Mistakes of programs about the states of sequences, as data (CASE-46)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from atlas_ref.oracle.sequences.parts import Plan, Wiring


class Mistake(NamedTuple):
    """A mistake: what follows on "as if", and which states it takes."""

    words: str
    wiring: Wiring


def mistakes(of: Plan) -> Iterator[Mistake]:
    """Every mistake that a program can make in a case of these sequences."""
    count = len(of.spans)
    own = range(count)
    plain = Wiring(own, own)
    if of.firsts:
        for words, firsts in _orders(of):
            yield Mistake(f"{_of_firsts(words)} (CASE-45)", plain._replace(firsts=firsts))
        words = "every sequence started from zeros, not from its first state"
        yield Mistake(f"{words} (CASE-45)", plain._replace(fresh=True))
        if any(each.fresh for each in of.spans):
            words = "in/has_initial_state was ignored, and every sequence has its first state"
            yield Mistake(f"{words} (CASE-44)", plain._replace(fresh=False))
    words = "each sequence went on from the last state of the one before"
    yield Mistake(f"{words} (CASE-45)", plain._replace(carries=True))
    for words, lasts in _orders(of):
        yield Mistake(f"{_of_lasts(words)} (CASE-45)", plain._replace(lasts=lasts))
    yield from _of_empty(of, plain)


def _orders(of: Plan) -> Iterator[tuple[str, list[int]]]:
    """Words about another sequence, and that sequence for each."""
    count = len(of.spans)
    last, own = count - 1, range(count)
    yield "sequence 0", [0] * count
    yield f"sequence {last}, the last", [last] * count
    yield "the sequence behind it", [min(n + 1, last) for n in own]
    yield "the sequence before it", [max(n - 1, 0) for n in own]
    yield "another sequence, in reverse order", list(reversed(own))
    if any(each.empty for each in of.spans):
        ranks, rank = [], 0
        for each in of.spans:
            ranks.append(rank)
            rank += not each.empty
        yield "another sequence, counted without the empty ones", [min(n, last) for n in ranks]


def _of_firsts(words: str) -> str:
    return f"every sequence started from the first state of {words}"


def _of_lasts(words: str) -> str:
    return f"the last state of every sequence was that of {words}"


def _of_empty(of: Plan, plain: Wiring) -> Iterator[Mistake]:
    """Mistakes about the last state of an empty sequence."""
    last = len(of.spans) - 1
    if not any(each.empty for each in of.spans):
        return
    others: dict[str, Callable[[int], int | None]] = {
        "was zeros, not its first state": lambda n: None,
        "was that of the sequence before it": lambda n: max(n - 1, 0),
        "was that of the sequence behind it": lambda n: min(n + 1, last),
    }
    for words, other in others.items():
        lasts = [other(each.number) if each.empty else each.number for each in of.spans]
        sentence = f"the last state of an empty sequence {words} (CASE-45)"
        yield Mistake(sentence, plain._replace(lasts=lasts))
