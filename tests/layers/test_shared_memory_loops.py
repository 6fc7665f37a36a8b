"""Blocks around a memory that shares attention against plain loops, on every value of every axis."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref.blocks import mag
from tests.support.close import assert_close, assert_differs, reordered
from tests.support.shared_memories import CHANGES, SETTINGS, TOKENS, built
from tests.truth import shared_memory_loops as loops

pytestmark = pytest.mark.host("plain loops of the tests")

CLOSE = reordered(256, amplification=100.0)
B = 2


def tokens(seed: int = 3) -> Any:
    return np.random.default_rng(seed).standard_normal((B, TOKENS, SETTINGS.dim))


@pytest.mark.clause("SHARED-2", "SHARED-3", "SHARED-4", "SHARED-5", "SHARED-6", "MAG-2", "MAG-3")
@pytest.mark.parametrize("name", CHANGES)
def test_a_block_its_reads_and_its_state_are_those_of_plain_loops(name: str) -> None:
    own = built(**CHANGES[name])
    x = tokens()
    want = loops.block(x, own.tensors, own.axes)
    state, y = mag.apply(own.config, own.params, mag.start(own.config, B), x)
    assert_close("y", y, want.y, CLOSE)
    after = state.memory.levels.states[0]
    for kind, fast in (("memory", after.weights), ("momentum", after.momentum)):
        for each, tensor in fast.items():
            expected = want.state[f"{kind}/{each}"]
            assert_close(each, np.broadcast_to(tensor[:, 0], expected.shape), expected, CLOSE)


@pytest.mark.clause("SHARED-3", "SHARED-4", "SHARED-6", "SHARED-9")
@pytest.mark.parametrize("name", [each for each in CHANGES if each != "causal"])
def test_every_value_of_an_axis_changes_the_block(name: str) -> None:
    """But flush, whose write comes after the last read: it changes the state."""
    results = []
    for changes in ({}, CHANGES[name]):
        own = built(**changes)
        state, y = mag.apply(own.config, own.params, mag.start(own.config, B), tokens())
        results.append((state, y))
    (before, y), (after, changed) = results
    if name == "flush":
        a, b = (each.memory.levels.states[0].weights["W_up"] for each in (before, after))
        assert_differs("W_up", a, b, 1e-3)
    else:
        assert_differs("y", changed, y, 1e-6)
