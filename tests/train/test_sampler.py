"""Rows: a function of seed and number; sources by weight; rows that go on; shards."""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import NamedTuple

import numpy as np
import pytest

from atlas_ref.train import data, sampler
from atlas_ref.train.sampler import Mixture, Streams
from atlas_ref.train.settings import Text
from atlas_ref.train.shards import Shards
from atlas_ref.train.text import Document
from atlas_ref.train.vocabulary import Bytes
from tests.support.training import FakeParquet, settings


def corpus(name="a", *texts):
    texts = texts or (b"0123456789", b"abcdefghij", b"KLMNOPQRST")
    return sampler.corpus(name, [Document(str(i), each) for i, each in enumerate(texts)], Bytes())


def batches(own, count, place=None):
    place, found = own.start() if place is None else place, []
    for _ in range(count):
        batch, place = own.batch(place)
        found.append(batch)
    return found, place


@pytest.mark.clause("TRAIN-4")
def test_a_row_is_a_piece_of_the_text_and_knows_where_documents_start():
    own = corpus()
    whole = own.ids.tobytes()
    assert whole == b"0123456789abcdefghijKLMNOPQRST"
    (batch,), _ = batches(Mixture((own,), (1.0,), 40, 8, 0), 1)
    places = set()
    for ids, starts in zip(batch.ids, batch.starts, strict=True):
        at = whole.index(ids.tobytes())
        places.add(at)
        assert starts.tolist() == [at + i in (0, 10, 20) for i in range(8)]
    assert len(places) > 12
    assert min(places) <= 2
    assert max(places) >= 20


@pytest.mark.clause("TRAIN-4")
def test_a_row_may_be_the_whole_text_and_its_end():
    own = corpus("a", b"01234567")
    assert own.row({}, 8, np.random.default_rng(0)).ids.tobytes() == b"01234567"
    found = {own.row({}, 7, np.random.default_rng(seed)).ids.tobytes() for seed in range(20)}
    assert found == {b"0123456", b"1234567"}


@pytest.mark.clause("TRAIN-4")
def test_a_batch_is_a_function_of_seed_and_number():
    own = Mixture((corpus("a"), corpus("b", b"x" * 50)), (1.0, 2.0), 4, 6, 5)
    whole, _ = batches(own, 6)
    _, place = batches(own, 3)
    rest, _ = batches(own, 3, json.loads(json.dumps(place)))
    for a, b in zip(whole[3:], rest, strict=True):
        assert a.ids.tobytes() == b.ids.tobytes()
    assert whole[0].ids.tobytes() != whole[1].ids.tobytes()
    other, _ = batches(own._replace(seed=6), 1)
    assert other[0].ids.tobytes() != whole[0].ids.tobytes()


@pytest.mark.clause("TRAIN-4")
def test_text_without_a_row_is_refused():
    with pytest.raises(ValueError, match="a: 30 tokens, a row needs 31"):
        sampler.require_long(corpus(), 31)
    sampler.require_long(corpus(), 30)


@pytest.mark.clause("TRAIN-5")
def test_rows_come_from_sources_by_their_weights():
    own = Mixture((corpus("a", b"a" * 20), corpus("b", b"b" * 200)), (3.0, 1.0), 50, 4, 1)
    found, _ = batches(own, 40)
    count = Counter(int(row[0]) for batch in found for row in batch.ids)
    assert abs(count[ord("a")] / 2000 - 0.75) < 0.04


@pytest.mark.clause("TRAIN-6")
def test_carried_rows_go_on_where_they_ended_and_round():
    own = Streams(corpus("a", bytes(range(40))), 2, 9)
    found, place = batches(own, 5)
    first = np.concatenate([each.ids[0, :-1] for each in found])
    second = np.concatenate([each.ids[1, :-1] for each in found])
    assert first.tolist() == list(range(40))
    assert second.tolist() == [*range(20, 40), *range(20)]
    assert all((each.ids[:, -1] == (each.ids[:, -2] + 1) % 40).all() for each in found)
    assert place == {"batch": 5, "places": {}}


