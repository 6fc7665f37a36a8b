"""Generation: tokens one after another, with the state of the model or from the start each time.

Specified in specs/language_model.md (MODEL-6 to MODEL-8, MODEL-18).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from atlas_ref import backend
from atlas_ref import blocks as blocks_of
from atlas_ref.layers.checks import check_call
from atlas_ref.models import language_model
from atlas_ref.models.language_model import Config, Params, State
from atlas_ref.models.sampling import check_settings, check_uniform, next_tokens
from atlas_ref.rules.checks import check_count, generator, precision
from atlas_ref.types import Array


class Generated(NamedTuple):
    """Result of `generate`.

    Attributes:
        ids (B, n + steps), int64: the prompt, then the new tokens; a row that has stopped repeats
            its stop token.
        logits (B, steps, V): from which each new token was taken.
        state: of the model after all tokens but the last.
        lengths (B,): tokens of each row up to its stop token.
    """

    ids: np.ndarray[Any, Any]
    logits: np.ndarray[Any, Any]
    state: State
    lengths: np.ndarray[Any, Any]


class Step(NamedTuple):
    """One new token of each row (MODEL-18).

    Attributes:
        ids (B,), int64: the new tokens.
        logits (B, V): from which they were taken.
        going (B,): plain booleans, False for a row that has stopped before this step.
        state: of the model before the new tokens.
    """

    ids: np.ndarray[Any, Any]
    logits: np.ndarray[Any, Any]
    going: np.ndarray[Any, Any]
    state: State


def generate(config: Config, params: Params, prompt: Array, **settings: Any) -> Generated:
    """Continue a prompt by `steps` tokens, or fewer where every row stops before (MODEL-6, MODEL-18).

    Args:
        prompt (B, n): ids, at least one.
        settings: of `stream`.

    Raises:
        ValueError: arguments outside their ranges.
    """
    new = list(stream(config, params, prompt, **settings))
    ids = language_model.check_ids("prompt", prompt, config.vocabulary).astype(np.int64)
    lengths = ids.shape[1] + sum((step.going for step in new), np.zeros(len(ids), np.int64))
    if not new:
        before = _started(config, params, settings.get("state"), len(ids))
        after, _ = language_model.apply(config, params, before, ids)
        return Generated(ids, np.zeros((len(ids), 0, config.vocabulary)), after, lengths)
    ids = np.concatenate([ids, np.stack([step.ids for step in new], axis=1)], axis=1)
    logits = np.stack([step.logits for step in new], axis=1)
    return Generated(ids, logits, new[-1].state, lengths)


def stream(
    config: Config,
    params: Params,
    prompt: Array,
    *,
    steps: int,
    temperature: float = 1.0,
    min_p: float = 0.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    stop: Iterable[int] = (),
    uniforms: Any = None,
    seed: int = 0,
    state: State | None = None,
    cached: bool = True,
) -> Iterator[Step]:
    """New tokens one after another, each as soon as it is drawn (MODEL-6, MODEL-18).

    Args:
        prompt (B, n): ids, at least one.
        steps: most new tokens.
        temperature, min_p, top_k, top_p: of `sampling.next_tokens`; temperature 0 takes the largest
            logit.
        stop: ids after which a row ends; the stream ends when every row has.
        uniforms (steps, B, V): numbers to draw with; None draws them from the counter-based
            generator Philox with `seed`.
        state: of earlier tokens; None for a start.
        cached: whether the state goes on from token to token; otherwise each step runs the whole
            sequence from `state`, which for a causal model gives the same tokens, later (MODEL-7).

    Raises:
        ValueError: arguments outside their ranges, before the first token is drawn.
    """
    given = State.trusted(blocks=()) if state is None else state
    check_call(language_model.__name__, config, (Config, Params, State), params, given)
    ids = language_model.check_ids("prompt", prompt, config.vocabulary)
    ids = ids.astype(np.int64)  # a narrow prompt need not hold every id
    if ids.shape[1] == 0:
        raise ValueError(f"prompt: shape {ids.shape}, at least one token is needed")
    check_count("steps", steps)
    check_settings(temperature, min_p, top_k, top_p)
    ends = _stops(stop, config.vocabulary)
    shape = (steps, ids.shape[0], config.vocabulary)
    if uniforms is not None and np.shape(uniforms) != shape:
        raise ValueError(
            f"uniforms: shape {np.shape(uniforms)}, expected {shape}: steps, batch, ids"
        )
    if uniforms is not None:
        uniforms = check_uniform("uniforms", uniforms)
    else:
        draw = generator(seed)
        uniforms = (draw.random(shape[1:]) if temperature > 0 else None for _ in range(steps))
    before = _started(config, params, state, ids.shape[0])
    language_model.check(config, params, before, ids)
    model = (_with_state if cached else _anew)(config, params, before, ids)

    def choose(logits: Any, uniform: Any) -> np.ndarray[Any, Any]:
        return next_tokens(
            logits,
            uniform,
            temperature=temperature,
            min_p=min_p,
            top_k=top_k,
            top_p=top_p,
            order=config.sampling,
        )

    return _stepwise(model, ids, ends, uniforms, choose)


def _stepwise(
    model: Generator[tuple[State, Any], Any, None],
    ids: np.ndarray[Any, Any],
    ends: np.ndarray[Any, Any],
    uniforms: Iterable[Any],
    choose: Callable[[Any, Any], np.ndarray[Any, Any]],
) -> Iterator[Step]:
    """Run the model before each draw, so that no token is run that nothing follows (MODEL-18)."""
    last, going = ids[:, -1], np.ones(len(ids), bool)
    for step, uniform in enumerate(uniforms):
        if not going.any():
            return
        state, logits = model.send(last[:, None]) if step else next(model)
        last = np.where(going, choose(logits, uniform), last)
        yield Step(last, logits, going, state)
        going = going & ~np.isin(last, ends)


def _started(config: Config, params: Params, state: State | None, rows: int) -> State:
    if state is not None:
        return state
    return language_model.start(config, rows, dtype=precision(params.embedding))


def _stops(stop: Iterable[int], vocabulary: int) -> np.ndarray[Any, Any]:
    """Stop tokens as ids (MODEL-18).

    Raises:
        ValueError: what is no id of the vocabulary.
    """
    ends = list(stop)
    for each in ends:
        whole = isinstance(each, int | np.integer) and not isinstance(each, bool)
        if not whole or not 0 <= each < vocabulary:
            raise ValueError(f"stop: {each!r}, expected ids of 0 to {vocabulary - 1}")
    return np.array(ends, np.int64)


def _with_state(
    config: Config, params: Params, state: State, ids: Any
) -> Generator[tuple[State, Any], Any, None]:
    """The prompt in one call, then each new token alone (MODEL-6)."""
    new = ids
    while True:
        state, logits = language_model.apply(config, params, state, new)
        new = yield state, backend.host(logits[:, -1])


def _anew(
    config: Config, params: Params, state: State, ids: Any
) -> Generator[tuple[State, Any], Any, None]:
    """All tokens in one call at each step (MODEL-7)."""
    before = state
    while True:
        after, logits = language_model.apply(config, params, before, ids)
        new = yield after, backend.host(logits[:, -1])
        ids = np.concatenate([ids, new], axis=1)
        before = forgotten(config, state, after)


def forgotten(config: Config, state: State, after: State) -> State:
    """The state of a call that does not go on with the one before (MODEL-7).

    It is `state`, but for the memories that a block keeps whatever a call is given.
    """
    blocks = [
        blocks_of.forgotten(block, old, new)
        for block, old, new in zip(config.blocks, state.blocks, after.blocks, strict=True)
    ]
    return State.trusted(blocks=tuple(blocks))
