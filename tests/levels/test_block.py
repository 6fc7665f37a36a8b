"""A block of levels against its definition in loops, cut into calls and into documents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from atlas_ref.layers import projection
from atlas_ref.levels import block as cms
from atlas_ref.levels.level import Level
from atlas_ref.rules import FAMILY, delta, omega, titans_lmm
from tests.support.blocks import COUNTING, MIXED, block, drawn, in_loops, level, pieces
from tests.support.close import EXACT, assert_close, assert_differs, reordered
from tests.support.strategies import conventions, repeatable

LOOPS = reordered(1, amplification=1e7)  # Newton-Schulz, as in tests/rules/test_literal.py


@pytest.mark.clause("CMS-2", "CMS-4", "CMS-6", "CMS-7")
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("combine", ["softmax", "masked"])
@pytest.mark.parametrize("specs", [MIXED, COUNTING], ids=["mixed", "counting"])
def test_a_block_is_its_definition_in_loops(specs: Any, combine: Any, first: int) -> None:
    config = block(specs, combine=combine, first_step=first)
    params, x, context = drawn(config)
    reset = np.isin(np.arange(12), [5, 6])
    for documents in (None, reset):
        want, levels = in_loops(
            specs, params, x, context, masked=combine == "masked", first=first, reset=documents
        )
        after, y = cms.run(config, params, x, context, reset=documents)
        assert_close("y", y, want, LOOPS)
        for i, state in enumerate(after.states):
            assert_close(f"M of level {i}", state.M, levels[i]["out/M"], LOOPS)
            if "out/S" in levels[i]:
                assert_close(f"S of level {i}", state.S, levels[i]["out/S"], LOOPS)
        assert after.conductor.step == first + 12


@pytest.mark.clause("CMS-8", "PULSE-5")
@pytest.mark.parametrize("specs", [MIXED, COUNTING], ids=["mixed", "counting"])
@settings(max_examples=15, deadline=None)
@given(
    cuts=st.lists(st.integers(1, 15), max_size=4, unique=True),
    boundaries=st.sets(st.integers(0, 15), max_size=3),
    first=st.sampled_from([0, 1]),
)
def test_calls_of_any_length_give_what_one_call_gives(
    specs: Any, cuts: list[int], boundaries: set[int], first: int
) -> None:
    config = block(specs, first_step=first)
    params, x, context = drawn(config, tokens=16)
    reset = np.isin(np.arange(16), list(boundaries))
    whole, y = cms.run(config, params, x, context, reset=reset)
    after, same = pieces(cms.run, config, params, x, context, sorted(cuts), reset)
    assert_close("y", same, y, LOOPS)
    assert after.conductor == whole.conductor
    for i, (state, want) in enumerate(zip(after.states, whole.states, strict=True)):
        for name, value in want.__dict__.items():
            if isinstance(value, np.ndarray):
                assert_close(f"{name} of level {i}", getattr(state, name), value, LOOPS)
            else:
                assert getattr(state, name) == value, f"{name} of level {i}"


@pytest.mark.clause("CMS-8")
def test_a_document_boundary_resets_the_memory_and_never_the_step() -> None:
    config = block(MIXED)
    params, x, context = drawn(config, tokens=11)
    reset = np.arange(11) == 7
    after, y = cms.run(config, params, x, context, reset=reset)
    assert after.conductor.step == 11
    assert after.origins == context.origins
    later = context.replaced(conductor=context.conductor.advanced(7))
    # a document of its own that begins at step 7
    alone, second = cms.run(config, params, x[:, 7:], later)
    assert_close("reads after the boundary", y[:, :, 7:], second, LOOPS)
    assert_close("memory", after.states[2].M, alone.states[2].M, LOOPS)
    from_zero, first = cms.run(config, params, x[:, 7:], context)
    assert_differs("a step that starts again", first, second, 1e-3)
    assert from_zero.conductor.step == 4


@pytest.mark.clause("CMS-8")
def test_a_boundary_returns_to_the_first_memory_and_not_to_that_of_the_call() -> None:
    config = block(MIXED)
    params, x, context = drawn(config, tokens=10)
    middle, _ = cms.run(config, params, x[:, :4], context)
    reset = np.arange(6) == 0
    _, y = cms.run(config, params, x[:, 4:], middle, reset=reset)
    _, want = cms.run(config, params, x[:, 4:], context.replaced(conductor=middle.conductor))
    assert_close("reads", y, want, LOOPS)


@pytest.mark.host("bits of two orders of sums")
@pytest.mark.clause("CMS-9")
@pytest.mark.parametrize("rule", [omega, titans_lmm, delta])
@pytest.mark.parametrize("combine", ["softmax", "masked"])
def test_one_level_is_the_plain_rule_bit_for_bit(rule: Any, combine: Any) -> None:
    own = rule.Config(d_in=4, d_out=3, d_model=5, heads=2)
    config = cms.Config(levels=(Level(config=own),), combine=combine)
    params, context = cms.init(config, 5), cms.start(config, 2)
    assert params.levels[0] == projection.init(own, 5)
    x = np.random.default_rng(1).standard_normal((2, 20, 5))
    after, y = cms.run(config, params, x, context)
    state, want = projection.run_tokens(
        rule.RULE, own, projection.init(own, 5), x, rule.start(own, (2, 2))
    )
    assert_close("y", y, want, EXACT)
    assert after.states[0] == state


@pytest.mark.host("bits of two orders of sums")
@pytest.mark.clause("CMS-9")
def test_one_slow_level_is_the_plain_rule_with_that_schedule_bit_for_bit() -> None:
    for spec in (*MIXED, *COUNTING):
        config = block([spec])
        params, x, context = drawn(config, tokens=17)
        after, y = cms.run(config, params, x, context)
        own = config.levels[0]
        active = np.arange(17) % spec["period"] == 0
        state, want = projection.run_tokens(
            own.rule, own.config, params.levels[0], x, context.states[0], active=active
        )
        assert_close(f"y of {spec}", y, want, EXACT)
        assert after.states[0] == state, spec


@st.composite
def any_level(draw: st.DrawFn) -> dict[str, Any]:
    """The case description of a level under any convention."""
    rule = draw(st.sampled_from(list(FAMILY)))
    own = {"window": draw(st.integers(1, 4))} if rule == "omega" else {}
    convention = draw(conventions(rule, newton_schulz=rule == "omega"))
    return {
        "rule": rule,
        "period": draw(st.integers(1, 6)),
        "d_in": 2,
        "span": draw(st.integers(1, 5)),
        "convention": convention,
        **own,
    }


@pytest.mark.host("bits of two orders of sums")
@pytest.mark.clause("CMS-5", "CMS-8", "CMS-9")
@settings(repeatable, max_examples=120)
@given(
    spec=any_level(),
    first=st.sampled_from([0, 1]),
    tokens=st.integers(1, 13),
    boundaries=st.sets(st.integers(0, 12), max_size=3),
)
def test_one_level_under_any_convention_is_the_plain_rule_and_takes_tokens_one_by_one(
    spec: dict[str, Any], first: int, tokens: int, boundaries: set[int]
) -> None:
    assume(spec["convention"].get("rate") != "split")
    try:
        config = block([spec], first_step=first)
    except ValidationError:  # the axes contradict each other
        reject()
    params, x, context = drawn(config, tokens=tokens)
    reset, active = (
        np.isin(np.arange(tokens), list(boundaries)),
        (first + np.arange(tokens)) % spec["period"] == 0,
    )
    after, y = cms.run(config, params, x, context, reset=reset)
    own = config.levels[0]
    state, want = projection.run_tokens(
        own.rule, own.config, params.levels[0], x, context.states[0], active=active, reset=reset
    )
    assert_close("y", y, want, EXACT)
    assert after.states[0] == state
    if own.config.convention.read != "call_end":  # which depends on where a call ends
        _, same = pieces(cms.run, config, params, x, context, list(range(1, tokens)), reset)
        assert_close("y, one by one", same, y, LOOPS)


@pytest.mark.clause("CMS-10")
@pytest.mark.parametrize("combine", ["softmax", "masked"])
def test_the_order_of_levels_does_not_matter(combine: Any) -> None:
    config = block(MIXED, combine=combine)
    params, x, context = drawn(config)
    after, y = cms.run(config, params, x, context)
    order = [3, 0, 4, 2, 1]
    moved = block([MIXED[i] for i in order], combine=combine)
    shuffled = cms.Params(
        levels=tuple(params.levels[i] for i in order), logits=params.logits[order]
    )
    states = tuple(context.states[i] for i in order)
    other, same = cms.run(
        moved, shuffled, x, cms.Context(conductor=moved.conductor(), states=states, origins=states)
    )
    assert_close("y", same, y, reordered(5))
    assert [other.states[i] == after.states[order[i]] for i in range(5)] == [True] * 5
    assert_differs(
        "logits left behind",
        cms.run(
            moved,
            shuffled.replaced(logits=params.logits),
            x,
            cms.Context(conductor=moved.conductor(), states=states, origins=states),
        )[1],
        y,
        1e-2,
    )


@pytest.mark.clause("CMS-6")
def test_logits_start_at_zero_and_levels_weigh_the_same() -> None:
    config = block(MIXED)
    params = cms.init(config, 0)
    assert params.logits.tolist() == [0.0] * 5
    weights = cms.combining(config, params.logits, config.conductor().schedule(4))
    assert np.allclose(weights, 0.2, rtol=0, atol=1e-16)


@pytest.mark.clause("CMS-7")
def test_masked_weights_are_a_softmax_over_those_that_write() -> None:
    config = block(MIXED, combine="masked")
    logits = np.array([0.3, 800.0, -800.0, 0.1, 0.2])  # none of them overflows or hides the others
    active = config.conductor().schedule(60)
    weights = np.concatenate(cms.combining(config, logits, active), axis=1)
    assert_close("sums", weights.sum(1), np.ones(60), reordered(5))
    assert (weights[~active] == 0).all()
    assert weights[1].tolist() == [1, 0, 0, 0, 0]  # level 0 alone
    three = np.exp(logits[[0, 3, 4]])
    assert_close("levels 0, 3, 4", weights[20][[0, 4]], np.array([0.0, 0.0]), EXACT)  # beside 800
    alone = np.concatenate(
        cms.combining(config, np.array([0.3, -5.0, 0.0, 0.1, 0.2]), active), axis=1
    )[20]
    assert_close(
        "levels 0, 1, 3, 4", alone[[0, 3, 4]], three / (three.sum() + np.exp(-5.0)), reordered(5)
    )


@pytest.mark.clause("CMS-4")
def test_step_is_a_call_of_one_token() -> None:
    config = block(MIXED)
    params, x, context = drawn(config, tokens=6)
    whole, y = cms.run(config, params, x, context)
    for t in range(6):
        context, one = cms.step(config, params, context, x[:, t])
        assert_close(f"token {t}", one, y[:, :, t], LOOPS)
    assert context.conductor == whole.conductor


@pytest.mark.clause("PULSE-8")
def test_the_phase_changes_no_bit() -> None:
    config = block(MIXED)
    params, x, context = drawn(config)
    found = {}
    for phase in ("build", "test", "stream"):
        after, y = cms.run(
            config, params, x, context.replaced(conductor=context.conductor.in_phase(phase))
        )
        assert after.conductor.phase == phase
        found[phase] = (after.states, y.tobytes())
    assert found["build"] == found["test"] == found["stream"]


@pytest.mark.clause("CMS-1", "CMS-7")
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: cms.Config(levels=()), "levels"),
        (
            lambda: cms.Config(levels=(level(MIXED[0]), level(MIXED[1], d_out=2))),
            "levels: d_out must be the same in all of them, found 3, 2",
        ),
        (
            lambda: cms.Config(levels=(level(MIXED[0]), level(MIXED[1], heads=1))),
            "levels: heads must be the same in all of them, found 2, 1",
        ),
        (
            lambda: cms.Config(levels=(level(MIXED[0], d_model=4), level(MIXED[1]))),
            "levels: d_model must be the same",
        ),
        (
            lambda: block(MIXED[1:], combine="masked"),
            "masked needs a level that always writes, found periods 2, 3, 5, 4",
        ),
        (
            lambda: Level(config=delta.Config(d_in=2, d_out=2)),
            "config: a level projects its tokens, so d_model is needed",
        ),
        (
            lambda: level({**MIXED[0], "convention": {"rate": "split"}}),
            "rate split has no second rate at level token",
        ),
        (lambda: level(MIXED[0], form="chunkwise"), "form chunkwise: the reference is running"),
        (lambda: level({**MIXED[0], "period": 0}), "period"),
        (lambda: level({**MIXED[0], "period": True}), "period"),
        (lambda: block(MIXED, first_step=2), "first_step"),
        (
            lambda: cms.Config(levels=(level(MIXED[0]),), call_tokens=4),
            "call_tokens: belongs to steps per call",
        ),
    ],
)
def test_blocks_that_mean_nothing_are_refused(wrong: Any, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        wrong()


@pytest.mark.clause("CMS-1")
def test_calls_that_contradict_their_block_are_refused() -> None:
    config = block(MIXED)
    params, x, context = drawn(config)
    other = block(MIXED, first_step=1)
    swapped = params.replaced(levels=params.levels[::-1])
    for arguments, words in [
        (
            (params, x, cms.start(other, 2)),
            "context: first_step 1 of its conductor, expected 0 as in the configuration",
        ),
        ((swapped, x, context), "params: window: the rule titans_lmm has none"),
        (
            (params.replaced(logits=np.zeros(4)), x, context),
            r"params: 5 levels and logits of shape \(4,\), expected 5 levels",
        ),
        (
            (params, x, context.replaced(states=context.states[:4])),
            "context: 4 states and 5 origins, expected 5 of each",
        ),
        (
            (params, x, context.replaced(states=context.states * 2)),
            "context: 10 states and 5 origins, expected 5 of each",
        ),
        (
            (params, x, context.replaced(origins=context.origins[:1])),
            "context: 5 states and 1 origins, expected 5 of each",
        ),
        (
            (params, x, context.replaced(states=context.states[::-1])),
            "state: the State of .*titans_lmm is needed, found .*omega.State",
        ),
        (
            (params.replaced(logits=params.logits.astype(np.float32)), x, context),
            "logits: float32, but the memory is float64; cast them",
        ),
        ((None, x, context), "params: the Params of a block is needed, found NoneType"),
        ((params, x, context.conductor), "context: the Context of a block is needed, found Cond"),
        ((params, x.tolist(), context), "x: an array is needed, found list"),
        ((params, None, context), "x: an array is needed, found NoneType"),
        ((params, x[0], context), "x: shape"),
        ((params, x[:, :0], context), "x: shape"),
    ]:
        with pytest.raises(ValueError, match=words):
            cms.run(config, *arguments)
    with pytest.raises(ValueError, match="initial: 2 entries, expected one for each of 5 levels"):
        cms.start(config, 2, initial=[None, None])
    for wrong, words in (
        ({"S": np.zeros((2, 2, 3, 3))}, "level 1 is a delta and starts from M, found S"),
        (np.zeros((2, 2, 3, 3)), "level 1 is a delta and starts from M, found ndarray"),
    ):
        with pytest.raises(ValueError, match=f"^initial: {words}$"):
            cms.start(config, 2, initial=[None, wrong, None, None, None])
    with pytest.raises(ValueError, match=r"state.M: shape \(2, 2, 3, 4\), expected \(1, 2, 3, 4\)"):
        cms.run(config, params, x[:1], context)
    with pytest.raises(ValueError, match="reset: int64 of shape"):
        cms.run(config, params, x, context, reset=np.zeros(12, int))
