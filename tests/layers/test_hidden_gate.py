"""Gates of tokens through a hidden layer against loops, and against a recorded gate of public code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tape
from atlas_ref.layers.projection import hidden_gate
from atlas_ref.parts import gates
from atlas_ref.parts.gates import HiddenGateParams
from tape import ops
from tape.check import check_gradient
from tests.support.close import ANALYTIC, EXACT, assert_close
from tests.support.layers import recorded


def drawn(heads: int = 2) -> dict[str, Any]:
    draw = np.random.default_rng(heads)
    shapes = {"W_in": (5, 4), "W_out": (heads, 5), "x": (2, 3, 4)}
    return {name: draw.standard_normal(shape) for name, shape in shapes.items()}


def gate(at: Any) -> Any:
    return hidden_gate(HiddenGateParams(W_in=at["W_in"], W_out=at["W_out"]), at["x"])


@pytest.mark.clause("GATES-14")
@pytest.mark.parametrize("heads", [1, 2])
def test_a_hidden_gate_is_its_formula_in_loops(heads: int) -> None:
    at = drawn(heads)
    want = np.zeros((2, heads, 3))
    for b, h, t in np.ndindex(want.shape):
        z = 0.0
        for n in range(5):
            a = sum(at["W_in"][n, i] * at["x"][b, t, i] for i in range(4))
            z += at["W_out"][h, n] * a / (1.0 + np.exp(-a))
        want[b, h, t] = 1.0 / (1.0 + np.exp(-z))
    assert_close("gate", gate(at), want, ANALYTIC)


@pytest.mark.clause("GATES-14")
@pytest.mark.host("recorded arrays")
def test_a_recorded_gate_of_public_code_with_its_gradients() -> None:
    tensors = recorded("mag_gamma_gate", "peers_atlas_mag").tensors
    names = {"W_in": "gate.0.weight", "W_out": "gate.2.weight"}
    at = {ours: tensors[f"in/param/{name}"] for ours, name in names.items()}
    at |= {"x": tensors["in/x"]}
    assert_close("y", gate(at), np.swapaxes(tensors["out/y"], 1, 2), ANALYTIC)
    bar = np.swapaxes(tensors["in/y_bar"], 1, 2)
    gradient = tape.grad(lambda at: ops.sum(gate(at) * bar))(at)
    assert_close("x", gradient["x"], tensors["grad/x"], ANALYTIC)
    for ours, name in names.items():
        assert_close(name, gradient[ours], tensors[f"grad/param/{name}"], ANALYTIC)


@pytest.mark.clause("GATES-14")
@pytest.mark.host("a complex step, entry by entry")
def test_every_gradient_of_a_hidden_gate_is_its_complex_step() -> None:
    bar = np.random.default_rng(9).standard_normal((2, 2, 3))
    check_gradient(lambda at: ops.sum(gate(at) * bar), drawn())


@pytest.mark.clause("GATES-14")
def test_a_hidden_gate_starts_at_one_half_and_its_first_map_without_a_gradient() -> None:
    params = gates.init_hidden(heads=3, hidden=64, d_model=50, draw=np.random.default_rng(1))
    assert params.W_in.shape == (64, 50)
    assert np.std(params.W_in) == pytest.approx(0.02, rel=0.05)
    at = {"W_in": params.W_in, "W_out": params.W_out, "x": np.ones((1, 4, 50))}
    assert_close("gate", gate(at), np.full((1, 3, 4), 0.5), EXACT)
    gradient = tape.grad(lambda at: ops.sum(gate(at)))(at)
    assert_close("W_in", gradient["W_in"], np.zeros((64, 50)), EXACT)
    assert np.max(np.abs(gradient["W_out"])) > 0.0


@pytest.mark.clause("GATES-14")
def test_hidden_sizes_must_agree() -> None:
    with pytest.raises(ValueError, match=r"W_out: shape \(1, 4\) makes n 4, but W_in makes it 5"):
        HiddenGateParams(W_in=np.ones((5, 3)), W_out=np.ones((1, 4)))
