"""A needle in a haystack: a fact that a text states once, asked for at its end.

    hay  needle  hay  question  ->  answer

Specified in specs/evaluate.md (EVAL-9 to EVAL-11).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from atlas_ref import backend
from atlas_ref.blocks import mac, module_of
from atlas_ref.messages import Progress, in_one_line, unwatched
from atlas_ref.models import language_model
from atlas_ref.rules.checks import precision
from atlas_ref.train.models import shares_rows
from atlas_ref.train.sampler import Corpus
from atlas_ref.train.settings import Seed
from atlas_ref.train.trained import Trained
from atlas_ref.train.vocabulary import Bytes, Vocabulary
from atlas_ref.types import Frozen

#: Who the fact is about; names of one length, so that bytes of all needles are as many.
NAMES = ("Ada", "Ben", "Eve", "Ian", "Kim", "Leo", "Mia", "Tom")

#: The fact, and the question, which is how it begins.
QUESTION, ANSWER, END = "\nThe number of {name} is", " {digits}", ".\n"

Length = Annotated[int, Field(ge=1, le=2**20)]
Depth = Annotated[float, Field(ge=0, le=100)]


class Settings(Frozen):
    """Where needles lie, and how many (EVAL-9).

    Attributes:
        lengths: tokens of a text, with needle, question and answer.
        depths: of the needle, in percent of the hay that lies before it.
        samples: texts of each length and depth.
        digits: of the number that is asked for.
        seed: of hay, names and numbers.
    """

    lengths: Annotated[tuple[Length, ...], Field(min_length=1, max_length=64)] = (128, 256, 512)
    depths: Annotated[tuple[Depth, ...], Field(min_length=1, max_length=64)] = (0, 25, 50, 75, 100)
    samples: Annotated[int, Field(ge=1, le=4096)] = 8
    digits: Annotated[int, Field(ge=1, le=18)] = 4
    seed: Seed = 0

    @model_validator(mode="after")
    def _differ(self) -> Self:
        for name in ("lengths", "depths"):
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                raise ValueError(f"{name}: one stands twice")
        return self


class Text(NamedTuple):
    """One text.

    Attributes:
        ids (n,): all tokens, those of the answer last.
        without (n,): the same with other hay in the needle's place.
        answer: number of tokens of the answer.
        distance: tokens from the end of the needle to the end of the question.
    """

    ids: Any
    without: Any
    answer: int
    distance: int


class Cell(NamedTuple):
    """What a model answers at one length and depth (EVAL-10).

    Attributes:
        exact: share of texts whose whole answer is the likeliest, token by token.
        tokens: share of tokens of answers that are the likeliest.
        chance: `exact` of the texts without their needle.
        loss: of a token of an answer, in nats.
        gain: loss of the same without the needle, less `loss`.
        distance: least distance from the needle's end to the question's end.
        beyond: whether no chain of attention windows leads from the answer back to the needle.
    """

    length: int
    depth: float
    exact: float
    tokens: float
    chance: float
    loss: float
    gain: float
    distance: int
    beyond: bool


def measure(
    own: Trained, hay: Corpus, settings: Settings, *, progress: Progress = unwatched
) -> tuple[Cell, ...]:
    """Ask a model for needles at every length and depth (EVAL-9, EVAL-10).

    Args:
        hay: text with ids of the model's vocabulary.
        progress: called with "cells", cells that are done, and all of them.

    Raises:
        ValueError: hay or lengths that hold no text, or logits that are not finite.
    """
    limit, cells = reach(own.config), []
    for length in settings.lengths:
        for depth in settings.depths:
            texts = texts_of(own.vocabulary, hay, settings, length, depth)
            cells.append(_cell(own, texts, length, depth, limit))
            progress("cells", len(cells), len(settings.lengths) * len(settings.depths))
    return tuple(cells)


def reach(config: language_model.Config) -> int:
    """Most tokens back that attention alone leads to, through all blocks (EVAL-10).

    A window of W sees W - 1 tokens back, and each block starts where the one before ended; a
    segment of MAC counts as its window. Convolutions are left out.
    """
    total = 0
    for block in config.blocks:
        if "attention" in type(block).model_fields:
            own = block.attention
            wide = own.window if module_of(block) is mac else own.reach
            total += wide - 1
    return total


def texts_of(
    words: Vocabulary, hay: Corpus, settings: Settings, length: int, depth: float
) -> list[Text]:
    """Texts of one length and depth, a function of the seed (EVAL-9).

    The same samples have the same hay, names and numbers at every depth.

    Raises:
        ValueError: a length without room for needle and question, or less hay than it needs.
    """
    found = []
    for sample in range(settings.samples):
        draw = np.random.Generator(
            np.random.Philox(key=settings.seed, counter=[0, 0, length, sample])
        )
        name = NAMES[int(draw.integers(len(NAMES)))]
        digits = "".join(map(str, draw.integers(10, size=settings.digits)))
        question = _raw(words, QUESTION.format(name=name))
        answer = _raw(words, ANSWER.format(digits=digits))
        needle = np.concatenate([question, answer, _raw(words, END)])
        room = length - len(needle) - len(question) - len(answer)
        if room < 0:
            raise ValueError(
                f"lengths: {length}, needle, question and answer alone have {length - room} tokens"
            )
        if len(hay.ids) < room + len(needle):
            raise ValueError(f"{hay.name}: {len(hay.ids)} tokens, length {length} needs more text")
        first = int(draw.integers(len(hay.ids) - room - len(needle) + 1))
        some = hay.ids[first : first + room + len(needle)].astype(np.int64)
        at = round(depth / 100 * room)
        end = np.concatenate([question, answer])
        ids = np.concatenate([some[:at], needle, some[at:room], end])
        without = np.concatenate([some[:at], some[room:], some[at:room], end])
        distance = room - at + len(question)
        found.append(Text(ids, without, len(answer), distance))
    return found


def _raw(words: Vocabulary, text: str) -> np.ndarray[Any, Any]:
    """Tokens of a text that is no document."""
    if isinstance(words, Bytes):
        return words.encoded(text.encode()).astype(np.int64)
    return np.array(words.tokenizer.encode(text, add_special_tokens=False).ids, np.int64)


def _cell(own: Trained, texts: Sequence[Text], length: int, depth: float, limit: int) -> Cell:
    counts = [each.answer for each in texts]
    answers = [each.ids[-count:] for each, count in zip(texts, counts, strict=True)]
    asked = scores(_logits(own, [each.ids for each in texts], counts), answers)
    bare = scores(_logits(own, [each.without for each in texts], counts), answers)
    distance = min(each.distance for each in texts)
    return Cell(
        length=length,
        depth=depth,
        exact=float(asked.exact.mean()),
        tokens=float(asked.right.sum() / sum(counts)),
        chance=float(bare.exact.mean()),
        loss=float(asked.loss.mean()),
        gain=float(bare.loss.mean() - asked.loss.mean()),
        distance=distance,
        beyond=distance > limit,
    )


class Scores(NamedTuple):
    """Answers of some texts.

    Attributes:
        exact (S,): whether each token of the answer is the likeliest.
        right (S,): number of those that are.
        loss (S,): mean of their -log p, in nats.
    """

    exact: Any
    right: Any
    loss: Any


def scores(logits: Sequence[Any], answers: Sequence[Any]) -> Scores:
    """What logits say of answers (EVAL-10).

    Args:
        logits: of the tokens of each answer (count, V).
        answers: ids of each (count,).
    """
    exact, right, loss = [], [], []
    for row, want in zip(logits, answers, strict=True):
        z = np.asarray(row, np.float64)
        top = z.max(axis=-1)
        nats = np.log(np.exp(z - top[:, None]).sum(axis=-1)) + top
        found = z.argmax(axis=-1) == want
        exact.append(bool(found.all()))
        right.append(int(found.sum()))
        loss.append(float((nats - z[np.arange(len(want)), want]).mean()))
    return Scores(np.array(exact), np.array(right), np.array(loss))


def _logits(own: Trained, texts: Sequence[Any], counts: Sequence[int]) -> list[Any]:
    """Logits (count, V) of the answer of each text from a start.

    Rows that would share a memory run apart. A model that is not causal runs anew for each token of
    an answer, on the text before it: in one call it would see what it is asked for.
    """
    if any(shares_rows(block) for block in own.config.blocks) and len(texts) > 1:
        return [_logits(own, [t], [c])[0] for t, c in zip(texts, counts, strict=True)]
    ids, most = np.stack(list(texts)), max(counts)
    if own.config.causal:
        last = _run(own, ids[:, :-1])[:, -most:]
    else:
        places = range(ids.shape[1] - most, ids.shape[1])
        last = np.stack([_run(own, ids[:, :i])[:, -1] for i in places], axis=1)
    return [row[most - count :] for row, count in zip(last, counts, strict=True)]


def _run(own: Trained, ids: Any) -> np.ndarray[Any, Any]:
    """Logits (S, n, V) of one call from a start, on the host."""
    begun = language_model.start(
        own.config, len(ids), dtype=precision(own.params.embedding), initial=own.initial
    )
    with in_one_line(), np.errstate(all="ignore"):
        _, logits = language_model.apply(own.config, own.params, begun, ids)
    found = np.asarray(backend.host(logits))
    if not np.isfinite(found).all():
        raise ValueError("the model's logits are not finite")
    return found
