"""The outer loop of a block: an optimiser moves each level by what its error buffer holds.

    E_l <- E_l + g_l,    and where level l is active    (W_l, o_l) <- update(W_l, o_l, E_l),    E_l <- 0

Specified in specs/cms.md (CMS-18).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, Self

from pydantic import Field, model_validator

from atlas_ref.levels import block
from atlas_ref.levels.buffers import THRESHOLD, Buffer, Health, add, buffers
from atlas_ref.levels.pulse import Conductor
from atlas_ref.optim import module_of, tensors
from atlas_ref.optim.groups import Optimiser
from atlas_ref.types import Frozen, Pulse


class Config(Frozen):
    """Optimisers of a block, and the steps at which they move its levels (CMS-18).

    Attributes:
        conductor: of the outer steps, before the first of them.
        levels: the optimiser of each level, in the order of the block.
        logits: that of the logits, at every step; None where they stay as they are.
        threshold, clip: of the buffers (CMS-12).
    """

    conductor: Conductor
    levels: Annotated[tuple[Optimiser, ...], Field(min_length=1)]
    logits: Optimiser | None = None
    threshold: Annotated[float, Field(gt=0)] = THRESHOLD
    clip: bool = False

    @model_validator(mode="after")
    def _possible(self) -> Self:
        k = len(self.conductor.periods)
        if len(self.levels) != k:
            raise ValueError(f"levels: {len(self.levels)} optimisers, {k} periods")
        if self.conductor.per != "token":
            raise ValueError("conductor: per: a step is one outer step here, token is needed")
        return self


class State(Frozen):
    """All that one outer step hands to the next, beside the parameters (CMS-18, LIFE-1).

    Attributes:
        conductor: at the outer step that comes next.
        buffers: of the levels.
        levels: states of their optimisers.
        logits: that of the logits' optimiser; None where there is none.
    """

    conductor: Conductor
    buffers: tuple[Buffer, ...]
    levels: tuple[tensors.State, ...]
    logits: tensors.State | None = None


class Moved(NamedTuple):
    """The outcome of one outer step.

    Attributes:
        params, state: after it.
        health: of the buffer of each level, before any clipping (CMS-12).
    """

    params: block.Params
    state: State
    health: tuple[Health, ...]


def configured(
    config: block.Config,
    levels: Optimiser | Sequence[Optimiser],
    *,
    logits: Optimiser | None = None,
    threshold: float = THRESHOLD,
    clip: bool = False,
) -> Config:
    """The outer loop of a block: each level moves at its own period, counted in outer steps (CMS-18).

    Args:
        levels: an optimiser for each level, or one for all, with a state for each.
        logits: the optimiser of the logits; None where they stay.

    Raises:
        ValueError: another number of optimisers than levels.
    """
    k = len(config.levels)
    each = tuple(levels) if isinstance(levels, Sequence) else (levels,) * k
    return Config(
        conductor=Conductor(periods=config.periods, first_step=config.first_step),
        levels=each,
        logits=logits,
        threshold=threshold,
        clip=clip,
    )


def init(config: Config, params: block.Params) -> State:
    """The state before the first outer step: empty buffers, optimisers at their start (CMS-18).

    Raises:
        ValueError: parameters of another number of levels, or one that cannot be optimised.
    """
    _check_levels(config, params)
    held = config.conductor
    return State.trusted(
        conductor=held,
        buffers=buffers(held, threshold=config.threshold, clip=config.clip),
        levels=tuple(
            module_of(rule).init(rule, own)
            for rule, own in zip(config.levels, params.levels, strict=True)
        ),
        logits=None
        if config.logits is None
        else module_of(config.logits).init(config.logits, {"logits": params.logits}),
    )


def update(config: Config, state: State, params: block.Params, grads: block.Params) -> Moved:
    """One outer step: each gradient into its buffer, each active level by its sum (CMS-18).

        E_l <- E_l + g_l;  where l is active:  (W_l, o_l) <- update(W_l, o_l, E_l),  E_l <- 0

    Outside phase build the step is counted and nothing else happens (PULSE-8).

    Args:
        grads: those of this step's loss, in the structure of the parameters.

    Raises:
        ValueError: parameters, gradients or a state that contradict each other; nothing has moved.

    Warns:
        BufferWarning: a sum beyond its bound.

    Source: the public scheduler page, CMS parameter update, with the optimiser that it leaves open.
    Reduces to: the optimiser alone, where every period is 1.
    """
    _check_state(config, state)
    pulse, after = state.conductor.pulse, state.conductor.advanced()
    own, given = (
        tensors.named(each, what).tensors for each, what in ((params, "params"), (grads, "grads"))
    )
    _check_levels(config, params)
    tensors.check_gradients(own, given)
    step = state.conductor.tokens
    levels, states, held, health = [], [], [], []
    for i, rule in enumerate(config.levels):
        waits = add(state.buffers[i], grads.levels[i], pulse, i)
        moved, own_state = params.levels[i], state.levels[i]
        if waits.applied is not None:
            moved, own_state = module_of(rule).update(rule, own_state, moved, waits.applied, step)
        levels.append(moved)
        states.append(own_state)
        held.append(waits.buffer)
        health.append(waits.health)
    logits, of_logits = _logits(config, state, params.logits, grads.logits, step, pulse)
    new = state.replaced(
        conductor=after, buffers=tuple(held), levels=tuple(states), logits=of_logits
    )
    return Moved(params.replaced(levels=tuple(levels), logits=logits), new, tuple(health))


def flush(config: Config, state: State, params: block.Params) -> tuple[block.Params, State]:
    """Apply at last what still waits, as if every level with a sum were active now (CMS-18).

    The steps do not go on. A run of n steps loses up to p - 1 gradients of a level without it.

    Returns:
        (params, state) after it; both as they are where nothing waits.

    Raises:
        ValueError: parameters or a state of another number of levels.
    """
    _check_levels(config, params)
    _check_state(config, state)
    step = state.conductor.tokens
    levels, states = list(params.levels), list(state.levels)
    for i, rule in enumerate(config.levels):
        if state.buffers[i].count:
            levels[i], states[i] = module_of(rule).update(
                rule, states[i], levels[i], state.buffers[i].total, step
            )
    empty = tuple(buffer.cleared() for buffer in state.buffers)
    return (
        params.replaced(levels=tuple(levels)),
        state.replaced(buffers=empty, levels=tuple(states)),
    )


def _check_levels(config: Config, params: Any) -> None:
    if not isinstance(params, block.Params) or len(params.levels) != len(config.levels):
        found = (
            f"{len(params.levels)} levels"
            if isinstance(params, block.Params)
            else type(params).__name__
        )
        raise ValueError(f"params: {found}, expected those of {len(config.levels)} levels")


def _check_state(config: Config, state: Any) -> None:
    if not isinstance(state, State) or len(state.levels) != len(config.levels):
        found = f"{len(state.levels)} levels" if isinstance(state, State) else type(state).__name__
        raise ValueError(f"state: {found}, expected that of {len(config.levels)} levels")


def _logits(
    config: Config, state: State, logits: Any, gradient: Any, step: int, pulse: Pulse
) -> tuple[Any, tensors.State | None]:
    """The logits after a step, and the state of their optimiser (CMS-18)."""
    if config.logits is None or state.logits is None or not pulse.learns:
        return logits, state.logits
    new, after = module_of(config.logits).update(
        config.logits, state.logits, {"logits": logits}, {"logits": gradient}, step
    )
    return new["logits"], after
