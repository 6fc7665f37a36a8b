"""Levels whose memory is a function: a level of a period writes where both it and a chunk end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import atlas_ref
from atlas_ref.layers import projection
from atlas_ref.levels import block as cms
from atlas_ref.levels.level import Level, run_level
from atlas_ref.oracle.deep import program
from atlas_ref.rules import deep_memory, omega
from tests.support.close import EXACT, assert_close, assert_differs, reordered
from tests.support.plain_loops import PLAINLY

B, T, D_MODEL, SIZES = 2, 13, 4, {"d_in": 3, "d_out": 3, "d_model": 4, "heads": 2}
MEMORY = {"kind": "mlp", "activation": "gelu_tanh", "expansion": 2.0, "residual_norm": True}
PLAIN = {"newton_schulz": "none"}


def deep(period: int, **settings: Any) -> Level:
    own = {"memory": MEMORY, "window": 3, "convention": PLAIN} | settings
    return Level(config=deep_memory.Config(**SIZES | own), period=period)


def block() -> cms.Config:
    """A deep memory, a slower one of chunks, and a matrix."""
    matrix = omega.Config(**SIZES, window=2, convention=PLAIN)
    return cms.Config(
        levels=(
            deep(1, chunk=2),
            deep(3, chunk=1, fast="all", vectors="raw"),
            Level(config=matrix, period=4),
        )
    )


def tokens() -> Any:
    return np.random.default_rng(0).standard_normal((B, T, D_MODEL))


@pytest.mark.clause("CMS-4", "CMS-5")
@pytest.mark.parametrize(("period", "chunk"), [(1, 3), (2, 2), (3, 1), (3, 2), (6, 2)])
def test_a_level_is_the_plain_loop_with_its_writes_alone(period: int, chunk: int) -> None:
    """The loop of the oracle shares no code with the rule."""
    level = deep(period, chunk=chunk)
    params, x = level.init(0, 0, dtype=np.float64), tokens()
    state = level.rule.start(level.config, (B, SIZES["heads"]), dtype=np.float64)
    active = (np.arange(T) + 1) % period == 0
    after, y = run_level(level, params, x, state, state, active, np.zeros(T, bool))
    projected = projection.project(level.config, params, x)
    config = projection.of_computed(level.config)
    inputs = {f"in/{name}": each for name, each in projected.items() if each is not None}
    inputs |= {f"in/memory/{name}": each for name, each in params.phi.items()}
    header = {
        "schema": 1,
        "rule": "deep_memory",
        "convention": {"newton_schulz": "none", "gate": config.convention.gate},
        "parameters": {"memory": MEMORY, "chunk": chunk, "window": 3},
    }
    case = atlas_ref.make(header, inputs | {"in/active": active.astype(np.uint8)})
    want = program.run(case.inputs, case, PLAINLY)
    assert_close("y", y, want["out/y"], reordered(64))
    for name, each in after.weights.items():
        assert_close(name, each, want[f"out/state/weights/{name}"], reordered(64))
    silent = program.run({**case.inputs, "in/active": 0 * case.inputs["in/active"]}, case, PLAINLY)
    assert_differs("y", y, silent["out/y"], 1e-3)


@pytest.mark.clause("CMS-4", "CMS-8")
@pytest.mark.parametrize("cuts", [[5], [1, 2, 9], [*range(1, T)]], ids=str)
def test_calls_cut_anywhere_are_one_call(cuts: list[int]) -> None:
    config = block()
    params, x, context = cms.init(config, 0), tokens(), cms.start(config, B)
    _, whole = cms.run(config, params, x, context)
    reads = []
    for part in np.split(x, cuts, axis=1):
        context, y = cms.run(config, params, part, context)
        reads.append(y)
    assert_close("y", np.concatenate(reads, axis=2), whole, reordered(64))


@pytest.mark.clause("CMS-5", "CMS-8")
def test_no_token_changes_an_earlier_read_or_one_of_another_document() -> None:
    config = block()
    params, x, context = cms.init(config, 0), tokens(), cms.start(config, B)
    reset = np.arange(T) == 7
    _, y = cms.run(config, params, x, context, reset=reset)
    for changed in (3, 9):
        other = x.copy()
        other[:, changed] += 1.0
        _, moved = cms.run(config, params, other, context, reset=reset)
        assert_close("earlier", moved[:, :, :changed], y[:, :, :changed], EXACT)
        last = 7 if changed < 7 else T
        assert_differs("later", moved[:, :, changed:last], y[:, :, changed:last], 1e-3)
        assert_close("next document", moved[:, :, last:], y[:, :, last:], EXACT)
