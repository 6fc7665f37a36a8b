"""Pairs that a deep memory was shown once, and how many of them it recalls.

The weights are as drawn: no outer step has trained them.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.parts import memory_functions
from atlas_ref.rules import deep_memory, sequence
from atlas_ref.rules.sequence import Tokens

D, DRAWS = 32, 4
FUNCTION = {"kind": "polynomial", "key_width": 8}
Array = Any

#: Settings and step size of each way to write, with n the number of pairs.
WAYS: dict[str, Any] = {
    "no step": lambda n: ({"phase": "off"}, 0.05),
    "own pair": lambda n: ({}, 0.05),
    "all pairs": lambda n: ({"window": n}, 0.05),
    "all pairs, chunks of 4": lambda n: ({"window": n, "chunk": 4}, 0.1),
}


class Share(NamedTuple):
    """Of the keys, how many read closest to their own value: by the angle, by the distance; and
    the mean length of a read over that of its value.
    """

    angle: float
    distance: float
    length: float


def gates(shape: tuple[int, ...], step_size: float) -> dict[str, Array]:
    sizes = {"retain": 0.999, "momentum": 0.9, "step_size": step_size}
    return {name: np.full(shape, size) for name, size in sizes.items()}


def pairs(n: int, draw: int) -> Any:
    """Keys and values (1, n, D)."""
    return np.random.default_rng((draw, n)).standard_normal((2, 1, n, D))


def reads(n: int, draw: int, way: str, queries: Array = None, **more: Any) -> tuple[Array, Array]:
    """Reads (n, D) after one pass over n pairs, and the values.

    Args:
        queries (1, n, D): asked in a call that writes nothing; the keys unless given.
        more: settings of the memory.
    """
    own, step_size = WAYS[way](n)
    settings = deep_memory.Config(d_in=D, d_out=D, memory=FUNCTION, **own | more)
    tensors = memory_functions.initial(settings.memory, D, D, seed=draw)
    k, v = pairs(n, draw)
    q = k if queries is None else queries
    state = deep_memory.start(settings, (1,))
    for active in (np.ones(n, bool), np.zeros(n, bool)):
        tokens = Tokens(k=k, v=v, q=q, **gates((1, n), step_size), active=active)
        state, y = sequence.run(deep_memory.RULE, settings, tokens, state, phi=tensors)
    return y[0], v[0]


def hits(y: Array, v: Array) -> Share:
    """Shares of reads y (n, D) of values v (n, D)."""
    lengths, own = np.linalg.norm(v, axis=1), np.arange(len(v))
    angle = np.argmax(y @ v.T / lengths, axis=1) == own
    distance = np.argmin(np.linalg.norm(y[:, None] - v, axis=2), axis=1) == own
    length = np.linalg.norm(y, axis=1) / lengths
    return Share(*(float(np.mean(each)) for each in (angle, distance, length)))


@functools.cache
def share(n: int, draw: int, way: str) -> Share:
    return hits(*reads(n, draw, way))


def mean(n: int, way: str) -> Share:
    return Share(*np.mean([share(n, draw, way) for draw in range(DRAWS)], axis=0))
