"""Files in order, what is held out, and vocabularies."""

from __future__ import annotations

import gzip
import json
import os
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from atlas_ref.train import text
from atlas_ref.train.text import Document
from atlas_ref.train.vocabulary import Bytes, vocabulary


def write(folder, **texts):
    for name, data in texts.items():
        place = folder / name.replace("__", "/").replace("_dot_", ".")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)


@pytest.mark.clause("TRAIN-1")
def test_files_of_a_folder_are_sorted_by_their_paths(tmp_path):
    folder = tmp_path / "lib"
    for name in ("b.py", "a/z.py", "a/y.txt", "B.py", ".hidden.py", ".git/c.py"):
        write(folder, **{name.replace("/", "__").replace(".", "_dot_"): b"x"})
    found = text.files_of([str(folder)], only=["*.py"])
    assert [each.name for each in found] == ["lib/B.py", "lib/a/z.py", "lib/b.py"]
    some = text.files_of([str(folder)], only=["*.py"], skip=["a", "B*"])
    assert [each.name for each in some] == ["lib/b.py"]
    again = text.files_of([str(folder / "b.py"), str(folder)], only=["*.py"])
    assert [each.name for each in again] == ["b.py", "lib/B.py", "lib/a/z.py"]


@pytest.mark.clause("TRAIN-1")
def test_empty_files_of_a_folder_are_left_out_and_a_packed_one_is_read(tmp_path):
    write(tmp_path, empty=b"", one=b"first")
    (tmp_path / "two.gz").write_bytes(gzip.compress(b"second"))
    found = text.documents(text.files_of([str(tmp_path)]))
    assert [each.text for each in found] == [b"first", b"second"]
    assert [each.text for each in text.documents(text.files_of([str(tmp_path)]), limit=7)] == [
        b"first",
        b"se",
    ]


@pytest.mark.clause("TRAIN-1")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none", "no such file or folder"),
        ("empty", "is empty"),
        ("cut.gz", "not a whole gzip file"),
        ("folder", "no file in this folder matches"),
    ],
)
def test_what_cannot_be_read_is_refused_in_a_line(name, message, tmp_path):
    write(tmp_path, empty=b"")
    (tmp_path / "folder").mkdir()
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"some text" * 99)[:20])
    with pytest.raises(ValueError, match=message) as refused:
        text.documents(text.files_of([str(tmp_path / name)]))
    assert "\n" not in str(refused.value)
    assert name in str(refused.value)


def some(count):
    return [Document(str(i), bytes([65 + i]) * (10 + i)) for i in range(count)]


@pytest.mark.clause("TRAIN-2")
def test_held_out_documents_are_whole_and_drawn_by_the_seed():
    texts = some(9)
    held = {seed: text.divided(texts, share=0.3, seed=seed).held for seed in (0, 1, 2)}
    for seed, found in held.items():
        again = text.divided(texts, share=0.3, seed=seed)
        assert again.held == found
        assert sorted(again.train + again.held) == texts
        total = sum(len(each.text) for each in texts)
        assert 0.3 * total <= sum(len(each.text) for each in found) < 0.3 * total + 18
    assert len({tuple(found) for found in held.values()}) > 1
    assert text.divided(texts, share=0.0, seed=0).held == ()
    assert len(text.divided(some(2), share=0.99, seed=0).train) == 1


@pytest.mark.clause("TRAIN-2")
def test_of_one_document_the_end_is_held_out():
    (train,), (held,) = text.divided([Document("a", b"0123456789")], share=0.2, seed=3)
    assert (train.text, held.text, held.name) == (b"01234567", b"89", "a from 8")


@pytest.mark.clause("TRAIN-2")
def test_a_held_out_file_is_never_learnt_from_under_another_name(tmp_path):
    write(tmp_path / "lib", a=b"one", b=b"two")
    os.symlink(tmp_path / "lib" / "a", tmp_path / "other")
    kept = text.files_of([str(tmp_path / "other")])
    left = text.without(text.files_of([str(tmp_path / "lib")]), kept)
    assert [each.name for each in left] == ["lib/b"]


@pytest.mark.clause("TRAIN-3")
def test_a_byte_is_a_token():
    data = bytes(range(256))
    assert Bytes().encoded(data).tolist() == list(range(256))
    assert Bytes().decoded(Bytes().encoded(data)) == data


class FakeTokenizer:
    """What `tokenizers.Tokenizer` gives of a file with a list of words."""

    def __init__(self, words):
        self.words = words

    @staticmethod
    def from_str(data):
        return FakeTokenizer(json.loads(data)["words"])

    def get_vocab(self, with_added_tokens):
        return {word: i for i, word in enumerate(self.words)}

    def encode(self, data, add_special_tokens):
        return SimpleNamespace(ids=[self.words.index(word) for word in data.split()])

    def decode(self, ids, skip_special_tokens):
        return " ".join(self.words[i] for i in ids if self.words[i][0] != "<")


@pytest.mark.clause("TRAIN-3")
def test_tokens_of_a_file_stand_between_start_and_end(tmp_path, monkeypatch):
    package = ModuleType("tokenizers")
    package.Tokenizer = FakeTokenizer
    monkeypatch.setitem(sys.modules, "tokenizers", package)
    path = tmp_path / "words.json"
    path.write_text(json.dumps({"words": ["<eos>", "a", "b", "<bos>"]}))
    own = vocabulary(str(path))
    assert (own.size, own.first, own.last) == (4, 3, 0)
    assert own.encoded(b"b a").tolist() == [3, 2, 1, 0]
    assert own.decoded(np.array([3, 2, 1, 0])) == b"b a"
    path.write_text("{")
    with pytest.raises(ValueError, match="not a tokenizer"):
        vocabulary(str(path))


@pytest.mark.clause("TRAIN-3")
def test_the_library_reads_a_file_of_its_own(tmp_path):
    pytest.importorskip("tokenizers", reason="the extra text is not installed")
    import tokenizers

    own = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"<unk>": 0, "a": 1, "b": 2, "</s>": 3}, unk_token="<unk>")
    )
    own.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    own.save(str(tmp_path / "own.json"))
    found = vocabulary(str(tmp_path / "own.json"))
    assert (found.size, found.encoded(b"b a \xff").tolist()) == (4, [2, 1, 0, 3])


@pytest.mark.clause("TRAIN-3")
def test_without_the_extra_the_message_says_how_to_add_it(tmp_path, monkeypatch):
    (tmp_path / "words.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ValueError, match=r"needs the package tokenizers: .*\[text\]"):
        vocabulary(str(tmp_path / "words.json"))
