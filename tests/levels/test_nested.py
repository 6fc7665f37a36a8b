"""Nested levels: contexts of a level begin from the memory of the next slower one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

import tape
from atlas_ref.levels import block as cms
from atlas_ref.levels import nested
from atlas_ref.levels.pulse import Conductor
from tape.check import complex_step
from tape.nested import flatten
from tests.support.blocks import MIXED, block, drawn, pieces
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs, reordered
from tests.support.nested_blocks import NESTED, SPANS, in_loops

LOOPS = reordered(1, amplification=1e7)  # Newton-Schulz, as in tests/rules/test_literal.py


@pytest.mark.clause("CMS-23")
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("specs", [NESTED, SPANS], ids=["nested", "spans"])
def test_nested_levels_are_their_definition_in_loops(specs: Any, first: int) -> None:
    own = block(specs, first_step=first)
    params, x, context = drawn(own, tokens=11, batch=1)
    for reset in (None, np.isin(np.arange(11), [5, 9])):
        want, each = in_loops(specs, params, x, context, first=first, reset=reset)
        after, y = nested.run(nested.Config(block=own), params, x, context, reset=reset)
        assert_close("y", y, want, LOOPS)
        for i, state in enumerate(after.states):
            assert_close(f"M of level {i}", state.M, each[i]["out/M"], LOOPS)
        assert after.conductor.step == first + 11
        _, apart = cms.run(own, params, x, context, reset=reset)
        assert_differs("levels apart", apart, want, 1e-3)


@pytest.mark.clause("CMS-23", "CMS-24")
def test_a_fast_memory_is_the_slow_one_at_the_token_after_a_write_of_that() -> None:
    """Where several contexts begin at once all levels have the memory of the slowest."""
    specs = [{"rule": "delta", "period": each, "d_in": 3} for each in (1, 2, 4)]
    own = block(specs)
    params, x, context = drawn(own, tokens=9)
    config, at, memories = nested.Config(block=own), context, []
    for t in range(9):
        at, _ = nested.step(config, params, at, x[:, t])
        memories.append([state.M for state in at.states])
    for t, slower, levels in ((1, 2, (0, 1)), (5, 2, (0, 1)), (3, 1, (0,)), (7, 1, (0,))):
        for i in levels:
            alone = block([specs[i]])
            single = cms.Params(levels=(params.levels[i],), logits=np.zeros(1))
            begun = cms.start(alone, 2, initial=[{"M": memories[t - 1][slower]}])
            here = Conductor(periods=(specs[i]["period"],), step=t, tokens=t)
            after, _ = cms.run(alone, single, x[:, t : t + 1], begun.replaced(conductor=here))
            assert_close(f"token {t}, level {i}", memories[t][i], after.states[0].M, EXACT)


@pytest.mark.clause("CMS-8", "CMS-23")
@pytest.mark.parametrize("specs", [NESTED, SPANS], ids=["nested", "spans"])
@settings(max_examples=15, deadline=None)
@given(
    cuts=st.lists(st.integers(1, 15), max_size=4, unique=True),
    boundaries=st.sets(st.integers(0, 15), max_size=3),
    first=st.sampled_from([0, 1]),
)
def test_calls_of_any_length_give_what_one_call_gives(
    specs: Any, cuts: list[int], boundaries: set[int], first: int
) -> None:
    own = block(specs, first_step=first)
    config = nested.Config(block=own)
    params, x, context = drawn(own, tokens=16)
    reset = np.isin(np.arange(16), list(boundaries))
    whole, y = nested.run(config, params, x, context, reset=reset)
    at, reads = pieces(nested.run, config, params, x, context, sorted(cuts), reset)
    assert_close("y", reads, y, LOOPS)
    assert at.conductor == whole.conductor
    for state, want in zip(at.states, whole.states, strict=True):
        assert_close("M", state.M, want.M, LOOPS)


@pytest.mark.clause("CMS-25")
@pytest.mark.parametrize("specs", [NESTED, SPANS], ids=["nested", "spans"])
def test_gradients_pass_from_a_fast_level_into_the_slow_one(specs: Any) -> None:
    own = block(specs, d_model=2, d_out=2, heads=1)
    params, x, context = drawn(own, tokens=8, batch=1)
    config, bar = nested.Config(block=own), np.random.default_rng(4).standard_normal((1, 1, 8, 2))

    def loss(at: dict[str, Any]) -> Any:
        wide = np.iscomplexobj(tape.plain(at["M"][0]))
        here = cms.start(
            own,
            1,
            initial=[{"M": M} for M in at["M"]],
            dtype=np.complex128 if wide else np.float64,
        )
        here, first = nested.run(config, at["params"], at["x"][:, :3], here)
        _, second = nested.run(config, at["params"], at["x"][:, 3:], here)
        return tape.ops.sum(first * bar[:, :, :3]) + tape.ops.sum(second * bar[:, :, 3:])

    at = {"params": params, "x": x, "M": [state.M for state in context.states]}
    got, want = tape.grad(loss)(at), complex_step(loss, at)
    leaves, paths, _ = flatten(got, "gradient")
    for path, leaf, truth in zip(paths, leaves, flatten(want, "gradient")[0], strict=True):
        assert_close(path, leaf, truth, ANALYTIC)

    slowest = max(range(len(specs)), key=lambda i: specs[i]["period"])

    def of_fastest(M: Any) -> Any:
        """Reads of the fastest level, from the first memory of the slowest."""
        memories = [{"M": M if i == slowest else state.M} for i, state in enumerate(context.states)]
        only = np.where(np.arange(len(specs)) == 1, 60.0, 0.0)  # all weight on level 1
        begun = cms.start(own, 1, initial=memories)
        _, y = nested.run(config, params.replaced(logits=only), x, begun)
        return tape.ops.sum(y * bar)

    assert np.linalg.norm(tape.grad(of_fastest)(context.states[slowest].M)) > 1e-3


@pytest.mark.clause("CMS-23")
def test_with_steps_per_call_contexts_begin_with_calls() -> None:
    own = block([{**NESTED[1], "period": 1}, {**NESTED[0], "period": 2}]).replaced(per="call")
    config = nested.Config(block=own)
    params, x, _ = drawn(own, tokens=12)
    context = cms.start(own, 2)
    ends = [nested.ended(Conductor(periods=(1, 2), per="call"), 4).tolist()]
    assert ends[0] == [[False, False]] * 4
    at, memories = context, []
    for call in range(3):
        begins = nested.ended(at.conductor, 4)
        assert begins[0].tolist() == [call > 0, call == 1]
        assert not begins[1:].any()
        at, _ = nested.run(config, params, x[:, 4 * call : 4 * call + 4], at)
        memories.append(at.states)
    # the second call begins from the slow memory of the first, the third goes on
    moved = memories[0][0].replaced(M=memories[0][1].M, S=context.origins[0].S)
    fast = block([{**NESTED[1], "period": 1}])
    single = cms.Params(levels=params.levels[:1], logits=np.zeros(1))
    alone = cms.start(fast, 2).replaced(states=(moved,))
    alone, _ = cms.run(fast, single, x[:, 4:8], alone)
    assert_close("second call", memories[1][0].M, alone.states[0].M, EXACT)
    alone, _ = cms.run(fast, single, x[:, 8:], alone)
    assert_close("third call", memories[2][0].M, alone.states[0].M, EXACT)


@pytest.mark.clause("CMS-23")
@pytest.mark.parametrize(
    ("specs", "words"),
    [
        (NESTED[:1], "at least two levels, each of another period, found periods 3"),
        ([NESTED[0], NESTED[0]], "each of another period, found periods 3, 3"),
        ([NESTED[0], MIXED[0]], "block: memories must have one shape, found d_phi 3, 4"),
        (
            [NESTED[0], {**NESTED[1], "convention": {"read": "call_end"}}],
            "block: level 1: read call_end, which contexts would cut",
        ),
    ],
)
def test_levels_that_cannot_be_nested_are_refused(specs: Any, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        nested.Config(block=block(specs))


@pytest.mark.clause("CMS-24")
def test_before_a_slower_level_has_written_nested_levels_are_the_block() -> None:
    own = block([{**each, "period": 7 + i} for i, each in enumerate(NESTED)], first_step=1)
    params, x, context = drawn(own, tokens=8)
    config = nested.Config(block=own)
    _, y = nested.run(config, params, x, context)
    _, apart = cms.run(own, params, x, context)
    assert_close("y", y, apart, LOOPS)  # the second slowest writes at token 8, the last of them
    _, y = nested.run(config, params, np.concatenate([x, x], axis=1), context)
    _, apart = cms.run(own, params, np.concatenate([x, x], axis=1), context)
    assert_differs("then", y, apart, 1e-6)
