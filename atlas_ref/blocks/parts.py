"""Parts of every block: memory, feed-forward, and their checks.

Specified in specs/blocks.md (BLOCKS-1, BLOCKS-2).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from atlas_ref.layers import attention, checks, feed_forward, memory, shared_memory
from atlas_ref.layers.attention import prefix
from atlas_ref.layers.attention.prefix import Piece
from atlas_ref.rules.checks import check_count, require_floating
from atlas_ref.types import Array
from tape import ops


def require_same_tokens(d_model: int, **parts: Any) -> None:
    """Refuse parts of another width (BLOCKS-1).

    Raises:
        ValueError: names the part and both widths.
    """
    for name, part in parts.items():
        if part is not None and part.d_model != d_model:
            raise ValueError(f"{name}: d_model {part.d_model}, expected {d_model}")


def check_memory(config: Any, **values: Any) -> None:
    """Refuse a memory where the settings have none, and its absence where they have one.

    Args:
        values: parameters and states of the memory and of its mix, by name with _ for a dot.

    Raises:
        ValueError: names which of them.
    """
    needed = config.memory is not None
    but = f"the block has {'one' if needed else 'none'}"
    for name, value in values.items():
        checks.check_presence(name.replace("_", "."), value, needed, but)


def fed_forward(
    config: feed_forward.Config,
    params: feed_forward.Params,
    x: Array,
    part: str = "feed_forward",
) -> Array:
    """The feed-forward of tokens; it has no state (FEED-4).

    Args:
        part: its name in the block.
    """
    with checks.within(part):
        return feed_forward.apply(config, params, feed_forward.State(), x)[1]


def attended(
    config: Any, params: Any, state: Any, x: Array, **given: Any
) -> tuple[attention.State, Array]:
    """The attention of the block, and what it returns.

    Args:
        config, params, state: of the attention. given: reset or context.
    """
    with checks.within("attention"):
        return attention.apply(config, params, state, x, **given)


def started(config: Any, batch: int, dtype: Any, initial: Any = None) -> dict[str, Any]:
    """States of attention and of the memory, None without one, before the first token (BLOCKS-2).

    Args:
        initial: memories of a shared memory, as its `start` takes them.

    Raises:
        ValueError: no number of sequences, or no floating dtype; memories of another layer.
    """
    check_count("batch", batch)
    require_floating(dtype)
    own = config.memory
    if initial is not None and not isinstance(own, shared_memory.Config):
        raise ValueError("initial: the block has no memory that shares attention")
    given = {} if initial is None else {"initial": initial}
    return {
        "attention": attention.start(config.attention, batch, dtype=dtype),
        "memory": None
        if own is None
        else memory_layer(own).start(own, batch, dtype=dtype, **given),
    }


def memory_layer(config: Any) -> Any:
    """The layer whose settings these are: a memory of its own projections, or one that shares."""
    return shared_memory if isinstance(config, shared_memory.Config) else memory


def remembered(config: Any, params: Any, state: Any, x: Array, reset: Any) -> tuple[Any, Array]:
    """The block's state after its memory has seen the tokens, and what the memory returns."""
    with checks.within("memory"):
        after, m = memory.apply(config.memory, params.memory, state.memory, x, reset=reset)
    return state.replaced(memory=after), m


class Extended(NamedTuple):
    """Tokens of a call with the persistent ones before each document that begins (BLOCKS-9).

    Attributes:
        x (B, T + P documents, d_model): all of them.
        reset (T + P documents,): True where `reset` of the call says that a document starts; None
            for nowhere.
        pieces: the call's documents.
        bounds: first and last, excluded, of the tokens of each among x; the P tokens before one
            that begins end at its first.
    """

    x: Array
    reset: Any
    pieces: tuple[Piece, ...]
    bounds: tuple[tuple[int, int], ...]

    def own(self, y: Array) -> Array:
        """Results (B, T, d_model) of the call's tokens alone, among those of all."""
        return joined([y[:, first:last] for first, last in self.bounds])


def joined(parts: list[Array]) -> Array:
    """Tokens of consecutive pieces (B, T, d_model) as those of one."""
    return parts[0] if len(parts) == 1 else ops.concatenate(parts, axis=-2)


def extended(config: attention.Config, rows: Array, x: Array, starts: Any, begun: bool) -> Extended:
    """A call with the persistent tokens where they belong (BLOCKS-9).

    Args:
        rows (P, d_model): the persistent tokens.
        starts (T,): True where a document starts; None for nowhere.
        begun: whether the document before the call has begun.
    """
    parts: list[Array] = []
    reset: list[bool] = []
    bounds: list[tuple[int, int]] = []
    before = prefix.tokens(rows, x)
    pieces = tuple(prefix.pieces(starts, x.shape[-2], begun=begun))
    for piece in pieces:
        first = len(reset) + config.persistent * piece.begins
        bounds.append((first, first + piece.last - piece.first))
        parts += [before] * piece.begins + [x[:, piece.first : piece.last]]
        reset += [piece.starts] + [False] * (bounds[-1][1] - len(reset) - 1)
    return Extended(joined(parts), np.array(reset) if any(reset) else None, pieces, tuple(bounds))
