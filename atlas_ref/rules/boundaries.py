"""Window tokens of an older span: recomputed, carried or cut (WINDOW-10 to WINDOW-14, CONV-14).

Specified in specs/window.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from atlas_ref.types import Array
from tape import ops


def older(config: Any, state: Any) -> Array:
    """Plain booleans (c, 1): rows of an older span (WINDOW-10, WINDOW-14, CONV-14)."""
    lags = np.arange(config.window)[::-1]
    return (lags > state.position)[:, None]


def carried(config: Any, state: Any, residual: Array) -> tuple[Array, Array]:
    """Residuals of the window tokens, and under carry also those stored at arrival (WINDOW-13).

    Under carry a token of an older span keeps the residual of its arrival. Without it, the window
    recomputes them all (WINDOW-11), and nothing is stored.

    Args:
        residual (..., c, d_out): under the reference of this token, oldest first.
    """
    if state.residuals is None:
        return residual, None
    stored = ops.slide(state.residuals, residual[..., -1, :])
    return ops.where(older(config, state), stored, residual), stored


def cut(config: Any, state: Any, weights: Array) -> Array:
    """Window weights (..., c, 1), 0 for rows of an older span under cut (WINDOW-12, CONV-14)."""
    cuts = config.convention.window_at_boundary == "cut" and config.convention.frozen_reference
    if cuts and state.position < config.window - 1:
        return ops.where(older(config, state), 0.0, weights)
    return weights
