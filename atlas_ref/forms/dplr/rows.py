"""The input of every form of dplr: one row for each erase and write, after all settings of tokens.

    M_r = M_{r-1} (diag(retain_r) - erase_read_r erase_write_r^T) + v_r k_r^T

Specified in specs/dplr.md (DPLR-12).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.rules import dplr
from atlas_ref.types import Array
from tape import ops


class Rows(NamedTuple):
    """R = T n rows of leading axes L (DPLR-12).

    Attributes:
        retain (L, R, d_in or 1): gate, 1 behind the first row of a token.
        k (L, R, d_in), v (L, R, d_out): the pair that is written.
        erase_read, erase_write (L, R, d_in): the erase of the memory before the row; None for none.
        q (L, T, d_in): queries.
        steps: n, rows of a token; its query reads after the last.
        before: whether it reads before its row instead.
        before_error: whether an erase reads the memory after the decay of its row instead.
        query_scale: factor of the reads.
    """

    retain: Array
    k: Array
    v: Array
    erase_read: Array
    erase_write: Array
    q: Array
    steps: int
    before: bool
    before_error: bool
    query_scale: float

    def of(self, first: int, last: int) -> Rows:
        """The rows of tokens first to last."""
        if (first, last) == (0, self.q.shape[-2]):
            return self
        own = slice(first * self.steps, last * self.steps)
        cut = {
            name: value[..., own, :]
            for name in ("retain", "k", "v", "erase_read", "erase_write")
            if (value := getattr(self, name)) is not None
        }
        return self._replace(**cut, q=self.q[..., first:last, :])

    def without_settings(self) -> Rows:
        """The same by vectors alone: the gate in what an erase reads, the scale in the queries."""
        a, q = self.erase_read, self.q
        if a is not None and self.before_error:
            a = self.retain * a
        if self.query_scale != 1:
            q = q * self.query_scale
        return self._replace(erase_read=a, q=q, before_error=False, query_scale=1.0)


def rows(config: dplr.Config, tokens: dplr.Tokens) -> Rows:
    """Rows of tokens: an inactive one has gate 1 and zeros (DPLR-12)."""
    n, T = config.steps, tokens.q.shape[-2]
    retain = _gates(tokens)
    if n > 1:
        others = ops.ones_like(retain, shape=(*retain.shape[:-2], T, n - 1, retain.shape[-1]))
        first = ops.expand_dims(retain, -2)
        retain = ops.concatenate([first, others], axis=-2)
        retain = ops.reshape(retain, (*others.shape[:-3], T * n, others.shape[-1]))
    k, q = (dplr.of_groups(x, config.groups) for x in (tokens.k, tokens.q))
    v, a, b = tokens.v, tokens.erase_read, tokens.erase_write
    if tokens.active is not None:
        own = np.repeat(np.asarray(tokens.active), n)[:, None]
        retain = ops.where(own, retain, 1.0)
        v, a, b = (None if x is None else ops.where(own, x, 0.0) for x in (v, a, b))
    scale = 1.0 if config.query_scale == 1 else config.d_in**-0.5
    before, before_error = tokens.bonus is not None, config.decay == "before_error"
    return Rows(retain, k, v, a, b, q, n, before, before_error, scale)


def with_bonus(tokens: dplr.Tokens, own: Rows, y: Array) -> Array:
    """Add what a read before its row sees of the token's own pair, v (bonus k)^T q (DPLR-12)."""
    if tokens.bonus is None:
        return y
    bonus = ops.expand_dims(tokens.bonus, -2)
    seen = ops.sum(bonus * own.k * own.q, axis=-1, keepdims=True)
    return y + own.v * (seen if own.query_scale == 1 else seen * own.query_scale)


def packed(reset: Any, T: int) -> Iterator[tuple[int, int]]:
    """First and last token of each packed sequence."""
    starts = [] if reset is None else np.nonzero(np.asarray(reset))[0].tolist()
    yield from itertools.pairwise([*sorted({0, *starts}), T])


def _gates(tokens: dplr.Tokens) -> Array:
    """Gates as rows (L, T, d_in or 1), of 1 where there are none."""
    retain = dplr.gates(tokens)
    if retain is None:
        return ops.ones_like(tokens.v, shape=(*tokens.v.shape[:-2], tokens.q.shape[-2], 1))
    return retain
