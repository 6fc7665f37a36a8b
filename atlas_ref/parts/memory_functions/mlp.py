"""The MLP memory of titans-pytorch: L matrices, an activation before each but the first.

    a_1 = W_1 x,   s_l = act(a_l),   a_(l+1) = W_(l+1) s_l,   o = a_L
    y = o,   with residual_norm y = (1 + gain) LayerNorm(o) + x

Specified in specs/memory_functions.md (MEMFUN-7).
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import numpy as np

from atlas_ref.parts.memory_functions.activations import share, slope
from atlas_ref.parts.memory_functions.function import MemoryFunction
from atlas_ref.parts.memory_functions.norms import standardised, standardised_back
from atlas_ref.parts.memory_functions.products import (
    outer_sum,
    over_tokens,
    rows,
    vector,
)
from atlas_ref.types import Array


def tensors(f: MemoryFunction, d_in: int, d_out: int) -> dict[str, tuple[int, ...]]:
    if f.residual_norm and d_in != d_out:
        raise ValueError(f"residual_norm: d_in {d_in} and d_out {d_out} must be the same")
    between = [f.hidden(d_in)] * (f.depth - 1) if f.depth > 1 else []
    widths = [d_in, *between, d_out]
    shapes: dict[str, tuple[int, ...]] = {
        f"W_{i + 1}": (widths[i + 1], widths[i]) for i in range(f.depth)
    }
    return shapes | ({"norm/gain": (d_out,)} if f.residual_norm else {})


def fast(f: MemoryFunction) -> tuple[str, ...]:
    return tuple(f"W_{i + 1}" for i in range(f.depth))


def initial(
    f: MemoryFunction, name: str, shape: tuple[int, ...], draw: np.random.Generator
) -> Array:
    if name == "norm/gain":
        return np.zeros(shape)
    bound = np.sqrt(6.0 / (shape[0] + shape[1]))
    return draw.uniform(-bound, bound, shape)


def forward(
    f: MemoryFunction, p: Any, x: Array, *, result: bool = True
) -> tuple[dict[str, Array], dict[str, Array]]:
    """The values in order, and what the gradient needs beside them.

    It needs the last product for the norm alone.
    """
    found: dict[str, Array] = {}
    kept: dict[str, Array] = {}
    s = x
    for i in range(1, f.depth):
        a = found[f"a_{i}"] = rows(p[f"W_{i}"], s)
        G = kept[f"G_{i}"] = share(f.activation, a)
        s = found[f"s_{i}"] = a * G
    if not (result or f.residual_norm):
        return found, kept
    y = found["o"] = rows(p[f"W_{f.depth}"], s)
    if f.residual_norm:
        n, kept["r"] = standardised(y, f.norm_eps)
        found["normed"] = n
        y = n * (vector(p["norm/gain"]) + 1.0) + x
    found["y"] = y
    return found, kept


def inside(f: MemoryFunction, p: Any, x: Array) -> tuple[dict[str, Array], dict[str, Array]]:
    return forward(f, p, x, result=False)


def gradient(
    f: MemoryFunction,
    p: Any,
    x: Array,
    gy: Array,
    wanted: Set[str],
    needs_input: bool,
    value: Any,
    kept: Any,
) -> tuple[dict[str, Array], Array | None]:
    found: dict[str, Array] = {}
    g = gy
    if f.residual_norm:
        n = value["normed"]
        if "norm/gain" in wanted:
            found["norm/gain"] = over_tokens(gy * n)
        g = standardised_back(n, kept["r"], gy * (vector(p["norm/gain"]) + 1.0))
    for i in range(f.depth, 0, -1):
        if f"W_{i}" in wanted:
            found[f"W_{i}"] = outer_sum(g, value[f"s_{i - 1}"] if i > 1 else x)
        if not needs_input and wanted <= found.keys():
            return found, None
        g = g @ p[f"W_{i}"]
        if i > 1:
            g = g * slope(f.activation, value[f"a_{i - 1}"], kept[f"G_{i - 1}"])
    return found, (g + gy if f.residual_norm else g)
