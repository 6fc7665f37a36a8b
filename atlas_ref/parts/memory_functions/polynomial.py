"""The polynomial memory of Atlas-MAG: products of key entries through a gated or plain MLP.

    z = W_down x,   features = [z; z_i z_j for i <= j],   u = LayerNorm(features),   m = W_compress u
    a = W_in m,   b = W_value m,   s = act(a) b,   o = W_out s,   e = W_up o
    y = read_scale LayerNorm(e)

Specified in specs/memory_functions.md (MEMFUN-4).
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import numpy as np

from atlas_ref.parts.memory_functions.activations import share, slope
from atlas_ref.parts.memory_functions.function import MemoryFunction
from atlas_ref.parts.memory_functions.norms import standardised, standardised_back
from atlas_ref.parts.memory_functions.pairs import pairs, pairs_back
from atlas_ref.parts.memory_functions.products import (
    outer_sum,
    over_tokens,
    rows,
    scalar,
    vector,
)
from atlas_ref.types import Array
from tape import ops

#: Standard deviation of each matrix at the start.
DEVIATION = 0.02


def tensors(f: MemoryFunction, d_in: int, d_out: int) -> dict[str, tuple[int, ...]]:
    kd, F, h = int(f.key_width or 0), f.features, f.hidden(d_in)
    inputs = int(f.compress or 0) if f.compressed else F
    shapes: dict[str, tuple[int, ...] | None] = {
        "W_down": (kd, d_in),
        "feature_norm/gain": (F,),
        "feature_norm/bias": (F,),
        "W_compress": (inputs, F) if f.compressed else None,
        "W_in": (h, inputs),
        "W_value": (h, inputs) if f.gated else None,
        "W_out": (kd, h),
        "W_up": (d_out, kd),
        "read_norm/gain": (d_out,),
        "read_norm/bias": (d_out,),
        "read_scale": (),
    }
    return {name: shape for name, shape in shapes.items() if shape is not None}


def fast(f: MemoryFunction) -> tuple[str, ...]:
    return ("W_in", "W_value", "W_out") if f.gated else ("W_in", "W_out")


def initial(
    f: MemoryFunction, name: str, shape: tuple[int, ...], draw: np.random.Generator
) -> Array:
    if name.startswith("W_"):
        return DEVIATION * draw.standard_normal(shape)
    if name == "read_scale":
        return np.full(shape, f.scale)
    return np.ones(shape) if name.endswith("gain") else np.zeros(shape)


def forward(f: MemoryFunction, p: Any, x: Array) -> tuple[dict[str, Array], dict[str, Array]]:
    """The values in order, and what the gradient needs beside them."""
    v: dict[str, Array] = {}
    kept: dict[str, Array] = {}
    z = v["z"] = rows(p["W_down"], x)
    v["features"] = z if f.degree == 1 else ops.concatenate([z, pairs(z)], axis=-1)
    kept["feature_n"], kept["feature_r"] = standardised(v["features"], f.norm_eps)
    gain, bias = vector(p["feature_norm/gain"]), vector(p["feature_norm/bias"])
    m = v["normed"] = kept["feature_n"] * gain + bias
    if f.compressed:
        m = v["compressed"] = rows(p["W_compress"], m)
    a = v["a"] = rows(p["W_in"], m)
    kept["m"], kept["G"] = m, share(f.activation, a)
    s = a * kept["G"]
    if f.gated:
        kept["activated"] = s
        v["b"] = rows(p["W_value"], m)
        s = s * v["b"]
    v["s"] = s
    v["o"] = rows(p["W_out"], s)
    v["e"] = rows(p["W_up"], v["o"])
    kept["read_n"], kept["read_r"] = standardised(v["e"], f.norm_eps)
    gain, bias = vector(p["read_norm/gain"]), vector(p["read_norm/bias"])
    kept["read"] = kept["read_n"] * gain + bias
    v["y"] = scalar(p["read_scale"]) * kept["read"]
    return v, kept


inside = forward


def gradient(
    f: MemoryFunction,
    p: Any,
    x: Array,
    gy: Array,
    wanted: Set[str],
    needs_input: bool,
    v: Any,
    kept: Any,
) -> tuple[dict[str, Array], Array | None]:
    found: dict[str, Array] = {}

    def rest() -> bool:
        return needs_input or not wanted <= found.keys()

    def keep(name: str, g: Array, factor: Array) -> None:
        if name in wanted:
            found[name] = outer_sum(g, factor)

    def through_norm(name: str, g: Array, n: Array, r: Array) -> Array:
        if f"{name}/gain" in wanted:
            found[f"{name}/gain"] = over_tokens(g * n)
        if f"{name}/bias" in wanted:
            found[f"{name}/bias"] = over_tokens(g)
        return standardised_back(n, r, g * vector(p[f"{name}/gain"])) if rest() else None

    if "read_scale" in wanted:
        found["read_scale"] = ops.sum(gy * kept["read"], axis=(-2, -1))
    g = scalar(p["read_scale"]) * gy
    g = through_norm("read_norm", g, kept["read_n"], kept["read_r"])
    if not rest():
        return found, None
    keep("W_up", g, v["o"])
    if not rest():
        return found, None
    g = g @ p["W_up"]
    keep("W_out", g, v["s"])
    if not rest():
        return found, None
    gm = _through_mlp(f, p, v, kept, g @ p["W_out"], keep, rest)
    if not rest():
        return found, None
    g = through_norm("feature_norm", gm, kept["feature_n"], kept["feature_r"])
    if not rest():
        return found, None
    g = _through_features(f, v["z"], g)
    keep("W_down", g, x)
    return found, (g @ p["W_down"] if needs_input else None)


def _through_mlp(
    f: MemoryFunction, p: Any, v: Any, kept: Any, gs: Array, keep: Any, rest: Any
) -> Array:
    """From the cotangent of s to that of the normed features, None where nothing needs it."""
    m, ga = kept["m"], gs * slope(f.activation, v["a"], kept["G"])
    if f.gated:
        ga, gb = ga * v["b"], gs * kept["activated"]
        keep("W_value", gb, m)
    keep("W_in", ga, m)
    if not rest():
        return None
    gm = ga @ p["W_in"]
    if f.gated:
        gm = gm + gb @ p["W_value"]
    if f.compressed:
        keep("W_compress", gm, v["normed"])
        gm = gm @ p["W_compress"] if rest() else None
    return gm


def _through_features(f: MemoryFunction, z: Array, g: Array) -> Array:
    """From the cotangent of the features to that of z."""
    if f.degree == 1:
        return g
    kd = z.shape[-1]
    return g[..., :kd] + pairs_back(z, g[..., kd:])
