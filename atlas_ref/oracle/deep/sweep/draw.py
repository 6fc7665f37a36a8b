"""What the cases of a deep memory are drawn from: functions, settings, shapes (SWEEP-13)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from atlas_ref.oracle import drawn_axes, regimes
from atlas_ref.oracle.deep.sweep import cut
from atlas_ref.oracle.drawing import Drawing, Space, count
from atlas_ref.rules.deep_memory.config import LEGAL

#: Values that a case is drawn from, in the order of drawing; the first is the plainest.
SPACE: dict[str, tuple[Any, ...]] = {
    "tokens": (1, 2, 3, 5, 7, 8, 9, 13, 16, 17),
    "d_in": (1, 2, 3, 4, 5),
    "d_out": (1, 2, 3, 4, 5),
    "heads": (1, 2, 3),
    "memory": (
        {"kind": "linear"},
        {"kind": "mlp", "expansion": 2.0},
        {"kind": "mlp", "expansion": 2.0, "activation": "silu"},
        {"kind": "mlp", "expansion": 1.0, "activation": "gelu_tanh", "depth": 3},
        {"kind": "mlp", "expansion": 1.0, "residual_norm": True},
        {"kind": "mlp", "expansion": 2.0, "with_input": True},
        {"kind": "mlp", "depth": 1},
        {"kind": "polynomial", "key_width": 2, "expansion": 2.0},
        {"kind": "polynomial", "key_width": 3, "expansion": 1.0, "gated": True, "compress": 4},
        {"kind": "polynomial", "key_width": 3, "expansion": 1.0, "degree": 1},
    ),
    "chunk": (1, 2, 3, 4, 8),
    "window": (None, None, 1, 2, 3, 5, 8, 40),
    "span": (None, 1, 2, 4, 8, 12),
    "window_weights": (
        {"kind": "ones"},
        {"kind": "ones"},
        {"kind": "uniform"},
        {"kind": "decay", "base": 0.9},
        {"kind": "gate"},
        {"kind": "product", "of": [{"kind": "decay", "base": 0.8}, {"kind": "gate"}]},
    ),
    "reduction": ("sum", "mean"),
    "coupling": ("per_sample", "per_sample", "batch_shared"),
    "fast": ("matrices", "all", "mlp"),
    "vectors": ("frozen", "raw", "unit"),
    "clip": ("none", "hard", "soft"),
    "clip_norm": (1.0, 0.25),
    "adaptive": (False, True),
    "outer_gradient": ("full", "full", "first_order", "straight_through", "none"),
    "phase": ("both", "both", "both", "both", "train", "infer", "off"),
    "training": (True, False),
    "unfinished": ("wait", "flush"),
    "memory_reset": ("sequence", "batch", "never"),
    "momentum_reset": ("sequence", "batch", "never"),
    "history": (0, 0, 1, 3),
    "pulse": (1, 1, 1, 2),
    "reset": (0, 0, 4, 5),
    "window_gate": (False, False, True),
    "dtype": ("float64", "float32", "bfloat16", "float16"),
    "bias": (
        *({"kind": "l2"},) * 5,
        {"kind": "l1"},
        {"kind": "lp"},
        {"kind": "lp", "power": 1.5, "smoothing": "root"},
        {"kind": "huber", "form": "coordinate", "smoothing": "none"},
        {"kind": "huber", "form": "norm"},
        {"kind": "huber", "threshold": 0.5, "quadratic": "whole"},
        {"kind": "kl"},
    ),
    "retention": (
        *({"kind": "l2"},) * 6,
        {"kind": "elastic_net", "threshold": 0.01},
        {"kind": "kl", "size": 4.0},
        {"kind": "kl", "over": "row"},
        {"kind": "sphere", "over": "column", "size": 2.0},
        {"kind": "ftrl", "threshold": 0.01},
        {"kind": "lq"},
        {"kind": "lq", "power": 1.5, "link": "mirror"},
    ),
}

#: Parameters that are drawn where they are fixed alone: they came after the draws.
LATER_PARAMETERS = ("deep_momentum",)

#: Names above that are fields of a request, not parameters of the case.
OF_REQUEST: tuple[str, ...] = ("tokens", "d_in", "d_out", "heads", "history", "pulse", "reset")
OF_REQUEST += ("window_gate", "dtype")

#: Values of axes: those that a deep memory has, and numbers.
VALUES: Space = LEGAL | {
    "gradient_scale": (2.0, 1.0, "2/d_out"),
    "query_scale": drawn_axes.NUMBERS["query_scale"],
}
NEWTON_SCHULZ: Space = {**drawn_axes.NEWTON_SCHULZ, "argument": ("S", "nesterov")}

#: Axes that a deep memory has not, or that change nothing of it (DEEP-4).
IDLE = ("layout", "norm_place")


def convention(draw: np.random.Generator) -> dict[str, Any]:
    """Up to three axes changed, in half of the cases without Newton-Schulz."""
    changes = drawn_axes.axes(draw, idle=IDLE, values=VALUES)
    return changes | {"newton_schulz": drawn_axes.newton_schulz(draw, NEWTON_SCHULZ)}


def request(fields: dict[str, Any], choices: Space, long: bool) -> dict[str, Any]:
    """Fields of a request from drawn ones, which are made to fit unless they are fixed."""
    drawn = dict(fields)
    memory, axes = _object(drawn["memory"]), _object(drawn["convention"])
    if memory.get("residual_norm") or memory.get("with_input"):
        drawn["d_out"] = drawn["d_out"] if "d_out" in choices else drawn["d_in"]
    spans = "chunk_start" in (axes.get("reference"), axes.get("read"))
    chunk = count(drawn["chunk"])
    if "span" not in choices:
        drawn["span"] = chunk * (drawn["span"] or 1) if spans else None
    if "history" not in choices:
        drawn["history"] = _longest_history(
            drawn["history"], chunk, count(drawn["window"] or chunk)
        )
    plain = {
        name: drawn[name]
        for name in drawn
        if name not in (*SPACE, *LATER_PARAMETERS) or name in OF_REQUEST
    }
    parameters = {
        name: drawn[name]
        for name in (*SPACE, *LATER_PARAMETERS)
        if name not in OF_REQUEST
        and drawn.get(name) is not None
        and (name in choices or drawn[name] != SPACE[name][0])
    }
    return plain | {"parameters": {"memory": drawn["memory"]} | parameters}


def _object(value: Any) -> Mapping[str, Any]:
    """An object as it is; of anything else, which is refused where the case is made, none."""
    return value if isinstance(value, dict) else {}


def _longest_history(most: int, chunk: int, window: int) -> int:
    """Tokens that a call of this chunk and window can have before it, at most so many."""
    return next(n for n in range(most, -1, -1) if n <= window - 1 + n % chunk)


#: What a sweep draws of a deep memory, and how a case of it becomes smaller (SWEEP-13).
DRAWING = Drawing(
    space=SPACE,
    later=LATER_PARAMETERS,
    request=request,
    convention=convention,
    regimes=regimes.SEQUENCES,
    moves=cut.MOVES,
)
