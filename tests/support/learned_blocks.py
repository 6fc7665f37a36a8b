"""Blocks whose gates decide who writes, for tests, and their definition in loops over the rows.

The loops import nothing from the package (tests/truth/literal.py evaluates each level and row).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from atlas_ref.levels import block as cms
from atlas_ref.levels import learned
from tests.support.blocks import MIXED, block, drawn, tensors_of
from tests.truth import literal

Array = np.ndarray[Any, Any]

#: Rules whose memories are affine in M and S: no Newton-Schulz.
AFFINE: tuple[dict[str, Any], ...] = (
    MIXED[1],
    {"rule": "titans_lmm", "period": 1, "d_in": 4},
    {
        "rule": "omega",
        "period": 3,
        "d_in": 2,
        "window": 3,
        "convention": {"newton_schulz": "none"},
    },
    {"rule": "hebbian", "period": 5, "d_in": 4},
)


def learnt(
    specs: Sequence[dict[str, Any]],
    *,
    tokens: int = 9,
    batch: int = 2,
    until: int = 0,
    seed: int = 0,
    **settings: Any,
) -> tuple[learned.Config, learned.Params, Array, cms.Context]:
    """A block with drawn parameters, whose gates open and close along its tokens."""
    own = block(specs, **settings)
    params, x, context = drawn(own, tokens=tokens, batch=batch, seed=seed)
    draw, k = np.random.default_rng(seed + 1), len(specs)
    gates = {"W": 2.0 * draw.standard_normal((k, x.shape[-1])), "b": draw.standard_normal(k) / 4}
    return (
        learned.Config(block=own, threshold=0.45, until=until),
        learned.Params(block=params, **gates),
        x,
        context,
    )


def mask_in_loops(params: learned.Params, x: Array, threshold: float, fastest: int) -> Array:
    """Which levels write (B, T, k), by the definition."""
    B, T, d = x.shape
    k = len(params.b)
    active = np.zeros((B, T, k), bool)
    for b in range(B):
        for t in range(T):
            for i in range(k):
                z = params.b[i] + sum(params.W[i, n] * x[b, t, n] for n in range(d))
                active[b, t, i] = i == fastest or 1.0 / (1.0 + math.exp(-z)) > threshold
    return active


def levels_in_loops(
    specs: Sequence[dict[str, Any]],
    params: cms.Params,
    x: Array,
    context: cms.Context,
    active: Array,
    reset: Array | None = None,
) -> list[list[dict[str, Any]]]:
    """The results of each level on each row, with a mask (B, T, k) of writes."""
    found = []
    for i, spec in enumerate(specs):
        header = {
            "schema": 1,
            "level": "token",
            **{key: value for key, value in spec.items() if key not in ("period", "d_in")},
        }
        rows = []
        for b in range(len(x)):
            of_row = slice(b, b + 1)
            tensors = {
                **tensors_of(params.levels[i]),
                "in/x": x[of_row],
                "in/active": active[b, :, i],
                "in/M0": context.origins[i].M[of_row],
            }
            if hasattr(context.origins[i], "S"):
                tensors["in/S0"] = context.origins[i].S[of_row]
            if reset is not None:
                tensors["in/reset"] = reset
            rows.append(literal.evaluate(header, tensors))
        found.append(rows)
    return found


def combined(levels: list[list[dict[str, Any]]], logits: Array) -> Array:
    total = sum(math.exp(z) for z in logits)
    rows = [
        sum(math.exp(z) / total * own[b]["out/y"] for z, own in zip(logits, levels, strict=True))
        for b in range(len(levels[0]))
    ]
    return np.concatenate(rows, axis=0)
