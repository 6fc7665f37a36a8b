"""A neural memory: norms, projections, and gates of tokens and chunks around a deep memory.

    s = norm(x),  r = norm(x),   k, v = heads of W_K s, W_V s,   q = heads of W_Q r
    weight of a token = max_step sigmoid(W s + b),   gates of a chunk = sigmoid(W mean(s) + b)
    y = W_out [sigmoid(W_gate r) read of each head]

Specified in specs/neural_memory.md. Source: titans-pytorch's NeuralMemory.
"""

from __future__ import annotations

import itertools
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
from pydantic import model_validator

from atlas_ref import backend
from atlas_ref.conventions import resolve
from atlas_ref.layers import checks, norm
from atlas_ref.layers.convention import Positive
from atlas_ref.layers.feed_forward import check_norm
from atlas_ref.layers.neural_memory.params import Params, check_params, init_params
from atlas_ref.layers.norm import Config as Norm
from atlas_ref.layers.projection import gates_of_tokens, linear
from atlas_ref.parts import window
from atlas_ref.parts.gates import GateSet
from atlas_ref.parts.memory_functions import MemoryFunction
from atlas_ref.rules import deep_memory, sequence
from atlas_ref.rules.checks import check_count, require_floating
from atlas_ref.rules.sequence import Tokens
from atlas_ref.types import Array, Dims, Frozen, read_only
from tape import ops

__all__ = ["Config", "Params", "State", "apply", "configured", "init", "start"]


class Config(Frozen):
    """Settings of a neural memory (NEURAL-1).

    Attributes:
        rule: the deep memory of each row and head, with d_model and heads; its rate is none, since a
            token's step is its weight, and it waits for whole chunks.
        norm: of the tokens that are written and, with weights of its own, of those that read.
        max_step: the largest weight of a token.
        momentum: whether S is carried on by a gate.
    """

    rule: deep_memory.Config
    norm: Norm
    max_step: Positive = 1.0
    momentum: bool = True

    @model_validator(mode="after")
    def _agree(self) -> Self:
        rule = self.rule
        if rule.d_model is None:
            raise ValueError("rule: d_model is missing, a layer needs it")
        check_norm(self.norm, rule.d_model)
        if rule.convention.rate != "none":
            raise ValueError(
                f"rule: rate {rule.convention.rate}, expected none: a token's step is its weight"
            )
        if learned := window.tensors(rule.window_weights):
            raise ValueError(
                f"rule: window_weights learns {', '.join(learned)}; the layer has none but the "
                "weight of each token"
            )
        if rule.chunk == "call":
            raise ValueError("rule: chunk call; gates are pooled over chunks of one length")
        if rule.unfinished != "wait":
            raise ValueError("rule: unfinished flush; gates are those of whole chunks")
        if rule.momentum_order > 1 and not self.momentum:
            raise ValueError(f"momentum: none, but the rule has {rule.momentum_order} orders of it")
        if rule.heads == 1 and rule.d_out != rule.d_model:
            raise ValueError(
                f"rule: d_out {rule.d_out}, expected d_model {rule.d_model}: nothing projects the "
                "reads of one head"
            )
        return self

    @property
    def d_model(self) -> int:
        return int(self.rule.d_model or 0)

    @property
    def heads(self) -> int:
        return self.rule.heads

    @property
    def chunk(self) -> int:
        """Tokens of a write."""
        return int(self.rule.chunk)

    @property
    def causal(self) -> bool:
        """Whether no token changes a read before it (NEURAL-9)."""
        return self.rule.convention.read != "call_end"


class State(Frozen):
    """All that the next call needs (NEURAL-8).

    Attributes:
        memory: of the rule, leading axes (B, H).
        tokens (B, n, d_model): normed tokens of the unfinished chunk, oldest first.
    """

    memory: deep_memory.State
    tokens: Annotated[Array, Dims("B n d_model")]


