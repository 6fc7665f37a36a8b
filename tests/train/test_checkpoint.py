"""Checkpoints: whole or not there, found, kept, rolled back; and runs that are killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from atlas_ref.models import checkpoint as models
from atlas_ref.storage import files, lifetimes
from atlas_ref.train import checkpoint, data, loop, run
from atlas_ref.train import trained as trained_model
from atlas_ref.train.settings import Model, Optimiser
from atlas_ref.types import same_bits
from tests.support.training import (
    TINY,
    library,
    log_of,
    of_earlier,
    rewritten,
    settings,
    trained,
)

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.host("trains in folders")


def names(folder):
    return sorted(each.name for each in folder.iterdir())


@pytest.fixture
def asked(tmp_path):
    return settings(library(tmp_path))


@pytest.mark.clause("TRAIN-12", "TRAIN-7", "TRAIN-15")
def test_a_run_leaves_settings_log_checkpoints_and_the_model(asked, tmp_path):
    out = tmp_path / "out"
    ended = trained(out, asked)
    kept = [f"step-0000000{i}.safetensors" for i in (0, 2, 4, 6)]
    assert names(out) == ["log.jsonl", "model.safetensors", "run.json", *kept]
    assert (ended.step, ended.finished, ended.path.name) == (6, True, kept[-1])
    assert run.settings_of(out) == asked
    config, params = models.load(out / "model.safetensors")
    for place in (ended.path, out, out / "model.safetensors"):
        same = trained_model.load(place)
        assert (same.config, same.step, same.settings) == (config, 6, asked)
        assert same_bits(params.__dict__, same.params.__dict__)
    told = run.lines(out / "log.jsonl")
    assert [(each["step"], "held_out" in each) for each in told] == [
        *((1, False), (2, False), (3, False), (3, True)),
        *((4, False), (5, False), (6, False), (6, True)),
    ]
    assert told[0]["tokens"] == 32
    assert told[-2]["loss"] == ended.loss


@pytest.mark.clause("TRAIN-13", "TRAIN-6", "TRAIN-15")
@pytest.mark.parametrize(
    ("kind", "state"), [("mag", "fresh"), ("mag", "carried"), ("atlas-mag", None)]
)
def test_a_run_that_stops_and_goes_on_has_the_same_bytes(kind, state, asked, tmp_path):
    own = Model(model=kind, dim=8, layers=1, heads=2, expansion=1)
    asked = asked.replaced(state=state, model=own)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    trained(whole, asked)
    own, moment = run.prepare(parts, asked)
    left = iter([False, False, True])
    ended = run.run(parts, own, moment, run.Watcher(stopped=lambda: next(left)))
    assert (ended.step, ended.finished) == (3, False)
    with (parts / "log.jsonl").open("a") as stream:
        stream.write('{"step": 4, "loss": 1.0, "tokens": 1}\n{"step": 5, "lo')
    trained(parts, asked, resume=True)
    last = "step-00000006.safetensors"
    assert (parts / last).read_bytes() == (whole / last).read_bytes()
    assert (parts / run.MODEL).read_bytes() == (whole / run.MODEL).read_bytes()
    assert log_of(parts) == log_of(whole)
    held = lifetimes.load(whole / last)
    assert (held.context is None, held.state) == (state == "fresh", None)
    assert same_bits(held.params.__dict__, models.read(whole / run.MODEL).params.__dict__)
    initial = models.read(whole / run.MODEL).initial
    assert [bool(each) for each in initial] == ([True] if kind == "atlas-mag" else [])


@pytest.mark.clause("TRAIN-12")
def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(asked, tmp_path):
    own, moment = run.prepare(tmp_path / "out", asked)
    done, fsync, replace = [], os.fsync, os.replace
    with (
        mock.patch.object(os, "fsync", lambda handle: (done.append("flushed"), fsync(handle))),
        mock.patch.object(os, "replace", lambda *both: (done.append("named"), replace(*both))),
    ):
        checkpoint.save(tmp_path / "out", own, moment)
    assert done == ["flushed", "named", "flushed"]  # the file, then the folder


@pytest.mark.clause("TRAIN-12")
def test_a_parameter_that_is_not_finite_is_not_saved(asked, tmp_path):
    out = tmp_path / "out"
    own, moment = run.prepare(out, asked)
    bad = moment.params.replaced(head=moment.params.head * np.float32(np.nan))
    with pytest.raises(ValueError, match=r"head: every entry must be finite, found nan"):
        checkpoint.save(out, own, moment._replace(params=bad, step=1))
    assert checkpoint.steps(out) == [0]


@pytest.mark.clause("TRAIN-13")
def test_a_checkpoint_that_was_cut_short_is_passed_over(asked, tmp_path):
    out = tmp_path / "out"
    trained(out, asked)
    last = out / "step-00000006.safetensors"
    last.write_bytes(last.read_bytes()[:-100])
    own = loop.task(asked, data.load(asked))
    found = checkpoint.newest(out, own)
    assert (found.moment.step, found.path.name) == (4, "step-00000004.safetensors")
    assert found.broken[0].startswith("step-00000006.safetensors: not a whole safetensors file")
    for each in out.glob("step-*"):
        each.write_bytes(b"")
    with pytest.raises(ValueError, match="no checkpoint is whole"):
        checkpoint.newest(out, own)


@pytest.mark.clause("TRAIN-12", "TRAIN-13")
@pytest.mark.parametrize("place", ["a tensor", "the settings"])
def test_a_checkpoint_of_which_a_bit_has_changed_is_passed_over(asked, tmp_path, place):
    out = tmp_path / "out"
    trained(out, asked)
    last = out / "step-00000006.safetensors"
    data_of = bytearray(last.read_bytes())
    at = len(data_of) - 3 if place == "a tensor" else data_of.index(b'seed\\": ') + 8
    data_of[at] ^= 1
    last.write_bytes(data_of)
    found = checkpoint.newest(out, loop.task(asked, data.load(asked)))
    assert found.moment.step == 4
    (why,) = found.broken
    assert why.startswith("step-00000006.safetensors: digest: not that of what is in the file")
    with pytest.raises(ValueError, match="damaged or changed"):
        trained_model.load(last)


@pytest.mark.clause("TRAIN-13", "TRAIN-18")
def test_no_file_is_read_twice(asked, tmp_path):
    out = tmp_path / "out"
    trained(out, asked)
    last = out / "step-00000006.safetensors"
    last.write_bytes(last.read_bytes()[:-100])
    read, true = [], files.read

    def watched(path, *how):
        read.append(Path(path).name)
        return true(path, *how)

    with mock.patch.object(files, "read", watched):
        run.prepare(out, asked, resume=True)
        assert read == ["step-00000006.safetensors", "step-00000004.safetensors"]
        assert trained_model.load(out).step == 4
        assert read[2:] == read[:2]
        trained_model.load(out / run.MODEL)
    assert read[4:] == [run.MODEL]


@pytest.mark.clause("TRAIN-13")
def test_a_checkpoint_under_the_name_of_another_step_is_passed_over(asked, tmp_path):
    out = tmp_path / "out"
    trained(out, asked)
    (out / "step-00000004.safetensors").rename(out / "step-00000008.safetensors")
    found = checkpoint.newest(out, loop.task(asked, data.load(asked)))
    assert found.moment.step == 6
    assert found.broken == ("step-00000008.safetensors: step: 8 by its name, 4 within",)


@pytest.mark.clause("TRAIN-14")
def test_the_last_ones_stay_and_a_run_goes_back(asked, tmp_path):
    out = tmp_path / "out"
    trained(out, asked.replaced(save_every=1, keep=3))
    assert checkpoint.steps(out) == [6, 5, 4]
    before = (out / "step-00000006.safetensors").read_bytes()
    checkpoint.roll_back(out, 5)
    assert checkpoint.steps(out) == [5, 4]
    with pytest.raises(ValueError, match="no checkpoint up to step 3; the first one is of step 4"):
        checkpoint.roll_back(out, 3)
    assert checkpoint.steps(out) == [5, 4]
    again = run.settings_of(out)
    own, moment = run.prepare(out, again, resume=True)
    assert moment.step == 5
    run.run(out, own, moment)
    assert (out / "step-00000006.safetensors").read_bytes() == before
    assert checkpoint.newest(out, own, at_most=5).moment.step == 5
    with pytest.raises(ValueError, match="no checkpoint up to step 3; the first one is of step 4"):
        run.prepare(out, again, resume=True, at_most=3)


@pytest.mark.clause("TRAIN-7", "TRAIN-13")
def test_a_folder_with_a_run_and_text_that_changed_are_refused(asked, tmp_path):
    out = tmp_path / "out"
    trained(out, asked)
    with pytest.raises(ValueError, match="has a run already; --resume goes on"):
        run.prepare(out, asked)
    (tmp_path / "text" / "0.txt").write_text("something else " * 40)
    with pytest.raises(ValueError, match="the text is not that of the run"):
        run.prepare(out, asked, resume=True)
    with pytest.raises(ValueError, match=r"run\.json: no such file"):
        run.settings_of(tmp_path)
    (out / run.SETTINGS).unlink()
    with pytest.raises(ValueError, match=r"has checkpoints of a run, but no run\.json"):
        run.prepare(out, asked)


@pytest.mark.clause("TRAIN-7")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 5}, "seed: 0, but the run has 5"),
        ({"steps": 5}, "steps: 6, but the run has 5"),
        (
            {"optimiser": Optimiser(rate=0.5, warmup=2)},
            r"optimiser\.rate: 0\.01, but the run has 0",
        ),
        ({"model": TINY.replaced(dim=16)}, r"model\.dim: 8, but the run has 16"),
    ],
)
def test_a_run_does_not_go_on_with_settings_of_another(changes, message, asked, tmp_path):
    """A file of settings that was edited: half of the run would be of the one, half of the other."""
    out = tmp_path / "out"
    trained(out, asked)
    with pytest.raises(ValueError, match=rf"step-00000006\.safetensors: {message}"):
        run.prepare(out, asked.replaced(**changes), resume=True)


@pytest.mark.clause("TRAIN-7")
def test_a_run_goes_on_where_its_text_was_moved_and_other_checkpoints_are_kept(asked, tmp_path):
    out = tmp_path / "out"
    trained(out, asked)
    (tmp_path / "other").mkdir()
    moved = (tmp_path / "text").rename(tmp_path / "other" / "text")
    place = asked.text.replaced(paths=(str(moved),))
    _, moment = run.prepare(out, asked.replaced(text=place, keep=1, save_every=1), resume=True)
    assert moment.step == 6


@pytest.mark.clause("TRAIN-13")
@pytest.mark.parametrize(
    "place",
    [None, {}, {"batch": "x", "places": {"data": {}}}, {"batch": -1, "places": {"data": {}}}],
)
def test_a_place_that_is_none_of_the_text_is_refused(place, asked, tmp_path):
    out = tmp_path / "out"
    last = trained(out, asked).path
    rewritten(last, last, place=place)
    with pytest.raises(ValueError, match=r"step-00000006\.safetensors: place: .* is none of this"):
        run.prepare(out, asked, resume=True)


@pytest.mark.clause("TRAIN-12", "TRAIN-13")
def test_a_run_goes_on_from_a_checkpoint_of_an_earlier_version(asked, tmp_path):
    asked = asked.replaced(
        state="carried", model=Model(model="mag", dim=8, layers=1, heads=2, expansion=1)
    )
    whole, out = tmp_path / "whole", tmp_path / "out"
    trained(whole, asked)
    trained(out, asked)
    checkpoint.roll_back(out, 4)
    (out / run.MODEL).unlink()
    last = out / "step-00000004.safetensors"
    of_earlier(last)
    assert trained_model.load(last).step == 4
    trained(out, asked, resume=True)
    assert (out / run.MODEL).read_bytes() == (whole / run.MODEL).read_bytes()
    of_earlier(last)
    last.write_bytes(last.read_bytes()[:-1] + b"\1")
    with pytest.raises(ValueError, match="digest: not that of what is in the file"):
        trained_model.load(last)


@pytest.mark.clause("TRAIN-14")
def test_a_checkpoint_that_is_not_whole_counts_for_none_that_is_kept(asked, tmp_path):
    """A run that goes on before it must not keep the broken one alone."""
    out = tmp_path / "out"
    trained(out, asked)
    (out / "step-00000006.safetensors").write_bytes(b"cut short")
    own, moment = run.prepare(out, asked.replaced(keep=1), resume=True)
    run.run(out, own, moment, run.Watcher(stopped=lambda: True))
    assert checkpoint.steps(out) == [6, 5]
    assert checkpoint.newest(out, own).moment.step == 5


@pytest.mark.clause("TRAIN-15")
@pytest.mark.parametrize("name", [run.LOG, run.MODEL])
def test_a_run_that_cannot_write_its_files_does_not_begin(name, asked, tmp_path):
    out = tmp_path / "out"
    (out / name).mkdir(parents=True)
    with pytest.raises(ValueError, match=rf"{name}: is a folder, a file name is needed"):
        run.prepare(out, asked)
    assert names(out) == [name]


@pytest.mark.clause("TRAIN-10", "TRAIN-12")
def test_a_run_that_diverges_leaves_its_last_checkpoint_whole(asked, tmp_path):
    out = tmp_path / "out"
    asked = asked.replaced(
        save_every=1, steps=50, optimiser=Optimiser(rate=1e25, clip=0.0, warmup=0)
    )
    with pytest.raises(ValueError, match="step") as refused:
        trained(out, asked)
    assert "\n" not in str(refused.value)
    own = loop.task(asked, data.load(asked))
    found = checkpoint.newest(out, own)
    assert found.broken == ()
    assert np.isfinite(trained_model.load(out).params.embedding).all()


class Full:
    """A disk that is full after so many writes of files."""

    def __init__(self, writes):
        self.left, self.true = writes, os.fdopen

    def __call__(self, handle, *how, **more):
        stream = self.true(handle, *how, **more)
        self.left -= 1
        if self.left < 0:
            stream.write = lambda data: (_ for _ in ()).throw(OSError(28, "No space left"))
            return _Closing(stream)
        return stream


class _Closing:
    def __init__(self, stream):
        self.stream = stream

    def __enter__(self):
        return self.stream

    def __exit__(self, *how):
        self.stream.close()


@pytest.mark.clause("TRAIN-12")
def test_a_full_disk_leaves_the_last_checkpoint_whole(asked, tmp_path):
    out = tmp_path / "out"
    asked = asked.replaced(save_every=1)
    whole = tmp_path / "whole"
    trained(whole, asked)
    own, moment = run.prepare(out, asked)
    full = Full(3)  # the log, then two checkpoints
    with (
        mock.patch.object(files.os, "fdopen", full),
        pytest.raises(ValueError, match=r"step-00000003.safetensors: cannot be written: No space"),
    ):
        run.run(out, own, moment)
    assert checkpoint.steps(out) == [2, 1, 0]
    assert [each for each in names(out) if each.startswith(".")] == []
    trained(out, asked, resume=True)
    last = "step-00000006.safetensors"
    assert (out / last).read_bytes() == (whole / last).read_bytes()


@pytest.mark.clause("TRAIN-14")
def test_a_kill_between_the_last_checkpoint_and_the_removal_of_old_ones_leaves_none(
    asked, tmp_path, monkeypatch
):
    whole, out = tmp_path / "whole", tmp_path / "out"
    asked = asked.replaced(save_every=1, keep=2)
    trained(whole, asked)
    keep = checkpoint.keep

    def dies(folder: Path, count: int, step: int) -> None:
        if step == asked.steps:
            raise KeyboardInterrupt
        keep(folder, count, step)

    monkeypatch.setattr(checkpoint, "keep", dies)
    with pytest.raises(KeyboardInterrupt):
        trained(out, asked)
    assert len(checkpoint.steps(out)) == 3
    monkeypatch.undo()
    trained(out, asked, resume=True)
    assert names(out) == names(whole)


# -- kills -----------------------------------------------------------------------------------------


def killed(folder: Path, asked, kills: int) -> int:
    """Train in a folder in many lives; the number of kills that hit the run."""
    folder.with_suffix(".json").write_text(asked.model_dump_json())
    words = [sys.executable, "-m", "tests.support.killing", str(folder), "5", str(kills)]
    ran = subprocess.run(
        words, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)["kills"]


def _same_after(asked, kills: int, tmp_path: Path) -> int:
    """The number of kills; none stands for a kill at each planted place."""
    whole, other = tmp_path / "whole", tmp_path / "killed"
    trained(whole, asked)
    found = killed(other, asked, kills)
    last = checkpoint.NAME.format(asked.steps)
    assert (other / last).read_bytes() == (whole / last).read_bytes()
    assert (other / run.MODEL).read_bytes() == (whole / run.MODEL).read_bytes()
    assert log_of(other) == log_of(whole)
    assert names(other) == names(whole)
    return found


@pytest.mark.slow
@pytest.mark.clause("TRAIN-13", "TRAIN-12", "TRAIN-15")
def test_a_run_that_is_killed_at_planted_places_ends_with_the_same_bytes(asked, tmp_path):
    asked = asked.replaced(steps=12, save_every=1, keep=2, state="carried", evaluate_every=4)
    assert _same_after(asked, 0, tmp_path) >= 20


@pytest.mark.slow
@pytest.mark.clause("TRAIN-13", "TRAIN-12", "TRAIN-15")
def test_a_run_that_is_killed_at_random_moments_ends_with_the_same_bytes(asked, tmp_path):
    asked = asked.replaced(steps=30, save_every=2, keep=2, evaluate_every=7)
    assert _same_after(asked, 20, tmp_path) == 20


@pytest.mark.slow
@pytest.mark.clause("TRAIN-13", "TRAIN-12", "TRAIN-15")
@pytest.mark.parametrize("kind", ["mag", "mal", "mac", "lmm", "omega", "atlas-mag"])
@pytest.mark.parametrize("kills", [0, 20], ids=["planted", "random"])
def test_runs_of_every_model_that_are_killed_end_with_the_same_bytes(kind, kills, asked, tmp_path):
    own = Model(model=kind, dim=8, layers=1, heads=2, expansion=1)
    optimiser = Optimiser(name="adamw" if kind == "atlas-mag" else "muon")
    asked = asked.replaced(
        model=own, optimiser=optimiser, steps=12, save_every=1, accumulation=2, evaluate_every=7
    )
    assert _same_after(asked, kills, tmp_path) >= 20
