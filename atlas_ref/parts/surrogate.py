"""A learned vector in the place of the residual of a token, which reads no memory.

    omega_t = W silu([k_t; v_t])

Specified in specs/surrogate.md (SURROGATE-1, SURROGATE-2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from atlas_ref.types import Array, Dims, bind_dims, check_array
from tape import ops

#: Tensors and their axes: W, and for a pair of its own both projections of tokens.
TENSORS = {"W": "H d_out d_kv", "W_K": "H d_in d_model", "W_V": "H d_out d_model"}
OWN_PAIR = ("W_K", "W_V")


def apply(W: Array, k: Array, v: Array) -> Array:
    """The learned residual omega of each token (SURROGATE-1).

        omega_t = W silu([k_t; v_t])

    Args:
        W (..., d_out, d_in + d_out): weights, with the leading axes of the tokens or with none.
        k (..., T, d_in), v (..., T, d_out): the pair of each token.

    Returns:
        (..., T, d_out).

    Raises:
        ValueError: an array that is not of finite floating numbers, or a shape that does not fit.

    Source: NL_Hecate, `omega(k, v)`; SURROGATE-1.
    """
    for name, array in (("W", W), ("k", k), ("v", v)):
        check_array(f"surrogate: {name}", array, Dims("... rows columns"))
    d_in, d_out = k.shape[-1], v.shape[-1]
    if W.shape[-2:] != (d_out, d_in + d_out):
        raise ValueError(
            f"surrogate: W: shape {tuple(W.shape)}, expected ({d_out}, {d_in + d_out}), "
            "d_out rows of d_in + d_out, after any leading axes"
        )
    return of_checked(W, k, v)


def of_checked(W: Array, k: Array, v: Array) -> Array:
    """The residual of tokens whose arrays were checked at the boundary (SURROGATE-1)."""
    return ops.silu(ops.concatenate([k, v], axis=-1)) @ ops.transpose(W)


def of_tokens(parameters: Mapping[str, Array], k: Array, v: Array, x: Array) -> Array:
    """The residual from the pair of the memory, or from a pair of its own (SURROGATE-2).

    Args:
        parameters: W (H, d_out, d_in + d_out); for a pair of its own also W_K (H, d_in, d_model)
            and W_V (H, d_out, d_model).
        k (B, H, T, d_in), v (B, H, T, d_out): the pair that gates read.
        x (B, 1, T, d_model): tokens.
    """
    if OWN_PAIR[0] in parameters:
        k, v = (x @ ops.transpose(parameters[name]) for name in OWN_PAIR)
    return of_checked(parameters["W"], k, v)


def check(parameters: Mapping[str, Array], sizes: Mapping[str, int]) -> None:
    """Refuse tensors of other names or shapes, or one projection without the other.

    Raises:
        ValueError: names the tensor, what was found and what is needed.
    """
    known = {axis: (size, "the configuration") for axis, size in sizes.items()}
    for name, array in parameters.items():
        if name not in TENSORS:
            raise ValueError(f"surrogate: {name}: unknown, tensors are {', '.join(TENSORS)}")
        check_array(f"surrogate: {name}", array, Dims("..."))
        bind_dims(f"surrogate: {name}", array.shape, TENSORS[name], dict(known))
    if "W" not in parameters:
        raise ValueError("surrogate: W: missing, reference surrogate needs it")
    one, other = (name in parameters for name in OWN_PAIR)
    if one != other:
        raise ValueError("surrogate: W_K and W_V belong together, found one of them")


def init(heads: int, d_in: int, d_out: int, draw: Any) -> dict[str, Array]:
    """W drawn uniformly within sqrt(1 / (d_in + d_out)) of 0 (SURROGATE-1).

    Args:
        draw: the generator of the parameters.
    """
    bound = math.sqrt(1.0 / (d_in + d_out))
    return {"W": draw.uniform(-bound, bound, (heads, d_out, d_in + d_out))}
