"""Ops with other rows than one of their token, functions inside of an op, settings inside others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref.oracle.family.arithmetic import PLAIN
from atlas_ref.oracle.program.context import Reads, Rows
from atlas_ref.oracle.program.derive.readings import others
from atlas_ref.oracle.program.hook import hook_of, same, within
from atlas_ref.oracle.program.program import Setting
from atlas_ref.oracle.program.reading import Reading
from atlas_ref.oracle.program.run import context_of, exact, run
from tests.oracle.program.test_hook import SUM, Settings, X


@pytest.mark.clause("PROG-2")
def test_a_trace_has_rows_of_a_window_by_lag_and_every_token_of_one_computation() -> None:
    seen: list[tuple[str, int, Any, Any]] = []

    def take(op: str, t: int, compute: Any, *arguments: Any, counts: Any = None) -> Any:
        seen.append((op, t, compute(*arguments), counts))
        return 10.0 * seen[-1][2]

    x = np.arange(6.0).reshape(3, 2)
    hook = hook_of(context_of(SUM, Settings(), X, exact(PLAIN)), {}, (), take)
    rows = hook("rows", Rows(t=3, present=2, window=3), same, x[1:])
    (op, t, value, counts) = seen.pop()
    assert (op, t) == ("rows", 3)
    assert np.array_equal(value, [x[2], x[1], [0.0, 0.0]])
    assert counts[:, 0].tolist() == [True, True, False]
    assert np.array_equal(rows, 10.0 * x[1:])
    reads = hook("reads", Reads(first=1, last=4), same, x)
    assert [each[:2] for each in seen] == [("reads", t) for t in (1, 2, 3)]
    assert np.array_equal([each[2] for each in seen], x)
    assert np.array_equal(reads, 10.0 * x)
    twice = Reading("twice", "twice", ops={"inside": within(lambda compute, x: 2.0 * compute(x))})
    wrapped = hook_of(hook.context, {}, (twice,))
    assert [each.part("inside/of_all", same, 3.0) for each in (hook, wrapped)] == [3.0, 6.0]


@pytest.mark.clause("PROG-5")
def test_a_setting_may_stand_inside_another_and_depend_on_the_case() -> None:
    inside = Setting(
        "powers.first",
        lambda context: range(1, context.tokens),
        stated="powers.first",
        get=lambda settings: settings.power,
        put=lambda settings, value: settings.replaced(power=value),
        said=lambda value: value / 2,
    )
    context = context_of(SUM, Settings(2), X, exact(PLAIN))
    found = list(others(inside, context))
    assert [each.name for each in found] == ["powers.first=0.5", "powers.first=1.5"]
    assert (found[0].change, found[0].before) == ({"powers.first": 0.5}, {"powers.first": 1.0})
    cubed = run(SUM, Settings(2), X, exact(PLAIN), found[1:])
    assert np.array_equal(cubed["out/y"], run(SUM, Settings(3), X, exact(PLAIN))["out/y"])
