"""Cases with foreign traces: literal loops in several precisions, legal variants of them, and
planted mistakes.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from atlas_ref.oracle.cases.case import Case, make
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.evaluate import evaluate
from tests.support.strategies import header_of
from tests.truth.literal_trace import Traced
from tests.truth.literal_trace import trace as literal_trace

DTYPES: dict[str, Any] = {
    "float64": np.float64,
    "float32": np.float32,
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
}

#: One case for each thing that a trace can hold.
KINDS: dict[str, dict[str, Any]] = {
    "omega": {"window": 3},
    "frozen": {
        "window": 4,
        "span": 3,
        "convention": {"reference": "chunk_start", "read": "chunk_start"},
    },
    "carry": {"window": 4, "span": 2, "history": 3, "pulse": 3, "convention": "atlas-rnn"},
    "carry in spans": {
        "window": 4,
        "span": 3,
        "pulse": 2,
        "convention": {
            "reference": "chunk_start",
            "window_at_boundary": "carry",
            "decay": "before_error",
            "span_origin": "multiple",
        },
    },
    "cut": {
        "window": 4,
        "span": 2,
        "history": 2,
        "convention": {"reference": "chunk_start", "window_at_boundary": "cut"},
    },
    "packed": {
        "window": 3,
        "reset": 3,
        "pulse": 2,
        "convention": {"window_edge": "renormalise", "read": "call_end"},
    },
    "momentum first": {
        "window": 3,
        "pulse": 3,
        "history": 2,
        "convention": {"order": "momentum_then_window", "newton_schulz": {"steps": 2}},
    },
    "nesterov": {
        "window": 2,
        "convention": {
            "momentum_sign": "minus",
            "newton_schulz": {"argument": "nesterov", "scale": "norm", "steps": 2},
        },
    },
    "written back": {
        "pulse": 2,
        "convention": {"newton_schulz": {"argument": "written_back", "steps": 2, "scale": "sqrt"}},
    },
    "accumulated": {
        "pulse": 2,
        "convention": {"read": "before", "newton_schulz": {"argument": "accumulated", "steps": 2}},
    },
    "guard return": {"convention": {"newton_schulz": {"guard": "return", "eps": 0.3, "steps": 1}}},
    "clamp": {
        "convention": {
            "newton_schulz": {
                "guard": "clamp",
                "eps": 0.3,
                "steps": 1,
                "coefficients": "polar_express",
            }
        }
    },
    "transposed": {
        "window": 2,
        "d_out": 5,
        "convention": {"layout": "transposed", "k_norm": "l2", "query_scale": "1/sqrt(d_in)"},
    },
    "mapped": {
        "feature_map": {"kind": "polynomial", "degree": 2},
        "d_in": 2,
        "convention": {"newton_schulz": "none", "value_sign": "plus"},
    },
    "gated window": {"window": 3, "window_gate": True, "per_dimension_gates": True, "history": 2},
    "titans_lmm": {"rule": "titans_lmm", "convention": "titans-paper", "pulse": 3},
    "delta": {
        "rule": "delta",
        "convention": {"rate": "split", "decay": "before_error"},
        "per_dimension_gates": True,
    },
    "delta zero": {"rule": "delta", "convention": {"reference": "zero", "direction": "ascent"}},
    "hebbian": {"rule": "hebbian", "reset": 3, "convention": {"read": "before"}},
    "token": {
        "level": "token",
        "window": 3,
        "window_weights": {"kind": "product", "of": [{"kind": "softmax"}, {"kind": "gate"}]},
    },
    "token titans": {
        "rule": "titans_lmm",
        "level": "token",
        "per_dimension_gates": True,
        "convention": {"k_norm": "l2"},
    },
    "token delta": {
        "rule": "delta",
        "level": "token",
        "convention": {"k_norm": "rms", "norm_place": "after_phi"},
    },
}


def small(kind: str, **more: Any) -> Case:
    """A case of two heads and six tokens, with every legal cotangent."""
    request = {
        "rule": "omega",
        "tokens": 6,
        "d_in": 3,
        "d_out": 2,
        "heads": 2,
        "seed": 3,
        "cotangent": True,
        **KINDS[kind],
        **more,
    }
    return with_bars(new(Request(draw=1, **request), name="case"))


def with_bars(case: Case) -> Case:
    """The case with every legal cotangent."""
    draw = np.random.default_rng(5)
    results = evaluate(case).tensors
    bars = {
        f"in/{name}_bar": draw.standard_normal(results[f"out/{name}"].shape)
        for name in ("y", "M", "S")
        if f"out/{name}" in results
    }
    return make(case.header.plain(), {**case.inputs, **bars}, name=case.name)


class OtherSide(Traced):
    """Newton-Schulz by X (X^T X), the product of the other side."""

    def polynomial(self, x: np.ndarray, row: tuple[float, float, float]) -> np.ndarray:
        a, b, c = row
        gram = x.T @ x
        return x @ (a * np.eye(len(gram), dtype=x.dtype) + b * gram + c * (gram @ gram))


class Reordered(Traced):
    """Loops whose sums over the window and over features run from the other end."""

    def gradient(self, state: Any, t: int, residuals: np.ndarray) -> np.ndarray:
        total, weighs = self.zero, self.rule == "omega" and self.window_first
        for j in reversed(range(min(self.c if weighs else 1, len(state.tokens)))):
            weight = self.edge(state, t) * self.weight(state, t, j) if weighs else 1.0
            dropped = (
                self.frozen
                and j > state.position
                and self.convention["window_at_boundary"] == "cut"
            )
            total = total + np.outer(
                self.scale() * (0 if dropped else weight) * residuals[j], state.tokens[-1 - j].phi
            )
        return self.note("gradient", t, total)

    def residual(
        self, reference: np.ndarray, phi: np.ndarray, v: np.ndarray, retain: Any
    ) -> np.ndarray:
        return super().residual(reference[:, ::-1], phi[::-1], v, retain)


def recorded(
    case: Case, dtype: str, *, loops: Any = Traced, kind: Any = None, move: Any = None
) -> dict[str, np.ndarray]:
    """`trace/OP` of literal loops that work in `kind` (float32 but for float64), stored in
    `dtype`.
    """
    works = kind or (np.float64 if dtype == "float64" else np.float32)
    inputs = {
        name: value if value.dtype.kind in "bu" else value.astype(DTYPES[dtype]).astype(np.float64)
        for name, value in case.inputs.items()
    }
    quantities, _ = literal_trace(header_of(case), inputs, move, kind=works, loops=loops)
    return {f"trace/{op}": value.astype(DTYPES[dtype]) for op, value in quantities.items()}
