"""Runs of models with TNT: their settings, learning, going on, and a second stage."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref.blocks import BLOCKS
from atlas_ref.forms import tnt
from atlas_ref.layers import memory_tnt
from atlas_ref.models import checkpoint as models_of_files
from atlas_ref.optim import groups
from atlas_ref.train import checkpoint, loop, models, run, stages, trained
from atlas_ref.train.settings import Model, Optimiser
from atlas_ref.types import same_bits
from tests.support.training import TINY, log_of, named, settings
from tests.support.training import trained as ran

pytestmark = pytest.mark.host("trains in folders")

STAGE = TINY.replaced(tnt_global_span=8, tnt_local_spans=(4, 8), tnt_shards=(8, 16))
EACH = STAGE.replaced(tnt_params="per_memory")
SECOND = STAGE.replaced(tnt_local_spans=(1, 2))


@pytest.mark.clause("TRAIN-22")
@pytest.mark.parametrize("kind", BLOCKS)
def test_blocks_of_every_kind_take_a_tnt(kind):
    own = models.model(STAGE.replaced(model=kind, window=4, segment=4), 256)
    found = own.blocks[0].memory.levels
    assert isinstance(found, memory_tnt.Config)
    assert found.params == "shared"
    assert found.tnt.global_memory.span == 8
    assert [(each.span, each.shard) for each in found.tnt.local_memories] == [(4, 8), (8, 16)]
    assert {memory.rule.name for memory in found.tnt.memories} == {"delta"}
    one = models.model(STAGE.replaced(tnt_global_span=None, tnt_shards=(8,)), 256)
    alone = one.blocks[0].memory.levels.tnt
    assert alone.global_memory is None
    assert [each.shard for each in alone.local_memories] == [8, 8]
    assert models.numbers(models.model(EACH, 256)) > models.numbers(models.model(STAGE, 256))


@pytest.mark.clause("TRAIN-22", "TNT-12")
@pytest.mark.parametrize("has_global", [True, False])
@pytest.mark.parametrize("name", tnt.PRESETS)
def test_a_model_takes_every_reading_of_the_paper(name, has_global):
    """Literally, memories have no gates, and local ones a rule with momentum."""
    axes = {"tnt_preset": name, "rule": "titans_lmm"}
    if not has_global:
        axes["tnt_global_span"] = None
    own = models.model(STAGE.replaced(**axes), 256).blocks[0].memory
    settings = own.levels.tnt.memories[0].config
    span = 8 if has_global else None
    assert own.levels.tnt == tnt.preset(name, settings, span=span, spans=(4, 8), shards=(8, 16))
    literal = name == "paper-literal"
    assert (settings.convention.gate == "none", own.momentum) == (literal, not literal)


@pytest.mark.clause("TRAIN-22")
@pytest.mark.parametrize("name", ["paper-literal", "paper-app-c"])
def test_a_run_of_another_reading_learns(name, text, tmp_path):
    model = STAGE.replaced(model="lmm", rule="titans_lmm", tnt_preset=name)
    asked = settings(text, model=model, steps=12)
    ran(tmp_path / "one", asked)
    losses = [line["loss"] for line in log_of(tmp_path / "one") if "loss" in line]
    assert np.mean(losses[-3:]) < losses[0] - 0.2
    assert trained.load(tmp_path / "one").config == models.model(model, 256)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"tnt_shards": (8, 8, 8)}, "tnt_shards: 3, expected one, or one for each of 2 local spans"),
    ({"tnt_shards": ()}, "tnt_shards: 0, expected one, or one for each of 2 local spans"),
    (
        {"tnt_global_span": None, "tnt_local_spans": ()},
        "tnt_shards: has no effect without tnt_global_span or tnt_local_spans",
    ),
    (
        {
            "tnt_global_span": None,
            "tnt_local_spans": (),
            "tnt_shards": (),
            "tnt_params": "per_memory",
        },
        "tnt_params: has no effect without",
    ),
    (
        {"memory": False, "model": "mag"},
        "tnt_global_span: model mag without memory has no such setting",
    ),
    ({"preset": "atlas-rnn"}, "reference_at_call: renewed, but a TNT has none"),
    ({"tnt_preset": "papr"}, "tnt_preset 'papr' does not exist; .*did you mean paper?"),
    ({"tnt_preset": "paper-literal"}, "base: previous is a momentum of one inside a chunk"),
    (
        {"tnt_preset": "paper-literal", "model": "omega", "rule": None},
        "sum: inclusive is defined for gate none, a window of one token",
    ),
    (
        {
            "tnt_global_span": None,
            "tnt_local_spans": (),
            "tnt_shards": (),
            "tnt_preset": "paper-app-c",
        },
        "tnt_preset: has no effect without",
    ),
]


@pytest.mark.clause("TRAIN-22")
@pytest.mark.parametrize(("changes", "says"), WRONG)
def test_settings_of_a_tnt_that_mean_nothing_are_refused(changes, says):
    with pytest.raises(ValueError, match=says):
        models.model(STAGE.replaced(**changes), 256)
    public = Model(model="atlas-mag", tnt_local_spans=(4,))
    with pytest.raises(ValueError, match="tnt_local_spans: model atlas-mag has no such setting"):
        models.model(public, 256)


@pytest.mark.sample(1)
@pytest.mark.clause("TRAIN-22", "TRAIN-13")
@pytest.mark.parametrize(
    ("kind", "state"), [("lmm", "fresh"), ("mag", "carried"), ("mac", "fresh")]
)
def test_a_run_learns_and_goes_on_with_the_same_bytes(kind, state, text, tmp_path):
    model = STAGE.replaced(model=kind, window=4, segment=4)
    asked = settings(text, model=model, state=state, steps=12)
    whole = ran(tmp_path / "whole", asked)
    losses = [line["loss"] for line in log_of(tmp_path / "whole") if "loss" in line]
    assert np.mean(losses[-3:]) < losses[0] - 0.3
    own, moment = run.prepare(tmp_path / "cut", asked)
    times = iter(range(100))
    run.run(tmp_path / "cut", own, moment, run.Watcher(stopped=lambda: next(times) == 4))
    ended = ran(tmp_path / "cut", asked, resume=True)
    assert ended.path.read_bytes() == whole.path.read_bytes()
    assert log_of(tmp_path / "cut") == log_of(tmp_path / "whole")
    moved = named(trained.load(tmp_path / "whole").params)
    begun = named(loop.start(own).params)
    starts = [path for path in moved if ".initial[" in path]
    assert len(starts) == 3
    for path in starts:
        assert not same_bits(moved[path], begun[path]), path


@pytest.mark.clause("TRAIN-23")
@pytest.mark.parametrize("spans", [(1, 2), (8, 16)])
def test_a_second_stage_begins_with_the_bytes_of_the_first(spans, text, tmp_path):
    """Smaller spans as in the paper, or larger ones as in its retellings."""
    first = ran(tmp_path / "one", settings(text, model=STAGE))
    asked = settings(
        text,
        model=STAGE.replaced(tnt_local_spans=spans),
        begins_from=str(tmp_path / "one"),
        optimiser=Optimiser(rate=1e-3),
    )
    own, moment = run.prepare(tmp_path / "two", asked)
    assert moment.step == 0
    found = trained.load(tmp_path / "one")
    assert same_bits(named(moment.params), named(found.params))
    assert not same_bits(named(moment.params), named(loop.start(own).params))
    assert same_bits(
        groups.tensors_of(moment.optimiser), groups.tensors_of(loop.start(own).optimiser)
    )
    _, saved = checkpoint.whole(tmp_path / "two" / "step-00000000.safetensors")
    _, last = checkpoint.whole(first.path)
    for name, array in last.items():
        if name.startswith("params/"):
            assert saved[name].tobytes() == array.tobytes(), name
    ended = run.run(tmp_path / "two", own, moment)
    assert ended.finished
    local = trained.load(tmp_path / "two").config.blocks[0].memory.levels.tnt.local_memories
    assert tuple(each.span for each in local) == spans
    model_file = run.prepare(
        tmp_path / "three", asked.replaced(begins_from=str(tmp_path / "one" / run.MODEL))
    )
    assert same_bits(named(model_file[1].params), named(found.params))


@pytest.mark.clause("TRAIN-23")
@pytest.mark.parametrize(
    ("model", "moves"),
    [
        (STAGE, (".initial[1]", ".initial[2]")),
        (EACH, (".initial[1]", ".initial[2]", ".levels[1]", ".levels[2]")),
        (
            STAGE.replaced(tnt_global_span=None),
            (".initial[0]", ".initial[1]", ".levels[0]"),
        ),
    ],
)
def test_parameters_of_locals_alone_are_learnt_where_it_is_asked(model, moves, text, tmp_path):
    asked = settings(text, model=model, learns="locals")
    own, moment = run.prepare(tmp_path / "out", asked)
    run.run(tmp_path / "out", own, moment)
    after, before = named(trained.load(tmp_path / "out").params), named(loop.start(own).params)
    for path, array in after.items():
        expected = any(part in path for part in moves)
        assert same_bits(array, before[path]) != expected, path


@pytest.mark.clause("TRAIN-23")
def test_what_cannot_begin_or_be_learnt_is_refused(text, tmp_path):
    ran(tmp_path / "one", settings(text, model=STAGE, steps=3))
    one = str(tmp_path / "one")
    fewer = STAGE.replaced(tnt_local_spans=(4,), tnt_shards=(8,))
    with pytest.raises(ValueError, match=r"begins_from: .*blocks.0.memory.initial.2.M"):
        run.prepare(tmp_path / "two", settings(text, model=fewer, begins_from=one))
    with pytest.raises(ValueError, match="nowhere"):
        run.prepare(tmp_path / "two", settings(text, model=SECOND, begins_from="nowhere"))
    with pytest.raises(ValueError, match="learns: locals, but the model has no local memories"):
        run.prepare(tmp_path / "two", settings(text, learns="locals"))
    globally = TINY.replaced(tnt_global_span=8)
    with pytest.raises(ValueError, match="learns: locals, but the model has no local memories"):
        run.prepare(tmp_path / "two", settings(text, model=globally, learns="locals"))
    assert stages.settings_of(one).model == STAGE
    found = trained.load(tmp_path / "one")
    models_of_files.save(tmp_path / "bare.safetensors", found.config, found.params)
    with pytest.raises(ValueError, match="no run saved it, so its settings are unknown"):
        stages.settings_of(str(tmp_path / "bare.safetensors"))
