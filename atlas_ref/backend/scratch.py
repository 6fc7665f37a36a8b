"""Work space that every group of chunks, and every group of matrices of Newton-Schulz, uses again.

A page that is touched for the first time costs more than the arithmetic on it, so arrays that live
only while a group is computed come from one block of memory, allocated from its start and freed all
at once. A block per thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from atlas_ref.backend import on_host
from atlas_ref.types import Array

ALIGNMENT = 64  # bytes of a cache line
PAGE = 4096  # bytes after which entries share a set of the first cache
KEPT = 2**28  # bytes beyond which a block is not worth keeping for the life of the thread
FREED = 2**25 - 2**16  # bytes of the largest block whose freeing raises glibc's threshold
SPARE = 2  # spare blocks kept for other arenas
TRIM_THRESHOLD, TRIM = -1, 2**30  # of glibc's mallopt: the free end of its heap that it keeps
MMAP_THRESHOLD = -3  # of glibc's mallopt: bytes from which a block has pages of its own


def keep_pages_of(size: int) -> None:
    """Let the allocator keep the pages of freed results, so that the next call does not fault in
    new ones.

    glibc hands free memory back to the system beyond twice the largest block that was freed so far.
    Where all that is large is work space, which is never freed, that is less than the results of
    one call. Elsewhere this changes nothing.
    """
    np.empty(min(size, FREED), np.uint8)


@functools.cache
def keep_freed_pages() -> None:
    """The same for a call whose results are many small arrays, once a process.

    By itself glibc keeps 64 MB at most, whatever was freed, and a step of training frees more.
    Workers of Dask are started with fixed thresholds, which no freed block raises (TRAIN-20).
    """
    keep_pages_of(FREED)
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return  # another library of C
    mallopt(TRIM_THRESHOLD, TRIM)
    mallopt(MMAP_THRESHOLD, FREED)


class Arena:
    """A block of memory for results that outlive a frame; spare once its arena is released."""

    def __init__(self, spare: list[np.ndarray[Any, Any]], room: int) -> None:
        self.spare = spare
        # one large block has large pages
        self.block = spare.pop() if spare else np.empty(room, np.uint8)
        self.size = 0

    def __del__(self) -> None:
        if self.size > self.block.nbytes:
            self.block = np.empty(self.size if self.size <= KEPT else 0, np.uint8)
        if len(self.spare) < SPARE and self.block.nbytes:
            self.spare.append(self.block)


class Scratch(threading.local):
    """A block of memory per thread, and the number of bytes in use."""

    def __init__(self) -> None:
        self.block = np.empty(0, np.uint8)
        self.used = 0
        self.most = 0
        self.current: Arena | None = None
        self.room = 0  # bytes that the arena before took
        self.spare: list[np.ndarray[Any, Any]] = []

    @contextlib.contextmanager
    def frame(self) -> Iterator[Any]:
        """A frame: arrays of the work space inside it must not be used after it."""
        before = self.used
        try:
            yield
        finally:
            self.used = before
            if before == 0:
                # forgotten, so that a group too large for the machine harms no other
                size, self.most = (
                    self.most,
                    0,
                )
                if self.block.nbytes < size <= KEPT:
                    keep_pages_of(size)
                    self.block = np.empty(size, np.uint8)

    @contextlib.contextmanager
    def arena(self) -> Iterator[Arena]:
        """An arena: arrays of the work space inside it live as long as the arena is held.

        They come from a block of its own. Inside an arena it is the same one that goes on.
        """
        if self.current is not None:
            yield self.current
            return
        own = self.block, self.used, self.most
        self.current = arena = Arena(self.spare, self.room)
        # so that no frame inside is the outermost
        self.block, self.used, self.most = (
            arena.block,
            ALIGNMENT,
            0,
        )
        try:
            yield arena
        finally:
            arena.size, self.current = self.most, None
            self.room = arena.size if arena.size <= KEPT else 0
            self.block, self.used, self.most = own

    def empty(self, shape: tuple[int, ...], like: Array, kind: Any = None) -> Array:
        """An array without values, of the dtype of `like` or another; outside the block where that
        is full.

        Beside an array on a device it comes from that library, which keeps a pool of its own.
        """
        if not on_host(like):
            return np.empty_like(like, dtype=kind, order="C", shape=shape)
        kind = np.dtype(like.dtype if kind is None else kind)
        size = -(-math.prod(shape) * kind.itemsize // ALIGNMENT) * ALIGNMENT
        start, self.used = self.used, self.used + size
        self.most = max(self.most, self.used)
        if self.used > self.block.nbytes or self.block.nbytes == 0:
            return np.empty(shape, kind)
        return (
            self.block[start : start + math.prod(shape) * kind.itemsize].view(kind).reshape(shape)
        )

    def zeros(self, shape: tuple[int, ...], like: Array) -> Array:
        """An array of zeros."""
        room = self.empty(shape, like)
        room[...] = 0.0
        return room

    def copy(self, x: Array) -> Array:
        """A contiguous copy."""
        room = self.empty(x.shape, x)
        room[...] = x
        return room

    def transposed(self, x: Array) -> Array:
        """A contiguous copy, last two axes exchanged, on which products are fastest."""
        return self.copy(x.swapaxes(-1, -2))

    def times(self, a: Array, b: Array) -> Array:
        """a * b."""
        room = self.empty(np.broadcast_shapes(a.shape, b.shape), a, np.result_type(a, b))
        return np.multiply(a, b, out=room)

    def product(self, a: Array, b: Array) -> Array:
        """a @ b for stacks of matrices."""
        lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        room = self.empty((*lead, a.shape[-2], b.shape[-1]), a, np.result_type(a, b))
        return np.matmul(a, b, out=room)


scratch = Scratch()
