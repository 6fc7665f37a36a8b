"""The deep memory rule against plain loops, in drawn settings that hold every value of every axis."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support import deep_memories as deep
from tests.support.close import ANALYTIC, assert_close, reordered
from tests.truth import deep_memory_loops as loops

pytestmark = pytest.mark.host("plain loops of the tests")

DRAWN = range(60)
#: Newton-Schulz multiplies small singular values by 3.4 a step, again at each write.
AMPLIFIED = reordered(64, amplification=1e3)


def test_the_drawn_settings_hold_every_value_of_every_axis() -> None:
    every = [deep.drawn(number) for number in DRAWN]
    for axis, values in deep.AXES.items():
        assert {each[axis] for each in every} == set(values), axis


def compared(choice: dict[str, Any], seed: int) -> None:
    given = deep.inputs(choice, seed=seed)
    tolerance = AMPLIFIED if choice["newton_schulz"] else ANALYTIC
    state, y = deep.run(deep.config(choice), given)
    reset = None if given.reset is None else np.tile(given.reset, (len(given.k), 1))
    want, after = loops.run(
        deep.of_loops(choice),
        given.tensors,
        given.k,
        given.v,
        given.q,
        deep.kept(choice, given),
        reset=reset,
        calls=given.calls,
    )
    assert_close("y", y, want, tolerance)
    for kind, tensors in (("memory", state.weights), ("momentum", state.momentum)):
        for name, tensor in tensors.items():
            full = np.broadcast_to(tensor, after[f"{kind}/{name}"].shape)
            assert_close(f"{kind}/{name}", full, after[f"{kind}/{name}"], tolerance)


@pytest.mark.clause("DEEP-7", "DEEP-8", "DEEP-9", "DEEP-10", "DEEP-11", "DEEP-12", "DEEP-13")
@pytest.mark.clause("DEEP-14", "DEEP-15", "DEEP-16", "DEEP-17")
@pytest.mark.parametrize("number", DRAWN)
def test_reads_and_states_are_those_of_plain_loops(number: int) -> None:
    compared(deep.drawn(number), number)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(60, 660))
def test_more_reads_and_states_are_those_of_plain_loops(number: int) -> None:
    compared(deep.drawn(number), number)