def test_rows_run_together_where_documents_start_alike():
    starts = np.array([[1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 1, 0]], bool)
    batch = sampler.Rows(np.arange(16).reshape(4, 4), starts)
    found = [(rows.ids[:, 0].tolist(), reset) for rows, reset in sampler.groups(batch)]
    assert [each[0] for each in found] == [[0, 8], [4, 12]]
    assert found[0][1] is None  # the last token is predicted alone, the first starts anyhow
    assert found[1][1].tolist() == [False, False, True]


@pytest.mark.clause("TRAIN-11")
def test_held_out_rows_are_spread_over_the_text():
    own = corpus("a", bytes(range(101)))
    found = sampler.spread(own, rows=2, length=11, batches=3)
    assert [each.ids[:, 0].tolist() for each in found] == [[0, 18], [36, 54], [72, 90]]
    short = sampler.spread(own, rows=8, length=51, batches=3)
    assert [each.ids[:, 0].tolist() for each in short] == [[0, 50]]


# -- shards ----------------------------------------------------------------------------------------

GROUPS = [[f"<{g}{i}>" * (i + 1) for i in range(3)] for g in "abcdef"]


@pytest.fixture
def parquet(monkeypatch):
    found = FakeParquet({"x.parquet": GROUPS})
    found.install(monkeypatch)
    return found


@pytest.mark.clause("TRAIN-5", "TRAIN-2")
def test_shards_are_packed_end_to_end_and_every_text_comes_once_an_epoch(parquet):
    own = Shards("x", ["x.parquet"], Bytes(), share=0.3, seed=4)
    assert (len(own.kept), len(own.train)) == (2, 4)
    assert set(own.kept) & set(own.train) == set()
    place, seen, starts, epochs = own.start(), b"", [], 2
    length = 4 * (4 + 8 + 12)
    while len(seen) < epochs * length:
        row = own.row(place, 7, np.random.default_rng(0))
        seen, place = seen + row.ids.tobytes(), json.loads(json.dumps(row.place))
        starts += row.starts.tolist()
    wanted = sorted(text for g in own.train for text in GROUPS[g])
    cuts = [i for i, start in enumerate(starts) if start and i < length]
    texts = [seen[a:b].decode() for a, b in zip(cuts, [*cuts[1:], length], strict=True)]
    assert sorted(texts) == wanted
    second = seen[length : 2 * length]
    assert sorted(second) == sorted(seen[:length])
    held = b"".join(each.text for each in own.held(1000)).decode()
    assert held == "".join(text for g in own.kept for text in GROUPS[g])


@pytest.mark.clause("TRAIN-2", "TRAIN-5")
def test_of_shards_a_seed_draws_what_is_held_out_and_the_order_of_each_epoch(parquet, tmp_path):
    def shards(**own):
        return Shards("x", ["x.parquet"], Bytes(), **{"share": 0.01, "seed": 0} | own)

    assert len(shards().kept) == 1
    assert shards(share=0.0).kept == []
    with pytest.raises(ValueError, match="x: 6 row groups, of which 6 would be held out"):
        shards(share=0.99)
    assert len({shards(seed=seed).kept[0] for seed in range(8)}) > 2

    def order(own, epoch):
        return [own._texts({"epoch": epoch, "group": i})[0] for i in range(len(own.train))]

    own = shards(share=0.0)
    orders = [order(own, 0), order(own, 1), order(shards(share=0.0, seed=1), 0)]
    assert [sorted(each) for each in orders] == [[group[0] for group in GROUPS]] * 3
    assert len({tuple(each) for each in orders}) == 3
    held = [
        data.load(
            settings(tmp_path, tokens=4).replaced(
                text=Text(paths=("x.parquet",), share=0.01, split_seed=seed)
            )
        ).held.ids.tobytes()
        for seed in range(8)
    ]
    assert len(set(held)) > 2


