"""Arguments of the compiled loops; plain twins:
`atlas_ref.forms.chunked_plain`, `atlas_ref.forms.dplr.scan`.

A loop runs a block of columns: as many output dimensions of one memory as a vector has lanes, since
no two of them meet. Arrays over output dimensions are rows of such blocks, (T blocks, lanes).
Specified in specs/exact.md (EXACT-21).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from atlas_ref.types import Array


class Tokens(NamedTuple):
    """Tokens: keys (h + T, d), values ((h + T) blocks, lanes), queries (T, d)."""

    keys: Array
    values: Array
    queries: Array


class Gates(NamedTuple):
    """Gates (T,), or (T blocks, lanes) for one an output dimension; weights (T, c) by lag."""

    retain: Array
    momentum: Array
    rate_in: Array
    rate_out: Array
    weights: Array


class Kept(NamedTuple):
    """What the backward needs: predictions (T blocks, lanes) of tokens with one key, and the states
    (segments, d, lanes) before each segment.
    """

    predictions: Array
    memories: Array
    momenta: Array


class Room(NamedTuple):
    """Room for intermediate values, zeros at first.

    States (segment + 1, d, lanes); predictions and what enters (segment c, lanes), for a forward
    (c, lanes); cotangents of what enters (c, lanes); a key of zeros (1, d).
    """

    memories: Array
    momenta: Array
    predictions: Array
    entries: Array
    cotangents: Array
    no_key: Array

    @classmethod
    def of(cls, segment: int, window: int, state: Array) -> Room:
        """Room for a state (d, lanes); segment 0 for a forward."""
        d, lanes = state.shape
        states = (segment + 1 if segment else 0, d, lanes)
        entries = (max(segment, 1) * window, lanes)
        sizes = (states, states, entries, entries, (window, lanes), (1, d))
        return cls(*(np.zeros(shape, state.dtype) for shape in sizes))


class How(NamedTuple):
    """Settings of a loop.

    Attributes:
        block, blocks: the block of columns, and how many a memory has.
        running: whether residuals are taken under the running memory, else under zero.
        before_error: whether that memory decays before them.
        ahead: 0 where a token reads after its write, 1 before, -1 where nothing is read.
        segment: tokens between two states that are kept; 0 where no backward follows.
    """

    block: int
    blocks: int
    running: bool
    before_error: bool
    ahead: int
    segment: int


class LowRankRows(NamedTuple):
    """R rows of a memory of diagonal plus low rank.

    Gates, keys and vectors of erases (R, d), the last (0, d) where nothing is erased, values
    (R blocks, lanes), queries (T, d).
    """

    retain: Array
    keys: Array
    erase_reads: Array
    erase_writes: Array
    values: Array
    queries: Array


class LowRankHow(NamedTuple):
    """Settings of the loop over such rows.

    Attributes:
        blocks: blocks of columns that a memory has.
        steps: rows of a token, after whose last it reads; 0 where it reads before its one row.
        segment: rows that all blocks take one after another, which is when a state is kept.
        keeps: whether a backward follows.
        before_error: whether an erase reads the memory after the decay of its row.
        query_scale: factor of the reads, a number of the dtype of the rows.
    """

    blocks: int
    steps: int
    segment: int
    keeps: bool
    before_error: bool
    query_scale: Any


class LowRankRoom(NamedTuple):
    """Work space over such rows.

    Vectors (blocks, lanes) between two segments; states (segment + 1, d, lanes) of a backward; keys
    (d,) of zeros, and of ones; a row for what an erase reads, and one for what is not used.
    """

    between: Array
    memories: Array
    no_key: Array
    ones: Array
    reads: Array
    unused: Array

    @classmethod
    def of(cls, segment: int, states: Array) -> LowRankRoom:
        """Room for states (blocks, d, lanes); segment 0 for a forward."""
        (blocks, d, lanes), kind = states.shape, states.dtype
        no_key, ones = np.zeros(d, kind), np.ones(d, kind)
        for each in (no_key, ones):
            each.flags.writeable = False
        between = np.zeros((blocks, lanes), kind)
        memories = np.zeros((segment + 1 if segment else 0, d, lanes), kind)
        reads, unused = np.zeros((2, d), kind)
        return cls(between, memories, no_key, ones, reads, unused)
