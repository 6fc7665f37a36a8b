"""A block that keeps its arguments alone and is recorded again in the backward sweep, each thread for its own memories."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from atlas_ref.threads import in_threads
from atlas_ref.types import Array
from tape import opaque, vjp

Outputs = tuple[Array, ...]
WHOLE = (slice(None),)


def recomputed(
    plain: Callable[..., Outputs], shares: Sequence[slice] = WHOLE, value: Callable[..., Outputs] | None = None
) -> Callable[..., Outputs]:
    """The same function of arrays (or None) and tuple of arrays, as one opaque entry without residuals (CHUNK-15).

    Args:
        shares: parts of the first axis of all arrays, one thread each: what the function does along that axis must be the
            same for each entry alone, and every output has that axis. An array with a single entry there belongs to all of them.
        value: the same value of raw arrays; `plain` unless given.
    """

    def forward(*arrays: Array) -> tuple[Any, Any]:
        return _rejoined(in_threads([functools.partial(value or plain, *_part(arrays, share)) for share in shares])), arrays

    def backward(arrays: tuple[Array, ...], bars: Outputs) -> Sequence[Array | None]:
        found = in_threads([functools.partial(_pulled_back, plain, _part(arrays, share), _part(bars, share)) for share in shares])
        return [_cotangent(x, each) for x, each in zip(arrays, zip(*found, strict=True), strict=True)]

    return opaque(plain, forward, backward)


def _part(arrays: Sequence[Array], share: slice) -> list[Array]:
    return [x if x is None or len(x) == 1 else x[share] for x in arrays]


def _rejoined(parts: Sequence[Outputs]) -> Outputs:
    return parts[0] if len(parts) == 1 else tuple(np.concatenate(each) for each in zip(*parts, strict=True))


def _pulled_back(plain: Callable[..., Outputs], arrays: Sequence[Array], bars: Sequence[Array]) -> Sequence[Array | None]:
    """Cotangents of the arrays of one share."""
    present = [i for i, x in enumerate(arrays) if x is not None]

    def some(*chosen: Array) -> Any:
        full: list[Array] = [None] * len(arrays)
        for i, x in zip(present, chosen, strict=True):
            full[i] = x
        return plain(*full)

    values, pulled = vjp(some, *[arrays[i] for i in present])
    seeds = tuple(np.zeros_like(value) if bar is None else bar for bar, value in zip(bars, values, strict=True))
    found: list[Array | None] = [None] * len(arrays)
    for i, cotangent in zip(present, pulled(seeds), strict=True):
        found[i] = cotangent
    return found


def _cotangent(x: Array, parts: Sequence[Array]) -> Array | None:
    """That of an array out of those of its shares, in their order."""
    if x is None or len(parts) == 1:
        return parts[0]
    return sum(parts[1:], parts[0]) if len(x) == 1 else np.concatenate(parts)
