"""The text that a model is evaluated on, and where documents are kept apart in it."""

from __future__ import annotations

import pytest

from atlas_ref.train.run import MODEL
from atlas_ref.train.settings import Text
from atlas_ref.train.trained import load
from atlas_ref.train.use import held
from atlas_ref.train.use.measure import apart
from tests.support import trained
from tests.support.training import library, settings
from tests.support.training import trained as ran

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
    gone = own._replace(settings=own.settings.replaced(text=Text(paths=("gone",))))
    for model, paths, message in (
        (own, [str(tmp_path / "empty")], "no text: every file is empty"),
        (own, ["a.parquet"], "a.parquet: of Parquet shards"),
        (own, [str(tmp_path / "shards")], "b.parquet: of Parquet shards"),
        (own._replace(settings=None), [], "the model is of no run here"),
        (none._replace(text=None), [], "the run held none out"),
        (gone, [], "the run's own cannot be read: gone: no such file or folder"),
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


@pytest.mark.clause("EVAL-1")
def test_text_that_changed_since_is_not_taken_for_what_was_held_out(tmp_path):
    """A new file moves the draw of documents: what a run has learnt would count as held out."""
    asked = settings(library(tmp_path))
    ended = ran(tmp_path / "out", asked)
    places = (ended.path, tmp_path / "out", tmp_path / "out" / MODEL)
    whole = [held.corpus(load(place)).ids.tobytes() for place in places]
    assert len(set(whole)) == 1
    (tmp_path / "text" / "new.txt").write_text("memory learns " * 40)
    for place in places:
        with pytest.raises(ValueError, match="the run's own has changed, so that what it held out"):
            held.corpus(load(place))
