"""Lessons of associative recall: more pairs as soon as those before are recalled.

    params <- AdamW(params, d loss / d params)  until  right answers >= enough,  then more pairs

Specified in specs/probes.md (PROBE-19, PROBE-20). The task and the model:
`atlas_ref.train.probes.recall`.
"""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple

import numpy as np

import tape
from atlas_ref import backend
from atlas_ref.messages import Progress, unwatched
from atlas_ref.models import language_model
from atlas_ref.optim import clip, flat, groups
from atlas_ref.optim.schedule import Schedule
from atlas_ref.rules.checks import check_count
from atlas_ref.train.loop import KIND, finite
from atlas_ref.train.probes import recall
from atlas_ref.train.probes.recall import Settings

#: Streams of numbers of a seed: what is learnt from, and what is examined (PROBE-19).
LEARNT, EXAMINED = 4, 5


class Lesson(NamedTuple):
    """A number of pairs, and what became of it (PROBE-20).

    Attributes:
        pairs: N.
        steps: of all lessons up to the end of this one.
        accuracy: share of right answers of the last examination.
        loss: of the last step, in nats; None without one.
        reached: whether the accuracy is enough, which ends the lesson.
        seconds: of the processor, of all lessons up to the end of this one.
        tokens: of this lesson that were learnt from.
        rate: tokens a second of this lesson's steps; None without one.
    """

    pairs: int
    steps: int
    accuracy: float
    loss: float | None
    reached: bool
    seconds: float
    tokens: int
    rate: float | None


def learn(
    settings: Settings, seed: int = 0, *, progress: Progress = unwatched
) -> tuple[Lesson, ...]:
    """Train a model from its start through the lessons, until one is not learnt (PROBE-19).

    Args:
        settings: of task, model and optimiser.
        seed: of the parameters and of all sequences.
        progress: called with "steps", steps done, and the most there may be.

    Returns:
        each lesson that was begun; the last one may not have been reached.

    Raises:
        ValueError: settings that contradict each other; a loss that is not finite.
    """
    check_count("seed", seed)
    pupil, found = _Pupil(settings, seed), []
    for pairs in settings.pairs:
        found.append(pupil.lesson(pairs, progress))
        if not found[-1].reached:
            break
    progress("steps", settings.steps, settings.steps)
    return tuple(found)


def accuracy(config: language_model.Config, params: Any, asked: recall.Sequences) -> float:
    """Share of the queries whose most likely token is the right one (PROBE-17)."""
    logits = backend.host(recall.answered(config, params, asked))
    return float((np.argmax(logits, axis=-1) == asked.answers).mean())


def optimiser(settings: Settings) -> groups.Config:
    """AdamW over all parameters, clipped at norm 1 (PROBE-19)."""
    rule = flat.Config(
        rate=settings.rate,
        schedule=Schedule(warmup=settings.warmup),
        b2=0.99,
        decay=0.01,
        in_place=True,
    )
    group = groups.Group(name="adamw", optimiser=rule)
    return groups.Config(groups=(group,), clip=clip.Config(limit=1.0, eps=1e-6))


class _Pupil:
    """A model that moves from step to step."""

    def __init__(self, settings: Settings, seed: int) -> None:
        bits = np.random.Philox(seed)
        self.settings, self.config = settings, recall.model(settings)
        self.rule = optimiser(settings)
        self.params = language_model.init(self.config, seed, dtype=KIND)
        self.state = groups.init(self.rule, self.params)
        self.learnt = np.random.Generator(bits.jumped(LEARNT))
        self.examined = np.random.Generator(bits.jumped(EXAMINED))
        self.steps, self.begun = 0, time.process_time()

    def lesson(self, pairs: int, progress: Progress) -> Lesson:
        """Steps until an examination is passed, or no step is left (PROBE-19, PROBE-20)."""
        s, tokens, spent = self.settings, 0, 0.0
        loss: float | None = None
        found = self.examination(pairs) if s.steps == self.steps else 0.0
        while found < s.enough and self.steps < s.steps:
            progress("steps", self.steps, s.steps)
            before = time.process_time()
            asked = recall.sequences(s, pairs, s.batch, self.learnt)
            loss = self.step(asked)
            spent += time.process_time() - before
            tokens += asked.ids.size
            if self.steps % s.every == 0 or self.steps == s.steps:
                found = self.examination(pairs)
        return Lesson(
            pairs=pairs,
            steps=self.steps,
            accuracy=found,
            loss=loss,
            reached=found >= s.enough,
            seconds=time.process_time() - self.begun,
            tokens=tokens,
            rate=tokens / spent if spent else None,
        )

    def step(self, asked: recall.Sequences) -> float:
        """One outer step; the loss before it.

        Raises:
            Diverged: a loss, a gradient or a value on the way that is not finite.
        """
        with finite(f"{self.settings.memory}: step {self.steps + 1}: "):
            found = self._moved(asked)
        self.steps += 1
        return found

    def _moved(self, asked: recall.Sequences) -> float:
        def loss(params: Any) -> Any:
            return recall.loss(self.config, params, asked)

        value, grads = tape.value_and_grad(loss)(self.params)
        found = float(backend.host(value))
        if not math.isfinite(found):
            raise ValueError(f"the loss is {found}")
        self.params, self.state = groups.update(
            self.rule, self.state, self.params, grads, self.steps
        )
        return found

    def examination(self, pairs: int) -> float:
        """Right answers of sequences that nothing was learnt from (PROBE-19)."""
        asked = recall.sequences(self.settings, pairs, self.settings.examined, self.examined)
        return accuracy(self.config, self.params, asked)
