"""What memories that share attention do in a model: their gates, their sizes, what they contribute.

Nothing here changes a result of the model. Specified in specs/atlas_mag.md (MAG-8 to MAG-10).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from atlas_ref import backend
from atlas_ref.blocks import mag, mix, module_of
from atlas_ref.blocks.parts import fed_forward
from atlas_ref.layers import attention, shared_memory
from atlas_ref.models import language_model
from atlas_ref.parts import memory_functions
from atlas_ref.rules import deep_memory
from atlas_ref.types import Array
from tape import ops, plain

#: Ratio of sizes beyond which the public code warns, and below its inverse (MAG-10).
MISMATCH = 2.0


class Statistics(NamedTuple):
    """Of the numbers of a tensor; the deviation is that of all of them (MAG-8)."""

    mean: float
    std: float
    min: float
    max: float


class Layer(NamedTuple):
    """A block with a shared memory, over a call.

    Attributes:
        block: its place.
        gate: of the gates u; None without one (MAG-8).
        mix: of sigmoid(m), by which attention is multiplied; None under another mix (MAG-8).
        attention, memory: root mean squares of a and m (MAG-10).
    """

    block: int
    gate: Statistics | None
    mix: Statistics | None
    attention: float
    memory: float

    @property
    def ratio(self) -> float | None:
        """Size of the memory over that of attention; None where that is 0."""
        return self.memory / self.attention if self.attention else None


class Contribution(NamedTuple):
    """Losses of a model, and of the same parameters without what memories return (MAG-9).

    Attributes:
        loss: of the model.
        disabled: with memories left out, x + a.
        neutral: with memories that return 0, which under attention_times_gate is x + a / 2.
        change: largest difference of a logit of the model and of the neutral one.
    """

    loss: float
    disabled: float
    neutral: float
    change: float


def statistics(x: Array) -> Statistics:
    """Mean, deviation, least and largest of all entries (MAG-8)."""
    own = np.asarray(backend.host(plain(x)), np.float64)
    return Statistics(*(float(each) for each in (own.mean(), own.std(), own.min(), own.max())))


def rms(x: Array) -> float:
    """Root mean square of all entries (MAG-10)."""
    own = np.asarray(backend.host(plain(x)), np.float64)
    return float(np.sqrt(np.mean(own * own)))


def layers(
    config: language_model.Config,
    params: language_model.Params,
    state: language_model.State,
    ids: Array,
    *,
    reset: Array | None = None,
) -> tuple[Layer, ...]:
    """Each block with a shared memory, over a call (MAG-8, MAG-10).

    Args:
        ids (B, T), reset (T,): as for `language_model.apply`.
    """
    return tuple(_layers(config, params, state, ids, reset))


def _layers(config: Any, params: Any, state: Any, ids: Any, reset: Any) -> Iterator[Layer]:
    ids = language_model.check_ids("ids", ids, config.vocabulary)
    x = language_model.embedded(config, params, ids)
    for i, (block, own, before) in enumerate(
        zip(config.blocks, params.blocks, state.blocks, strict=True)
    ):
        if shares(block):
            _, a, m = mag.branches(block, own, before, x, reset=reset)
            n, _ = attention.projected(block.attention, own.attention, x)
            u = shared_memory.gate_of(own.memory, n)
            gated = block.mix.kind == "attention_times_gate"
            yield Layer(
                block=i,
                gate=None if u is None else statistics(u),
                mix=statistics(ops.sigmoid(m)) if gated else None,
                attention=rms(a),
                memory=rms(m),
            )
        _, x = module_of(block).apply(block, own, before, x, reset=reset)


def shares(block: Any) -> bool:
    """Whether a block has a memory that shares attention."""
    return isinstance(block, mag.Config) and isinstance(block.memory, shared_memory.Config)


# -- contribution ----------------------------------------------------------------------------------


def contribution(
    config: language_model.Config,
    params: language_model.Params,
    state: language_model.State,
    ids: Array,
    *,
    reset: Array | None = None,
) -> Contribution:
    """What the shared memories of a model change in its loss and logits (MAG-9).

    Args:
        ids (B, T): of which all but the last of each row run and are followed by their target.

    Raises:
        ValueError: a model without a shared memory.
    """
    if not any(map(shares, config.blocks)):
        raise ValueError("config: no block has a memory that shares attention")
    ids = language_model.check_ids("ids", ids, config.vocabulary)
    starts = None if reset is None else np.asarray(reset)[:-1]
    read, targets = ids[:, :-1], ids[:, 1:]
    _, logits = language_model.apply(config, params, state, read, reset=starts)
    _, off = language_model.apply(*_disabled(config, params, state), read, reset=starts)
    neutral = _neutral(config, params, state, read, starts)
    return Contribution(
        loss=float(language_model.cross_entropy(logits, targets)),
        disabled=float(language_model.cross_entropy(off, targets)),
        neutral=float(language_model.cross_entropy(neutral, targets)),
        change=float(np.max(np.abs(backend.host(plain(logits - neutral))))),
    )


def _disabled(config: Any, params: Any, state: Any) -> tuple[Any, Any, Any]:
    """The model with shared memories left out."""
    blocks, own, states = [], [], []
    for block, each, before in zip(config.blocks, params.blocks, state.blocks, strict=True):
        without = shares(block)
        blocks.append(block.replaced(memory=None) if without else block)
        own.append(each.replaced(memory=None, mix=None) if without else each)
        states.append(before.replaced(memory=None) if without else before)
    return (
        config.replaced(blocks=tuple(blocks)),
        params.replaced(blocks=tuple(own)),
        state.replaced(blocks=tuple(states)),
    )


def _neutral(config: Any, params: Any, state: Any, ids: Any, reset: Any) -> Array:
    """Logits of the model whose shared memories return 0."""
    x = language_model.embedded(config, params, ids)
    for block, own, before in zip(config.blocks, params.blocks, state.blocks, strict=True):
        if shares(block):
            _, a, m = mag.branches(block, own, before, x, reset=reset)
            x = x + mix.mixed(block.mix, own.mix, x, a, ops.zeros_like(m))
            x = x + fed_forward(block.feed_forward, own.feed_forward, x)
        else:
            _, x = module_of(block).apply(block, own, before, x, reset=reset)
    return language_model.headed(config, params, x)


# -- the audit of the public code ------------------------------------------------------------------


def output_scales(config: mag.Config, params: mag.Params, x: Array) -> tuple[float, float]:
    """Sizes of W_out v and of M(n) of a block, as the public code compares them (MAG-10).

    There is no softmax and no projected query in them: values of one's own token, and the memory at
    its start of the normed token.

    Args:
        x (B, T, d_model): rows; the public code draws (1, 32, d_model) from a standard normal.

    Returns:
        root mean squares of both.

    Raises:
        ValueError: a block without a deep memory of one head that shares attention.
    """
    memory = config.memory
    rule = memory.level.config if isinstance(memory, shared_memory.Config) else None
    if not isinstance(rule, deep_memory.Config) or rule.heads != 1:
        raise ValueError("memory: no deep memory of one head that shares attention")
    n, qkv = attention.projected(config.attention, params.attention, x)
    own: Any = params.memory
    tensors = {name: each[0] for name, each in own.phi.items()}
    m = memory_functions.apply(rule.memory, tensors, n)
    return rms(attention.merged(config.attention, params.attention, qkv[:, 2])), rms(m)
