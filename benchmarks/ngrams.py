"""Byte n-grams, interpolated by Witten and Bell: what counting alone predicts.

    p_n(c | h) = (N(h c) + T(h) p_{n-1}(c | h')) / (N(h) + T(h)),    p_0(c) = 1 / 256

N counts in the rows that are learnt from, T(h) is the number of different bytes seen behind h, and
h' is h without its first byte. A context that was never seen leaves p_{n-1} (Witten and Bell, The
zero-frequency problem, IEEE Transactions on Information Theory 37(4), 1991, method C).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

#: Numbers of a row are bytes, and a key of 64 bits holds eight.
SYMBOLS, MOST = 256, 8


class Counts(NamedTuple):
    """What was seen of one order n.

    Attributes:
        keys (K,): n bytes each as one number, sorted; seen (K,): how often.
        contexts (C,): n - 1 bytes each, sorted; total (C,): N(h); kinds (C,): T(h).
    """

    keys: Any
    seen: Any
    contexts: Any
    total: Any
    kinds: Any


def counted(rows: Any, order: int) -> tuple[Counts, ...]:
    """Counts of the orders 1 to `order` in rows (R, L) of bytes; none reaches over a row's end.

    Raises:
        ValueError: an order of which a key does not hold the bytes.
    """
    if not 1 <= order <= MOST:
        raise ValueError(f"order: {order}, expected 1 to {MOST}")
    return tuple(_counts(_keys(rows, n)) for n in range(1, order + 1))


def bits(counts: tuple[Counts, ...], rows: Any) -> Any:
    """Bits a byte of each order over all bytes of rows but the first of each (orders,)."""
    rows = np.asarray(rows)
    p = np.full(rows.shape, 1.0 / SYMBOLS)
    found = []
    for n, own in enumerate(counts, 1):
        p[:, n - 1 :] = _mixed(own, _keys(rows, n), p[:, n - 1 :])
        found.append(float(-np.log2(p[:, 1:]).mean()))
    return np.array(found)


def _keys(rows: Any, n: int) -> Any:
    """The n bytes that end at each place, as one number (R, L - n + 1)."""
    rows = np.asarray(rows, np.uint64)
    length = rows.shape[1] - n + 1
    found = np.zeros((len(rows), length), np.uint64)
    for i in range(n):
        found = found << np.uint64(8) | rows[:, i : i + length]
    return found


def _counts(keys: Any) -> Counts:
    unique, seen = np.unique(keys, return_counts=True)
    contexts, first = np.unique(unique >> np.uint64(8), return_index=True)
    total = np.add.reduceat(seen, first)
    kinds = np.diff([*first, len(unique)])
    return Counts(unique, seen, contexts, total, kinds)


def _mixed(own: Counts, keys: Any, shorter: Any) -> Any:
    seen = _looked_up(own.keys, own.seen, keys)
    before = keys >> np.uint64(8)
    total = _looked_up(own.contexts, own.total, before)
    kinds = _looked_up(own.contexts, own.kinds, before)
    known = total > 0
    return np.where(known, (seen + kinds * shorter) / np.where(known, total + kinds, 1), shorter)


def _looked_up(keys: Any, values: Any, wanted: Any) -> Any:
    """Values of keys, 0 for those that are not there."""
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, values[at], 0)
