"""Window gradients as matrices: the window of public code under carry (OMEGA-29, OMEGA-30).

Specified in specs/omega.md.
"""

from __future__ import annotations

from typing import Any

from atlas_ref.rules.checks import stores_residuals
from atlas_ref.types import Array, Dims, check_array
from tape import ops


def with_gradients(config: Any, state: Any, gradients: Array) -> Any:
    """The state whose window is n gradient matrices and no pair (OMEGA-29).

    Args:
        gradients (..., n, d_out, d_phi): oldest first, n <= c - 1, leading axes of the memory.
            Scale and token gate are in them already.

    Raises:
        ValueError: another convention or shape.
    """
    _require_carry(config)
    check_array("gradients", gradients, Dims("..."))
    M, c = state.M, config.window
    lead, shape = M.shape[:-2], gradients.shape
    fits = len(shape) == M.ndim + 1 and (*shape[:-3], *shape[-2:]) == M.shape
    if not fits or shape[-3] > c - 1:
        raise ValueError(
            f"gradients: shape {shape}, expected {(*lead, 'n', *M.shape[-2:])}, n at most {c - 1}"
        )
    n = shape[-3]
    missing = ops.zeros_like(M, shape=(*lead, c - n, *M.shape[-2:]))
    values = ops.zeros_like(M, shape=(*lead, c, M.shape[-2]))
    return state.replaced(
        keys=ops.zeros_like(M, shape=(*lead, c, M.shape[-1])),
        values=values,
        residuals=values,
        filled=n,
        token_gates=ops.ones_like(M, shape=(*lead, c)),
        gradients=ops.concatenate([missing, gradients], axis=-3),
    )


def window_gradients(config: Any, state: Any) -> Array:
    """The last c - 1 window tokens as matrices (..., c-1, d_out, d_phi), oldest first (OMEGA-30).

    A pair gives its token gate times s times residual outer key.
    """
    _require_carry(config)
    residuals = scale(config) * state.residuals
    if state.token_gates is not None:
        residuals = ops.expand_dims(state.token_gates, -1) * residuals
    made = ops.expand_dims(residuals, -1) * ops.expand_dims(state.keys, -2)
    if state.gradients is not None:
        made = made + state.gradients
    return made[..., 1:, :, :]


def scale(config: Any) -> float:
    """s of the gradient (CONV-6)."""
    s = config.convention.gradient_scale
    return float(2.0 / config.d_out if isinstance(s, str) else s)


def slid(held: Array, newest: Array = None) -> Array:
    """The matrices of a window after one more token: that of the pair, zero where it has none.

    None stays None (OMEGA-11, OMEGA-29).

    Args:
        held (..., c, d_out, d_phi): oldest first, or None.
        newest (..., d_out, d_phi): the matrix of the token.
    """
    if held is None:
        return None
    last = ops.zeros_like(held[..., :1, :, :]) if newest is None else ops.expand_dims(newest, -3)
    return ops.concatenate([held[..., 1:, :, :], last], axis=-3)


def summed(gradient: Array, gradients: Array, weights: Array) -> Array:
    """The gradient of the pairs plus the weighted matrices (OMEGA-29).

    Args:
        gradients (..., c, d_out, d_phi), or None.
        weights (..., c, 1): without s.
    """
    if gradients is None:
        return gradient
    return gradient + ops.sum(ops.expand_dims(weights, -1) * gradients, axis=-3)


def _require_carry(config: Any) -> None:
    if not stores_residuals(config):
        raise ValueError(
            "gradients: window gradients need window_at_boundary carry, a frozen reference and "
            "order window_then_momentum"
        )
