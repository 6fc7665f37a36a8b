"""A block that keeps only its arguments and is recomputed for backward; plain twin: the function it
wraps.

Each thread recomputes the part that belongs to its own memories. Specified in specs/chunkwise.md
(CHUNK-15).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from atlas_ref.backend.threads import in_threads
from atlas_ref.types import Array
from tape import opaque, vjp

Outputs = tuple[Array, ...]
WHOLE = (slice(None),)


def recomputed(
    plain: Callable[..., Outputs], partition: Sequence[slice] = WHOLE
) -> Callable[..., Outputs]:
    """A function of arrays (or None) as one opaque entry without residuals (CHUNK-15).

    Args:
        plain: a function of arrays or None that returns a tuple of arrays.
        partition: parts of the first axis of all arrays, one thread each. Along that axis the
            function must compute the same for each entry alone, and every output has that axis. An
            array with a single entry there belongs to all of them.
    """

    def forward(*arrays: Array) -> tuple[Any, Any]:
        return _rejoined(
            in_threads([functools.partial(plain, *_part(arrays, part)) for part in partition])
        ), arrays

    def backward(arrays: tuple[Array, ...], cotangents: Outputs) -> Sequence[Array | None]:
        parts = in_threads(
            [
                functools.partial(_backward, plain, _part(arrays, part), _part(cotangents, part))
                for part in partition
            ]
        )
        return [
            _cotangent(x, each) for x, each in zip(arrays, zip(*parts, strict=True), strict=True)
        ]

    return opaque(plain, forward, backward)


def _part(arrays: Sequence[Array], part: slice) -> list[Array]:
    return [x if x is None or len(x) == 1 else x[part] for x in arrays]


def _rejoined(parts: Sequence[Outputs]) -> Outputs:
    return (
        parts[0]
        if len(parts) == 1
        else tuple(np.concatenate(each) for each in zip(*parts, strict=True))
    )


def _backward(
    plain: Callable[..., Outputs], arrays: Sequence[Array], cotangents: Sequence[Array]
) -> Sequence[Array | None]:
    """Cotangents of the arrays of one part."""
    present = [i for i, x in enumerate(arrays) if x is not None]

    def of_present(*chosen: Array) -> Any:
        full: list[Array] = [None] * len(arrays)
        for i, x in zip(present, chosen, strict=True):
            full[i] = x
        return plain(*full)

    values, pullback = vjp(of_present, *[arrays[i] for i in present])
    seeds = tuple(
        np.zeros_like(value) if each is None else each
        for each, value in zip(cotangents, values, strict=True)
    )
    of_arrays: list[Array | None] = [None] * len(arrays)
    for i, cotangent in zip(present, pullback(seeds), strict=True):
        of_arrays[i] = cotangent
    return of_arrays


def _cotangent(x: Array, parts: Sequence[Array]) -> Array | None:
    """The cotangent of an array from those of its parts, in their order."""
    if x is None or len(parts) == 1:
        return parts[0]
    return sum(parts[1:], parts[0]) if len(x) == 1 else np.concatenate(parts)
