"""Requests that together have every kind of memory, clip, reading and state of a deep memory."""

from __future__ import annotations

from typing import Any

from tests.support import deep_cases

REQUESTS: dict[str, dict[str, Any]] = {
    "default": {},
    "full": deep_cases.FULL,
    "polynomial": {
        "convention": {"newton_schulz": "none", "rate": "both"},
        "parameters": {
            "memory": {"kind": "polynomial", "key_width": 2, "gated": True, "compress": 4},
            "fast": "all",
            "vectors": "raw",
            "clip": "soft",
            "chunk": 2,
        },
    },
    "shared": {
        "window_gate": True,
        "parameters": {
            "memory": {"kind": "linear"},
            "coupling": "batch_shared",
            "reduction": "mean",
            "chunk": 2,
            "unfinished": "flush",
            "outer_gradient": "first_order",
        },
    },
    "lp": {
        "convention": {"newton_schulz": "none"},
        "parameters": {"bias": {"kind": "lp", "sharpness": 2.0}, "chunk": 2, "window": 3},
    },
    "huber": {
        "window_gate": True,
        "parameters": {
            "bias": {"kind": "huber", "form": "coordinate", "smoothing": "none"},
            "memory": {"kind": "linear"},
        },
    },
    "kl": {
        "convention": {"newton_schulz": "none", "rate": "both"},
        "parameters": {"bias": {"kind": "kl"}, "chunk": 2, "reduction": "mean"},
    },
    "simplex": {
        "convention": {"newton_schulz": "none", "gate": "forget"},
        "history": 1,
        "parameters": {"retention": {"kind": "kl", "over": "row"}, "chunk": 1, "window": 2},
    },
    "mapped": {
        "convention": {"newton_schulz": "none", "reference": "chunk_start"},
        "parameters": {
            "retention": {"kind": "lq", "power": 1.5, "link": "mirror"},
            "memory": {"kind": "linear"},
            "span": 2,
            "outer_gradient": "first_order",
        },
    },
    "elastic": {
        "parameters": {"retention": {"kind": "elastic_net", "threshold": 0.02}, "chunk": 2}
    },
    "assigned": {
        "parameters": {"chunk": 5, "outer_gradient": "straight_through"},
        "convention": {"read": "call_end", "newton_schulz": {"argument": "nesterov"}},
    },
}
