"""Gradients by hand of the plain loops of memory functions, against the complex step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.close import ANALYTIC, assert_close
from tests.truth import deep_memory_functions as functions

pytestmark = pytest.mark.host("plain loops of the tests")

FUNCTIONS: dict[str, dict[str, Any]] = {
    "linear": {"kind": "linear"},
    "linear_with_input": {"kind": "linear", "with_input": True},
    "mlp1": {"kind": "mlp", "depth": 1},
    "mlp3": {"kind": "mlp", "depth": 3, "with_input": True},
    "mlp2_norm": {"kind": "mlp", "depth": 2, "residual_norm": True},
    "polynomial": {"kind": "polynomial"},
    "polynomial1_input": {"kind": "polynomial", "degree": 1, "with_input": True},
    "polynomial_gated": {"kind": "polynomial", "gated": True},
    "polynomial_compress": {"kind": "polynomial", "gated": True, "compress": True},
}


def drawn(f: functions.Function, d: int = 4, seed: int = 0) -> dict[str, Any]:
    """Tensors of a memory function from d to d numbers."""
    n, kd, h, r = np.random.default_rng(seed).standard_normal, 3, 5, 4
    if f.kind == "linear":
        return {"W": 0.4 * n((d, d))}
    if f.kind == "mlp":
        depth = f.depth or 2
        widths = [d, *([h] * (depth - 1)), d]
        p = {f"W_{i + 1}": 0.5 * n((widths[i + 1], widths[i])) for i in range(depth)}
        return p | ({"norm/gain": 0.1 * n(d)} if f.residual_norm else {})
    F = kd + kd * (kd + 1) // 2 if f.degree == 2 else kd
    m = r if f.compress else F
    p = {
        "W_down": 0.5 * n((kd, d)),
        "feature_norm/gain": 1.0 + 0.1 * n(F),
        "feature_norm/bias": 0.1 * n(F),
        "W_in": 0.5 * n((h, m)),
        "W_out": 0.5 * n((kd, h)),
        "W_up": 0.5 * n((d, kd)),
        "read_norm/gain": 1.0 + 0.1 * n(d),
        "read_norm/bias": 0.1 * n(d),
        "read_scale": np.array(0.7),
    }
    p |= {"W_compress": 0.5 * n((r, F))} if f.compress else {}
    return p | ({"W_value": 0.5 * n((h, m))} if f.gated else {})


@pytest.mark.parametrize("activation", ["gelu_erf", "gelu_tanh", "silu"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_gradients_by_hand_are_those_of_the_complex_step(name: str, activation: str) -> None:
    f = functions.Function(**FUNCTIONS[name], activation=activation)
    p, draw = drawn(f), np.random.default_rng(1)
    x, bar = draw.standard_normal((2, 4))
    g, x_bar = functions.gradient(p, x, bar, f)
    assert set(g) == set(functions.names(f, p)) == set(p)
    for of, want in (g | {"x": x_bar}).items():
        at = x if of == "x" else p[of]
        got = []
        for way in np.eye(at.size).reshape(-1, *at.shape):
            moved = at + 1e-40j * way
            here = (p, moved) if of == "x" else (p | {of: moved}, x)
            got.append(np.imag(np.sum(functions.value(*here, f) * bar)) / 1e-40)
        assert_close(of, np.array(got).reshape(at.shape), np.array(want), ANALYTIC)