def configured(
    d_model: int,
    *,
    heads: int = 1,
    d_head: int | None = None,
    chunk: int = 1,
    refresh: int | None = None,
    depth: int = 2,
    expansion: float = 4.0,
    residual_norm: bool = True,
    momentum: bool = True,
    momentum_order: int = 1,
    max_step: float = 1.0,
    clip: float | None = None,
    newton_schulz: bool = False,
) -> Config:
    """The layer as titans-pytorch has it (NEURAL-10).

    Args:
        d_head: length of keys and values; d_model unless given.
        chunk: tokens of a write.
        refresh: tokens after which gradients are taken at the memory of then, a multiple of chunk;
            None for those at the first memory for ever.
        depth, expansion, residual_norm: of the memory's MLP.
        momentum_order: of S, each further one of which carries the order before it.
        clip: bound of the soft clamp of gradients; None for none.
        newton_schulz: whether matrices of S go through five steps of it.
    """
    d = d_model if d_head is None else d_head
    muon = {"steps": 5, "eps": 1e-7, "guard": "clamp", "transpose": "tall"}
    readings = {
        "gate": "forget",
        "rate": "none",
        "momentum_sign": "minus",
        "gradient_scale": "2/d_out",
        "reference": "call_start" if refresh is None else "chunk_start",
        "newton_schulz": muon if newton_schulz else "none",
    }
    rule = deep_memory.Config(
        d_in=d,
        d_out=d,
        d_model=d_model,
        heads=heads,
        memory=MemoryFunction(
            kind="mlp", depth=depth, expansion=expansion, residual_norm=residual_norm
        ),
        chunk=chunk,
        window=chunk,
        span=refresh,
        fast="all",
        vectors="raw",
        momentum_order=momentum_order,
        clip="none" if clip is None else "soft",
        clip_norm=1.0 if clip is None else clip,
        convention=resolve(readings, rule="deep_memory", level="token"),
    )
    of_tokens = norm.configured("rms", d_model, "machine")
    return Config(rule=rule, norm=of_tokens, max_step=max_step, momentum=momentum)


def init(config: Config, seed: int = 0, *, dtype: Any = np.float64) -> Params:
    """Projections and gates from uniform(-r, r), first memories as their rule draws them
    (NEURAL-11).
    """
    return init_params(config, seed, dtype=dtype)


def start(config: Config, batch: int = 1, *, dtype: Any = np.float64) -> State:
    """The state before the first token: first memories, no token (NEURAL-8)."""
    check_count("batch", batch)
    require_floating(dtype)
    memory = deep_memory.start(config.rule, (batch, config.heads), dtype=dtype)
    return State(memory=memory, tokens=backend.current().zeros((batch, 0, config.d_model), dtype))


def apply(
    config: Config, params: Params, state: State, x: Array, *, reset: Array | None = None
) -> tuple[State, Array]:
    """Write each chunk into the memories and read them (NEURAL-2 to NEURAL-7).

    Args:
        x (B, T, d_model): tokens.
        reset (T,): True where a document starts: memories and chunks then start anew.

    Returns:
        state, y (B, T, d_model).

    Raises:
        ValueError: arguments that contradict the settings.

    Source: titans-pytorch's NeuralMemory; Titans (2501.00663) section 3.
    """
    starts = _check(config, params, state, x, reset)
    s = norm.normed(config.norm, params.store_norm, x)
    r = norm.normed(config.norm, params.retrieve_norm, x)
    waiting = state.tokens
    if config.rule.memory_reset == "batch":
        waiting = waiting[:, :0]
    rows = ops.concatenate([waiting, s], axis=1)
    chunks = _chunks(config.chunk, waiting.shape[1], x.shape[1], starts)
    weight = gates_of_tokens(GateSet(step_size=params.gates.step_size), s, ops.sigmoid)
    tokens = Tokens(
        k=_heads(s, params.W_K),
        v=_heads(s, params.W_V),
        q=_heads(r, params.W_Q),
        window_gate=config.max_step * weight["step_size"],
        reset=starts,
        **_gates_of_chunks(config, params, rows, chunks),
    )
    memory, reads = sequence.run(
        deep_memory.RULE, config.rule, tokens, state.memory, phi=params.memory
    )
    after = State.trusted(memory=memory, tokens=read_only(rows[:, chunks.rest :]))
    return after, _output(params, r, reads)


