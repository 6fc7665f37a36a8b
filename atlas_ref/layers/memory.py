"""A memory layer: norm, convolutions, projections and gates of tokens around rules that learn.

    n = norm(x),    q, k, v = heads of W conv(n),    gates from n,    y = W_out [reads of all heads]

The rules are those of a block of levels, each with its own period, form and convention, or those of
the memories of a TNT. Specified in specs/memory.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
from pydantic import model_validator

from atlas_ref.forms import tnt
from atlas_ref.layers import checks, convolution, memory_levels, memory_tnt, norm
from atlas_ref.layers.convention import LayerConvention, Positive
from atlas_ref.layers.feed_forward import check_norm
from atlas_ref.layers.memory_levels import clamped
from atlas_ref.layers.memory_params import Branch, Params, check_params, check_state, init_params
from atlas_ref.layers.memory_tokens import projected_tokens
from atlas_ref.layers.norm import Config as Norm
from atlas_ref.layers.projection import linear
from atlas_ref.levels import block
from atlas_ref.levels.level import Level
from atlas_ref.rules.checks import check_count, require_floating
from atlas_ref.types import Array, Count, Frozen
from tape import ops

__all__ = [
    "Branch",
    "Config",
    "Params",
    "State",
    "apply",
    "clamped",
    "configured",
    "init",
    "levels_of",
    "retrieve",
    "start",
]


class Config(Frozen):
    """Settings of a memory layer (MEMORY-1 to MEMORY-8, MEMORY-13).

    Attributes:
        levels: the memories, their rules, conventions, forms and periods, one for a plain layer; or
            those of a TNT.
        norm: of the tokens.
        conv: convolution of queries, keys and values, its d_model that of the tokens; None for
            none.
        conv_place: before_projection, of the normed tokens; after_projection, of each projection.
        head_norm: of queries and keys of each head; kind none for none.
        gate_input: normed, the normed tokens; key_value, [k; v] of each head.
        step_size: function of the rate.
        momentum: whether rules that can have a momentum gate have one.
        window_gate: whether each token brings a weight sigmoid(W n + b) into the window.
        reference_at_call: of reference call_start: carried, that of the first call; renewed, the
            memory at the start of each call.
        state_clamp: bound of each entry of M at the end of a call; None for none.
        scan_chunk: tokens after which M is clamped within a call; None for its end alone.
        output_norm: of the reads of each head; kind none for none.
        output_gate: none, or the function of a gate of the reads from n.
    """

    levels: block.Config | memory_tnt.Config
    norm: Norm
    conv: convolution.Config | None = None
    conv_place: Literal["before_projection", "after_projection"] = "before_projection"
    head_norm: Norm
    gate_input: Literal["normed", "key_value"] = "normed"
    step_size: Literal["sigmoid", "softplus"] = "sigmoid"
    momentum: bool = True
    window_gate: bool = False
    reference_at_call: Literal["carried", "renewed"] = "carried"
    state_clamp: Positive | None = None
    scan_chunk: Count | None = None
    output_norm: Norm
    output_gate: Literal["none", "sigmoid", "silu"] = "none"

    @model_validator(mode="after")
    def _agree(self) -> Self:
        check_norm(self.norm, self.d_model)
        if isinstance(self.levels, memory_tnt.Config):
            memory_tnt.check_layer(self)
        first = self.levels.levels[0].config
        for name, settings, d in (
            ("head_norm", self.head_norm, first.d_in),
            ("output_norm", self.output_norm, first.d_out),
        ):
            if settings.d != d or settings.heads not in (None, self.heads):
                raise ValueError(
                    f"{name}: d {settings.d}, heads {settings.heads}, expected d {d} and heads "
                    f"{self.heads} or none"
                )
        sizes = {level.config.d_in for level in self.levels.levels}
        if len(sizes) > 1 and self.head_norm.kind != "none":
            raise ValueError(f"levels: d_in must be the same for a head_norm, found {sizes}")
        if self.conv is not None and self.conv.d_model != self.d_model:
            raise ValueError(f"conv: d_model {self.conv.d_model}, expected {self.d_model}")
        if self.window_gate and not all(level.rule.has_window for level in self.levels.levels):
            raise ValueError("window_gate: a rule without a window has no weights")
        for level in self.levels.levels:
            checks.check_residual(level)
            if self.state_clamp is not None and "M" not in level.rule.memories:
                raise ValueError(f"state_clamp: {level.rule.name} has no matrix M to bound")
        if self.scan_chunk is not None and self.state_clamp is None:
            raise ValueError("scan_chunk: needs state_clamp, nothing else happens at its end")
        return self

    @property
    def d_model(self) -> int:
        return int(self.levels.levels[0].config.d_model)

    @property
    def heads(self) -> int:
        return self.levels.heads

    @property
    def combined(self) -> bool:
        """Whether reads of several levels are weighed (MEMORY-8)."""
        return isinstance(self.levels, block.Config) and len(self.levels.levels) > 1

    @property
    def steps_of_calls(self) -> bool:
        """Whether a call is one step of the levels, however many tokens it has."""
        return isinstance(self.levels, block.Config) and self.levels.per == "call"

    @property
    def causal(self) -> bool:
        """Whether no token changes a read before it (MEMORY-10)."""
        return (self.conv is None or self.conv.look_ahead == 0) and (
            self.levels.tnt.is_causal
            if isinstance(self.levels, memory_tnt.Config)
            else all(each.config.convention.read != "call_end" for each in self.levels.levels)
        )

    def conv_of(self, level: Level, name: str) -> convolution.Config | None:
        """The convolution of q, k or v of a level: of the channels of its place (MEMORY-3)."""
        if self.conv is None or self.conv_place == "before_projection":
            return self.conv
        each = level.config.d_out if name == "v" else level.config.d_in
        return self.conv.replaced(d_model=self.heads * each)


class State(Frozen):
    """All that the next call needs (MEMORY-9).

    Attributes:
        levels: the memories and the step that comes next; of a TNT its state.
        tails: for each level the tails of the convolutions of q, k, v; empty without convolutions.
    """

    levels: block.Context | tnt.State
    tails: tuple[tuple[convolution.State, ...], ...]


def configured(
    convention: LayerConvention,
    levels: block.Config | Any,
    *,
    kernel: int | None = 4,
    momentum: bool = True,
    window_gate: bool = False,
    scan_chunk: int | None = None,
) -> Config:
    """The layer of a convention around levels, a TNT, or one rule that always writes (MEMORY-1).

    Args:
        levels: a block's settings, or those of a rule with d_model, heads, d_in, d_out; those of a
            TNT, whose memories then share projections, or of `memory_tnt`.
        kernel: taps of the convolutions; None or 1 for none.

    Raises:
        ValueError: a kernel that is no number of taps; sizes that do not agree.
    """
    if kernel is not None:
        check_count("kernel", kernel)
        if kernel == 0:
            raise ValueError("kernel: 0, expected at least one tap, or None for no convolution")
    if isinstance(levels, tnt.Config):
        levels = memory_tnt.Config(tnt=levels)
    if not isinstance(levels, block.Config | memory_tnt.Config):
        levels = block.Config(levels=(Level(config=levels),))
    c, rule = convention, levels.levels[0].config
    conv = None
    if kernel is not None and kernel > 1:
        conv = convolution.Config(
            d_model=rule.d_model,
            kernel=kernel,
            padding=c.conv_padding,
            activation=c.conv_activation,
            state=c.conv_state,
        )
    of_heads: dict[str, Any] = {"d": rule.d_in, "heads": levels.heads, "kind": c.head_norm}
    if c.head_norm != "none":
        of_heads |= {"eps": c.head_norm_eps, "guard": c.head_norm_guard}
    of_tokens = "rms" if c.memory_input == "normed" else "none"
    return Config(
        levels=levels,
        norm=norm.configured(of_tokens, rule.d_model, c.norm_eps),
        conv=conv,
        conv_place=c.conv_place,
        head_norm=norm.Config(**of_heads),
        gate_input=c.gate_input,
        step_size=c.step_size,
        momentum=momentum,
        window_gate=window_gate,
        reference_at_call=c.reference_at_call,
        state_clamp=None if c.state_clamp == "none" else c.state_clamp,
        scan_chunk=scan_chunk,
        output_norm=norm.configured(c.output_norm, rule.d_out, c.norm_eps, heads=levels.heads),
        output_gate=c.output_gate,
    )


def levels_of(
    rules: Sequence[Any],
    periods: Sequence[int],
    *,
    combine: Literal["softmax", "masked"] = "softmax",
    first_step: int = 0,
) -> block.Config:
    """The levels of a layer from the settings of their rules, each with its period (CMS-1)."""
    levels = [Level(config=rule, period=n) for rule, n in zip(rules, periods, strict=True)]
    return block.Config(levels=tuple(levels), combine=combine, first_step=first_step)


def init(config: Config, seed: int = 0, *, dtype: Any = np.float64) -> Params:
    """Projections and filters from uniform(-r, r), gates at their biases for every token
    (MEMORY-11).
    """
    return init_params(config, seed, dtype=dtype)


def start(config: Config, batch: int = 1, *, dtype: Any = np.float64, initial: Any = None) -> State:
    """The state before the first token: zero memories, tails of zeros (MEMORY-9).

    Args:
        initial: for each level None or its memories, as `levels.block.start` takes them.

    Raises:
        ValueError: no number of sequences or no floating dtype; `initial` for a TNT, whose starts
            are parameters.
    """
    check_count("batch", batch)
    require_floating(dtype)
    context: block.Context | tnt.State
    if isinstance(config.levels, block.Config):
        context = block.start(config.levels, batch, dtype=dtype, initial=initial)
    elif initial is not None:
        raise ValueError("initial: given, but a TNT starts from its parameters")
    else:
        context = memory_tnt.start(config.levels, batch, dtype=dtype)
    if config.conv is None:
        return State(levels=context, tails=())
    tails = []
    for level in config.levels.levels:
        convs = [config.conv_of(level, name) for name in "qkv"]
        tails.append(tuple(convolution.start(c, batch, dtype=dtype) for c in convs if c))
    return State(levels=context, tails=tuple(tails))


def apply(
    config: Config, params: Params, state: State, x: Array, *, reset: Array | None = None
) -> tuple[State, Array]:
    """Write each token into the memories and read them (MEMORY-2 to MEMORY-8).

    Args:
        x (B, T, d_model): tokens.
        reset (T,): True where a document starts: memories and tails then start anew, steps of
            levels go on.

    Returns:
        state, y (B, T, d_model).

    Raises:
        ValueError: arguments that contradict the settings.
    """
    starts = _check(config, params, state, x, reset)
    if isinstance(state.levels, tnt.State):
        return _tnt(config, params, state, x, starts)
    T = x.shape[-2]
    schedule = state.levels.conductor.schedule(T)
    states, tails, reads = _levels(config, params, state, x, schedule, schedule, starts)
    conductor = state.levels.conductor.advanced(T)
    after = state.levels.replaced(conductor=conductor, states=states)
    return State.trusted(levels=after, tails=tails), reads


def retrieve(
    config: Config, params: Params, state: State, x: Array, *, reset: Array | None = None
) -> tuple[State, Array]:
    """Read the memories of `state` with each token's query and write nothing (MEMORY-12).

    Returns:
        state with the tails after x and the same memories, y (B, T, d_model).
    """
    starts = _check(config, params, state, x, reset)
    if isinstance(state.levels, tnt.State):
        return _tnt(config, params, state, x, starts, writes=False)
    schedule = state.levels.conductor.schedule(x.shape[-2])
    idle = np.zeros_like(schedule)
    _, tails, reads = _levels(config, params, state, x, idle, schedule, starts)
    return state.replaced(tails=tails), reads


def restarted(config: Config, state: State) -> State:
    """The state where a document starts: memories at their origins, tails of zeros (MEMORY-9)."""
    own: Any = config.levels
    tails = tuple(
        tuple(tail.replaced(tail=ops.zeros_like(tail.tail)) for tail in of) for of in state.tails
    )
    module = memory_tnt if isinstance(own, memory_tnt.Config) else memory_levels
    return State.trusted(levels=module.restarted(own, state.levels), tails=tails)


def at_step(recalled: State, written: State) -> State:
    """A state at the step of another one's next token, by which reads are combined (MEMORY-12)."""
    if isinstance(recalled.levels, tnt.State):
        return recalled
    of: Any = written.levels
    return recalled.replaced(levels=recalled.levels.replaced(conductor=of.conductor))


