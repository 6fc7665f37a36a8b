"""The text that a model is evaluated on, and where documents are kept apart in it."""

from __future__ import annotations

import pytest

from atlas_ref.train.trained import load
from atlas_ref.train.use import held
from atlas_ref.train.use.measure import apart
from tests.support import trained

pytestmark = pytest.mark.host("trains in folders")


@pytest.mark.clause("EVAL-1")
def test_the_text_is_what_is_named_or_what_the_run_held_out():
    own = load(trained.model())
    whole = held.corpus(own, [str(trained.text())])
    kept = held.corpus(own)
    assert len(whole.firsts) == 4
    assert 0 < kept.size < whole.size
    one = held.corpus(own, [str(trained.text())], only=["2.txt"], limit=50)
    assert (one.size, len(one.firsts)) == (50, 1)


@pytest.mark.clause("EVAL-1")
def test_what_is_no_text_is_one_line(tmp_path):
    own = load(trained.model())
    (tmp_path / "empty").mkdir()
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "b.parquet").touch()
    (tmp_path / "empty" / "a.txt").touch()
    none = own._replace(settings=own.settings.replaced(text=own.settings.text.replaced(share=0.0)))
    for model, paths, message in (
        (own, [str(tmp_path / "empty")], "no text: every file is empty"),
        (own, ["a.parquet"], "a.parquet: of Parquet shards"),
        (own, [str(tmp_path / "shards")], "b.parquet: of Parquet shards"),
        (own._replace(settings=None), [], "the model is of no run here"),
        (none, [], "the run held none out"),
    ):
        with pytest.raises(ValueError, match=message):
            held.corpus(model, paths)


@pytest.mark.clause("EVAL-3")
def test_documents_are_kept_apart_as_they_were_in_training():
    own = load(trained.model())
    settings = own.settings
    assert apart(own)
    assert apart(own._replace(settings=None))
    assert not apart(own._replace(settings=settings.replaced(documents=False)))
    assert not apart(own._replace(settings=settings.replaced(state="carried")))
    assert not apart(load(trained.model("atlas-mag")))
