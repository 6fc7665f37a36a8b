"""Blocks of levels for tests, and the definition of a block as loops over levels.

A block is every level by itself, then a weighted sum.

The loops import nothing from the package (tests/truth/literal.py evaluates each level).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from atlas_ref.levels import block as cms
from atlas_ref.levels.level import Level
from atlas_ref.rules import FAMILY
from tests.truth import literal

Array = np.ndarray[Any, Any]

#: Levels that differ in everything a level may choose: rule, convention, size of keys, window,
#: feature map.
MIXED: tuple[dict[str, Any], ...] = (
    {"rule": "titans_lmm", "period": 1, "d_in": 4},
    {
        "rule": "delta",
        "period": 2,
        "d_in": 3,
        "convention": {"decay": "before_error", "read": "before"},
    },
    {
        "rule": "omega",
        "period": 3,
        "d_in": 2,
        "window": 4,
        "feature_map": {"kind": "polynomial", "degree": 2},
    },
    {"rule": "hebbian", "period": 5, "d_in": 4},
    {
        "rule": "omega",
        "period": 4,
        "d_in": 3,
        "window": 3,
        "window_weights": {"kind": "product", "of": [{"kind": "gate"}, {"kind": "softmax"}]},
        "convention": {"newton_schulz": "none", "window_edge": "renormalise", "k_norm": "l2"},
    },
)

#: What a level keeps, beside the window, where a frozen token changes more than that.
COUNTING: tuple[dict[str, Any], ...] = (
    {
        "rule": "omega",
        "period": 3,
        "d_in": 3,
        "window": 3,
        "span": 4,
        "convention": {"reference": "chunk_start", "window_at_boundary": "carry"},
    },
    {
        "rule": "titans_lmm",
        "period": 1,
        "d_in": 4,
        "span": 5,
        "convention": {"read": "chunk_start"},
    },
    {
        "rule": "omega",
        "period": 2,
        "d_in": 2,
        "window": 4,
        "convention": {"order": "momentum_then_window", "newton_schulz": "none"},
    },
    {"rule": "delta", "period": 4, "d_in": 3, "convention": {"reference": "call_start"}},
)


def level(
    spec: Mapping[str, Any], *, d_model: int = 5, d_out: int = 3, heads: int = 2, **settings: Any
) -> Level:
    """A level from its description in a case."""
    own = {key: value for key, value in spec.items() if key not in ("rule", "period")}
    config = FAMILY[spec["rule"]].Config(d_model=d_model, d_out=d_out, heads=heads, **own)
    return Level(config=config, period=spec["period"], **settings)


def block(
    specs: Sequence[Mapping[str, Any]],
    *,
    combine: Any = "softmax",
    first_step: int = 0,
    **sizes: int,
) -> cms.Config:
    return cms.Config(
        levels=tuple(level(each, **sizes) for each in specs), combine=combine, first_step=first_step
    )


def drawn(
    config: cms.Config, *, seed: int = 0, tokens: int = 12, batch: int = 2
) -> tuple[cms.Params, Array, cms.Context]:
    """Drawn parameters, tokens and context of a block.

    Gates are away from their start, those of momentum at no level near 1, where a derivative drowns
    in rounding; memories are neither zero nor symmetric.
    """
    draw = np.random.default_rng(seed)
    levels = []
    for params in cms.init(config, seed).levels:
        gates = {
            name: None
            if gate is None
            else type(gate)(
                W=draw.standard_normal(gate.W.shape) / 2,
                b=(1.5 if name == "momentum" else gate.b) / 2 + draw.standard_normal(gate.b.shape),
            )
            for name, gate in params.gates.__dict__.items()
        }
        window = {
            key: value + 0.3 * draw.standard_normal(value.shape)
            for key, value in getattr(params, "window", {}).items()
        }
        levels.append(
            params.replaced(
                gates=type(params.gates)(**gates), **({"window": window} if window else {})
            )
        )
    params = cms.Params(levels=tuple(levels), logits=draw.standard_normal(len(levels)))
    x = draw.standard_normal((batch, tokens, config.levels[0].config.d_model)) / 2
    plain = cms.start(config, batch)
    memories = [
        {
            name: 0.3 * draw.standard_normal(getattr(state, name).shape)
            for name in ("M", "S")
            if getattr(state, name, None) is not None
        }
        for state in plain.states
    ]
    return params, x, cms.start(config, batch, initial=memories)


def tensors_of(params: Any) -> dict[str, Array]:
    """A level's parameters under the names of a case."""
    tensors = {f"in/param/{name}": getattr(params, name) for name in ("W_K", "W_V", "W_Q")}
    for name, gate in params.gates.__dict__.items():
        if gate is not None:
            tensors |= {f"in/param/W_{name}": gate.W, f"in/param/b_{name}": gate.b}
    tensors |= {f"in/param/{name}": value for name, value in getattr(params, "window", {}).items()}
    learned = getattr(params, "surrogate", {})
    tensors |= {f"in/param/{name}_surrogate": value for name, value in learned.items()}
    return tensors | {f"in/phi/{name}": value for name, value in getattr(params, "phi", {}).items()}


def countdown(periods: Sequence[int], first: int, tokens: int) -> Array:
    """Whether each level writes at each token: every level counts down to its next write, without a
    division.
    """
    waiting = [0 if first == 0 else period - first for period in periods]
    active = []
    for _ in range(tokens):
        active.append([remaining == 0 for remaining in waiting])
        waiting = [
            period - 1 if remaining == 0 else remaining - 1
            for remaining, period in zip(waiting, periods, strict=True)
        ]
    return np.array(active)


def in_loops(
    specs: Sequence[Mapping[str, Any]],
    params: cms.Params,
    x: Array,
    context: cms.Context,
    *,
    masked: bool = False,
    first: int = 0,
    reset: Array | None = None,
) -> tuple[Array, list[dict[str, Any]]]:
    """The reads of a block (B, H, T, d_out) and the results of each level, by the definition."""
    T = x.shape[-2]
    active = countdown([spec["period"] for spec in specs], first, T)
    results = []
    for i, spec in enumerate(specs):
        header = {
            "schema": 1,
            "level": "token",
            **{key: value for key, value in spec.items() if key not in ("period", "d_in")},
        }
        tensors = {
            **tensors_of(params.levels[i]),
            "in/x": x,
            "in/active": active[:, i],
            "in/M0": context.origins[i].M,
        }
        if hasattr(context.origins[i], "S"):
            tensors["in/S0"] = context.origins[i].S
        if reset is not None:
            tensors["in/reset"] = reset
        results.append(literal.evaluate(header, tensors))
    y = np.zeros_like(results[0]["out/y"])
    for t in range(T):
        counted = [i for i in range(len(specs)) if active[t, i] or not masked]
        total = sum(math.exp(params.logits[i]) for i in counted)
        for i in counted:
            y[:, :, t] += math.exp(params.logits[i]) / total * results[i]["out/y"][:, :, t]
    return y, results


def pieces(
    run: Callable[..., tuple[Any, Array]],
    config: Any,
    params: Any,
    x: Array,
    context: Any,
    cuts: Sequence[int],
    reset: Array = None,
) -> tuple[Any, Array]:
    """A call of levels cut into several: the context after them, and their reads."""
    reads = []
    for part in np.split(np.arange(x.shape[1]), cuts):
        if len(part):
            given = None if reset is None else reset[part]
            context, y = run(config, params, x[:, part], context, reset=given)
            reads.append(y)
    return context, np.concatenate(reads, axis=2)
