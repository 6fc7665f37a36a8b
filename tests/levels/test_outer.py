"""The outer loop of a block: what waits in a buffer is what the optimiser gets, once in a period."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

import tape
from atlas_ref.levels import block as cms
from atlas_ref.levels import outer
from atlas_ref.levels.buffers import BufferWarning
from atlas_ref.levels.pulse import Conductor
from atlas_ref.optim import adamuon, adamw, groups, m3, module_of, muon, presets, sgd
from atlas_ref.parts.newton_schulz import NewtonSchulz
from atlas_ref.storage import lifetimes
from tape import ops
from tape.nested import flatten
from tests.support.blocks import MIXED, block, drawn
from tests.support.close import EXACT, assert_close, assert_differs, reordered
from tests.support.optimised import FALLS
from tests.truth import level_loops

#: Three levels of two rules, of periods 1, 2 and 3.
THREE = MIXED[:3]
ADAMW = adamw.Config(rate=0.05, schedule=FALLS, decay=0.1)
OPTIMISERS = {
    "sgd": sgd.Config(rate=0.05),
    "momentum": sgd.Config(rate=1e-4, momentum=0.9),
    "adamw": ADAMW,
    "muon": muon.Config(rate=0.05, newton_schulz=None),
    "adamuon": adamuon.Config(rate=0.05, newton_schulz=None),
    "m3": m3.Config(rate=0.05, newton_schulz=NewtonSchulz(scale="norm"), axes="rows"),
}


def gradient(config: cms.Config, params: cms.Params, seed: int) -> cms.Params:
    """That of the squared reads of a batch, drawn with a seed."""
    x = np.random.default_rng(seed).standard_normal((1, 4, config.levels[0].config.d_model))

    def loss(params: cms.Params) -> Any:
        memories = [{"M": np.ones(state.M.shape)} for state in cms.start(config).states]
        _, y = cms.run(config, params, x, cms.start(config, initial=memories))
        return ops.sum(y * y)

    found: cms.Params = tape.grad(loss)(params)
    return found


def leaves(tree: Any) -> list[Any]:
    return list(flatten(tree, "tree")[0])


def assert_same(label: str, got: Any, want: Any) -> None:
    for a, b in zip(leaves(got), leaves(want), strict=True):
        assert_close(label, a, b, EXACT)


def loop_of(config: cms.Config, own: Any, **settings: Any) -> outer.Config:
    """An outer loop whose buffers do not warn: batches of one seed each differ much in size."""
    return outer.configured(config, own, threshold=1e6, **settings)


@pytest.mark.clause("CMS-18")
@pytest.mark.parametrize("first", [0, 1])
def test_levels_move_as_the_definition_in_loops(first: int) -> None:
    """Each level is two numbers, whose gradient depends on those of all levels."""
    periods, start = [1, 2, 3], [[1.0, -2.0], [0.5, 3.0], [-1.5, 0.25]]

    def gradients(levels: list[list[float]]) -> list[list[float]]:
        sums = [sum(each[n] for each in levels) for n in (0, 1)]
        return [[(i + 1) * sums[n] + each[n] ** 2 for n in (0, 1)] for i, each in enumerate(levels)]

    want = level_loops.outer(
        start, periods, gradients, level_loops.descent(0.01, 0.9), steps=11, first=first
    )
    config = outer.Config(
        conductor=Conductor(periods=(1, 2, 3), first_step=first),
        levels=(sgd.Config(rate=0.01, momentum=0.9),) * 3,
    )
    params = cms.Params(levels=tuple({"W": np.array(each)} for each in start), logits=np.zeros(3))
    state = outer.init(config, params)
    for step in range(11):
        g = gradients([each["W"].tolist() for each in params.levels])
        grads = params.replaced(levels=tuple({"W": np.array(each)} for each in g))
        params, state, _ = outer.update(config, state, params, grads)
        for i, each in enumerate(params.levels):
            name = f"level {i} after step {step}"
            assert_close(name, each["W"], np.array(want[step][i]), reordered(64))


@pytest.mark.clause("CMS-18")
@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_period_is_one_step_on_the_sum_of_its_gradients(name: str) -> None:
    """Every level waits for four batches; the optimiser sees one gradient, their sum."""
    own = OPTIMISERS[name]
    config = block([{**each, "period": 4} for each in THREE[:2]], first_step=1)
    params, _, _ = drawn(config)
    loop = loop_of(config, own)
    state, total, moved = outer.init(loop, params), None, params
    for batch in range(4):
        g = gradient(config, params, batch)
        parts = leaves(g.levels)
        total = parts if total is None else [a + b for a, b in zip(total, parts, strict=True)]
        before = moved
        moved, state, _ = outer.update(loop, state, moved, g)
        if batch < 3:
            assert_same("a level that waits", moved, before)
    _, _, build = flatten(params.levels, "levels")
    summed = build(total)
    module = module_of(own)
    for i, level in enumerate(params.levels):
        want, after = module.update(own, module.init(own, level), level, summed[i], 3)
        assert_same(f"level {i}", moved.levels[i], want)
        assert state.levels[i] == after
        assert (state.buffers[i].count, state.buffers[i].total) == (0, None)
    single, alone = params, loop_of(config, own)
    alone = alone.replaced(conductor=Conductor(periods=(1, 1)))
    held = outer.init(alone, params)
    for batch in range(4):
        single, held, _ = outer.update(alone, held, single, gradient(config, single, batch))
    assert_differs("single steps", single.levels[0].W_Q, moved.levels[0].W_Q, 1e-3)


@pytest.mark.clause("CMS-18", "OPTIM-28")
@pytest.mark.parametrize("name", ["adamw", "momentum"])
def test_levels_move_as_groups_of_their_periods_bit_for_bit(name: str) -> None:
    """Groups and buffers share no code."""
    config, own = block(THREE), OPTIMISERS[name]
    loop = loop_of(config, own, logits=ADAMW)
    params, _, _ = drawn(config)
    by_level = presets.by_level(config.periods, own, ADAMW)
    other, moved = {"memory": params}, params
    state, held = outer.init(loop, params), groups.init(by_level, other)
    for step in range(12):
        g = gradient(config, moved, step)
        moved, state, _ = outer.update(loop, state, moved, g)
        other, held = groups.update(by_level, held, other, {"memory": g}, step)
        assert_same(f"step {step}", moved, other["memory"])
    last, state = outer.flush(loop, state, moved)
    other, held = groups.flush(by_level, held, other, 12)
    assert_same("flushed", last, other["memory"])
    assert_differs("what waited", last.levels[1].W_K, moved.levels[1].W_K, 1e-6)
    assert [buffer.count for buffer in state.buffers] == [0, 0, 0]
    again, _ = outer.flush(loop, state, last)
    assert_same("flushed twice", again, last)


@pytest.mark.clause("CMS-18", "LIFE-1")
def test_a_run_that_stops_at_any_step_goes_on_with_the_same_bits(tmp_path: Any) -> None:
    """The file has what waits: without it the next pulse would lose gradients."""
    config = block(THREE)
    loop = loop_of(config, ADAMW, logits=ADAMW)
    params, _, _ = drawn(config)
    state, kept = outer.init(loop, params), []
    for step in range(7):
        path = tmp_path / f"{step}.safetensors"
        lifetimes.save(path, lifetimes.Held(params, context=state))
        kept.append(path)
        params, state, _ = outer.update(loop, state, params, gradient(config, params, step))
    for first, path in enumerate(kept):
        held = lifetimes.load(path)
        other, own = held.params, held.context
        for step in range(first, 7):
            other, own, _ = outer.update(loop, own, other, gradient(config, other, step))
        assert (other, own) == (params, state)
    held = lifetimes.load(kept[5])
    assert [buffer.count for buffer in held.context.buffers] == [0, 0, 1]
    emptied = held.context.replaced(buffers=tuple(each.cleared() for each in held.context.buffers))
    lost, full = (
        outer.update(loop, each, held.params, gradient(config, held.params, 6)).params
        for each in (emptied, held.context.replaced(conductor=emptied.conductor.advanced()))
    )
    assert_differs("a buffer that is lost", lost.levels[2].W_K, full.levels[2].W_K, 1e-9)


@pytest.mark.clause("CMS-18", "PULSE-8")
def test_nothing_moves_outside_of_phase_build() -> None:
    config = block(THREE)
    loop = loop_of(config, ADAMW, logits=ADAMW)
    params, _, _ = drawn(config)
    state = outer.init(loop, params)
    params, state, _ = outer.update(loop, state, params, gradient(config, params, 0))
    params, state, _ = outer.update(loop, state, params, gradient(config, params, 1))
    for phase in ("test", "stream"):
        quiet = state.replaced(conductor=state.conductor.in_phase(phase))  # type: ignore[arg-type]
        moved = outer.update(loop, quiet, params, gradient(config, params, 2))
        assert moved.params == params
        assert moved.state == quiet.replaced(conductor=quiet.conductor.advanced())


@pytest.mark.clause("CMS-12", "CMS-18")
@pytest.mark.parametrize("clip", [False, True])
def test_what_is_applied_is_the_sum_after_clipping(clip: bool) -> None:
    config = block([{**MIXED[1], "period": 2}], first_step=1)
    loop = outer.configured(config, sgd.Config(rate=0.5), threshold=1.0, clip=clip)
    params, _, _ = drawn(config)
    g = gradient(config, params, 0)
    small = flatten(g, "g")[2]([0.25 * each for each in leaves(g)])
    moved, state, _ = outer.update(loop, outer.init(loop, params), params, g)
    with pytest.warns(BufferWarning, match="level 0: the sum of 2 gradients is 5 times the last"):
        moved, state, (health,) = outer.update(loop, state, moved, small)
    assert (health.ratio, health.bound) == (pytest.approx(5.0), math.sqrt(2))
    factor = math.sqrt(2) / 5 if clip else 1.0
    want = params.levels[0].W_K - 0.5 * factor * 1.25 * g.levels[0].W_K
    assert_close("W_K", moved.levels[0].W_K, want, reordered(8))


@pytest.mark.clause("CMS-18")
def test_a_loop_that_contradicts_its_block_is_refused_and_nothing_moves() -> None:
    config = block(THREE)
    params, _, _ = drawn(config)
    g = gradient(config, params, 0)
    with pytest.raises(ValidationError, match="levels: 2 optimisers, 3 periods"):
        outer.configured(config, [ADAMW, ADAMW])
    with pytest.raises(ValidationError, match="a step is one outer step here, token is needed"):
        outer.Config(conductor=Conductor(periods=(1,), per="call"), levels=(ADAMW,))
    loop = outer.configured(config, ADAMW)
    state = outer.init(loop, params)
    two = params.replaced(levels=params.levels[:2])
    for call in (lambda: outer.init(loop, two), lambda: outer.flush(loop, state, two)):
        with pytest.raises(ValueError, match="params: 2 levels, expected those of 3 levels"):
            call()
    with pytest.raises(ValueError, match="params: dict, expected those of 3 levels"):
        outer.init(loop, {"levels": ()})  # type: ignore[arg-type]
    one = state.replaced(levels=state.levels[:1])
    for broken, found in ((None, "NoneType"), (one, "1 levels")):
        for move in (
            lambda held: outer.update(loop, held, params, g),
            lambda held: outer.flush(loop, held, params),
        ):
            with pytest.raises(ValueError, match=f"state: {found}, expected that of 3 levels"):
                move(broken)
    bad = np.full_like(g.levels[2].W_V, np.inf)
    wrong = g.replaced(levels=(*g.levels[:2], g.levels[2].replaced(W_V=bad)))
    before = lifetimes.packed(lifetimes.Held(params, context=state))[1]
    with pytest.raises(ValueError, match=r"grads.levels.2.W_V: .*finite"):
        outer.update(loop, state, params, wrong)
    after = lifetimes.packed(lifetimes.Held(params, context=state))[1]
    for name, each in before.items():
        assert_close(name, after[name], each, EXACT)


@pytest.mark.clause("CMS-18")
def test_logits_stay_where_no_optimiser_is_named() -> None:
    config = block(THREE)
    params, _, _ = drawn(config)
    g = gradient(config, params, 0)
    for own in (None, ADAMW):
        loop = outer.configured(config, ADAMW, logits=own)
        moved, state, _ = outer.update(loop, outer.init(loop, params), params, g)
        assert (moved.logits is params.logits) == (own is None)
        assert (state.logits is None) == (own is None)
