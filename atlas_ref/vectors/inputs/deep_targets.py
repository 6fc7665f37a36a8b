"""Targets of the rule deep_memory (VEC-22)."""

from __future__ import annotations

from typing import Any

from atlas_ref.vectors.inputs.target import Target
from atlas_ref.vectors.inputs.topics import DEEP_TOPICS


def _deep(
    name: str, parameters: dict[str, Any], convention: dict[str, Any], *without: str, **request: Any
) -> Target:
    """A target of the rule deep_memory."""
    fields = {"rule": "deep_memory", "parameters": {"chunk": 2, "window": 3} | parameters}
    fields |= {"convention": convention} | request
    return Target(f"deep_memory{name}", fields, DEEP_TOPICS, without, longer=(), later=True)


#: Atlas-MAG's memory: matrices of two entries between, GEGLU.
GATED = {"kind": "polynomial", "key_width": 2, "expansion": 1.5, "gated": True}

#: Deep memories: the default, a matrix, and the memories of public code (VEC-22).
DEEP = (
    _deep("", {"memory": {"kind": "mlp", "expansion": 1.5}}, {}),
    _deep("-linear", {"memory": {"kind": "linear"}}, {"newton_schulz": "none"}),
    _deep(
        "-polynomial",
        {
            "memory": GATED | {"compress": 4},
            "window_weights": {"kind": "decay", "base": 0.75},
            "fast": "all",
            "vectors": "unit",
            "clip": "hard",
            "clip_norm": 8.0,
            "adaptive": True,
        },
        {},
        "tall",
        "wide",
        "packed",
        "gradient",
        "gradient-resumed",
        "gradient-packed",
        window_gate=True,
    ),
    _deep(
        "-titans-pytorch",
        {
            "memory": {"kind": "mlp", "expansion": 1.0, "residual_norm": True},
            "window": 2,
            "fast": "all",
            "vectors": "raw",
            "clip": "soft",
        },
        {"newton_schulz": "none", "gradient_scale": "2/d_out", "rate": "momentum"},
        "tall",
        "wide",
        window_gate=True,
    ),
    _deep(
        "-atlas-mag",
        {
            "memory": GATED,
            "chunk": 8,
            "window": 6,
            "reduction": "mean",
            "coupling": "batch_shared",
            "fast": "all",
            "vectors": "unit",
            "unfinished": "flush",
            "outer_gradient": "straight_through",
        },
        {"read": "call_end"},
        "wide",
        "gradient-packed",
        window_gate=True,
    ),
    _deep(
        "-frozen",
        {"memory": {"kind": "mlp", "expansion": 1.0, "activation": "silu", "depth": 3}, "span": 4},
        {"reference": "chunk_start", "read": "before", "newton_schulz": {"steps": 3}},
        "wide",
        "gradient-packed",
    ),
)
