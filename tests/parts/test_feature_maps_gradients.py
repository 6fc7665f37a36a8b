"""Derivatives of feature maps by the argument and by every tensor (PHI-16)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

import atlas_ref
from atlas_ref.parts import feature_maps
from atlas_ref.parts.feature_maps import FeatureMap
from tape import grad, hvp, ops, vjp
from tests.support.close import ANALYTIC, EXACT, assert_close, reordered
from tests.truth import features
from tests.truth.features import MAPS

STEP = 1e-30
PARSE: TypeAdapter[Any] = TypeAdapter(FeatureMap)

each_map = pytest.mark.parametrize("settings", MAPS.values(), ids=MAPS.keys())


def gaussian(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


def pulled(
    settings: dict[str, Any], p: dict[str, Any], x: Any, g: Any
) -> tuple[Any, dict[str, Any]]:
    own = PARSE.validate_python(settings)
    return vjp(lambda x, p: feature_maps.apply(own, p, x), x, p)[1](g)


def features_of(settings: dict[str, Any], p: dict[str, Any], x: Any) -> Any:
    """The literal map over leading axes."""
    flat = np.array([features.phi(settings, p, each) for each in x.reshape(-1, x.shape[-1])])
    return flat.reshape(*x.shape[:-1], -1)


@each_map
@pytest.mark.clause("PHI-16", "PHI-18")
def test_the_pullback_is_that_of_the_table(settings: dict[str, Any]) -> None:
    p, x = features.tensors(settings, 4), gaussian(2, 3, 4)
    g = gaussian(2, 3, features.phi(settings, p, x[0, 0]).shape[0], seed=1)
    x_bar, p_bar = pulled(settings, p, x, g)
    sums = {name: np.zeros_like(tensor) for name, tensor in p.items()}
    for index in np.ndindex(2, 3):
        want, each = features.pullback(settings, p, x[index], g[index])
        assert_close(f"x {index}", x_bar[index], want, ANALYTIC)
        for name in sums:
            sums[name] += each[name]
    assert p_bar.keys() == sums.keys()
    for name, total in sums.items():
        assert_close(name, p_bar[name], total, ANALYTIC)


@each_map
@pytest.mark.clause("PHI-16", "PHI-18")
def test_the_pullback_is_the_complex_step_of_the_definition(settings: dict[str, Any]) -> None:
    p, x = features.tensors(settings, 3), gaussian(2, 3)
    g = gaussian(2, features.phi(settings, p, x[0]).shape[0], seed=1)
    x_bar, p_bar = pulled(settings, p, x, g)
    for name, value, got in [("x", x, x_bar), *((name, p[name], p_bar[name]) for name in p)]:
        want = np.zeros_like(value)
        for index in np.ndindex(*value.shape):
            moved = value.astype(complex)
            moved[index] += 1j * STEP
            args = (p, moved) if name == "x" else ({**p, name: moved}, x)
            want[index] = np.imag(np.sum(g * features_of(settings, *args))) / STEP
        assert_close(name, got, want, ANALYTIC)


@each_map
@pytest.mark.clause("PHI-16", "PHI-18")
def test_the_second_derivative_is_the_complex_step_of_the_first(settings: dict[str, Any]) -> None:
    own, p = PARSE.validate_python(settings), features.tensors(settings, 3)
    x, v = gaussian(2, 3), gaussian(2, 3, seed=1)

    def function(y: Any) -> Any:
        return ops.sum(feature_maps.apply(own, p, y) ** 3)

    got = hvp(function)(x, v)
    want = np.imag(grad(function)(x + 1j * STEP * v)) / STEP
    assert_close("hvp", got, want, ANALYTIC)


@each_map
@pytest.mark.clause("PHI-16", "PHI-18")
def test_gradients_of_float32_are_float32(settings: dict[str, Any]) -> None:
    p, x = features.tensors(settings, 4), gaussian(5, 4)
    p32 = {name: tensor.astype(np.float32) for name, tensor in p.items()}
    g = gaussian(5, features.phi(settings, p, x[0]).shape[0], seed=1)
    got = pulled(settings, p32, x.astype(np.float32), g.astype(np.float32))
    want = pulled(
        settings,
        {n: t.astype(float) for n, t in p32.items()},
        x.astype(np.float32).astype(float),
        g.astype(np.float32).astype(float),
    )
    for name, a, b in [
        ("x", got[0], want[0]),
        *((name, got[1][name], want[1][name]) for name in p),
    ]:
        assert a.dtype == np.float32
        assert_close(name, a.astype(float), b, reordered(1, dtype=np.float32, amplification=20))


@each_map
@pytest.mark.clause("PHI-16", "PHI-18")
def test_tensors_collect_from_all_keys_and_queries_of_all_heads(settings: dict[str, Any]) -> None:
    p, T = features.tensors(settings, 3), 4
    k, q = 0.6 * gaussian(2, 2, T, 3), 0.6 * gaussian(2, 2, T, 3, seed=1)
    gates = {
        "in/retain": np.full((2, 2, T), 0.9),
        "in/momentum": np.full((2, 2, T), 0.6),
        "in/step_size": np.full((2, 2, T), 0.1),
    }
    shared = {
        **gates,
        "in/v": gaussian(2, 2, T, 2, seed=2),
        "in/y_bar": gaussian(2, 2, T, 2, seed=3),
    }

    def gradients(feature_map: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
        header = {
            "schema": 1,
            "rule": "omega",
            "window": 2,
            "feature_map": feature_map,
            "convention": {"newton_schulz": "none"},
        }
        return atlas_ref.evaluate(atlas_ref.make(header, {**shared, **given}), grad=True).tensors

    names = {name: "proj" if name == "proj" else f"phi/{name}" for name in p}
    got = gradients(
        settings, {"in/k": k, "in/q": q, **{f"in/{names[name]}": p[name] for name in p}}
    )
    mapped = gradients(
        {"kind": "identity"},
        {"in/k": features_of(settings, p, k), "in/q": features_of(settings, p, q)},
    )
    sums = {name: np.zeros_like(tensor) for name, tensor in p.items()}
    for name, raw in (("k", k), ("q", q)):
        bar = np.zeros_like(raw)
        for index in np.ndindex(2, 2, T):
            bar[index], each = features.pullback(
                settings, p, raw[index], mapped[f"grad/{name}"][index]
            )
            for tensor in sums:
                sums[tensor] += each[tensor]
        assert_close(name, got[f"grad/{name}"], bar, ANALYTIC)
    for name, total in sums.items():
        assert_close(name, got[f"grad/{names[name]}"], total, ANALYTIC)


@pytest.mark.clause("PHI-16")
def test_elu_has_the_slope_one_at_zero_from_both_sides() -> None:
    x = np.array([-1e-12, -0.0, 0.0, 1e-12])
    got, _ = pulled({"kind": "elu"}, {}, x, np.ones(4))
    assert_close("slope", got, np.ones(4), ANALYTIC)
    assert got[1] == got[2] == got[3] == 1.0
    far, _ = pulled({"kind": "elu"}, {}, np.array([-40.0, -300.0, 300.0]), np.ones(3))
    assert_close("far out", far, np.array([np.exp(-40.0), np.exp(-300.0), 1.0]), ANALYTIC)
    assert far[1] > 0


@pytest.mark.clause("PHI-16")
def test_the_jacobian_enters_transposed() -> None:
    W, x, g = gaussian(3, 3), gaussian(3), gaussian(3, seed=1)
    x_bar, p_bar = pulled({"kind": "linear"}, {"W": W}, x, g)
    assert_close("W^T g", x_bar, W.T @ g, reordered(3))
    assert_close("g x^T", p_bar["W"], np.outer(g, x), EXACT)


@pytest.mark.clause("PHI-16")
def test_a_key_without_length_has_a_gradient() -> None:
    for name, settings in MAPS.items():
        p = features.tensors(settings, 3)
        g = np.ones((1, features.phi(settings, p, np.zeros(3)).shape[0]))
        got, _ = pulled(settings, p, np.zeros((1, 3)), g)
        assert_close(name, got[0], features.pullback(settings, p, np.zeros(3), g[0])[0], ANALYTIC)
