"""A schedule that is learnt: gates of the tokens decide which levels write.

    g_l[t] = sigmoid(W_l x_t + b_l),    a_l[t] = 1 where g_l[t] > threshold, else 0,    d a_l[t] = d g_l[t]

Specified in specs/cms.md (CMS-20 to CMS-22).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from atlas_ref import backend
from atlas_ref.layers import projection
from atlas_ref.levels import block
from atlas_ref.levels.level import Level, by_documents, memory_alone
from atlas_ref.rules import sequence
from atlas_ref.rules.checks import check_call, generator, precision
from atlas_ref.rules.sequence import Tokens
from atlas_ref.types import Array, Dims, Frozen, check_array
from tape import ops, plain


class Config(Frozen):
    """A block whose levels write where their gates say so (CMS-20).

    Attributes:
        block: the levels; of their periods the order alone counts, and the schedule before `until`.
        threshold: a level writes where its gate is above it.
        until: number of the first step whose schedule is that of the gates.
    """

    block: block.Config
    threshold: Annotated[float, Field(gt=0, lt=1)] = 0.5
    until: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.block.combine != "softmax":
            raise ValueError("block: combine: masked, a learned schedule combines all by softmax")
        for i, level in enumerate(self.block.levels):
            if not level.rule.in_family or not memory_alone(level):
                raise ValueError(
                    f"block: level {i}: a write must change memories alone: a rule of the family, "
                    "a running reference and read after or before are needed"
                )
        return self


class Params(Frozen):
    """Parameters of the outer loop: those of the block, and of the gates (CMS-20).

    Attributes:
        block: of the levels, and the logits.
        W (k, d_model), b (k,): of the gates.
    """

    block: block.Params
    W: Annotated[Array, Dims("k d_model")]
    b: Annotated[Array, Dims("k")]


class Decided(NamedTuple):
    """The schedule of a call (CMS-20).

    Attributes:
        gates (B, T, k): in (0, 1), also where the periods decide.
        active (B, T, k): 1 where a level writes, else 0; its derivative is that of the gates.
    """

    gates: Array
    active: Array


def init(config: Config, seed: int, *, dtype: Any = np.float64) -> Params:
    """Parameters of the block; gates drawn, their biases 0, -1, -2, ... from the fastest (CMS-20)."""
    k, d = len(config.block.levels), config.block.levels[0].config.d_model
    places = np.array(config.block.places())
    W = generator(seed + block.SEEDS * k).standard_normal((k, d)) / np.sqrt(d)
    place = backend.current().from_host
    return Params(
        block=block.init(config.block, seed, dtype=dtype),
        W=place(W.astype(dtype)),
        b=place(-places.astype(dtype)),
    )


def start(config: Config, batch: int = 1, **settings: Any) -> block.Context:
    """The context before the first token, as that of the block (CMS-8)."""
    return block.start(config.block, batch, **settings)


def decided(config: Config, params: Params, x: Array, context: block.Context) -> Decided:
    """Which levels write at each token, by gates of the tokens (CMS-20, CMS-21).

        g_l[t] = sigmoid(W_l x_t + b_l),    a_l[t] = 1 where g_l[t] > threshold

    With steps per call one gate decides for all tokens, from their mean. The fastest level always
    writes, and before step `until` the periods decide; neither has a derivative.

    Args:
        x (B, T, d_model): tokens.
    """
    own, T = config.block, x.shape[-2]
    seen = ops.mean(x, axis=-2, keepdims=True) if own.per == "call" else x
    gates = ops.sigmoid(seen @ ops.transpose(params.W) + params.b)
    if own.per == "call":
        gates = gates + ops.zeros_like(gates, shape=(x.shape[0], T, params.b.shape[0]))
    # the difference is 0 to the bit, and has the derivative of the gate
    bare = np.real(plain(gates))
    hard = (bare > config.threshold).astype(bare.dtype)
    active = hard + (gates - bare)
    steps = context.conductor.step + (np.arange(T) if own.per == "token" else np.zeros(T, int))
    by_period = (steps < config.until)[:, None]
    fastest = np.array(own.places()) == 0
    schedule = np.where(by_period, context.conductor.schedule(T), fastest)
    # a mask may lie on the host, an array beside others may not
    by_mask = ops.where(schedule, 1.0, ops.zeros_like(bare))
    return Decided(gates, ops.where(by_period | fastest, by_mask, active))


def run(
    config: Config, params: Params, x: Array, context: block.Context, *, reset: Array | None = None
) -> tuple[block.Context, Array]:
    """A call of a block whose schedule is learnt (CMS-20, CMS-21).

        M_t = (1 - a_t) M_{t-1} + a_t M'_t,    S_t likewise,    with M'_t the memory that a write makes

    A token enters the window whether it is written or not.

    Args:
        x (B, T, d_model): tokens.
        context: from `start`, or from an earlier call.
        reset (T,): True where a document starts.

    Returns:
        context after the last token, y (B, H, T, d_out).

    Raises:
        ValueError: parameters, tokens or a context that contradict the configuration.

    Source: NL_Hecate, core/src/dynamic_freq.rs, with the derivative of CMS-21 in place of its own.
    Reduces to: block.run where gates agree with the periods (CMS-22).
    """
    own = config.block
    _check_kind(params)
    block.check_call(own, params.block, x, context, reset)
    _check_gates(params, x)
    T = x.shape[-2]
    active = decided(config, params, x, context).active
    starts = np.zeros(T, bool) if reset is None else np.asarray(reset)
    states, reads = [], []
    for i, level in enumerate(own.levels):
        projection.check_params(level.config, params.block.levels[i], x)
        state, y = _run_level(
            level, params.block.levels[i], x, context, active[..., i], starts, number=i
        )
        states.append(state)
        reads.append(y)
    weights = block.combining(own, params.block.logits, np.ones((T, len(states)), bool))
    y = weights[0] * reads[0]
    for weight, read in zip(weights[1:], reads[1:], strict=True):
        y = y + weight * read
    return context.replaced(conductor=context.conductor.advanced(T), states=tuple(states)), y


def _check_kind(params: Any) -> None:
    if not isinstance(params, Params):
        found = type(params).__qualname__
        raise ValueError(f"params: those of a learned schedule are needed, found {found}")


def _check_gates(params: Params, x: Array) -> None:
    k, d = len(params.block.levels), x.shape[-1]
    if params.W.shape != (k, d) or params.b.shape != (k,):
        raise ValueError(
            f"params: W of shape {params.W.shape} and b of shape {params.b.shape}, expected "
            f"({k}, {d}) and ({k},)"
        )
    if precision(params.W) != precision(x):
        raise ValueError(f"params: W is {precision(params.W)}, but x is {precision(x)}")
    for name in ("W", "b"):
        check_array(f"params: {name}", getattr(params, name), Dims(""))


def _run_level(
    level: Level,
    params: Any,
    x: Array,
    context: block.Context,
    active: Array,
    reset: Array,
    *,
    number: int,
) -> tuple[Any, Array]:
    """One level over its documents; `active` (B, T) is 1, 0, and has a derivative."""
    projected = projection.project(level.config, params, x)
    origin, state = context.origins[number], context.states[number]

    def document(part: Mapping[str, Array | None], state: Any, tokens: slice) -> tuple[Any, Array]:
        return _document(level, part, params.phi, state, active[:, tokens])

    return by_documents(level, projected, state, origin, reset, document)


def _document(
    level: Level,
    projected: Mapping[str, Array | None],
    phi: Mapping[str, Array],
    state: Any,
    active: Array,
) -> tuple[Any, Array]:
    """Tokens without a boundary, one by one, each written by the share that `active` says (CMS-20)."""
    rule, config = level.rule, projection.of_computed(level.config)
    tokens = Tokens(**projected)
    check_call(rule, config, tokens, state)
    keys, queries = sequence.features(config, tokens, phi)
    per_token = sequence.gates_by_token(config, tokens, state)
    entering = rule.enter(config, state, keys, sequence.targets(rule, config, tokens))
    reads = []
    for t, ((k, v), gate) in enumerate(zip(entering, per_token, strict=True)):
        a = ops.reshape(active[:, t], (-1, 1, 1, 1))
        before, wrote = state, rule.write(config, state, k, v, gate)
        rested = rule.rest(config, state, k, v)
        state = rested.replaced(
            **{
                name: (1.0 - a) * getattr(before, name) + a * getattr(wrote, name)
                for name in rule.memories
            }
        )
        at = before if config.convention.read == "before" else state
        reads.append(rule.read(config, at, queries[..., t, :]))
    return sequence.with_token_gates(config, tokens, state), ops.stack(reads, axis=-2)