class _Chunks(NamedTuple):
    """Chunks that end in a call, in rows that begin with the waiting tokens.

    Attributes:
        parts: (first row, number of chunks) of each document that has one.
        of_token (T,): the chunk of each token; the number of all for one whose chunk is unfinished.
        rest: the first row of the last, unfinished chunk.
    """

    parts: list[tuple[int, int]]
    of_token: Any
    rest: int


def _chunks(chunk: int, waiting: int, tokens: int, starts: Any) -> _Chunks:
    """Whole chunks of the documents of a call (NEURAL-5)."""
    begins = [] if starts is None else [waiting + int(t) for t in np.nonzero(starts)[0]]
    bounds = [0, *(row for row in begins if row), waiting + tokens]
    parts, count, rest = [], 0, 0
    of_row = np.full(waiting + tokens, -1)
    for first, last in itertools.pairwise(bounds):
        whole = (last - first) // chunk
        rest = first + whole * chunk
        of_row[first:rest] = count + np.arange(rest - first) // chunk
        count += whole
        if whole:
            parts.append((first, whole))
    of_row[of_row < 0] = count
    return _Chunks(parts, of_row[waiting:], rest)


def _gates_of_chunks(
    config: Config, params: Params, rows: Array, chunks: _Chunks
) -> dict[str, Array]:
    """Retain and momentum gate of each token's chunk, from the mean of its rows (NEURAL-5).

    Those of a token whose chunk is unfinished meet no write.
    """
    maps, C = params.gates.replaced(step_size=None), config.chunk
    if maps.retain is None and maps.momentum is None:
        return {}
    B, _, D = rows.shape
    means = [
        ops.mean(ops.reshape(rows[:, first : first + n * C], (B, n, C, D)), axis=2)
        for first, n in chunks.parts
    ]
    pooled = ops.concatenate([*means, ops.zeros_like(rows, shape=(B, 1, D))], axis=1)
    found = gates_of_tokens(maps, pooled, ops.sigmoid)
    every = slice(None)
    return {name: ops.index(gate, (every, every, chunks.of_token)) for name, gate in found.items()}


def _heads(x: Array, W: Array) -> Array:
    """The rows of each head (B, H, T, d) of W x, with W (H, d, d_model) (NEURAL-3)."""
    H, d, D = W.shape
    y = ops.reshape(linear(x, ops.reshape(W, (H * d, D))), (*x.shape[:2], H, d))
    return ops.swapaxes(y, 1, 2)


def _output(params: Params, r: Array, reads: Array) -> Array:
    """Reads (B, H, T, d_out) of all heads, each behind its gate, as tokens (NEURAL-7)."""
    if params.W_out is None:
        return reads[:, 0]
    B, H, T, d = reads.shape
    gate = ops.sigmoid(linear(r, params.W_gate))  # (B, T, H)
    y = ops.swapaxes(reads, 1, 2) * ops.expand_dims(gate, -1)
    return linear(ops.reshape(y, (B, T, H * d)), ops.reshape(params.W_out, (-1, H * d)))


def _check(config: Config, params: Params, state: State, x: Array, reset: Any) -> Any:
    """Refuse arguments that contradict the settings (NORM-2)."""
    checks.check_call(__name__, config, (Config, Params, State), params, state)
    checks.check_tokens(x, config.d_model)
    check_params(config, params, x)
    waiting = state.memory.position % config.chunk
    expected = (x.shape[0], waiting, config.d_model)
    checks.check_shape("state.tokens", state.tokens, expected, "batch, tokens that wait, d_model")
    checks.check_precision(x, {"state.tokens": state.tokens})
    return checks.check_reset(reset, x.shape[-2])
