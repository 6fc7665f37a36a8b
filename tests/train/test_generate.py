"""Text that a model goes on with: prompts, pieces, stop tokens."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from atlas_ref.models import generation, language_model
from atlas_ref.train import generate
from atlas_ref.train.trained import load
from atlas_ref.train.vocabulary import Bytes, Tokens
from tests.support import trained

pytestmark = pytest.mark.host("trains in folders")

WORDS = ("<s>", "a", "b", "é1", "é2", "</s>")


class FakeTokenizer:
    """Tokens of which two make one letter, as those of bytes in a library of tokens do."""

    def token_to_id(self, text):
        return WORDS.index(text) if text in WORDS else None

    def encode(self, text, add_special_tokens):
        return SimpleNamespace(ids=[WORDS.index(each) for each in text])

    def decode(self, ids, skip_special_tokens):
        text = "".join(WORDS[i] for i in ids if WORDS[i][0] != "<")
        return text.replace("é1é2", "é").replace("é1", "\ufffd").replace("é2", "\ufffd")


TOKENS = Tokens(6, 0, 5, FakeTokenizer())


def steps(ids):
    return (SimpleNamespace(ids=np.array([each])) for each in ids)


def pieces(words, ids, stop=()):
    return [each.text for each in generate._pieces(words, steps(ids), frozenset(stop))]


@pytest.mark.clause("EVAL-7")
def test_text_is_what_generation_draws():
    own = load(trained.model("atlas-mag"))
    how = {"steps": 12, "temperature": 0.8, "top_k": 40, "seed": 5}
    prompt = generate.ids_of(Bytes(), "memory ")
    new = list(generate.stream(own, prompt, **how))
    start = language_model.start(own.config, 1, dtype="float32", initial=own.initial)
    want = generation.generate(own.config, own.params, prompt[None], state=start, **how).ids[0, 7:]
    assert [each.id for each in new if each.id is not None] == want.tolist()
    assert "".join(each.text for each in new) == bytes(want.tolist()).decode("utf-8", "replace")
    bare = own._replace(initial=())
    assert [each.id for each in generate.stream(bare, prompt, **how)] != want.tolist()
    assert own.initial


@pytest.mark.clause("EVAL-7")
def test_a_character_comes_when_it_is_whole():
    assert pieces(Bytes(), "aé€".encode()) == ["a", "", "é", "", "", "€"]
    assert pieces(Bytes(), [0xC3, 0x61, 0xE2]) == ["", "\ufffda", "", "\ufffd"]
    assert pieces(TOKENS, [1, 3, 4, 2]) == ["a", "", "é", "b"]
    assert pieces(TOKENS, [1, 3]) == ["a", "", "\ufffd"]


@pytest.mark.clause("EVAL-7")
def test_a_stop_token_is_no_part_of_the_text():
    found = list(generate._pieces(Bytes(), steps(b"ab."), frozenset(b".")))
    assert [(each.text, each.stopped) for each in found] == [
        *(("a", False), ("b", False)),
        ("", True),
    ]
    own = load(trained.model())
    prompt = generate.ids_of(Bytes(), "memory")
    whole = [each.id for each in generate.stream(own, prompt, steps=20, seed=1)]
    cut = list(generate.stream(own, prompt, steps=20, seed=1, stop=whole[5:6]))
    assert [each.id for each in cut if each.id is not None] == whole[: whole.index(whole[5]) + 1]
    assert any(each.stopped for each in cut)


@pytest.mark.clause("EVAL-7")
def test_a_prompt_is_a_document_that_has_not_ended():
    assert generate.ids_of(TOKENS, "ab").tolist() == [0, 1, 2]
    assert generate.ids_of(TOKENS._replace(first=None, last=None), "ab").tolist() == [1, 2]
    assert generate.ids_of(Bytes(), "é\udcff").tolist() == [0xC3, 0xA9, 0xFF]
    with pytest.raises(ValueError, match="prompt: is empty"):
        generate.ids_of(Bytes(), "")


@pytest.mark.clause("EVAL-7")
def test_stop_tokens_are_named_or_the_end_of_a_document():
    assert generate.stop_ids(Bytes(), ()) == ()
    assert generate.stop_ids(Bytes(), ("\n", ".")) == (10, 46)
    assert generate.stop_ids(TOKENS, ()) == (5,)
    assert generate.stop_ids(TOKENS._replace(last=None), ()) == ()
    assert generate.stop_ids(TOKENS, ("<s>", "b")) == (0, 2)
    with pytest.raises(ValueError, match="stop: 'ab' is 2 tokens, one is needed"):
        generate.stop_ids(TOKENS, ("ab",))
    with pytest.raises(ValueError, match="stop: 'é' is 2 tokens"):
        generate.stop_ids(Bytes(), ("é",))
