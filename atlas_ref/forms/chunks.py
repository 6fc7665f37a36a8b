"""Chunks of a span, and groups of equal chunks.

A chunk never crosses the start of a span, and chunks of a group are equally long and follow each
other, so no token is ever padding. Specified in specs/chunkwise.md (CHUNK-14, CHUNK-15).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Chunks(NamedTuple):
    """Consecutive chunks of `length` tokens from `first` on; whether a span starts with each."""

    first: int
    length: int
    refresh: tuple[bool, ...]

    @property
    def last(self) -> int:
        return self.first + self.length * len(self.refresh)


def alone(length: int) -> int:
    """The limit under which each group is one chunk."""
    return length


def grouped(refresh: np.ndarray[Any, Any], chunk: int, limit: Callable[[int], int]) -> list[Chunks]:
    """Cut a sequence into chunks of about equal length, at most `chunk`, and join equal neighbours.

    Args:
        refresh (T,): True where a span starts.
        limit: tokens of a group at most, by the length of its chunks: short ones need more work
            space a token.
    """
    T = len(refresh)
    starts = np.union1d(0, np.flatnonzero(refresh)).tolist()
    groups: list[Chunks] = []
    for start, stop in zip(starts, [*starts[1:], T], strict=True):
        first = start
        for length, equal in itertools.groupby(_lengths(stop - start, chunk)):
            left, most = len(list(equal)), max(1, limit(length) // length)
            while left:
                joins = (
                    bool(groups) and groups[-1].length == length and len(groups[-1].refresh) < most
                )
                before = groups.pop() if joins else Chunks(first, length, ())
                taken = min(left, most - len(before.refresh))
                begins = first == start and bool(refresh[start])
                groups.append(
                    before._replace(refresh=(*before.refresh, begins, *[False] * (taken - 1)))
                )
                first, left = first + taken * length, left - taken
    return groups


def _lengths(tokens: int, chunk: int) -> list[int]:
    """Lengths of the chunks of a segment: full ones and a shorter last, or as many equal ones."""
    count = -(-tokens // chunk)
    if tokens % count == 0:
        return [tokens // count] * count
    full, rest = divmod(tokens, chunk)
    return [chunk] * full + ([rest] if rest else [])
