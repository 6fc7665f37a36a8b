"""Needles: where they lie, what counts as found, and how far attention alone leads."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from atlas_ref.models import language_model
from atlas_ref.train import models, sampler
from atlas_ref.train.probes import needle
from atlas_ref.train.probes.needle import Settings, measure, texts_of
from atlas_ref.train.settings import Model
from atlas_ref.train.text import Document
from atlas_ref.train.trained import Trained
from atlas_ref.train.vocabulary import Bytes
from tests.support.close import ANALYTIC, assert_close
from tests.support.training import TINY

WORDS = Bytes()
HAY = sampler.corpus(
    "hay", [Document("hay", bytes(np.random.default_rng(0).integers(97, 123, 400).tolist()))], WORDS
)


def model(**changes):
    """A model in float64 that was not trained."""
    config = models.model(TINY.replaced(**changes), 256)
    params = language_model.init(config, 1)
    return Trained(Path("none"), config, params, WORDS, (), None, None, None)


def text(ids):
    return bytes(ids.tolist()).decode()


@pytest.mark.clause("EVAL-9")
@pytest.mark.parametrize("depth", [0, 30, 100])
def test_a_needle_lies_at_its_depth_and_the_answer_ends_the_text(depth):
    for each in texts_of(WORDS, HAY, Settings(samples=3), 120, depth):
        whole, bare = text(each.ids), text(each.without)
        assert len(whole) == len(bare) == 120
        asked, answer = whole[-26:-5], whole[-5:]
        assert asked.startswith("\nThe number of ")
        assert asked.endswith(" is")
        assert each.answer == 5
        fact = f"{asked}{answer}.\n"
        at = whole.index(fact)
        room = 120 - len(fact) - 26
        assert at == round(depth / 100 * room)
        assert each.distance == 120 - 5 - (at + len(fact))
        hay = whole[:at] + whole[at + len(fact) : -26]
        assert hay in text(HAY.ids)
        assert bare[:at] + bare[at + len(fact) :] == hay + asked + answer
        assert bare[at : at + len(fact)] in text(HAY.ids)
        assert bare.count(asked) == 1


@pytest.mark.clause("EVAL-9")
def test_samples_differ_and_are_the_same_at_every_depth():
    first, second = (texts_of(WORDS, HAY, Settings(samples=4), 120, d) for d in (0, 100))
    ends = [text(each.ids)[-26:] for each in first]
    assert ends == [text(each.ids)[-26:] for each in second]
    assert len(set(ends)) == 4
    other = texts_of(WORDS, HAY, Settings(samples=4, seed=1), 120, 0)
    assert ends != [text(each.ids)[-26:] for each in other]


@pytest.mark.clause("EVAL-9")
def test_tokens_of_a_library_stand_without_start_and_end():
    encode = lambda text, add_special_tokens: SimpleNamespace(ids=[ord(c) for c in text])  # noqa: E731
    words = SimpleNamespace(tokenizer=SimpleNamespace(encode=encode))
    ours, theirs = (texts_of(each, HAY, Settings(samples=1), 90, 50)[0] for each in (WORDS, words))
    assert ours.ids.tolist() == theirs.ids.tolist()


@pytest.mark.clause("EVAL-10")
def test_an_answer_is_exact_where_each_token_is_the_likeliest():
    logits = np.zeros((3, 2, 4))
    logits[0, 0, 2] = logits[0, 1, 3] = 2.0
    logits[1, 0, 2] = logits[1, 1, 0] = 2.0
    logits[2, 1, 3] = 9.0
    found = needle.scores([*logits[:2], logits[2, 1:]], [(2, 3), (2, 3), (3,)])
    assert found.exact.tolist() == [True, False, True]
    assert found.right.tolist() == [2, 1, 1]
    good, bad = -np.log(np.exp([2.0, 0.0]) / (np.exp(2.0) + 3))
    assert_close("loss", found.loss[:2], np.array([good, (good + bad) / 2]), ANALYTIC)


@pytest.mark.clause("EVAL-10")
def test_a_cell_is_what_prefixes_say():
    """The definition: each token of an answer after the text before it, in a call of its own."""
    own, settings = model(), Settings(lengths=(70,), depths=(40,), samples=2, digits=2)
    (cell,) = measure(own, HAY, settings)

    def loss(ids):
        found = []
        for i in range(67, 70):
            before = language_model.start(own.config, 1)
            _, logits = language_model.apply(own.config, own.params, before, ids[None, :i])
            z = np.asarray(logits)[0, -1]
            found.append(np.log(np.exp(z).sum()) - z[ids[i]])
        return np.mean(found)

    texts = texts_of(WORDS, HAY, settings, 70, 40)
    asked, bare = (np.mean([loss(getattr(t, name)) for t in texts]) for name in ("ids", "without"))
    assert_close("loss", cell.loss, asked, ANALYTIC)
    assert abs(cell.gain - (bare - asked)) < 1e-12
    assert cell.gain != 0
    assert cell.beyond


def copying(sight):
    """Logits of a reader who finds the same ten tokens further up, and says what came next; he sees
    so many tokens back.
    """

    def logits(own, texts, counts):
        found = []
        for ids, count in zip(texts, counts, strict=True):
            data, row = bytes(ids.tolist()), np.zeros((count, 256))
            for j, i in enumerate(range(len(ids) - count, len(ids))):
                at = data.find(data[i - 10 : i], max(0, i - sight), i - 1)
                if at >= 0:
                    row[j, ids[at + 10]] = 9.0
            found.append(row)
        return found

    return logits


@pytest.mark.clause("EVAL-10")
def test_who_copies_finds_every_needle_that_he_sees(monkeypatch):
    settings = Settings(lengths=(100, 160), depths=(0, 50, 100), samples=3)
    for sight, want in ((1000, [1.0] * 6), (60, [0.0, 0.0, 1.0] * 2)):
        monkeypatch.setattr(needle, "_logits", copying(sight))
        cells = measure(model(), HAY, settings)
        assert [cell.exact for cell in cells] == want
        assert [cell.tokens for cell in cells] == want
        assert [cell.chance for cell in cells] == [0.0] * 6
        assert [cell.gain > 1 for cell in cells] == [each == 1.0 for each in want]


@pytest.mark.clause("EVAL-10")
@pytest.mark.parametrize("layers", [1, 2])
def test_beyond_the_reach_of_attention_no_needle_gains_anything(layers):
    """Two blocks of a window of 30 lead 58 tokens back; memory, the negative twin, leads on."""
    few = {"model": "mag", "window": 30, "layers": layers}
    alone = model(**few, memory=False)
    assert needle.reach(alone.config) == 29 * layers
    settings = Settings(lengths=(150,), depths=(0, 70, 100), samples=2, digits=1)
    cells = measure(alone, HAY, settings)
    assert [cell.distance for cell in cells] == [123, 52, 21]
    assert [cell.beyond for cell in cells] == [True, layers == 1, False]
    assert [abs(cell.gain) < 1e-13 for cell in cells] == [cell.beyond for cell in cells]
    remembers = measure(model(**few), HAY, settings)
    assert all(abs(cell.gain) > 1e-9 for cell in remembers)


@pytest.mark.clause("EVAL-10")
@pytest.mark.parametrize(("window", "beyond"), [(22, False), (21, True)])
def test_the_last_token_that_attention_sees_is_within_its_reach(window, beyond):
    own = model(model="mag", window=window, memory=False)
    settings = Settings(lengths=(100,), depths=(100,), samples=2, digits=1)
    (cell,) = measure(own, HAY, settings)
    assert (needle.reach(own.config), cell.distance) == (window - 1, 21)
    assert (cell.beyond, abs(cell.gain) < 1e-13) == (beyond, beyond)


@pytest.mark.clause("EVAL-10")
def test_a_segment_is_a_window_that_counts_the_token():
    own = model(model="mac", segment=8, layers=2)
    assert needle.reach(own.config) == 14
    blocks = tuple(
        block.replaced(attention=block.attention.replaced(window_counts_self=False))
        for block in own.config.blocks
    )
    assert needle.reach(own.config.replaced(blocks=blocks)) == 14


@pytest.mark.clause("EVAL-9", "EVAL-10")
def test_hay_may_be_as_long_as_is_needed_and_names_may_differ_in_length():
    """Of names of several tokens the shortest distance is told, with which a needle is nearest."""

    def encode(text, add_special_tokens):
        return SimpleNamespace(ids=[ord(c) for c in text for _ in range(1 + (c in "AdaBn"))])

    words = SimpleNamespace(tokenizer=SimpleNamespace(encode=encode))
    settings = Settings(samples=12, lengths=(120,), depths=(100,))
    texts = texts_of(words, HAY, settings, 120, 100)
    assert len({each.distance for each in texts}) > 1
    (cell,) = measure(model()._replace(vocabulary=words), HAY, settings)
    assert cell.distance == min(each.distance for each in texts)
    (whole,) = texts_of(WORDS, HAY, Settings(samples=1), 120, 50)
    hay = HAY._replace(ids=HAY.ids[: 120 - 26])
    (same,) = texts_of(WORDS, hay, Settings(samples=1), 120, 50)
    assert len(same.ids) == len(whole.ids) == 120


@pytest.mark.clause("EVAL-10")
def test_a_model_that_sees_its_future_is_asked_on_prefixes_and_rows_alone():
    """Atlas-MAG as published reads at the end of a call, and its rows share one memory."""
    config = models.model(
        Model(model="atlas-mag", dim=8, layers=1, heads=2, expansion=1, window=4), 256
    )
    own = model()._replace(config=config, params=language_model.init(config, 1))
    assert not own.config.causal
    settings = Settings(lengths=(70,), depths=(0,), samples=2, digits=1)
    (cell,) = measure(own, HAY, settings)
    found = []
    for each in texts_of(WORDS, HAY, settings, 70, 0):
        for i in (68, 69):
            before = language_model.start(config, 1)
            _, logits = language_model.apply(config, own.params, before, each.ids[None, :i])
            z = np.asarray(logits)[0, -1]
            found.append(np.log(np.exp(z).sum()) - z[each.ids[i]])
    assert_close("loss", cell.loss, np.mean(found), ANALYTIC)


@pytest.mark.clause("EVAL-9", "EVAL-10")
def test_what_cannot_be_asked_is_refused():
    own = model()
    bad = own._replace(params=own.params.replaced(head=1e308 * np.ones((256, 8))))
    for each, settings, message in (
        (own, {"lengths": (40,)}, "lengths: 40, needle, question and answer alone have 54"),
        (own, {"lengths": (900,)}, "hay: 400 tokens, length 900 needs more text"),
        (bad, {"lengths": (70,)}, "finite"),
    ):
        with pytest.raises(ValueError, match=message):
            measure(each, HAY, Settings(**{"samples": 1, **settings}))
    for wrong in ({"depths": (101,)}, {"lengths": ()}, {"lengths": (90, 90)}, {"digits": 0}):
        with pytest.raises(ValueError):
            Settings(**wrong)
