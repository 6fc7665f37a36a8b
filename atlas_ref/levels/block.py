"""A block of frequency levels: k memories that write at their own periods, read together.

    y_t = sum_l w_l y_t^l,    w = softmax(logits)

Specified in specs/cms.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from atlas_ref import backend
from atlas_ref.layers import projection
from atlas_ref.levels.level import Level, begins_chunk, run_level
from atlas_ref.levels.pulse import SETTINGS, Conductor, Unit
from atlas_ref.rules.checks import precision
from atlas_ref.types import Array, Count, Dims, Frozen, Pulse, check_kind
from tape import ops, plain

#: Distance of the seeds of two levels, so that no two blocks share a level's parameters.
SEEDS = 2**64


class Config(Frozen):
    """A block of levels (CMS-1).

    Attributes:
        levels: in any order; each has its own rule, feature map, sizes of keys, gate biases and
            form. They agree on d_model, heads and d_out.
        combine: softmax, over all levels; masked, over those that write at the token.
        first_step, per, call_tokens: of the conductor.
    """

    levels: Annotated[tuple[Level, ...], Field(min_length=1)]
    combine: Literal["softmax", "masked"] = "softmax"
    first_step: Annotated[int, Field(ge=0, le=1)] = 0
    per: Unit = "token"
    call_tokens: Count | None = None

    @model_validator(mode="after")
    def _agree(self) -> Self:
        for name in ("d_model", "heads", "d_out"):
            values = [getattr(level.config, name) for level in self.levels]
            if len(set(values)) > 1:
                raise ValueError(
                    f"levels: {name} must be the same in all of them, found "
                    f"{', '.join(map(str, values))}"
                )
        if self.per == "token" and self.call_tokens is not None:
            raise ValueError("call_tokens: belongs to steps per call, but a step is a token here")
        if self.combine == "masked" and not self.conductor().always:
            raise ValueError(
                "combine: masked needs a level that always writes, found periods "
                f"{', '.join(map(str, self.periods))}"
            )
        return self

    @property
    def periods(self) -> tuple[int, ...]:
        return tuple(level.period for level in self.levels)

    @property
    def heads(self) -> int:
        return int(self.levels[0].config.heads)

    def conductor(self) -> Conductor:
        """The conductor of this block, before the first step."""
        return Conductor(
            periods=self.periods,
            first_step=self.first_step,
            per=self.per,
            call_tokens=self.call_tokens,
        )

    def places(self) -> list[int]:
        """For each level the number of faster ones, including those before it of its own period.

        Source: CMS-3.
        """
        order = sorted(range(len(self.levels)), key=lambda i: self.periods[i])
        return [order.index(i) for i in range(len(self.levels))]


class Params(Frozen):
    """Parameters of the outer loop: those of every level, and the logits that combine their reads.

    Source: CMS-6.
    """

    levels: tuple[Any, ...]
    logits: Annotated[Array, Dims("k")]


class Context(Frozen):
    """The state of a block between two calls (CMS-8).

    Attributes:
        conductor: at the step that comes next.
        states: of the levels.
        origins: the states to which the levels return where a document starts.
    """

    conductor: Conductor
    states: tuple[Any, ...]
    origins: tuple[Any, ...]


def init(config: Config, seed: int, *, dtype: Any = np.float64) -> Params:
    """Parameters of every level by its rule's `init`; logits zero, so that all levels weigh 1/k.

    Source: CMS-3, CMS-6.
    """
    places = config.places()
    parameters = [
        level.init(place, seed + SEEDS * place, dtype=dtype)
        for level, place in zip(config.levels, places, strict=True)
    ]
    return Params(
        levels=tuple(parameters), logits=backend.current().zeros((len(config.levels),), dtype)
    )


def start(
    config: Config, batch: int = 1, *, dtype: Any = np.float64, initial: Any = None
) -> Context:
    """The context before the first token: zero memories, empty windows, the first step (CMS-8).

    Args:
        initial: for each level None, or the memories that its documents start from, {"M": M_0} or
            {"M": M_0, "S": S_0}, each with leading axes (B, H).

    Raises:
        ValueError: another number of entries, a memory that the rule does not have, or one of
            another shape.
    """
    memories = [None] * len(config.levels) if initial is None else initial
    if len(memories) != len(config.levels):
        raise ValueError(
            f"initial: {len(memories)} entries, expected one for each of {len(config.levels)} "
            "levels"
        )
    states = tuple(
        _started(level, i, (batch, config.heads), dtype, memories[i])
        for i, level in enumerate(config.levels)
    )
    return Context(conductor=config.conductor(), states=states, origins=states)


def _started(level: Level, number: int, leading: tuple[int, int], dtype: Any, initial: Any) -> Any:
    names = level.rule.memories
    if initial is not None and (
        not isinstance(initial, Mapping) or not initial.keys() <= set(names)
    ):
        content = (
            ", ".join(map(str, initial)) if isinstance(initial, Mapping) else type(initial).__name__
        )
        raise ValueError(
            f"initial: level {number} is a {level.rule.name} and starts from "
            f"{' and '.join(names)}, found {content}"
        )
    return level.rule.start(level.config, leading, dtype=dtype, **(initial or {}))


def run(
    config: Config, params: Params, x: Array, context: Context, *, reset: Array | None = None
) -> tuple[Context, Array]:
    """A call: every level over the tokens, their reads combined (CMS-4 to CMS-10).

    Args:
        x (B, T, d_model): tokens.
        context: from `start`, or from an earlier call, which this one then continues: calls of any
            length together give what one call gives.
        reset (T,): True where a document starts; the memories then start anew, the steps go on.

    Returns:
        context after the last token, y (B, H, T, d_out).

    Raises:
        ValueError: parameters, tokens or a context that contradict the configuration.
    """
    check_call(config, params, x, context, reset)
    T = x.shape[-2]
    schedule = context.conductor.schedule(T)
    starts = np.zeros(T, bool) if reset is None else np.asarray(reset)
    states, reads = [], []
    for i, level in enumerate(config.levels):
        state, y = run_level(
            level,
            params.levels[i],
            x,
            context.states[i],
            context.origins[i],
            schedule[:, i],
            starts,
        )
        states.append(state)
        reads.append(y)
    weights = combining(config, params.logits, schedule)
    y = weights[0] * reads[0]
    for weight, read in zip(weights[1:], reads[1:], strict=True):
        y = y + weight * read
    return context.replaced(conductor=context.conductor.advanced(T), states=tuple(states)), y


def step(config: Config, params: Params, context: Context, x: Array) -> tuple[Context, Array]:
    """One token (CMS-4).

    Args:
        x (B, d_model): tokens.

    Returns:
        context, y (B, H, d_out).
    """
    context, y = run(config, params, ops.expand_dims(x, -2), context)
    return context, y[..., 0, :]


def pulse(config: Config, context: Context) -> Pulse:
    """The pulse of the next step, with the levels whose chunks begin there (PULSE-10)."""
    begin = zip(config.levels, context.states, strict=True)
    return context.conductor.pulse.replaced(
        chunk_boundaries=tuple(begins_chunk(level, state) for level, state in begin)
    )


def combining(config: Config, logits: Array, schedule: Array) -> list[Array]:
    """The weight of each level's read: a number, under combine masked a column (T, 1) (CMS-6,
    CMS-7).

    softmax    w_l = exp(z_l) / sum_m exp(z_m)
    masked     w_l[t] = a_l[t] exp(z_l) / sum_m a_m[t] exp(z_m),    a_l[t] = 1 where level l writes at t, else 0

    Made of tape ops alone, so its pullback and that of the reads follow (CMS-15).
    """
    k = len(config.levels)
    if config.combine == "softmax":
        weights = ops.softmax(logits)
        return [weights[i] for i in range(k)]
    # the largest logit is subtracted, so that exp cannot overflow
    top = np.max(ops.where(schedule, np.real(plain(logits)), -np.inf), axis=-1, keepdims=True)
    shifted = ops.where(schedule, logits - top.astype(np.real(plain(logits)).dtype), 0.0)
    e = ops.where(schedule, ops.exp(shifted), 0.0)  # (T, k)
    weights = e / ops.sum(e, axis=-1, keepdims=True)
    return [weights[:, i : i + 1] for i in range(k)]


def check_call(config: Config, params: Params, x: Array, context: Context, reset: Any) -> None:
    """Refuse parameters, tokens or a context that contradict the configuration (CMS-1).

    Raises:
        ValueError: names what is wrong, what was found and what is needed.
    """
    _check_kinds(params, x, context)
    k = len(config.levels)
    if len(params.levels) != k or params.logits.shape != (k,):
        sizes = f"{len(params.levels)} levels and logits of shape {params.logits.shape}"
        raise ValueError(f"params: {sizes}, expected {k} levels and logits of shape ({k},)")
    for i, level in enumerate(config.levels):
        if not isinstance(params.levels[i], projection.Params):
            raise ValueError(
                f"params: level {i} is a {level.rule.name}, found "
                f"{type(params.levels[i]).__qualname__}"
            )
    conductor = config.conductor()
    if len(context.states) != k or len(context.origins) != k:
        raise ValueError(
            f"context: {len(context.states)} states and {len(context.origins)} origins, "
            f"expected {k} of each"
        )
    for name in SETTINGS:
        value, expected = getattr(context.conductor, name), getattr(conductor, name)
        if value != expected:
            raise ValueError(
                f"context: {name} {value} of its conductor, expected {expected} as in the "
                "configuration"
            )
    dtype = precision(getattr(context.states[0], config.levels[0].rule.like))
    if precision(params.logits) != dtype:
        raise ValueError(
            f"logits: {precision(params.logits)}, but the memory is {dtype}; cast them to one "
            "precision (start and init take dtype)"
        )
    if len(x.shape) != 3 or x.shape[-2] == 0:
        raise ValueError(
            f"x: shape {x.shape}, expected (batch, tokens, d_model) with at least one token"
        )
    mask = None if reset is None else np.asarray(reset)
    if mask is not None and (mask.shape != x.shape[-2:-1] or mask.dtype != np.bool_):
        raise ValueError(
            f"reset: {mask.dtype} of shape {mask.shape}, expected bool of shape {x.shape[-2:-1]}"
        )


def _check_kinds(params: Any, x: Any, context: Any) -> None:
    for name, value, kind in (("params", params, Params), ("context", context, Context)):
        if not isinstance(value, kind):
            raise ValueError(
                f"{name}: the {kind.__name__} of a block is needed, found {type(value).__name__}"
            )
    check_kind("x", x)
