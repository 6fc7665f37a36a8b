"""Models of files, their text and their vocabulary."""

from __future__ import annotations

import json

import numpy as np
import pytest

from atlas_ref.models import checkpoint as models
from atlas_ref.storage import files
from atlas_ref.train import checkpoint
from atlas_ref.train.evaluation import held, saved
from atlas_ref.types import same_bits
from tests.support import trained

pytestmark = pytest.mark.host("trains in folders")


@pytest.mark.clause("EVAL-1")
def test_a_model_and_the_checkpoint_that_it_was_written_from_are_one():
    model, at = saved.load(trained.model()), saved.load(trained.ended().path)
    assert (model.config, model.settings) == (at.config, at.settings)
    assert (model.step, at.step) == (None, 2)
    assert same_bits(model.params.__dict__, at.params.__dict__)


@pytest.mark.clause("EVAL-1")
def test_the_text_is_what_is_named_or_what_the_run_held_out():
    own = saved.load(trained.model())
    whole = held.corpus(own, [str(trained.text())])
    kept = held.corpus(own)
    assert len(whole.firsts) == 4
    assert 0 < kept.size < whole.size
    one = held.corpus(own, [str(trained.text())], only=["2.txt"], limit=50)
    assert (one.size, len(one.firsts)) == (50, 1)


def changed(path, place, **header):
    """A checkpoint whose JSON has other values."""
    metadata, tensors = files.read(path)
    key = checkpoint.KEY if checkpoint.KEY in metadata else models.KEY
    files.write(place, {key: json.dumps(json.loads(metadata[key]) | header)}, tensors)
    return place


@pytest.mark.clause("EVAL-1")
def test_what_is_no_model_or_no_text_is_one_line(tmp_path):
    own = saved.load(trained.model())
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "a.txt").touch()
    other = own._replace(settings=None)
    none = own._replace(settings=own.settings.replaced(text=own.settings.text.replaced(share=0.0)))
    for work, message in (
        (lambda: saved.load(tmp_path), "is a folder, the file of a model is needed"),
        (lambda: saved.load(tmp_path / "no"), "no: no such file"),
        (lambda: held.corpus(own, [str(tmp_path / "empty")]), "no text: every file is empty"),
        (lambda: held.corpus(own, ["a.parquet"]), "a.parquet: of Parquet shards"),
        (lambda: held.corpus(other), "the model is of no run here"),
        (lambda: held.corpus(none), "the run held none out"),
        (lambda: saved.words(_wide(own), None), "the model has 300 ids and bytes have 256"),
    ):
        with pytest.raises(ValueError, match=message):
            work()


def _wide(own):
    return own._replace(config=own.config.replaced(vocabulary=300), settings=None)


@pytest.mark.clause("EVAL-1")
@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"step": -1}, "step: a whole number is needed"),
        ({"settings": {"rows": 0}}, "settings: "),
        ({"state": {"tensor": "state/none"}}, "state: not one of this"),
        ({"state": {"value": 3}}, "state: not one of this model"),
        ({"schema": 9}, "schema: 1 is needed, found 9"),
    ],
)
def test_a_checkpoint_that_contradicts_itself_is_one_line(header, message, tmp_path):
    path = changed(trained.ended("atlas-mag").path, tmp_path / "x.safetensors", **header)
    with pytest.raises(ValueError, match=f"x.safetensors: {message}"):
        saved.load(path)


@pytest.mark.clause("EVAL-1")
def test_a_model_of_another_origin_has_no_run(tmp_path):
    source = {"from": "elsewhere", "settings": {"rows": 0}}
    path = changed(trained.model(), tmp_path / "x.safetensors", source=source)
    assert saved.load(path).settings is None


@pytest.mark.clause("EVAL-1")
def test_documents_are_kept_apart_as_they_were_in_training():
    own = saved.load(trained.model())
    settings = own.settings
    assert own.documents
    assert own._replace(settings=None).documents
    assert not own._replace(settings=settings.replaced(documents=False)).documents
    assert not own._replace(settings=settings.replaced(state="carried")).documents
    assert not saved.load(trained.model("atlas-mag")).documents


@pytest.mark.clause("EVAL-1")
def test_memories_of_another_shape_are_refused(tmp_path):
    metadata, tensors = files.read(trained.ended("atlas-mag").path)
    name = next(each for each in sorted(tensors) if each.startswith("state") and "weights" in each)
    tensors[name] = np.zeros((1, 1), np.float32)
    files.write(tmp_path / "x.safetensors", metadata, tensors)
    with pytest.raises(ValueError, match=r"x.safetensors: initial.blocks.0.memory.weights"):
        saved.load(tmp_path / "x.safetensors")
