"""Blocks: layers with their residuals. `BLOCKS` is the only list of them.

A block is a module with `Config`, `Params`, `State`, `configured`, `init`, `start` and `apply`
(BLOCKS-1).
"""

from __future__ import annotations

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
