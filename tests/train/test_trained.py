"""Models that were trained, with the vocabulary of their text."""

from __future__ import annotations

import numpy as np
import pytest

from atlas_ref.models import checkpoint as models
from atlas_ref.models import language_model
from atlas_ref.train import checkpoint, data, loop, run, trained
from atlas_ref.train.models import model
from atlas_ref.train.settings import Model, Text
from atlas_ref.train.use import held
from atlas_ref.types import same_bits
from tests.support.training import TINY, library, rewritten, settings
from tests.support.training import trained as ran

pytestmark = pytest.mark.host("trains in folders")


@pytest.mark.clause("TRAIN-18", "TRAIN-6")
def test_a_model_reads_on_from_the_memories_that_its_run_left(tmp_path):
    """The loss of held-out text is that of the run's last evaluation, from each kind of file."""
    own = Model(model="atlas-mag", dim=8, layers=1, heads=2, expansion=1)
    asked = settings(library(tmp_path), model=own, steps=4)
    ended = ran(tmp_path / "out", asked)
    task = loop.task(asked, data.load(asked))
    for path in (tmp_path / "out", ended.path, tmp_path / "out" / run.MODEL):
        found = trained.load(path)
        batch = data.sampler.spread(task.data.held, rows=2, length=17, batches=2)
        losses = []
        for rows in batch:
            begun = language_model.start(
                found.config, len(rows.ids), dtype=np.float32, initial=found.initial
            )
            ids = np.asarray(rows.ids, np.int64)
            losses.append(language_model.loss(found.config, found.params, begun, ids)[1])
        assert np.mean(losses) == pytest.approx(ended.held_out.loss, rel=1e-6)
    assert trained.load(ended.path).state is not None
    assert trained.load(tmp_path / "out" / run.MODEL).state is None


@pytest.mark.clause("TRAIN-18", "TRAIN-3")
def test_a_run_keeps_a_copy_of_its_tokenizer(tmp_path):
    tokenizers = pytest.importorskip("tokenizers", reason="the extra text is not installed")
    words = ["<unk>", "memory", "learns", "at", "test", "time", "from", "what", "it", "reads"]
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({each: i for i, each in enumerate(words)}, unk_token="<unk>")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    path = tmp_path / "words.json"
    made.save(str(path))
    place = library(tmp_path)
    asked = settings(place).replaced(text=Text(paths=(str(place),), tokenizer=str(path)))
    ran(tmp_path / "out", asked)
    path.unlink()
    for place in (tmp_path / "out", tmp_path / "out" / run.MODEL):
        found = trained.load(place)
        assert held.corpus(found).ids.max() < 10
        assert found.config.vocabulary == 10
        assert found.vocabulary.encoded(b"memory reads").tolist() == [1, 9]
    made.add_tokens(["new"])
    made.save(str(path))
    with pytest.raises(ValueError, match=r"a model of 10 tokens, .*words.json has 11"):
        trained.load(tmp_path / "out", tokenizer=str(path))
    with pytest.raises(ValueError, match="the text is not that of the run"):
        run.prepare(tmp_path / "out", asked, resume=True)


@pytest.mark.clause("TRAIN-18")
def test_a_model_of_no_run_is_read_with_bytes(tmp_path):
    config = model(TINY, 256)
    params = language_model.init(config, 0, dtype=np.float32)
    models.save(tmp_path / "own.safetensors", config, params)
    found = trained.load(tmp_path / "own.safetensors")
    assert (found.step, found.settings, found.initial) == (None, None, ())
    assert found.vocabulary.encoded(b"a").tolist() == [97]
    assert same_bits(found.params.__dict__, params.__dict__)


@pytest.mark.clause("TRAIN-18", "TRAIN-13")
def test_what_is_no_model_is_refused_in_a_line(tmp_path):
    asked = settings(library(tmp_path), steps=4)
    out = tmp_path / "out"
    ran(out, asked)
    (tmp_path / "none").mkdir()
    small = model(TINY, 99)
    models.save(
        tmp_path / "small.safetensors", small, language_model.init(small, 0, dtype=np.float32)
    )
    (tmp_path / "not.safetensors").write_bytes(b"text")
    for path, message in (
        ("none", "no checkpoint of a run"),
        ("gone", "no such file"),
        ("text/0.txt", "not a"),
        ("not.safetensors", "not a"),
        ("small.safetensors", "a model of 99 tokens, bytes have 256"),
    ):
        with pytest.raises(ValueError, match=message) as refused:
            trained.load(tmp_path / path)
        assert "\n" not in str(refused.value)
        assert str(tmp_path / path) in str(refused.value)
    newest = checkpoint.steps(out)[0]
    last = out / checkpoint.NAME.format(newest)
    last.write_bytes(last.read_bytes()[:-9])
    assert trained.load(out).step < newest
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        trained.load(last)
    for key in ("config", "settings", "step"):
        rewritten(out / "step-00000000.safetensors", last, key)
        with pytest.raises(ValueError, match=f"{key}.* is missing or wrong"):
            trained.load(last)
