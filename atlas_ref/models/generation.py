"""Generation: tokens one after another, with the state of the model or from the start each time.

Specified in specs/language_model.md (MODEL-6 to MODEL-8).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

import numpy as np

from atlas_ref import backend
from atlas_ref import blocks as blocks_of
from atlas_ref.models import language_model
from atlas_ref.models.language_model import Config, Params, State
from atlas_ref.models.sampling import check_settings, next_tokens
from atlas_ref.rules.checks import check_count, generator, precision
from atlas_ref.types import Array


class Generated(NamedTuple):
    """Result of `generate`.

    Attributes:
        ids (B, n + steps), int64: the prompt, then the new tokens.
        logits (B, steps, V): from which each new token was taken.
        state: of the model after all tokens but the last.
    """

    ids: np.ndarray[Any, Any]
    logits: np.ndarray[Any, Any]
    state: State


def generate(
    config: Config,
    params: Params,
    prompt: Array,
    *,
    steps: int,
    temperature: float = 1.0,
    min_p: float = 0.0,
    top_k: int | None = None,
    uniforms: Any = None,
    seed: int = 0,
    state: State | None = None,
    cached: bool = True,
) -> Generated:
    """Continue a prompt by `steps` tokens (MODEL-6).

    Args:
        prompt (B, n): ids, at least one.
        temperature, min_p, top_k: of `sampling.next_tokens`; temperature 0 takes the largest logit.
        uniforms (steps, B, V): numbers to draw with; None draws them from the counter-based
            generator Philox with `seed`.
        state: of earlier tokens; None for a start.
        cached: whether the state goes on from token to token; otherwise each step runs the whole
            sequence from `state`, which for a causal model gives the same tokens, later (MODEL-7).

    Raises:
        ValueError: arguments outside their ranges.
    """
    ids = language_model.check_ids("prompt", prompt, config.vocabulary)
    ids = ids.astype(np.int64)  # a narrow prompt need not hold every id
    if ids.shape[1] == 0:
        raise ValueError(f"prompt: shape {ids.shape}, at least one token is needed")
    check_count("steps", steps)
    check_settings(temperature, min_p, top_k)
    shape = (steps, ids.shape[0], config.vocabulary)
    if uniforms is None and temperature > 0:
        uniforms = generator(seed).random(shape)
    if uniforms is not None and np.shape(uniforms) != shape:
        raise ValueError(
            f"uniforms: shape {np.shape(uniforms)}, expected {shape}: steps, batch, ids"
        )
    if state is None:
        state = language_model.start(config, ids.shape[0], dtype=precision(params.embedding))
    rows: list[Any] = []
    run = _with_state if cached else _anew
    model = run(config, params, state, ids)
    after, logits = next(model)
    for step in range(steps):
        each = None if uniforms is None else uniforms[step]
        rows.append(logits)
        new = next_tokens(
            logits, each, temperature=temperature, min_p=min_p, top_k=top_k, order=config.sampling
        )
        ids = np.concatenate([ids, new[:, None]], axis=1)
        if step + 1 < steps:
            after, logits = model.send(ids)
    empty = np.zeros((ids.shape[0], 0, config.vocabulary))
    return Generated(ids, np.stack(rows, axis=1) if rows else empty, after)


def _with_state(
    config: Config, params: Params, state: State, ids: Any
) -> Generator[tuple[State, Any], Any, None]:
    """The prompt in one call, then each new token alone (MODEL-6)."""
    new = ids
    while True:
        state, logits = language_model.apply(config, params, state, new)
        new = (yield state, backend.host(logits[:, -1]))[:, -1:]


def _anew(
    config: Config, params: Params, state: State, ids: Any
) -> Generator[tuple[State, Any], Any, None]:
    """All tokens in one call at each step (MODEL-7)."""
    before = state
    while True:
        after, logits = language_model.apply(config, params, before, ids)
        ids = yield after, backend.host(logits[:, -1])
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
