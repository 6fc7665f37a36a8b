"""A schedule: how the tokens of a case are spread over calls, as a server spreads them (SCHED-1)."""

from __future__ import annotations

import re
from typing import NamedTuple

from atlas_ref.oracle.cases.case import CaseError

#: What a schedule may say, for messages.
GRAMMAR = "steps are prefill:N, decode:N, draft:N/KEPT, snapshot@TOKENS and restore@TOKENS, or serving alone"
NUMBER = r"([0-9]{1,9})"
STEP = re.compile(
    rf"(prefill|decode):{NUMBER}|(draft):{NUMBER}/{NUMBER}|(snapshot|restore)@{NUMBER}"
)

#: Tokens of the first call at most.
FIRST = 20

#: The name of the schedule that is drawn by what it has to show.
SERVING = "serving"

#: Tokens of a block of which kernels often keep the state, whose neighbours a schedule tries.
BLOCKS = (16, 64)


class UncutError(CaseError):
    """A case whose tokens cannot be spread over calls."""


class Call(NamedTuple):
    """One call of a kernel.

    Attributes:
        step: the words of the step that it belongs to.
        first, last: it has the tokens from `first` to before `last`, after the state of `first` tokens.
        reads: whether its reads are answers; else it makes a state alone, after a draft.
    """

    step: str
    first: int
    last: int
    reads: bool = True

    @property
    def tokens(self) -> int:
        return self.last - self.first

    @property
    def words(self) -> str:
        """The call for a reader."""
        rows = (
            f"token {self.first}" if self.tokens == 1 else f"tokens {self.first} to {self.last - 1}"
        )
        return f"{self.step} ({rows})"


def steps(text: str, tokens: int) -> list[re.Match[str]]:
    """The steps of a schedule, those of `serving` over so many tokens (SCHED-1).

    Raises:
        CaseError: a word that is no step.
    """
    words = [each.strip() for each in text.split(",")]
    found = []
    for word in serving(tokens) if words == [SERVING] else words:
        matched = STEP.fullmatch(word)
        if matched is None:
            raise CaseError(f"schedule: {word[:40]!r} is no step; {GRAMMAR}")
        found.append(matched)
    return found


def calls(text: str, tokens: int) -> tuple[Call, ...]:
    """The calls of a schedule over a case (SCHED-1, SCHED-2).

    Args:
        text: steps with commas between them, or `serving`.

    Raises:
        UncutError: a case without tokens.
        CaseError: no step, one that is none, or steps that do not end at the last token.
    """
    if not tokens:
        raise UncutError("schedule: a case with tokens is needed, which calls share")
    position, found, kept = 0, list[Call](), {0}
    for matched in steps(text, tokens):
        word = matched[0]
        if matched[6]:
            position = _state(matched[6], int(matched[7]), position, kept)
            continue
        if position + int(matched[2] or matched[4]) > tokens:
            raise CaseError(f"schedule: {word} goes beyond the last of {tokens} tokens")
        new = _calls_of(matched, word, position)
        if matched[3]:
            position += int(matched[5])
            kept |= {position}
        else:
            position = new[-1].last if new else position
            kept |= {each.last for each in new}
        found += new
    if position != tokens or not found:
        raise CaseError(f"schedule: ends after {position} of {tokens} tokens; it must cover all")
    return tuple(found)


def _state(op: str, place: int, position: int, kept: set[int]) -> int:
    """Where a schedule stands behind a snapshot or a return to one."""
    if place not in kept:
        known = ", ".join(map(str, sorted(kept)))
        raise CaseError(f"schedule: {op}@{place}: no call ended there; calls ended after {known}")
    return place if op == "restore" else position


def _calls_of(step: re.Match[str], word: str, first: int) -> list[Call]:
    """The calls of a step after some tokens."""
    if step[3]:
        rows, kept = int(step[4]), int(step[5])
        if not 0 <= kept <= rows or not rows:
            raise CaseError(
                f"schedule: {word}: at most the drafted tokens are kept, and one is drafted"
            )
        drafted = [Call(word, first, first + rows)]
        return drafted + ([Call(word, first, first + kept, reads=False)] if 0 < kept < rows else [])
    count = int(step[2])
    if not count:
        raise CaseError(f"schedule: {word}: a call has at least one token")
    if step[1] == "prefill":
        return [Call(word, first, first + count)]
    return [Call(word, t, t + 1) for t in range(first, first + count)]


def serving(tokens: int) -> list[str]:
    """The steps that show what a server asks, as far as there are tokens (SCHED-3).

    A first call, drafts that are kept in part, not at all and whole, a return to a state of before,
    calls of two and three tokens, of one more than a block, of a block, and of less, tokens alone.
    """
    first = max(1, min(tokens // 3, FIRST))
    words, place = [f"prefill:{first}"], first
    if tokens >= first + 4:
        words += ["draft:2/0", "draft:3/1", "prefill:2"]
        words += [f"restore@{first}", "draft:2/2"]
        place = first + 2
    least, most = BLOCKS
    sizes = (2, 3, most + 1, least + 1, least, least - 1, most, most - 1)
    for size in sizes:
        if place + size + 2 <= tokens:
            words.append(f"prefill:{size}")
            place += size
    if tokens - place > 3:
        words.append(f"prefill:{tokens - place - 3}")
        place = tokens - 3
    return words + ([f"decode:{tokens - place}"] if tokens > place else [])
