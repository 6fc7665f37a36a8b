"""A step of training: forward, loss, backward, clipping, the optimiser; and the loss of held-out text.

    g = mean over micro-batches of d loss / d params,    params, optimiser <- update(params, g, s)

Specified in specs/train.md (TRAIN-9 to TRAIN-11).
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

import tape
from atlas_ref import backend
from atlas_ref.messages import in_one_line
from atlas_ref.models import language_model
from atlas_ref.models.initial import Initial
from atlas_ref.optim import groups
from atlas_ref.train import models, optimisers, sampler
from atlas_ref.train.data import Data
from atlas_ref.train.sampler import Place, Rows
from atlas_ref.train.settings import Settings
from tape import plain
from tape.nested import flatten

#: Precision of everything that is learnt.
KIND = np.float32


class Diverged(ValueError):
    """A step that cannot be taken: a loss, a gradient or a value on the way is not finite."""


class Task(NamedTuple):
    """What stays as it is from step to step."""

    settings: Settings
    config: language_model.Config
    optimiser: groups.Config
    data: Data
    documents: bool


class Moment(NamedTuple):
    """What moves from step to step, and what a checkpoint holds (TRAIN-12).

    Attributes:
        step: outer steps so far.
        params: of the model, float32.
        optimiser: its state.
        place: of the sampler.
        state: of the model behind the last batch; None where each batch starts anew.
    """

    step: int
    params: language_model.Params
    optimiser: groups.State
    place: Place
    state: language_model.State | None


class Measured(NamedTuple):
    """What a step tells.

    Attributes:
        loss: mean over all predicted tokens, in nats.
        norm: of the gradient before clipping; None without clipping.
        rate: factor of the schedule times the rate of the first group that moves.
        tokens: that were predicted.
    """

    loss: float
    norm: float | None
    rate: float
    tokens: int


class Loss(NamedTuple):
    """The loss of held-out text: nats per token, bits per byte, and the tokens predicted."""

    loss: float
    bits_per_byte: float
    tokens: int


def task(settings: Settings, data: Data) -> Task:
    """The model and the optimiser of a run (TRAIN-8, TRAIN-9).

    Raises:
        ValueError: names the setting that is wrong.
    """
    config = models.model(settings.model, data.vocabulary.size)
    takes = models.takes_documents(config) and not settings.carried
    if settings.documents and not takes:
        raise ValueError(
            "documents: rows of this model share a memory, or their state is carried; neither can "
            "start anew within a row"
        )
    documents = takes if settings.documents is None else settings.documents
    return Task(settings, config, optimisers.optimiser(settings), data, documents)


def start(own: Task) -> Moment:
    """The moment before the first step (TRAIN-10)."""
    s = own.settings
    params = language_model.init(own.config, s.seed, dtype=KIND)
    state = language_model.start(own.config, s.rows, dtype=KIND) if s.carried else None
    return Moment(0, params, groups.init(own.optimiser, params), own.data.sampler.start(), state)


def step(own: Task, before: Moment) -> tuple[Moment, Measured]:
    """One outer step (TRAIN-10).

    Returns:
        what it leaves, and what it tells; arrays of the moment before must not be used any more.

    Raises:
        Diverged: a loss or a gradient that is not finite; `before` is as it was.
    """
    with finite(f"step {before.step + 1}"):
        return _stepped(own, before)


@contextlib.contextmanager
def finite(what: str) -> Iterator[None]:
    """Turn what is not finite, wherever it is found, into one line."""
    try:
        with in_one_line(f"{what}: "), np.errstate(all="ignore"):
            yield
    except ValueError as error:
        raise Diverged(str(error)) from None


def _stepped(own: Task, before: Moment) -> tuple[Moment, Measured]:
    s, place, state = own.settings, before.place, before.state
    total: list[Any] = []
    value, count, build = 0.0, 0, None
    for _ in range(s.accumulation):
        batch, place = own.data.sampler.batch(place)
        count += batch.tokens
        for rows, reset, share in _calls(own, batch):
            found, grads, state = gradient(own.config, before.params, state, rows, reset)
            share /= s.accumulation
            value += share * found
            leaves, _, build = flatten(grads, "grads")
            total = _added(total, leaves, share)
    if not math.isfinite(value):
        raise ValueError(f"the loss is {value}")
    assert build is not None
    params, after = groups.update(
        own.optimiser, before.optimiser, before.params, build(total), before.step
    )
    first: Any = own.optimiser.moving[0].optimiser
    told = Measured(value, after.norm, first.rate_at(before.step), count)
    return Moment(before.step + 1, params, after, place, state), told


def _calls(own: Task, batch: Rows) -> list[tuple[Rows, Any, float]]:
    """Rows of a batch that run together, where documents start in them, and their share."""
    if not own.documents:
        return [(batch, None, 1.0)]
    found = sampler.groups(batch)
    return [(rows, reset, len(rows.ids) / len(batch.ids)) for rows, reset in found]


def _added(total: list[Any], leaves: Sequence[Any], share: float) -> list[Any]:
    scaled = list(leaves) if share == 1.0 else [share * each for each in leaves]
    return [a + b for a, b in zip(total, scaled, strict=True)] if total else scaled


def gradient(
    config: language_model.Config,
    params: language_model.Params,
    state: language_model.State | None,
    rows: Rows,
    reset: Any,
) -> tuple[float, Any, language_model.State | None]:
    """The loss of rows in one call, its gradient, and the state behind them (TRAIN-10).

    Args:
        state: before the rows; None for a start, and for no state behind them.
        reset (T,): where documents start; None for nowhere.
    """
    begun = state if state is not None else language_model.start(config, len(rows.ids), dtype=KIND)
    after: list[Any] = []

    def loss(at: Any) -> Any:
        left, value = language_model.loss(
            config, at, begun, rows.ids[:, :-1], targets=rows.ids[:, 1:], reset=reset
        )
        after.append(left)
        return value

    value, grads = tape.value_and_grad(loss)(params)
    return float(backend.host(value)), grads, None if state is None else detached(after[0])


def detached(state: Any) -> Any:
    """A state without its tape: what comes before it is no longer differentiated."""
    leaves, _, build = flatten(state, "state")
    return build([plain(each) for each in leaves])


def memories(config: language_model.Config, state: language_model.State | None) -> Initial:
    """Memories that all rows share, as a model starts from them; () for none (TRAIN-6, MODEL-16)."""
    if state is None:
        return ()
    found: list[Any] = []
    for block, own in zip(config.blocks, state.blocks, strict=True):
        if models.shares_rows(block):
            held: Any = own.memory.levels.states[0]
            found.append({"weights": held.weights, "momentum": held.momentum})
        else:
            found.append(None)
    return tuple(found) if any(found) else ()


def evaluate(own: Task, moment: Moment) -> Loss | None:
    """The loss of held-out text, each row from a start, and from memories that all rows share
    (TRAIN-11).

    Returns:
        None where nothing is held out.

    Raises:
        Diverged: a loss, or a value on the way, that is not finite.
    """
    held, s = own.data.held, own.settings
    if held is None:
        return None
    initial = memories(own.config, moment.state)
    begun = functools.partial(language_model.start, own.config, dtype=KIND, initial=initial)
    value, count = 0.0, 0
    batches = sampler.spread(held, rows=s.rows, length=s.tokens + 1, batches=s.evaluate_batches)
    for batch in batches:
        for rows, reset, _ in _calls(own, batch):
            with finite("held-out text"):
                found = _loss(own.config, moment.params, begun(len(rows.ids)), rows, reset)
            value += found * rows.tokens
            count += rows.tokens
    loss = value / count
    return Loss(loss, bits(loss, held.size / len(held.ids)), count)


def _loss(config: language_model.Config, params: Any, begun: Any, rows: Rows, reset: Any) -> float:
    ids, targets = rows.ids[:, :-1], rows.ids[:, 1:]
    _, found = language_model.loss(config, params, begun, ids, targets=targets, reset=reset)
    return float(backend.host(found))


def bits(loss: float, bytes_per_token: float) -> float:
    """Bits per byte of a loss in nats per token (TRAIN-11)."""
    return loss / math.log(2.0) / bytes_per_token
