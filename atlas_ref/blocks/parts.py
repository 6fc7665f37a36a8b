"""Parts of every block: memory, feed-forward, and their checks.

Specified in specs/blocks.md (BLOCKS-1, BLOCKS-2).
"""

from __future__ import annotations

from typing import Any

from atlas_ref.layers import attention, checks, feed_forward, memory
from atlas_ref.rules.checks import require_floating
from atlas_ref.types import Array


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


def fed_forward(config: feed_forward.Config, params: feed_forward.Params, x: Array) -> Array:
    """The feed-forward of tokens; it has no state (FEED-4)."""
    return feed_forward.apply(config, params, feed_forward.State(), x)[1]


def started(config: Any, batch: int, dtype: Any) -> dict[str, Any]:
    """States of attention and of the memory, None without one, before the first token (BLOCKS-2).

    Raises:
        ValueError: no number of sequences, or no floating dtype.
    """
    checks.check_batch(batch)
    require_floating(dtype)
    own = config.memory
    return {
        "attention": attention.start(config.attention, batch, dtype=dtype),
        "memory": None if own is None else memory.start(own, batch, dtype=dtype),
    }


def remembered(config: Any, params: Any, state: Any, x: Array, reset: Any) -> tuple[Any, Array]:
    """The block's state after its memory has seen the tokens, and what the memory returns."""
    after, m = memory.apply(config.memory, params.memory, state.memory, x, reset=reset)
    return state.replaced(memory=after), m
