"""The deep memory rule against plain loops, in drawn settings that hold every value of every axis."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support import deep_memories as deep
from tests.support.close import Tolerance, assert_close, relative_error, reordered
from tests.truth import deep_memory_loops as loops

pytestmark = pytest.mark.host("plain loops of the tests")

DRAWN = range(60)
#: Relative change of all keys that shows how a memory amplifies a rounding.
NUDGE = 1e-8


def amplified(choice: dict[str, Any], given: deep.Inputs, **more: Any) -> Tolerance:
    """The bound of a sum in another order, times the amplification of a nudge by the memory itself.

    Soft clips and Newton-Schulz give small gradients a size of their own, again at each write.
    """
    results = []
    for size in (0.0, NUDGE):
        noise = np.random.default_rng(5).standard_normal(given.k.shape)
        state, y = deep.run(
            deep.config(choice, **more), given._replace(k=given.k * (1.0 + size * noise))
        )
        results.append([y, *state.weights.values(), *state.momentum.values()])
    worst = max(relative_error(a, b) for a, b in zip(*results, strict=True)) / NUDGE
    return reordered(64, amplification=max(10.0, worst))


def test_the_drawn_settings_hold_every_value_of_every_axis() -> None:
    every = [deep.drawn(number) for number in DRAWN]
    for axis, values in deep.AXES.items():
        assert {each[axis] for each in every} == set(values), axis


def compared(choice: dict[str, Any], seed: int) -> None:
    given = deep.inputs(choice, seed=seed)
    tolerance = amplified(choice, given)
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


@pytest.mark.clause(
    "DEEP-2", "DEEP-3", "DEEP-7", "DEEP-8", "DEEP-9", "DEEP-10", "DEEP-11", "DEEP-12", "DEEP-13"
)
@pytest.mark.clause("DEEP-14", "DEEP-15", "DEEP-16", "DEEP-17")
@pytest.mark.parametrize("number", DRAWN)
def test_reads_and_states_are_those_of_plain_loops(number: int) -> None:
    compared(deep.drawn(number), number)


@pytest.mark.clause("DEEP-1", "DEEP-14")
@pytest.mark.parametrize("unfinished", ["wait", "flush"])
@pytest.mark.parametrize("number", range(700, 712))
def test_a_chunk_of_the_call_is_one_that_no_call_fills_and_that_its_end_writes(
    number: int, unfinished: str
) -> None:
    """With loops that know chunks of a number of tokens alone; of one call that of its tokens, whose
    last one then reads what it wrote.
    """
    choice = deep.drawn(number, chunk=99, window=3 + number % 4, span="chunk", unfinished="flush")
    if choice["read"] == "after":
        choice |= {"chunk": 13, "calls": False, "documents": False}
    given = deep.inputs(choice, seed=number)
    state, y = deep.run(deep.config(choice, chunk="call", unfinished=unfinished), given)
    reset = None if given.reset is None else np.tile(given.reset, (len(given.k), 1))
    gates = deep.kept(choice, given)
    want, after = loops.run(
        deep.of_loops(choice),
        given.tensors,
        given.k,
        given.v,
        given.q,
        gates,
        reset=reset,
        calls=given.calls,
    )
    tolerance = amplified(choice, given)
    assert_close("y", y, want, tolerance)
    for kind, tensors in (("memory", state.weights), ("momentum", state.momentum)):
        for name, tensor in tensors.items():
            full = np.broadcast_to(tensor, after[f"{kind}/{name}"].shape)
            assert_close(f"{kind}/{name}", full, after[f"{kind}/{name}"], tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(60, 660))
def test_more_reads_and_states_are_those_of_plain_loops(number: int) -> None:
    compared(deep.drawn(number), number)
