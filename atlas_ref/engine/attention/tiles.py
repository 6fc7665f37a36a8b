"""Causal attention in a window by compiled code; plain twin: `layers.attention.reads.plain_attention`.

Each thread takes some heads. A result that is not finite is recomputed in NumPy, which warns of it.
Specified in specs/attention.md (ATTENTION-11, ATTENTION-12).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from atlas_ref.backend import compiled
from atlas_ref.backend.compiled.panels import PANEL_BYTES
from atlas_ref.backend.scratch import scratch
from atlas_ref.backend.threads import in_threads, processors, slices
from atlas_ref.engine.attention.layout import Cotangents, Kept, Layout, Sizes, first_rows
from atlas_ref.types import Array

MODULE = "atlas_ref.engine.compiled.window_attention"
#: Multiply-adds of scores from which on it is worth loading compiled code, which takes a second
#: once a process.
WORK = 2**22
#: Entries of a head up to which a tile stays in the cache.
LARGEST = 256


def sizes(layout: Layout, qkv: Array, *others: Array) -> Sizes | None:
    """Tiles of as many queries as a panel has lanes; None where NumPy is to compute."""
    B, _, H, T, d = qkv.shape
    work = B * H * T * layout.reach * d
    if work < WORK or d > LARGEST or not compiled.available_for(qkv, *others):
        return None
    width = PANEL_BYTES // qkv.dtype.itemsize
    return Sizes(width, -(-T // width), max(1, -(-(layout.reach - 1) // width)) * width)


def arrange(
    way: str,
    layout: Layout,
    sizes: Sizes,
    turn: tuple[Array, Array, float],
    x: Array,
    *placed: Array,
) -> bool:
    """Turn and place queries, keys and values of x (B, 3, H, d, T) in one pass.

    Under way arrange_back cotangents are turned back and put into x.

    Returns:
        whether compiled code took them.
    """
    cos, sin, scale = turn
    x_is_whole = x.flags.c_contiguous and all(each.flags.c_contiguous for each in placed)
    if layout.interleaved is None or not x_is_whole:
        return False
    if not compiled.available_for(x, cos, sin, *placed):
        return False
    loop = compiled.loop(MODULE, x.dtype, way)
    if loop is None:
        return False
    tables = (np.ascontiguousarray(cos), np.ascontiguousarray(sin))
    number = x.dtype.type(scale)
    loop(x, *tables, number, layout.interleaved, sizes.before, *placed)
    return True


def attend(layout: Layout, sizes: Sizes, kept: Kept, tokens: int) -> bool:
    """Exponentials, their sums and the reads, in place in what is kept (ATTENTION-11).

    Returns:
        whether all is finite; else what is kept is undefined.
    """
    loop = compiled.loop(MODULE, kept.y.dtype, "forward")
    if loop is None:
        return False
    first, flags = first_rows(layout, sizes, tokens)

    def of_thread(heads: slice) -> bool:
        with scratch.frame():
            loop(
                *(each[heads] for each in kept[:4]),
                first,
                flags,
                layout.reach,
                *(each[heads] for each in kept[4:]),
                *_rooms(sizes, kept, ("q_t", "k_t", "k_t", "k_e", "p_t", "p_e", "one")),
            )
        return bool(np.isfinite(kept.y[heads]).all())

    return all(_shared_out(of_thread, len(kept.y)))


def attend_backward(layout: Layout, sizes: Sizes, kept: Kept, cotangents: Cotangents) -> bool:
    """Cotangents, in place, of all but the reads (ATTENTION-12).

    Returns:
        whether compiled code took them, which it does not if their precision is another one.
    """
    loop = compiled.loop(MODULE, kept.y.dtype, "backward")
    if loop is None or not compiled.available_for(*kept, *cotangents):
        return False
    rooms = ("q_t", "q_e", "k_t", "k_e", "k_t", "q_t", "q_e", "q_t", "p_t", "p_e")

    def of_thread(heads: slice) -> None:
        with scratch.frame():
            loop(
                *(each[heads] for each in kept[:4]),
                layout.reach,
                *(each[heads] for each in kept[4:]),
                *(each[heads] for each in cotangents),
                *_rooms(sizes, kept, (*rooms, "ds", "waiting", "one", "sums")),
            )

    _shared_out(of_thread, len(kept.y))
    return True


def _rooms(sizes: Sizes, kept: Kept, names: tuple[str, ...]) -> list[Array]:
    """Work space of a thread: panels of times (_t) and of entries (_e), and of one tile."""
    w, tiles, before = sizes.C, sizes.chunks, sizes.before // sizes.C
    P, d = kept.persistent.shape[1:]
    across, span = -(-d // w), before + 1
    down = across * w
    shapes = {
        "q_t": (tiles, down, w),
        "q_e": (across, tiles * w, w),
        "k_t": (before + tiles, down, w),
        "k_e": (across, (before + tiles) * w, w),
        "p_t": (-(-P // w), down, w),
        "p_e": (across, P, w),
        "one": (1, down, w),
        "ds": (1, P + span * w, w),
        "waiting": (2 * span, span * w, w),
        "sums": (1, P * d, w),
    }
    return [scratch.empty(shapes[name], kept.y) for name in names]


def _shared_out(work: Any, heads: int) -> list[Any]:
    threads = max(1, min(processors(), heads))
    return in_threads([partial(work, part) for part in slices(heads, threads)])
