"""What moves vectors where Newton-Schulz looks ahead: the matrices' argument, as a plain loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref.rules import deep_memory
from tests.support import deep_memories as deep
from tests.support.close import assert_close, assert_differs, reordered
from tests.truth import deep_memory_functions as functions
from tests.truth.deep_memory_write import newton_schulz

T, D = 4, deep.D
MUON = (3.4445, -4.775, 2.0315)
MEMORY = {"kind": "mlp", "depth": 2, "residual_norm": True, "activation": "silu"}


def by_hand(given: Any, *, vectors: str, ahead: bool) -> dict[str, np.ndarray]:
    """Weights after all tokens, each of which writes: rate momentum, the gradient as it is.

    Args:
        ahead: whether vectors move by g + momentum S; else by S.
    """
    function = functions.Function(**MEMORY)
    W = {name: np.array(each) for name, each in given.tensors.items()}
    S = {name: np.zeros_like(each) for name, each in W.items()}
    for t in range(T):
        gates = {name: each[0, t] for name, each in given.gates.items()}
        k, v = given.k[0, t], given.v[0, t]
        bar = functions.value(W, k, function) - v
        g, _ = functions.gradient(W, k, bar, function)
        for name in W:
            S[name] = gates["momentum"] * S[name] + gates["step_size"] * g[name]
            matrix = W[name].ndim == 2
            U = g[name] + gates["momentum"] * S[name] if matrix or ahead else S[name]
            if matrix:
                U = newton_schulz(U, 3, MUON, 1e-7, "add", "tall")
            elif vectors == "unit":
                U = U / (np.sqrt((U**2).sum()) + 1e-8)
            W[name] = gates["retain"] * W[name] - U
    return W


@pytest.mark.clause("DEEP-12")
@pytest.mark.parametrize("vectors", ["raw", "unit"])
def test_vectors_look_ahead_as_matrices_do(vectors: str) -> None:
    rng = np.random.default_rng(5)
    shapes = {"W_1": (4, D), "W_2": (D, 4), "norm/gain": (D,)}
    tensors = {name: 0.5 * rng.standard_normal(shape) for name, shape in shapes.items()}
    gates = {
        name: rng.uniform(low, high, (1, T))
        for name, low, high in (
            ("retain", 0.8, 1.0),
            ("momentum", 0.3, 0.9),
            ("step_size", 0.05, 0.3),
        )
    }
    k, v, q = rng.standard_normal((3, 1, T, D))
    given = deep.Inputs(k, v, q, gates, tensors, None, (T,))
    config = deep_memory.Config(
        d_in=D,
        d_out=D,
        memory={**MEMORY, "expansion": 4 / 3},
        fast="all",
        vectors=vectors,
        convention={
            "rate": "momentum",
            "gradient_scale": 1.0,
            "newton_schulz": {
                "steps": 3,
                "argument": "nesterov",
                "eps": 1e-7,
                "guard": "add",
                "transpose": "tall",
            },
        },
    )
    state, _ = deep.run(config, given)
    want = by_hand(given, vectors=vectors, ahead=True)
    for name, each in want.items():
        assert_close(name, state.weights[name][0], each, reordered(64, amplification=100.0))
    behind = by_hand(given, vectors=vectors, ahead=False)
    assert_differs("norm/gain", state.weights["norm/gain"][0], behind["norm/gain"], 1e-2)
