"""Tokens behind their history, in one array: room at once, and the entries by the threads that need them.

Specified in specs/chunkwise.md (CHUNK-15).
"""

from __future__ import annotations

import numpy as np

from atlas_ref.scratch import scratch
from atlas_ref.types import Array


def joined_shape(earlier: Array, own: Array) -> tuple[int, ...]:
    """The shape of tokens (B, n, x) behind their history (B, h, x)."""
    return (own.shape[0], earlier.shape[1] + own.shape[1], own.shape[2])


class Joins:
    """What a group has still to join.

    Tokens behind a history need a copy of all of them. Each thread makes that of its own memories.
    """

    def __init__(self) -> None:
        self.waiting: list[tuple[Array, Array, Array]] = []

    def room(self, earlier: Array, own: Array) -> Array:
        """Where earlier (B, h, x) and behind it own (B, n, x) will stand, in work space."""
        room = scratch.empty(joined_shape(earlier, own), own)
        self.waiting.append((room, earlier, own))
        return room

    def fill(self, memories: slice) -> None:
        """Join those of some memories."""
        for room, earlier, own in self.waiting:
            np.concatenate([earlier[memories], own[memories]], axis=1, out=room[memories])
