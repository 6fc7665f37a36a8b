"""Associative recall: sequences as stated, and what a model learns of them, with negatives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref.models import language_model
from atlas_ref.train.probes import lessons, recall
from atlas_ref.train.probes.recall import KINDS, Sequences, Settings, sequences
from tests.support.close import EXACT, assert_close, assert_differs

pytestmark = pytest.mark.host("numbers of the host")

#: A task that a model of two narrow layers learns in some seconds.
TINY: dict[str, Any] = {
    "keys": 8,
    "values": 8,
    "dim": 16,
    "pairs": (2,),
    "batch": 32,
    "rate": 2e-2,
    "steps": 150,
}


def drawn(settings: Settings, pairs: int, seed: int = 0, count: int = 50) -> Sequences:
    return sequences(settings, pairs, count, np.random.default_rng(seed))


# -- the task --------------------------------------------------------------------------------------


@pytest.mark.clause("PROBE-16")
@pytest.mark.parametrize("length", [None, 20])
def test_every_query_has_one_answer_that_a_reader_of_the_pairs_finds(length: int | None) -> None:
    settings = Settings(keys=9, values=5, pairs=(2, 6), length=length)
    asked = drawn(settings, 6)
    T = 18 if length is None else length
    assert (asked.ids.shape, asked.places.shape) == ((50, T), (50, 6))
    for ids, places, answers in zip(*(each.tolist() for each in asked), strict=True):
        book = dict(zip(ids[0:12:2], ids[1:12:2], strict=True))
        assert len(book) == 6  # keys are distinct
        assert set(book) <= set(range(9))
        assert set(book.values()) <= set(range(9, 14))
        assert sorted(set(places)) == places
        assert min(places) >= 12
        assert [book[ids[place]] for place in places] == answers
        assert sorted(ids[place] for place in places) == sorted(book)  # each once
        rest = set(range(12, T)) - set(places)
        assert {ids[place] for place in rest} == ({14} if rest else set())
    assert settings.vocabulary == (14 if length is None else 15)


@pytest.mark.clause("PROBE-16")
def test_keys_values_and_queries_are_all_that_may_be_drawn() -> None:
    settings = Settings(keys=5, values=4, pairs=(3,), length=11)
    asked = drawn(settings, 3, count=400)
    assert set(asked.ids[:, 0]) == set(range(5))
    assert set(asked.answers.ravel()) == {5, 6, 7, 8}
    assert set(asked.places.ravel()) == {6, 7, 8, 9, 10}
    first = asked.ids[np.arange(400), asked.places[:, 0]] == asked.ids[:, 0]
    assert 0.2 < first.mean() < 0.5  # the order of queries says nothing of the order of pairs


@pytest.mark.clause("PROBE-16")
@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"keys": 3, "pairs": (2, 4)}, "pairs: 4, but there are 3 different keys"),
        ({"pairs": (4,), "length": 11}, "length: 11, 4 pairs and their queries need 12"),
        ({"memory": "dleta"}, "did you mean delta"),
        ({"preset": "unti"}, "did you mean unit"),
        ({"heads": 3}, "heads: 3 do not divide dim 64"),
    ],
)
def test_a_task_that_cannot_be_is_refused(own: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings(**own)


@pytest.mark.clause("PROBE-16")
def test_more_pairs_than_a_sequence_has_room_for_are_refused() -> None:
    with pytest.raises(ValueError, match="pairs: 3, expected 1 to 2"):
        drawn(Settings(keys=5, pairs=(2,), length=8), 3)


# -- answers ---------------------------------------------------------------------------------------


@pytest.mark.clause("PROBE-17")
def test_logits_are_those_of_the_queries_and_the_loss_is_of_their_answers() -> None:
    settings = Settings(keys=6, values=5, dim=8, pairs=(3,), length=12)
    config, asked = recall.model(settings), drawn(settings, 3, count=4)
    params = language_model.init(config, 1)
    _, logits = language_model.apply(config, params, language_model.start(config, 4), asked.ids)
    want, total = np.zeros((4, 3, 12)), 0.0
    for b in range(4):
        for j in range(3):
            z = np.asarray(logits)[b, asked.places[b, j]]
            want[b, j] = z
            total += np.log(np.exp(z).sum()) - z[asked.answers[b, j]]
    found = np.asarray(recall.answered(config, params, asked))
    assert_close("logits", found, want, EXACT)
    assert float(recall.loss(config, params, asked)) == pytest.approx(total / 12, rel=1e-12)
    right = sum(want[b, j].argmax() == asked.answers[b, j] for b in range(4) for j in range(3))
    assert lessons.accuracy(config, params, asked) == pytest.approx(right / 12)


@pytest.mark.clause("PROBE-17", "PROBE-20")
@pytest.mark.parametrize("memory", KINDS)
def test_an_untrained_model_is_at_chance(memory: str) -> None:
    settings = Settings(
        memory=memory, keys=16, values=16, dim=16, pairs=(4,), steps=0, examined=400
    )
    (lesson,) = lessons.learn(settings, 3)
    assert abs(lesson.accuracy - 1 / 16) < 0.05
    assert (lesson.reached, lesson.steps, lesson.loss, lesson.rate) == (False, 0, None, None)


# -- the model -------------------------------------------------------------------------------------


@pytest.mark.clause("PROBE-18")
def test_memories_differ_by_rule_and_gate() -> None:
    levels = {
        name: recall.model(Settings(memory=name)).blocks[0].memory.levels.levels[0]
        for name in KINDS
    }
    gates = {name: each.config.convention.gate for name, each in levels.items()}
    assert gates == {
        "hebbian": "forget",
        "delta": "none",
        "gated_delta": "forget",
        "titans_lmm": "forget",
        "omega": "retain",
    }
    assert {name: each.rule.name for name, each in levels.items()} == {
        "hebbian": "hebbian",
        "delta": "delta",
        "gated_delta": "delta",
        "titans_lmm": "titans_lmm",
        "omega": "omega",
    }
    assert {each.form for each in levels.values()} == {"exact"}
    config = recall.model(Settings(layers=3, kernel=1, preset="causal"))
    assert [block.memory.conv for block in config.blocks] == [None] * 3
    assert [block.feed_forward for block in config.blocks] == [None] * 3
    assert config.blocks[0].memory.head_norm.kind == "rms"
    assert recall.model(Settings()).blocks[0].memory.head_norm.kind == "l2"
    assert recall.model(Settings()).blocks[0].memory.conv.kernel == 4


@pytest.mark.clause("PROBE-19")
def test_the_optimiser_is_that_of_the_settings() -> None:
    own = lessons.optimiser(Settings(rate=0.25, warmup=4))
    (group,) = own.groups
    rule = group.optimiser
    assert (rule.rate, rule.b1, rule.b2, rule.decay) == (0.25, 0.9, 0.99, 0.01)
    assert [rule.schedule.factor(step) for step in (0, 1, 3, 4, 400)] == [0.25, 0.5, 1, 1, 1]
    assert own.clip is not None
    assert own.clip.limit == 1.0


@pytest.mark.clause("PROBE-19")
def test_batches_and_examinations_have_their_numbers_of_sequences(monkeypatch: Any) -> None:
    counts, true = [], recall.sequences

    def counted(settings: Settings, pairs: int, count: int, draw: Any) -> Sequences:
        counts.append((pairs, count))
        return true(settings, pairs, count, draw)

    monkeypatch.setattr(recall, "sequences", counted)
    few = {**TINY, "pairs": (2,), "steps": 2, "every": 2, "batch": 3, "examined": 5}
    lessons.learn(Settings(**few), 0)
    assert counts == [(2, 3), (2, 3), (2, 5)]


# -- lessons ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.clause("PROBE-19", "PROBE-20")
def test_a_tiny_model_learns_two_pairs_and_goes_on_with_three() -> None:
    settings = Settings(**{**TINY, "pairs": (2, 3), "every": 10, "enough": 0.9})
    first, second = lessons.learn(settings, 0)
    assert (first.pairs, first.reached) == (2, True)
    assert first.accuracy >= 0.9
    assert first.steps % 10 == 0
    assert first.tokens == first.steps * 32 * 6
    assert second.tokens == (second.steps - first.steps) * 32 * 9
    assert second.seconds > first.seconds > 0
    assert 0.9 * first.tokens / first.seconds < (first.rate or 0)


@pytest.mark.clause("PROBE-19", "PROBE-21")
def test_without_convolution_the_same_steps_teach_nothing_like_it() -> None:
    (lesson,) = lessons.learn(Settings(**{**TINY, "kernel": 1}), 0)
    assert (lesson.reached, lesson.steps) == (False, 150)
    assert lesson.accuracy < 0.75
    assert lesson.loss is not None


@pytest.mark.clause("PROBE-19")
def test_a_lesson_ends_with_the_steps_and_is_examined_there() -> None:
    settings = Settings(**{**TINY, "pairs": (2, 3), "steps": 7, "every": 4})
    (lesson,) = lessons.learn(settings, 0)
    assert (lesson.steps, lesson.reached) == (7, False)
    seen: list[tuple[str, int, int]] = []
    (again,) = lessons.learn(settings, 0, progress=lambda *each: seen.append(each))
    first, second = (each._replace(seconds=0.0, rate=None) for each in (lesson, again))
    assert first == second
    assert seen == [("steps", done, 7) for done in range(8)]


@pytest.mark.clause("PROBE-19")
def test_what_is_examined_is_not_what_was_learnt_and_seeds_differ() -> None:
    settings = Settings(**{**TINY, "steps": 2})
    pupil, other = lessons._Pupil(settings, 0), lessons._Pupil(settings, 1)
    learnt, examined, others = (
        sequences(settings, 2, 40, each) for each in (pupil.learnt, pupil.examined, other.learnt)
    )
    assert not np.array_equal(learnt.ids, examined.ids)
    assert not np.array_equal(learnt.ids, others.ids)
    assert_differs("embedding", pupil.params.embedding, other.params.embedding, 1e-3)
    assert pupil.params.embedding.dtype == np.float32
    before = np.array(pupil.params.embedding)
    pupil.examination(2)
    assert_close("embedding", np.array(pupil.params.embedding), before, EXACT)


@pytest.mark.clause("PROBE-19")
def test_a_loss_that_is_not_finite_ends_the_run_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"^delta: step \d+: ") as refused:
        lessons.learn(Settings(**{**TINY, "rate": 1e30, "steps": 30}), 0)
    assert "\n" not in str(refused.value)


@pytest.mark.slow
@pytest.mark.clause("PROBE-19")
@pytest.mark.parametrize("memory", ["delta", "gated_delta", "titans_lmm"])
def test_a_memory_with_convolutions_learns_sixteen_pairs_within_four_hundred_steps(
    memory: str,
) -> None:
    found = lessons.learn(Settings(memory=memory, pairs=(4, 8, 16), steps=400), 0)
    assert [lesson.reached for lesson in found] == [True] * 3
