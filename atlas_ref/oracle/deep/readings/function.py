"""Mistakes in the memory function and in its hand gradient (DEEPCASE-15)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from atlas_ref.oracle.deep.context import DeepContext
from atlas_ref.oracle.deep.functions import Function, norm_of
from atlas_ref.oracle.deep.readings.conditions import (
    has_activation,
    has_products,
    of_kind,
    several,
    with_norm,
)
from atlas_ref.oracle.program.hook import by, within
from atlas_ref.oracle.program.reading import Reading, Wrap
from atlas_ref.types import Array
from tape import ops


def values(name: str, change: Callable[..., Array]) -> dict[str, Wrap]:
    """A change of one value of the function under keys and queries."""
    queries = "y" if name == "y" else f"read/{name}"
    return dict.fromkeys((f"write/{name}", queries), within(change))


def _rms(m: Function, x: Array) -> tuple[Array, Array]:
    r = 1.0 / ops.sqrt(ops.mean(x * x, axis=-1, keepdims=True) + m.settings.norm_eps)
    return x * r, r


def _by_n_minus_one(m: Function, x: Array) -> tuple[Array, Array]:
    away = x - ops.mean(x, axis=-1, keepdims=True)
    total = ops.sum(away * away, axis=-1, keepdims=True) * (1.0 / max(x.shape[-1] - 1, 1))
    r = 1.0 / ops.sqrt(total + m.settings.norm_eps)
    return away * r, r


def _outside(m: Function, x: Array) -> tuple[Array, Array]:
    away = x - ops.mean(x, axis=-1, keepdims=True)
    r = 1.0 / (ops.sqrt(ops.mean(away * away, axis=-1, keepdims=True)) + m.settings.norm_eps)
    return away * r, r


def _in_float32(m: Function, x: Array) -> tuple[Array, Array]:
    n, r = norm_of(m, ops.astype(x, np.float32))
    return ops.astype(n, x.dtype), ops.astype(r, x.dtype)


def _without_norm(gain: Array, bias: Array, features: Array) -> Array:
    return features


def _relu(m: Function, a: Array) -> Array:
    return ops.where(ops.greater(a, 0.0), ops.ones_like(a), 0.0)


def _step(m: Function, a: Array, G: Array) -> Array:
    return G


def _quick(m: Function, a: Array) -> Array:
    return ops.sigmoid(1.702 * a)


def _slope_of_quick(m: Function, a: Array, G: Array) -> Array:
    return G + 1.702 * a * (G * (1.0 - G))


def _columns(z: Array) -> Array:
    d = z.shape[-1]
    return ops.concatenate([z[..., : j + 1] * z[..., j : j + 1] for j in range(d)], axis=-1)


def _twice(z: Array) -> Array:
    d = z.shape[-1]
    pieces = []
    for i in range(d):
        pieces += [z[..., i : i + 1] * z[..., i : i + 1], 2.0 * z[..., i : i + 1] * z[..., i + 1 :]]
    return ops.concatenate(pieces, axis=-1)


def _upper(z: Array, g: Array, *, once: bool) -> Array:
    """U z for the upper triangle alone, or (U + U^T) z with its diagonal once."""
    d = z.shape[-1]
    i, j = np.triu_indices(d)
    place = np.zeros((d, d), int)
    place[i, j] = place[j, i] = np.arange(len(i))
    mask = np.ones((d, d)) if once else np.triu(np.ones((d, d)))
    U = ops.index(g, (..., place)) * mask.astype(np.dtype(g.dtype))
    return (U @ ops.expand_dims(z, -1))[..., 0]


def _of_entries(least: int) -> Callable[[DeepContext], bool]:
    """Products of at least so many entries."""
    return lambda context: (
        has_products(context) and (context.settings.function.key_width or 0) >= least
    )


def _newest(m: Function, g: Array, x: Array) -> Array:
    return g[..., -1:, :].swapaxes(-1, -2) @ x[..., -1:, :]


def _average(m: Function, g: Array, x: Array) -> Array:
    return (g.swapaxes(-1, -2) @ x) / g.shape[-2]


FUNCTION: tuple[Reading, ...] = (
    Reading(
        "activation left out",
        "there were no activation",
        matters=has_activation,
        ops={"function/share": by(lambda m, a: ops.ones_like(a))},
    ),
    Reading(
        "relu",
        "the activation were relu",
        matters=has_activation,
        ops={"function/share": by(_relu), "function/slope": by(_step)},
    ),
    Reading(
        "quick gelu",
        "the activation were a sigmoid(1.702 a)",
        matters=has_activation,
        ops={"function/share": by(_quick), "function/slope": by(_slope_of_quick)},
    ),
    Reading(
        "activation after the last matrix",
        "an activation came after the last matrix",
        matters=of_kind("mlp"),
        ops=values("o", lambda compute, W, s: _silu(compute(W, s))),
    ),
    Reading(
        "slope left out",
        "the derivative of the activation were 1",
        matters=has_activation,
        ops={"function/slope": by(lambda m, a, G: ops.ones_like(a))},
    ),
    Reading(
        "slope without its second part",
        "the derivative of a G(a) were G(a)",
        matters=has_activation,
        ops={"function/slope": by(lambda m, a, G: G)},
    ),
    Reading(
        "norm without its mean",
        "layer norms did not subtract the mean",
        matters=with_norm,
        ops={"function/standardised": by(_rms)},
    ),
    Reading(
        "variance of n - 1",
        "layer norms divided by n - 1",
        matters=with_norm,
        ops={"function/standardised": by(_by_n_minus_one)},
    ),
    Reading(
        "eps outside the root",
        "layer norms added eps to the root",
        matters=with_norm,
        ops={"function/standardised": by(_outside)},
    ),
    Reading(
        "norm in float32",
        "layer norms were computed in float32",
        matters=lambda context: with_norm(context) and context.inputs["in/k"].dtype == np.float64,
        narrow=True,
        ops={"function/standardised": by(_in_float32)},
    ),
    Reading(
        "norm taken for a factor",
        "the backward of layer norms were a product with 1 / sqrt(var + eps)",
        matters=with_norm,
        ops={"function/standardised_back": by(lambda m, n, r, g: r * g)},
    ),
    Reading(
        "norm without its projection",
        "the backward of layer norms left out n mean(g n)",
        matters=with_norm,
        ops={
            "function/standardised_back": by(
                lambda m, n, r, g: r * (g - ops.mean(g, axis=-1, keepdims=True))
            )
        },
    ),
    Reading(
        "norm without the mean of g",
        "the backward of layer norms left out mean(g)",
        matters=with_norm,
        ops={
            "function/standardised_back": by(
                lambda m, n, r, g: r * (g - n * ops.mean(g * n, axis=-1, keepdims=True))
            )
        },
    ),
    Reading(
        "gain without the one",
        "the gain of the residual norm stood alone, not 1 + gain",
        matters=lambda context: context.settings.function.residual_norm,
        ops=values("y", lambda compute, gain, n, x: compute(gain - 1.0, n, x)),
    ),
    Reading(
        "residual left out",
        "the residual norm did not add x",
        matters=lambda context: context.settings.function.residual_norm,
        ops=values("y", lambda compute, gain, n, x: compute(gain, n, ops.zeros_like(x))),
    ),
    Reading(
        "read bias left out",
        "the last norm had no bias",
        matters=of_kind("polynomial"),
        ops=values("y", lambda compute, gain, bias, *rest: compute(gain, 0.0 * bias, *rest)),
    ),
    Reading(
        "read scale left out",
        "the result were not scaled",
        matters=of_kind("polynomial"),
        ops=values(
            "y",
            lambda compute, gain, bias, scale, *rest: compute(
                gain, bias, ops.ones_like(scale), *rest
            ),
        ),
    ),
    Reading(
        "feature bias left out",
        "the norm of features had no bias",
        matters=of_kind("polynomial"),
        ops=values("normed", lambda compute, gain, bias, f: compute(gain, 0.0 * bias, f)),
    ),
    Reading(
        "feature norm left out",
        "features were not normed",
        matters=of_kind("polynomial"),
        ops=values("normed", lambda compute, *args: _without_norm(*args)),
    ),
    Reading(
        "gate and value exchanged",
        "the activation were of W_value m, the factor W_in m",
        matters=lambda context: context.settings.function.gated,
        ops=values("s", lambda compute, a, b: compute(b, a)),
    ),
    Reading(
        "pairs by columns",
        "products stood column by column",
        matters=_of_entries(3),
        ops={"function/pairs": by(_columns)},
    ),
    Reading(
        "pairs twice",
        "products of different entries counted twice",
        matters=_of_entries(2),
        ops={"function/pairs": by(_twice)},
    ),
    Reading(
        "pairs back to one factor",
        "the derivative of z_i z_j went to one factor",
        matters=lambda context: has_products(context) and "W_down" in context.settings.fast,
        ops={"function/pairs_back": by(lambda z, g: _upper(z, g, once=False))},
    ),
    Reading(
        "squares back once",
        "the derivative of z_i^2 were z_i",
        matters=lambda context: has_products(context) and "W_down" in context.settings.fast,
        ops={"function/pairs_back": by(lambda z, g: _upper(z, g, once=True))},
    ),
    Reading(
        "gradient of the newest token",
        "matrices had the gradient of the newest token alone",
        matters=several,
        ops={"function/outer": by(_newest)},
    ),
    Reading(
        "gradient averaged over tokens",
        "gradients of matrices were a mean over the tokens of a write",
        matters=lambda context: several(context) and context.settings.reduction == "sum",
        ops={"function/outer": by(_average)},
    ),
)


def _silu(x: Array) -> Array:
    return x * ops.sigmoid(x)
