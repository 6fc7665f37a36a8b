"""A step of training: forward, loss, backward, clipping, the optimiser; and the loss of held-out text.

    g = mean over micro-batches of d loss / d params,    params, optimiser <- update(params, g, s)

Specified in specs/train.md (TRAIN-9 to TRAIN-11, TRAIN-20).
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from atlas_ref.types import Array
from tape import plain
from tape.nested import flatten

#: What stands before a message about held-out text.
HELD_OUT = "held-out text: "

#: Precision of everything that is learnt.
KIND = np.float32


class Diverged(ValueError):
    """A step that cannot be taken: a loss, a gradient or a value on the way is not finite."""


class Lost(ValueError):
    """A step whose batches do not come back from workers (TRAIN-21)."""


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


class Batch(NamedTuple):
    """What a batch gives to a step.

    Attributes:
        loss: mean over its predicted tokens.
        gradient: leaves of that of the loss, each in the order of C.
        state: of the model behind it; None where the batch had a start.
    """

    loss: float
    gradient: list[Array]
    state: language_model.State | None


#: What computes the batches of a step elsewhere, and gives them in their order (TRAIN-20).
Elsewhere = Callable[[Task, language_model.Params, Sequence[Rows]], Iterable[Batch]]


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
    learnt = models.of_locals(config) if settings.learns == "locals" else None
    return Task(settings, config, optimisers.optimiser(settings, learnt), data, documents)


def start(own: Task) -> Moment:
    """The moment before the first step (TRAIN-10)."""
    s = own.settings
    params = language_model.init(own.config, s.seed, dtype=KIND)
    state = language_model.start(own.config, s.rows, dtype=KIND) if s.carried else None
    return Moment(0, params, groups.init(own.optimiser, params), own.data.sampler.start(), state)


def step(own: Task, before: Moment, elsewhere: Elsewhere | None = None) -> tuple[Moment, Measured]:
    """One outer step (TRAIN-10).

    Args:
        elsewhere: what computes the batches; None for this process (TRAIN-20).

    Returns:
        what it leaves, and what it tells; arrays of the moment before must not be used any more.

    Raises:
        Diverged: a loss or a gradient that is not finite; `before` is as it was.
        Lost: batches do not come back from elsewhere; `before` is as it was.
    """
    with finite(f"step {before.step + 1}: "):
        return _stepped(own, before, elsewhere)


@contextlib.contextmanager
def finite(what: str = "") -> Iterator[None]:
    """Turn what is not finite, wherever it is found, into one line that begins with `what`."""
    try:
        with in_one_line(), np.errstate(all="ignore"):
            yield
    except Lost as error:
        raise Lost(f"{what}{error}") from None
    except ValueError as error:
        raise Diverged(f"{what}{error}") from None


def _stepped(own: Task, before: Moment, elsewhere: Elsewhere | None) -> tuple[Moment, Measured]:
    batches, place = _drawn(own, before.place)
    found = elsewhere(own, before.params, batches) if elsewhere else _here(own, before, batches)
    total: list[Array] = []
    value, state, share = 0.0, before.state, 1.0 / len(batches)
    for each in found:
        value += share * each.loss
        total = _added(total, each.gradient, share)
        state = each.state
    if not math.isfinite(value):
        raise ValueError(f"the loss is {value}")
    _, _, build = flatten(before.params, "params")
    params, after = groups.update(
        own.optimiser, before.optimiser, before.params, build(total), before.step
    )
    first: Any = own.optimiser.moving[0].optimiser
    count = sum(each.tokens for each in batches)
    told = Measured(value, after.norm, first.rate_at(before.step), count)
    return Moment(before.step + 1, params, after, place, state), told


def _drawn(own: Task, place: Place) -> tuple[list[Rows], Place]:
    """The batches of a step, and the place behind them."""
    found = []
    for _ in range(own.settings.accumulation):
        batch, place = own.data.sampler.batch(place)
        found.append(batch)
    return found, place


def _here(own: Task, before: Moment, batches: Sequence[Rows]) -> Iterator[Batch]:
    """What the batches of a step give, one after another in this process."""
    state = before.state
    for batch in batches:
        found = of_batch(own.config, before.params, state, batch, documents=own.documents)
        state = found.state
        yield found


def of_batch(
    config: language_model.Config,
    params: language_model.Params,
    state: language_model.State | None,
    batch: Rows,
    *,
    documents: bool,
) -> Batch:
    """What a batch gives: sums over its calls, in their order (TRAIN-10).

    Args:
        state: before the batch; None for a start.
        documents: whether memories start anew where a document starts.
    """
    total: list[Array] = []
    value = 0.0
    for rows, reset, share in calls_of(batch, documents):
        found, grads, state = gradient(config, params, state, rows, reset)
        value += share * found
        total = _added(total, flatten(grads, "grads")[0], share)
    # sums within an array, and products, depend on the order of its numbers
    return Batch(value, [_in_order(each) for each in total], state)


def calls_of(batch: Rows, documents: bool) -> list[tuple[Rows, Any, float]]:
    """Rows of a batch that run together, where documents start in them, and their share."""
    if not documents:
        return [(batch, None, 1.0)]
    found = sampler.groups(batch)
    return [(rows, reset, len(rows.ids) / len(batch.ids)) for rows, reset in found]


def _added(total: list[Array], leaves: Sequence[Array], share: float) -> list[Array]:
    scaled = list(leaves) if share == 1.0 else [share * each for each in leaves]
    return [a + b for a, b in zip(total, scaled, strict=True)] if total else scaled


def _in_order(x: Array) -> Array:
    return x if x.flags.c_contiguous else x.reshape(-1).reshape(x.shape)


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
    if (held := own.data.held) is None:
        return None
    value, count = 0.0, 0
    for begun, rows, reset in held_out(own, moment, own.settings.evaluate_batches):
        with finite(HELD_OUT):
            found = _loss(own.config, moment.params, begun, rows, reset)
        value += found * rows.tokens
        count += rows.tokens
    loss = value / count
    return Loss(loss, bits(loss, held.size / len(held.ids)), count)


def held_out(own: Task, moment: Moment, batches: int) -> Iterator[tuple[Any, Rows, Any]]:
    """Rows spread evenly over held-out text, in calls: the state before each, rows, reset (TRAIN-11)."""
    held, s = own.data.held, own.settings
    if held is None:
        return
    initial = memories(own.config, moment.state)
    begun = functools.partial(language_model.start, own.config, dtype=KIND, initial=initial)
    length = s.tokens + 1
    for batch in sampler.spread(held, rows=s.rows, length=length, batches=batches):
        for rows, reset, _ in calls_of(batch, own.documents):
            yield begun(len(rows.ids)), rows, reset


def _loss(config: language_model.Config, params: Any, begun: Any, rows: Rows, reset: Any) -> float:
    ids, targets = rows.ids[:, :-1], rows.ids[:, 1:]
    _, found = language_model.loss(config, params, begun, ids, targets=targets, reset=reset)
    return float(backend.host(found))


def bits(loss: float, bytes_per_token: float) -> float:
    """Bits per byte of a loss in nats per token (TRAIN-11)."""
    return loss / math.log(2.0) / bytes_per_token
