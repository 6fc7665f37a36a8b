"""Runs of models with levels, whose parameters wait for their periods."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref.blocks import BLOCKS
from atlas_ref.optim import m3
from atlas_ref.train import checkpoint, loop, models, optimisers, run, trained
from atlas_ref.train.settings import Model, Optimiser
from tests.support.close import EXACT, assert_close, reordered
from tests.support.training import TINY, log_of, named, settings
from tests.support.training import trained as ran

pytestmark = pytest.mark.host("trains in folders")

LEVELS = TINY.replaced(periods=(1, 3))
WAITING = Optimiser(rate=0.01, warmup=2, by_level=True)


@pytest.mark.clause("TRAIN-24")
@pytest.mark.parametrize("kind", BLOCKS)
def test_blocks_of_every_kind_take_levels(kind):
    own = models.model(LEVELS.replaced(model=kind, window=4, segment=4), 256)
    found = own.blocks[0].memory.levels
    assert found.periods == (1, 3)
    assert {level.rule.name for level in found.levels} == {"delta"}
    alone = models.model(LEVELS.replaced(model=kind, window=4, segment=4, periods=()), 256)
    assert alone.blocks[0].memory.levels.periods == (1,)


@pytest.mark.clause("TRAIN-24")
def test_a_level_moves_once_in_its_period_by_the_sum_of_its_gradients(text, tmp_path):
    """Plain descent from sums that are made here; the gradients alone are those of the loop."""
    how = Optimiser(name="sgd", rate=0.5, schedule="constant", warmup=0, decay=0.0, clip=0.0)
    asked = settings(text, model=LEVELS, optimiser=how.replaced(by_level=True), steps=9)
    own, moment = run.prepare(tmp_path / "run", asked)
    sums: dict[str, Any] = {}
    for step in range(7):
        before = {name: np.array(each) for name, each in named(moment.params).items()}
        batch, _ = own.data.sampler.batch(moment.place)
        found = loop.of_batch(own.config, moment.params, None, batch, documents=own.documents)
        for name, g in zip(before, found.gradient, strict=True):
            sums[name] = sums.get(name, 0.0) + np.array(g)
        moment, _ = loop.step(own, moment)
        for name, each in named(moment.params).items():
            if ".levels[1]" in name and step % 3:
                assert_close(f"step {step}: {name}", each, before[name], EXACT)
                continue
            want = before[name] - np.float32(0.5) * sums.pop(name)
            assert_close(f"step {step}: {name}", each, want, reordered(64))
    assert len([name for name in sums if ".levels[1]" in name]) == 0
    assert moment.step == 7


@pytest.mark.clause("TRAIN-24", "TRAIN-12", "TRAIN-13", "OPTIM-28")
@pytest.mark.parametrize("name", ["adamw", "m3"])
def test_a_run_that_stops_between_two_pulses_goes_on_with_the_same_bytes(name, text, tmp_path):
    how = WAITING.replaced(name=name)
    asked = settings(text, model=LEVELS, optimiser=how, steps=12, save_every=1, keep=20)
    whole = ran(tmp_path / "whole", asked)
    losses = [line["loss"] for line in log_of(tmp_path / "whole") if "loss" in line]
    assert np.mean(losses[-3:]) < losses[0] - 0.1
    own, moment = run.prepare(tmp_path / "cut", asked)
    times = iter(range(100))
    run.run(tmp_path / "cut", own, moment, run.Watcher(stopped=lambda: next(times) == 4))
    _, tensors = checkpoint.whole(tmp_path / "cut" / "step-00000005.safetensors")
    held = {each for each in tensors if "level 1" in each and "/waiting/" in each}
    assert held
    assert all(np.abs(tensors[each]).max() > 0 for each in held if "W_K" in each)
    ended = ran(tmp_path / "cut", asked, resume=True)
    assert ended.path.read_bytes() == whole.path.read_bytes()
    assert log_of(tmp_path / "cut") == log_of(tmp_path / "whole")
    loaded = trained.load(tmp_path / "whole").config.blocks[0].memory.levels
    assert loaded.periods == (1, 3)


@pytest.mark.clause("TRAIN-24")
def test_levels_of_the_optimiser_take_the_matrices_of_levels_of_the_model(text):
    found = optimisers.optimiser(
        settings(text, model=LEVELS, optimiser=WAITING.replaced(name="m3"))
    )
    own = {group.name: group for group in found.groups}
    assert isinstance(own["level 1 hidden"].optimiser, m3.Config)
    assert [own[f"level {i} hidden"].period for i in (0, 1)] == [1, 3]
    assert [own[f"level {i}"].period for i in (0, 1)] == [1, 3]
    assert own["others"].period == 1
    alone = optimisers.optimiser(settings(text, model=LEVELS))
    assert [group.name for group in alone.groups] == ["adamw"]


@pytest.mark.clause("TRAIN-24")
@pytest.mark.parametrize(
    ("model", "says"),
    [
        (
            LEVELS.replaced(tnt_global_span=8),
            "periods: the memories of a TNT have chunks and shards, and no levels",
        ),
        (Model(model="atlas-mag", periods=(1, 2)), "periods: model atlas-mag has no such setting"),
        (
            LEVELS.replaced(model="mag", memory=False),
            "periods: model mag without memory has no such setting",
        ),
    ],
)
def test_models_without_levels_have_no_periods(model, says):
    with pytest.raises(ValueError, match=says):
        models.model(model, 256)


@pytest.mark.clause("TRAIN-24")
def test_levels_that_are_none_do_not_wait(text):
    with pytest.raises(ValueError, match="by_level: has no effect without periods"):
        optimisers.optimiser(settings(text, optimiser=WAITING))
