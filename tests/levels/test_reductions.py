"""Reductions of a block, each with a twin that breaks one condition and so differs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from atlas_ref.layers import projection
from atlas_ref.levels import block as cms
from tests.support.blocks import block, drawn
from tests.support.close import assert_close, assert_differs, reordered

FAST = {"rule": "titans_lmm", "period": 1, "d_in": 3}
SLOW = {
    "rule": "omega",
    "period": 3,
    "d_in": 3,
    "window": 3,
    "convention": {"newton_schulz": "none"},
}


def reads(
    config: cms.Config, params: cms.Params, x: Any, context: cms.Context, calls: int = 1
) -> Any:
    found = []
    for part in np.split(x, calls, axis=1):
        context, y = cms.run(config, params, part, context)
        found.append(y)
    return np.concatenate(found, axis=2)


def alone(
    config: cms.Config, params: cms.Params, x: Any, context: cms.Context, level: int = 0
) -> Any:
    """One level as the plain rule, which writes at every token."""
    own = config.levels[level]
    return projection.run_tokens(
        own.rule, own.config, params.levels[level], x, context.states[level]
    )[1]


def one_level(period: int) -> tuple[Any, Any]:
    config = block([{**FAST, "period": period}])
    made = drawn(config)
    return reads(config, *made), alone(config, *made)


def masked(period: int) -> tuple[Any, Any]:
    specs = [FAST, {**SLOW, "period": period}]
    config = block(specs, combine="masked")
    made = drawn(config)
    return reads(config, *made), reads(block(specs), *made)


def twins(change: float) -> tuple[Any, Any]:
    """Two levels with the same parameters and memories, for any logits."""
    config = block([FAST, FAST])
    params, x, context = drawn(config)
    second = params.levels[0].replaced(W_V=(1.0 + change) * params.levels[0].W_V)
    context = cms.start(
        config, 2, initial=[{"M": context.states[0].M, "S": context.states[0].S}] * 2
    )
    return reads(config, params.replaced(levels=(params.levels[0], second)), x, context), alone(
        config, params, x, context
    )


def silent(first_step: int) -> tuple[Any, Any]:
    """A level whose period is longer than the stream, counted from 1: it reads its first memory."""
    config = block([{**SLOW, "period": 50}], first_step=first_step)
    params, x, context = drawn(config)
    queries = np.einsum("hid,btd->bhti", params.levels[0].W_Q, x)
    return reads(config, params, x, context), np.einsum(
        "bhoi,bhti->bhto", context.states[0].M, queries
    )


def calls(count: int) -> tuple[Any, Any]:
    """Calls of one token, where steps per call are steps per token."""
    config = block([FAST, SLOW])
    params, x, context = drawn(config)
    by_call = cms.Config(levels=config.levels, per="call")
    return reads(by_call, params, x, context.replaced(conductor=by_call.conductor()), count), reads(
        config, params, x, context
    )


def covered(tokens: int) -> tuple[Any, Any]:
    """A call as long as every period, in which all levels always write."""
    levels = block([FAST, SLOW]).levels
    config = cms.Config(levels=levels, per="call", call_tokens=tokens)
    params, x, context = drawn(config)
    always = block([FAST, {**SLOW, "period": 1}])
    return reads(config, params, x, context, 4), reads(
        always, params, x, context.replaced(conductor=always.conductor())
    )


class Row(NamedTuple):
    statement: str
    sides: Callable[[Any], tuple[Any, Any]]
    holds: Any
    broken: Any


ROWS = {
    "one-level": Row("one level of period 1 is the plain rule", one_level, 1, 2),
    "masked": Row("masked is softmax where all levels always write", masked, 1, 2),
    "twins": Row("equal levels are one of them, whatever the logits", twins, 0.0, 0.1),
    "silent": Row("a level that never wrote reads what it started from", silent, 1, 0),
    "calls": Row("steps per call are steps per token in calls of one token", calls, 12, 6),
    "covered": Row("levels whose periods a call covers are always active", covered, 3, 2),
}


@pytest.mark.clause("CMS-6", "CMS-7", "CMS-9", "PULSE-3", "PULSE-5")
@pytest.mark.parametrize("name", ROWS)
def test_a_block_reduces_and_its_twin_does_not(name: str) -> None:
    row = ROWS[name]
    assert_close(row.statement, *row.sides(row.holds), reordered(12, amplification=1e2))
    assert_differs(f"not: {row.statement}", *row.sides(row.broken), least=1e-3)
