"""Blocks: layers with their residuals. `BLOCKS` is the only list of them.

A block is a module with `Config`, `Params`, `State`, `configured`, `init`, `start` and `apply`
(BLOCKS-1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atlas_ref.blocks import lmm, mac, mag, mal

#: Name -> module.
BLOCKS: dict[str, Any] = {"mag": mag, "mal": mal, "mac": mac, "lmm": lmm}


def forgotten(config: Any, state: Any, after: Any) -> Any:
    """The state of a call that does not go on with the one before (BLOCKS-7).

    It is `state`, but for a memory that the block keeps whatever a call is given.
    """
    return mac.forgotten(config, state, after) if isinstance(config, mac.Config) else state


def module_of(config: Any) -> Any:
    """The module whose settings these are.

    Raises:
        ValueError: settings of no block.
    """
    for module in BLOCKS.values():
        if isinstance(config, module.Config):
            return module
    raise ValueError(
        f"config: {type(config).__qualname__} is no block's, blocks are {', '.join(BLOCKS)}"
    )


def with_memory(configs: Sequence[Any], layers: Sequence[int]) -> tuple[Any, ...]:
    """Settings of the same blocks, of which those named alone have a memory (BLOCKS-1).

    Args:
        layers: counted from 1.

    Raises:
        ValueError: a block that is not there; MAC without memory, over which it attends.
    """
    for layer in layers:
        if layer not in range(1, len(configs) + 1):
            raise ValueError(f"layers: {layer}, expected 1 to {len(configs)}")
    found = []
    for layer, config in enumerate(configs, start=1):
        if layer not in layers and module_of(config) is mac:
            raise ValueError(f"layers: block {layer} is MAC, which needs its memory")
        alone = layer in layers
        found.append(config if alone else type(config)(**{**config.__dict__, "memory": None}))
    return tuple(found)
