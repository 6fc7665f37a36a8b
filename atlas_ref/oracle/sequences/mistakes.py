"""Mistakes of programs about the states of sequences, as data (CASE-46)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from atlas_ref.oracle.sequences.parts import Plan, Wiring

CARRIED = "each sequence went on from the last state of the one before"


class Mistake(NamedTuple):
    """A mistake: what follows on "as if", and which states it takes: a `Wiring`, or places."""

    words: str
    wiring: Any


def mistakes(of: Plan) -> Iterator[Mistake]:
    """Every mistake that a program can make in a case of these sequences, each once."""
    seen = set[tuple[object, ...]]()
    for each in _mistakes(of):
        wiring = each.wiring
        own = [each.fresh for each in of.spans]
        fresh = [own[n] for n in wiring.firsts] if wiring.moved else own
        start = fresh if wiring.fresh is None else [wiring.fresh] * len(own)
        key = (tuple(wiring.firsts), tuple(wiring.lasts), wiring.carries, *start)
        if key not in seen:
            seen.add(key)
            yield each


def _mistakes(of: Plan) -> Iterator[Mistake]:
    own = range(len(of.spans))
    plain = Wiring(own, own)
    if of.firsts:
        yield from _of_firsts(of, plain)
    yield Mistake(f"{CARRIED} (CASE-45)", plain._replace(carries="all"))
    if any(each.empty for each in of.spans):
        words = f"{CARRIED}, but empty ones, which kept their own"
        yield Mistake(f"{words} (CASE-45)", plain._replace(carries="full"))
    if of.firsts and any(each.fresh for each in of.spans):
        words = "a sequence without a first state went on from the last state of the one before"
        yield Mistake(f"{words} (CASE-44)", plain._replace(carries="fresh"))
        words = "a sequence with a first state went on from the last state of the one before"
        yield Mistake(f"{words} (CASE-45)", plain._replace(carries="given"))
    for words, lasts in _orders(of):
        words = f"the last state of every sequence was that of {words}"
        yield Mistake(f"{words} (CASE-45)", plain._replace(lasts=lasts))
    yield from _of_empty(of, plain)


def _of_firsts(of: Plan, plain: Wiring) -> Iterator[Mistake]:
    """Mistakes about the states that sequences start from."""
    mixed = any(each.fresh for each in of.spans)
    for words, firsts in _orders(of):
        words = f"every sequence started from the first state of {words}"
        yield Mistake(f"{words} (CASE-45)", plain._replace(firsts=firsts))
        if mixed:
            other = plain._replace(firsts=firsts)
            said = f"{words}, with its in/has_initial_state"
            yield Mistake(f"{said} (CASE-45)", other._replace(moved=True))
            said = f"{words}, whatever in/has_initial_state says"
            yield Mistake(f"{said} (CASE-44)", other._replace(fresh=False))
    words = "every sequence started from zeros, not from its first state"
    yield Mistake(f"{words} (CASE-45)", plain._replace(fresh=True))
    if mixed:
        words = "in/has_initial_state was ignored, and every sequence has its first state"
        yield Mistake(f"{words} (CASE-44)", plain._replace(fresh=False))


def _orders(of: Plan) -> Iterator[tuple[str, list[int]]]:
    """Words about another sequence, and that sequence for each."""
    count = len(of.spans)
    last, own = count - 1, range(count)
    yield "sequence 0", [0] * count
    yield f"sequence {last}, the last", [last] * count
    yield "the sequence behind it", [min(n + 1, last) for n in own]
    yield "the sequence before it", [max(n - 1, 0) for n in own]
    yield "the sequence behind it, the last one from sequence 0", [(n + 1) % count for n in own]
    yield "the sequence before it, sequence 0 from the last one", [(n - 1) % count for n in own]
    yield "another sequence, in reverse order", list(reversed(own))
    if any(each.empty for each in of.spans):
        ranks, rank = [], 0
        for each in of.spans:
            ranks.append(rank)
            rank += not each.empty
        yield "another sequence, counted without the empty ones", [min(n, last) for n in ranks]


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
    full = [each.number for each in of.spans if not each.empty]
    words = "last states were packed to the front, without those of empty sequences"
    packed = [*full, *[None] * (len(of.spans) - len(full))]
    yield Mistake(f"{words} (CASE-45)", plain._replace(lasts=packed))
