"""What text costs a model: loss, perplexity, bits per byte, and the same without its memory.

    perplexity = exp(L),    bits per byte = L / (ln 2 bytes per token),
    contribution = 100 (perplexity without - perplexity) / perplexity without

Specified in specs/evaluate.md (EVAL-2 to EVAL-4).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from atlas_ref import backend
from atlas_ref.messages import Progress, in_one_line, unwatched
from atlas_ref.models import language_model
from atlas_ref.rules.checks import precision
from atlas_ref.train import loop, sampler
from atlas_ref.train.models import takes_documents
from atlas_ref.train.sampler import Corpus
from atlas_ref.train.settings import Count, Size
from atlas_ref.train.trained import Trained
from atlas_ref.train.use.without import WITHOUT
from atlas_ref.types import Frozen


class Unfit(ValueError):
    """Text and settings with which no model can be measured."""


class Settings(Frozen):
    """How text is read (EVAL-2, EVAL-3).

    Attributes:
        rows, tokens, batches: at most rows * batches * tokens predictions, in calls of `tokens`.
        state: row, rows spread over the text, each from a start; document, documents in order, the
            state going on to the end of each.
        skip: predictions at the start of each row or document that do not count.
        without: writes, memory: the model is measured without them too.
    """

    rows: Size = 8
    tokens: Size = 256
    batches: Size = 16
    state: Literal["row", "document"] = "row"
    skip: Count = 0
    without: Annotated[tuple[Literal["writes", "memory"], ...], Field(max_length=2)] = ()


class Loss(NamedTuple):
    """What predictions cost.

    Attributes:
        loss: mean, in nats for a predicted token.
        perplexity: exp of it.
        tokens: number of predictions that count.
    """

    loss: float
    perplexity: float
    bits_per_byte: float
    tokens: int


class Without(NamedTuple):
    """The same text without writes or memory.

    Attributes:
        what: the model does without.
        loss: None where it cannot.
        contribution: what it adds, in percent of the perplexity without it.
        why: it cannot.
    """

    what: str
    loss: Loss | None
    contribution: float | None
    why: str | None


class Found(NamedTuple):
    """What text costs a model.

    Attributes:
        loss: of the model as it is.
        anew: of the same calls, each from a start; None where rows start anew in any case.
        without: for each thing that it was measured without.
    """

    loss: Loss
    anew: Loss | None
    without: tuple[Without, ...]


class Call(NamedTuple):
    """Tokens of one call.

    Attributes:
        ids (B, T + 1): the last one is only predicted.
        reset (T,): where documents start; None for nowhere.
        starts: whether the state before it is that of a start.
        skip: first predictions that do not count.
    """

    ids: Any
    reset: Any
    starts: bool
    skip: int


def evaluate(
    own: Trained, text: Corpus, settings: Settings, *, progress: Progress = unwatched
) -> Found:
    """What a text costs a model (EVAL-2 to EVAL-4).

    Args:
        text: with ids of the model's vocabulary.
        progress: called with "calls", calls that are done, and all of them.

    Raises:
        Unfit: a text without a prediction that counts.
        ValueError: a loss that is not finite.
    """
    try:
        calls = list(_calls(own, text, settings))
    except ValueError as error:
        raise Unfit(str(error)) from None
    if not any(_counted(call) for call in calls):
        raise Unfit(f"skip: {settings.skip}, no row or document has a prediction behind it")
    anew = settings.state == "document"
    passes = 1 + anew + len(settings.without)
    told = _Told(progress, passes * len(calls))
    ratio = text.size / len(text.ids)
    loss = _mean(own, calls, ratio, told)
    parted = [call._replace(starts=True) for call in calls]
    return Found(
        loss,
        _mean(own, parted, ratio, told) if anew else None,
        tuple(_without(own, what, calls, ratio, loss, told) for what in settings.without),
    )


def apart(own: Trained) -> bool:
    """Whether memories start anew where a document starts in a row, as they were trained (EVAL-3)."""
    takes = takes_documents(own.config)
    if own.settings is None:
        return takes
    stated = own.settings.documents
    return (takes and not own.settings.carried) if stated is None else stated


class _Told:
    """Progress over several passes."""

    def __init__(self, progress: Progress, of: int) -> None:
        self.progress, self.done, self.of = progress, 0, of

    def call(self) -> None:
        self.done += 1
        self.progress("calls", self.done, self.of)


def _without(
    own: Trained, what: str, calls: list[Call], ratio: float, loss: Loss, told: _Told
) -> Without:
    try:
        config, params = WITHOUT[what](own.config, own.params)
        initial = own.initial if what == "writes" else ()
        less = own._replace(config=config, params=params, initial=initial)
        found = _mean(less, calls, ratio, told)
    except ValueError as error:
        return Without(what, None, None, str(error))
    share = 0.0
    if not (math.isinf(found.perplexity) or math.isinf(loss.perplexity)):
        share = 100.0 * (found.perplexity - loss.perplexity) / found.perplexity
    return Without(what, found, share, None)


def _mean(own: Trained, calls: list[Call], ratio: float, told: _Told) -> Loss:
    """The mean over all predictions that count, calls one after another."""
    value, count, state = 0.0, 0, None
    for call in calls:
        if call.starts:
            state = language_model.start(
                own.config,
                len(call.ids),
                dtype=precision(own.params.embedding),
                initial=own.initial,
            )
        state, found = _loss(own, state, call)
        value += found * _counted(call)
        count += _counted(call)
        told.call()
    loss = value / count
    if not math.isfinite(loss):
        raise ValueError(f"the loss is {loss}")
    perplexity = math.exp(loss) if loss < math.log(np.finfo(np.float64).max) else math.inf
    return Loss(loss, perplexity, loop.bits(loss, ratio), count)


def _loss(own: Trained, state: Any, call: Call) -> tuple[Any, float]:
    """The state behind a call, and the mean of its predictions that count."""
    ids, targets = call.ids[:, :-1], call.ids[:, 1:]
    with in_one_line(), np.errstate(all="ignore"):
        after, logits = language_model.apply(own.config, own.params, state, ids, reset=call.reset)
        if not _counted(call):
            return after, 0.0
        if call.skip:
            logits, targets = logits[:, call.skip :], targets[:, call.skip :]
        found = language_model.cross_entropy(logits, targets)
    return after, float(backend.host(found))


def _counted(call: Call) -> int:
    rows, length = call.ids.shape
    return int(rows * max(0, length - 1 - call.skip))


def _calls(own: Trained, text: Corpus, settings: Settings) -> Iterator[Call]:
    if settings.state == "document":
        yield from _of_documents(text, settings)
        return
    s, documents = settings, apart(own)
    sampler.require_long(text, s.tokens + 1)
    spread = sampler.spread(text, rows=s.rows, length=s.tokens + 1, batches=s.batches)
    for batch in spread:
        for rows, reset in sampler.groups(batch) if documents else [(batch, None)]:
            yield Call(rows.ids, reset, True, s.skip)


def _of_documents(text: Corpus, settings: Settings) -> Iterator[Call]:
    """Documents in order, in calls of one row, until so many predictions are made."""
    s = settings
    left = s.rows * s.batches * s.tokens
    ends = [*text.firsts[1:], len(text.ids)]
    for first, end in zip(text.firsts, ends, strict=True):
        ids = text.ids[first:end]
        for at in range(0, len(ids) - 1, s.tokens):
            part = ids[at : at + min(s.tokens, left) + 1]
            left -= len(part) - 1
            yield Call(part[None], None, at == 0, max(0, s.skip - at))
            if not left:
                return
