"""Numbers from a seed that any language draws alike: SplitMix64, and multiples of a power of two.

Specified in specs/vectors.md, VEC-4.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Words = np.ndarray[Any, np.dtype[np.uint64]]
Numbers = np.ndarray[Any, np.dtype[np.float64]]

#: The increment of SplitMix64, and the offset and prime of FNV-1a.
GOLDEN, OFFSET, PRIME = 0x9E3779B97F4A7C15, 0xCBF29CE484222325, 0x100000001B3
BITS = 2**64


def mixed(z: Words) -> Words:
    """SplitMix64's finaliser."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def hashed(name: str) -> int:
    """FNV-1a of a name's UTF-8 bytes, 64 bits."""
    value = OFFSET
    for byte in name.encode():
        value = (value ^ byte) * PRIME % BITS
    return value


def words(seed: int, name: str, count: int) -> Words:
    """The first words of the stream of a name, modulo 2^64 (VEC-4).

    Word i is mix(key + (i + 1) GOLDEN), where key = mix(hash(name) + seed GOLDEN).
    """
    key = mixed(np.array([(hashed(name) + seed * GOLDEN) % BITS], np.uint64))
    return mixed(key + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GOLDEN))


def whole(seed: int, name: str, count: int, low: int, high: int) -> Numbers:
    """Whole numbers from low to high, both included (VEC-4).

    They are low + floor(top 32 bits * (high - low + 1) / 2^32).
    """
    top = words(seed, name, count) >> np.uint64(32)
    return low + ((top * np.uint64(high - low + 1)) >> np.uint64(32)).astype(np.float64)


def chosen(seed: int, name: str, shape: tuple[int, ...], values: tuple[float, ...]) -> Numbers:
    """An array whose entries are drawn from a list."""
    places = whole(seed, name, int(np.prod(shape)), 0, len(values) - 1).astype(int)
    entries: Numbers = np.asarray(values, np.float64)[places].reshape(shape)
    return entries


def dyadic(seed: int, name: str, shape: tuple[int, ...], *, most: int, scale: float) -> Numbers:
    """An array of k * scale with whole k from -most to most; scale is a power of two."""
    return (whole(seed, name, int(np.prod(shape)), -most, most) * scale).reshape(shape)


def count_sketches(seed: int, name: str, shape: tuple[int, ...]) -> Numbers:
    """Hashes (n, buckets, d_in), each column with a sign in one bucket and else 0 (VEC-25)."""
    count, buckets, d_in = shape
    places = whole(seed, f"buckets of {name}", count * d_in, 0, buckets - 1).astype(int)
    signs = 2.0 * whole(seed, f"signs of {name}", count * d_in, 0, 1) - 1.0
    H = np.zeros(shape)
    np.put_along_axis(H, places.reshape(count, 1, d_in), signs.reshape(count, 1, d_in), axis=1)
    return H