def _levels(
    config: Config, params: Params, state: State, x: Array, active: Any, schedule: Any, starts: Any
) -> tuple[tuple[Any, ...], Any, Array]:
    """Every level over the normed tokens, and what their reads make (MEMORY-8).

    Returns:
        states, tails, y (B, T, d_model).
    """
    n = norm.normed(config.norm, params.norm, x)
    projected, tails = _projected(config, params, state, n, starts)
    states, y = memory_levels.run(config, params, projected, state.levels, active, schedule, starts)
    return states, tails, _output(config, params, n, y)


def _projected(
    config: Config, params: Params, state: State, n: Array, starts: Any
) -> tuple[list[dict[str, Any]], tuple[Any, ...]]:
    """Fields of tokens for each level, and tails of the convolutions (MEMORY-3 to MEMORY-6)."""
    before = state.tails or ((),) * len(params.levels)
    found = [
        projected_tokens(config, level, branch, tails, n, starts)
        for level, branch, tails in zip(config.levels.levels, params.levels, before, strict=True)
    ]
    tails = tuple(tail for _, tail in found) if state.tails else ()
    return [each for each, _ in found], tails


def _tnt(
    config: Config, params: Params, state: State, x: Array, starts: Any, *, writes: bool = True
) -> tuple[State, Array]:
    """A TNT over the normed tokens, which it writes and reads or reads alone (MEMORY-13).

    Returns:
        state, y (B, T, d_model).
    """
    own: Any = config.levels
    memories: Any = state.levels
    n = norm.normed(config.norm, params.norm, x)
    projected, tails = _projected(config, params, state, n, starts)
    if writes:
        memories, reads = memory_tnt.run(own, params, projected, memories, starts)
    else:
        reads = memory_tnt.retrieve(own, params, projected, memories, starts)
    return State.trusted(levels=memories, tails=tails), _output(config, params, n, reads)


def _output(config: Config, params: Params, n: Array, reads: Array) -> Array:
    """Norm, gate and project the reads (B, H, T, d_out) of all heads (MEMORY-8)."""
    B, H, T, d = reads.shape
    y = norm.normed(config.output_norm, params.output_norm, reads)
    y = ops.reshape(ops.swapaxes(y, 1, 2), (B, T, H * d))
    if params.W_gate is not None:
        z = linear(n, params.W_gate, params.b_gate)
        y = y * (ops.silu(z) if config.output_gate == "silu" else ops.sigmoid(z))
    return linear(y, ops.reshape(params.W_out, (params.W_out.shape[0], H * d)))


def _check(config: Config, params: Params, state: State, x: Array, reset: Any) -> Any:
    """Refuse arguments that contradict the settings (NORM-2)."""
    checks.check_call(__name__, config, (Config, Params, State), params, state)
    checks.check_tokens(x, config.d_model)
    check_params(config, params, x)
    check_state(config, state, x)
    return checks.check_reset(reset, x.shape[-2])
