"""Traces that are right but for one entry of one op."""

from __future__ import annotations

from typing import Any

import numpy as np

from atlas_ref.oracle.replay.replay import first_wrong, replay
from atlas_ref.oracle.replay.trace import trace
from atlas_ref.oracle.subjects import SUBJECTS


def assert_first_wrong(case: Any, op: str) -> None:
    """The op named is the one of which one entry is off, the largest of its last write or token."""
    tensor = f"trace/{op}"
    right = trace(case, dtype="float32")
    number = right[tensor].shape[1] - 1  # of the last write, or token
    row = right[tensor][1, number]
    entry = np.unravel_index(np.argmax(np.abs(row)), row.shape)
    assert row[entry]
    wrong = right[tensor].copy()
    wrong[(1, number, *entry)] *= np.float32(1.05)
    first = first_wrong(replay(case, {**right, tensor: wrong}, nearest=False))
    assert first is not None
    assert (first.tensor, first.verdict) == (tensor, "WRONG")
    traced = SUBJECTS[case.header.rule].traced
    assert traced is not None
    writes = traced.tokens(case, op)
    assert first.token == (number if writes is None else writes[number])
    assert first.place == (1, *(int(i) for i in entry))
