"""Traces that are right but for one entry of one op, and the ops that a case lists."""

from __future__ import annotations

from typing import Any

import numpy as np

from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.replay.loop import run_ops
from atlas_ref.oracle.replay.replay import first_wrong, replay
from atlas_ref.oracle.replay.trace import arithmetic_inputs, header_trace, trace


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


def assert_listed(case: Any) -> list[str]:
    """The listed ops of a case are those that are computed, at its tokens, and lead back to inputs.

    Returns:
        their names in order.
    """
    traced = SUBJECTS[case.header.rule].traced
    assert traced is not None
    tokens = traced.tokens
    called: set[str] = set()

    def take(op: str, t: int, compute: Any, *args: Any, counts: Any = None) -> Any:
        called.add(op)
        assert (own := tokens(case, op)) is None or t in own
        return compute(*args)

    run_ops(case, arithmetic_inputs(case, "float64"), take)
    listed = traced.ops(case)
    names = [op for op, _, _ in listed]
    assert called == set(names)
    assert len(names) == len(called)
    for place, (op, inputs, _) in enumerate(listed):
        for source in inputs:
            bare, earlier, _ = source.partition("[")
            known = names if earlier else names[:place]
            begins = source.endswith("[start]")  # a memory that nothing writes has a start too
            assert bare in case.inputs or bare in known or begins, (op, source)
    assert [each["op"] for each in header_trace(case)] == names
    return names