@pytest.mark.clause("TRAIN-5")
def test_the_shortest_text_is_read_and_no_shorter_one(parquet):
    """Texts of a row group have 4, 8 and 12 characters."""
    for shortest, want in ((4, 3), (5, 2), (8, 2), (12, 1), (13, 0)):
        own = Shards("x", ["x.parquet"], Bytes(), share=0.0, seed=0, shortest=shortest)
        assert len(own._group(0)) == want
        if not want:
            with pytest.raises(ValueError, match="x: no text of 13 characters"):
                own.row(own.start(), 4, np.random.default_rng(0))


@pytest.mark.clause("TRAIN-5")
def test_a_place_in_a_shard_goes_on_exactly(parquet):
    own = Shards("x", ["x.parquet"], Bytes(), share=0.1, seed=1)
    mixed = Mixture((own,), (1.0,), 2, 9, 3)
    whole, _ = batches(mixed, 8)
    _, place = batches(mixed, 5)
    fresh = Mixture((Shards("x", ["x.parquet"], Bytes(), share=0.1, seed=1),), (1.0,), 2, 9, 3)
    rest, _ = batches(fresh, 3, json.loads(json.dumps(place)))
    assert [each.ids.tobytes() for each in rest] == [each.ids.tobytes() for each in whole[5:]]


@pytest.mark.clause("TRAIN-5")
def test_the_mixture_of_seed_001_is_found_below_one_folder(tmp_path, monkeypatch):
    known = data.MIXTURES["smollm-corpus"]
    texts = {name: [[name[:4] * 20, "short"]] * 5 for name in known}
    files = {}
    for name, each in known.items():
        (tmp_path / each.path).mkdir()
        for i in range(2):
            shard = tmp_path / each.path / f"train-{i}.parquet"
            shard.touch()
            files[str(shard)] = texts[name]
    FakeParquet(files).install(monkeypatch)
    asked = settings(tmp_path, rows=40).model_copy(
        update={"text": Text(paths=(str(tmp_path),), mixture="smollm-corpus", share=0.2)}
    )
    found = data.load(asked)
    assert found.sampler.weights == (0.4, 0.5, 0.1)
    assert "cosmopedia-v2 (2 files, 10 row groups, 20 texts)" in found.about
    batch, _ = found.sampler.batch(found.sampler.start())
    assert b"short" not in batch.ids.tobytes()
    rows = [each.tobytes().decode() for each in batch.ids]
    assert {name for name in known if any(name[:4] in each for each in rows)} == set(known)
    again = data.load(asked)
    assert again.fingerprint == found.fingerprint


@pytest.mark.clause("TRAIN-5")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"paths": ("x.parquet", "y.txt")}, "text beside Parquet shards"),
        ({"paths": ("gone.parquet",)}, "gone.parquet: cannot be read"),
        ({"paths": ("x.parquet",), "held_out": ("a",)}, "row groups are drawn"),
        ({"paths": ("x.parquet",), "limit": 99}, "limit: Parquet shards are read"),
        (
            {"paths": ("test_a.txt",), "held_out": ("x.parquet",)},
            "x.parquet: Parquet shards beside",
        ),
        ({"paths": ("gone",), "mixture": "smollm-corpus"}, "cosmopedia-v2: no such file or folder"),
        ({"paths": ("a",), "mixture": "smolm-corpus"}, "did you mean smollm-corpus"),
        ({"paths": ("a",), "mixture": "smollm-corpus", "subsets": ("python",)}, "subset 'python'"),
    ],
)
def test_sources_that_cannot_be_are_refused(changes, message, parquet, tmp_path):
    asked = settings(tmp_path).model_copy(update={"text": Text(**changes)})
    with pytest.raises(ValueError, match=message):
        data.load(asked)
    with pytest.raises(ValueError, match="expected one for each of the paths"):
        Text(paths=("a", "b"), weights=(1.0,))


