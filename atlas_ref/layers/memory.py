"""A memory layer: norm, convolutions, projections and gates of tokens around rules that learn.

    n = norm(x),    q, k, v = heads of W conv(n),    gates from n,    y = W_out [reads of all heads]

The rules are those of a block of levels, each with its own period, form and convention. Specified
in specs/memory.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from atlas_ref import backend
from atlas_ref.layers import checks, convolution, norm
from atlas_ref.layers.convention import LayerConvention, Positive
from atlas_ref.layers.feed_forward import check_norm
from atlas_ref.layers.memory_params import Branch, Params, check_params, check_state, init_params
from atlas_ref.layers.memory_tokens import projected_tokens
from atlas_ref.layers.norm import Config as Norm
from atlas_ref.layers.projection import linear
from atlas_ref.levels import block
from atlas_ref.levels.level import Level, run_projected
from atlas_ref.rules.checks import check_count, require_floating
from atlas_ref.types import Array, Frozen
from tape import ops, plain

__all__ = [
    "Branch",
    "Config",
    "Params",
    "State",
    "apply",
    "configured",
    "init",
    "levels_of",
    "retrieve",
    "start",
]


class Config(Frozen):
    """Settings of a memory layer (MEMORY-1 to MEMORY-8).

    Attributes:
        levels: the memories, their rules, conventions, forms and periods; one for a plain layer.
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

    levels: block.Config
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
    scan_chunk: Annotated[int, Field(ge=1)] | None = None
    output_norm: Norm
    output_gate: Literal["none", "sigmoid", "silu"] = "none"

    @model_validator(mode="after")
    def _agree(self) -> Self:
        check_norm(self.norm, self.d_model)
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
    def causal(self) -> bool:
        """Whether no token changes a read before it (MEMORY-10)."""
        return (self.conv is None or self.conv.look_ahead == 0) and all(
            level.config.convention.read != "call_end" for level in self.levels.levels
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
        levels: the memories and the step that comes next.
        tails: for each level the tails of the convolutions of q, k, v; empty without convolutions.
    """

    levels: block.Context
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
    """The layer of a convention around levels, or around one rule that always writes (MEMORY-1).

    Args:
        levels: a block's settings, or those of a rule with d_model, heads, d_in, d_out.
        kernel: taps of the convolutions; None or 1 for none.

    Raises:
        ValueError: a kernel that is no number of taps; sizes that do not agree.
    """
    if kernel is not None:
        check_count("kernel", kernel)
        if kernel == 0:
            raise ValueError("kernel: 0, expected at least one tap, or None for no convolution")
    if not isinstance(levels, block.Config):
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
    """
    check_count("batch", batch)
    require_floating(dtype)
    context = block.start(config.levels, batch, dtype=dtype, initial=initial)
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
    schedule = state.levels.conductor.schedule(x.shape[-2])
    idle = np.zeros_like(schedule)
    _, tails, reads = _levels(config, params, state, x, idle, schedule, starts)
    return state.replaced(tails=tails), reads


def restarted(config: Config, state: State) -> State:
    """The state where a document starts: memories at their origins, tails of zeros (MEMORY-9)."""
    levels, context = config.levels.levels, state.levels
    states = tuple(
        level.rule.document(level.config, origin, before)
        for level, origin, before in zip(levels, context.origins, context.states, strict=True)
    )
    tails = tuple(
        tuple(tail.replaced(tail=ops.zeros_like(tail.tail)) for tail in of) for of in state.tails
    )
    return State.trusted(levels=context.replaced(states=states), tails=tails)


def _levels(
    config: Config, params: Params, state: State, x: Array, active: Any, schedule: Any, starts: Any
) -> tuple[tuple[Any, ...], Any, Array]:
    """Every level over the normed tokens, and what their reads make (MEMORY-8).

    Returns:
        states, tails, y (B, T, d_model).
    """
    n = norm.normed(config.norm, params.norm, x)
    mask = np.zeros(x.shape[-2], bool) if starts is None else starts
    states, tails, reads = [], [], []
    for i, (level, branch) in enumerate(zip(config.levels.levels, params.levels, strict=True)):
        before = state.tails[i] if state.tails else ()
        projected, tail = projected_tokens(config, level, branch, before, n, starts)
        memory, origin = _renewed(config, level, state.levels.states[i]), state.levels.origins[i]
        memory, y = _run(config, level, branch, projected, memory, origin, active[:, i], mask)
        states.append(memory)
        tails.append(tail)
        reads.append(y)
    y = reads[0]
    if len(reads) > 1:
        weights = block.combining(config.levels, params.logits, schedule)
        y = sum((w * read for w, read in zip(weights[1:], reads[1:], strict=True)), weights[0] * y)
    return tuple(states), tuple(tails) if state.tails else (), _output(config, params, n, y)


def _renewed(config: Config, level: Level, state: Any) -> Any:
    """The state of a memory at the start of a call (MEMORY-7)."""
    convention = level.config.convention
    if config.reference_at_call == "carried" or convention.reference != "call_start":
        return state
    return level.rule.renewed(level.config, state)


def _run(
    config: Config,
    level: Level,
    branch: Branch,
    projected: dict[str, Any],
    state: Any,
    origin: Any,
    active: Any,
    starts: Any,
) -> tuple[Any, Array]:
    """One level over a call, clamped where the convention says so (MEMORY-7)."""
    phi, bound, T = branch.projection.phi, config.state_clamp, len(active)
    if bound is None:
        return run_projected(level, projected, phi, state, origin, active, starts)
    reads = []
    step = T if config.scan_chunk is None else config.scan_chunk
    for first, last in itertools.pairwise([*range(0, T, step), T]):
        part = {
            name: None if value is None else value[:, :, first:last]
            for name, value in projected.items()
        }
        of = slice(first, last)
        state, y = run_projected(level, part, phi, state, origin, active[of], starts[of])
        state = state.replaced(M=clamped(state.M, bound))
        reads.append(y)
    return state, reads[0] if len(reads) == 1 else ops.concatenate(reads, axis=-2)


def clamped(M: Array, bound: float) -> Array:
    """Each entry of M within [-bound, bound], without a gradient where it is not (MEMORY-7)."""
    at = np.real(plain(M))
    if not backend.truth((np.abs(at) > bound).any()):
        return M
    return ops.where(at > bound, bound, ops.where(at < -bound, -bound, M))


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
