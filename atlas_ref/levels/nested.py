"""Nested levels: a memory begins anew from the next slower one whenever that one has written.

    M_l[t] = M_u[t]    at the first token after a write of u, the next slower level of l

Specified in specs/cms.md (CMS-23 to CMS-25).
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple, Self

import numpy as np
from pydantic import model_validator

from atlas_ref.layers import projection
from atlas_ref.levels import block
from atlas_ref.levels.level import Level, of_tokens, run_document
from atlas_ref.levels.pulse import Conductor
from atlas_ref.types import Array, Frozen
from tape import ops


class Config(Frozen):
    """A block whose levels are nested: each begins its contexts from the next slower one (CMS-23).

    Attributes:
        block: at least two levels of unlike periods, whose memories have one shape.
    """

    block: block.Config

    @model_validator(mode="after")
    def _possible(self) -> Self:
        levels, periods = self.block.levels, self.block.periods
        if len(levels) < 2 or len(set(periods)) < len(periods):
            raise ValueError(
                f"block: at least two levels, each of another period, found periods "
                f"{', '.join(map(str, periods))}"
            )
        for i, level in enumerate(levels):
            if not level.rule.in_family:
                raise ValueError(f"block: level {i}: {level.rule.name} has no matrix to hand on")
            if level.config.convention.read == "call_end":
                raise ValueError(f"block: level {i}: read call_end, which contexts would cut")
        columns = [level.rule.d_phi(level.config) for level in levels]
        if len(set(columns)) > 1:
            raise ValueError(
                f"block: memories must have one shape, found d_phi {', '.join(map(str, columns))}"
            )
        return self

    def slower(self) -> list[int | None]:
        """For each level the next slower one, from which it begins; None for the slowest."""
        order = sorted(range(len(self.block.levels)), key=lambda i: self.block.periods[i])
        following = dict(itertools.pairwise(order))
        return [following.get(i) for i in range(len(order))]


class _Outcome(NamedTuple):
    """A level after a call.

    Attributes:
        state: after the last token.
        y: reads (B, H, T, d_out).
        memories: token -> the memory that it begins with, where a write of this level came before.
    """

    state: Any
    y: Array
    memories: dict[int, Array]


def ended(conductor: Conductor, tokens: int) -> Array:
    """Masks (T, k) of the tokens before which a level has written, in the step before (CMS-23).

    With steps per call this is so at the first token of a call, or nowhere in it.
    """
    schedule = conductor.schedule(tokens)
    last = np.zeros((tokens, schedule.shape[1]), bool)
    if conductor.tokens:
        last[0] = conductor.replaced(step=conductor.step - 1).schedule(1)[0]
    if conductor.per == "token":
        last[1:] = schedule[:-1]
    return last


def run(
    config: Config,
    params: block.Params,
    x: Array,
    context: block.Context,
    *,
    reset: Array | None = None,
) -> tuple[block.Context, Array]:
    """A call of nested levels, from the slowest to the fastest (CMS-23 to CMS-25).

    Args:
        x (B, T, d_model): tokens.
        context: from `block.start`, or from an earlier call.
        reset (T,): True where a document starts: each level returns to its own first memory there.

    Returns:
        context after the last token, y (B, H, T, d_out).

    Raises:
        ValueError: parameters, tokens or a context that contradict the configuration.

    Source: Nested Learning, Eq 72, with the memory of the slower level as the minimiser.
    Reduces to: block.run where no slower level has written before a token (CMS-24).
    """
    own = config.block
    block.check_call(own, params, x, context, reset)
    T = x.shape[-2]
    schedule, ends = context.conductor.schedule(T), ended(context.conductor, T)
    starts = np.zeros(T, bool) if reset is None else np.asarray(reset)
    slower, found = config.slower(), dict[int, _Outcome]()
    for i in sorted(range(len(own.levels)), key=lambda i: -own.periods[i]):
        level, u = own.levels[i], slower[i]
        projection.check_params(level.config, params.levels[i], x)
        found[i] = _run_level(
            level,
            params.levels[i],
            x,
            (context.states[i], context.origins[i]),
            schedule[:, i],
            starts,
            begins={} if u is None else found[u].memories,
            ends=ends[:, i],
        )
    parts = [found[i] for i in range(len(own.levels))]
    weights = block.combining(own, params.logits, schedule)
    y = weights[0] * parts[0].y
    for weight, part in zip(weights[1:], parts[1:], strict=True):
        y = y + weight * part.y
    states = tuple(part.state for part in parts)
    return context.replaced(conductor=context.conductor.advanced(T), states=states), y


def step(
    config: Config, params: block.Params, context: block.Context, x: Array
) -> tuple[block.Context, Array]:
    """One token x (B, d_model) of nested levels; y is (B, H, d_out) (CMS-4, CMS-23)."""
    context, y = run(config, params, ops.expand_dims(x, -2), context)
    return context, y[..., 0, :]


def _run_level(
    level: Level,
    params: Any,
    x: Array,
    own: tuple[Any, Any],
    active: Array,
    reset: Array,
    *,
    begins: dict[int, Array],
    ends: Array,
) -> _Outcome:
    """One level over a call, cut where it begins anew and where its memory is handed on (CMS-23).

    Args:
        own: its state before the first token, and the one from which its documents start.
        begins: token -> the memory of the slower level with which a context begins there.
        ends: tokens before which this level has written.
    """
    projected, rule = projection.project(level.config, params, x), level.rule
    state, origin = own
    handed = np.flatnonzero(ends)
    cuts = sorted({0, *np.flatnonzero(reset).tolist(), *begins, *handed.tolist()})
    reads, memories = [], dict[int, Array]()
    for first, last in itertools.pairwise([*cuts, len(active)]):
        if reset[first]:
            state = rule.document(level.config, origin, state)
        elif first in begins:
            state = rule.document(level.config, origin.replaced(M=begins[first]), state)
        if ends[first]:
            memories[first] = state.M
        part = of_tokens(projected, first, last)
        state, y = run_document(level, part, params.phi, state, active[first:last])
        reads.append(y)
    y = reads[0] if len(reads) == 1 else ops.concatenate(reads, axis=-2)
    return _Outcome(state, y, memories)