@pytest.mark.clause("TRAIN-5")
def test_text_below_a_mixture_is_refused_by_its_subset(tmp_path):
    """Else it would be one corpus, of which neither weights nor the shortest text is kept."""
    for name in ("cosmopedia-v2", "fineweb-edu-dedup", "python-edu-cleaned"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text("some text " * 90)
    asked = settings(tmp_path).replaced(text=Text(paths=(str(tmp_path),), mixture="smollm-corpus"))
    message = r"cosmopedia-v2: no Parquet shard is here; mixture smollm-corpus has them below "
    with pytest.raises(ValueError, match=message):
        data.load(asked)


class Words(NamedTuple):
    """A vocabulary of four bytes a token, with so many tokens."""

    size: int

    def encoded(self, text):
        return np.arange(len(text) // 4) % self.size


@pytest.mark.clause("TRAIN-5", "TRAIN-12", "TRAIN-11")
def test_a_fingerprint_of_shards_knows_vocabulary_and_sizes(parquet, tmp_path, monkeypatch):
    def load(share=0.3, **changes):
        shards = Text(paths=("x.parquet",), share=share, **changes)
        return data.load(settings(tmp_path, tokens=4).replaced(text=shards))

    own = load()
    assert own.fingerprint == load().fingerprint
    assert (own.bytes_per_token, load(share=0.0).bytes_per_token) == (1.0, 1.0)
    monkeypatch.setattr(data, "vocabulary", lambda path: Words(256))
    file = tmp_path / "words.json"
    marks = set()
    for text in ("a", "b"):
        file.write_text(text)
        marks.add(load(tokenizer=str(file)).fingerprint)
        assert load(share=0.0, tokenizer=str(file)).bytes_per_token == 4.0
    assert len(marks | {own.fingerprint}) == 3
    parquet.files["x.parquet"] = [["<other>" * 3], *GROUPS[1:]]
    assert load(tokenizer=str(file)).fingerprint not in marks


@pytest.mark.clause("TRAIN-5", "TRAIN-2")
def test_a_folder_of_shards_is_read_by_the_library(tmp_path):
    """Texts of two files and five row groups: all but the row group that is held out are learnt."""
    pyarrow = pytest.importorskip("pyarrow", reason="the extra text is not installed")
    from pyarrow import parquet as library

    groups = [[f"text {g}.{i} " * 5 for i in range(4)] for g in range(5)]
    place = tmp_path / "shards"
    place.mkdir()
    for name, some in (("a", groups[:2]), ("b", groups[2:])):
        table = pyarrow.table(
            {"id": list(range(4 * len(some))), "text": [one for group in some for one in group]}
        )
        library.write_table(table, place / f"{name}.parquet", row_group_size=4)
    asked = settings(tmp_path).replaced(text=Text(paths=(str(place),), share=0.2))
    found = data.load(asked)
    assert found.about.endswith("(2 files, 5 row groups, 20 texts)")
    seen, at = b"", found.sampler.start()
    for _ in range(60):
        rows, at = found.sampler.batch(at)
        seen += b"".join(row.tobytes() for row in rows.ids)
    whole = found.held.ids.tobytes().decode()
    kept = [g for g in range(5) if groups[g][0] in whole]
    assert len(kept) == 1
    assert "".join(groups[kept[0]]).startswith(whole)  # as much as evaluations read
    assert {g for g in range(5) if f"text {g}.".encode() in seen} == set(range(5)) - set(kept)
    (place / "note.txt").touch()
    with pytest.raises(ValueError, match=r"note.txt: text beside Parquet shards"):
        data.load(asked)
    library.write_table(pyarrow.table({"text": [1, 2]}), tmp_path / "n.parquet")
    numbers = Shards("n", [str(tmp_path / "n.parquet")], Bytes(), share=0.0, seed=0)
    with pytest.raises(ValueError, match=r"n\.parquet: column 'text' has int, no texts"):
        numbers.row(numbers.start(), 4, np.random.default_rng(0))
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(ValueError, match=r"bad\.parquet: not a Parquet file"):
        Shards("b", [str(tmp_path / "bad.parquet")], Bytes(), share=0.0, seed=0)


@pytest.mark.clause("TRAIN-5")
def test_without_the_extra_a_shard_says_how_to_add_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r"needs the package pyarrow: .*\[text\]"):
        Shards("x", ["x.parquet"], Bytes(), share=0.1, seed=0)
