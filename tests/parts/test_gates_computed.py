"""Computed gates: inputs, activations, initial biases, derivatives (GATES-6 to GATES-13)."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest

import atlas_ref
from atlas_ref.layers import projection
from atlas_ref.parts import gates
from atlas_ref.parts.feature_maps import Monomials
from atlas_ref.parts.gates import GateParams, GateSet
from atlas_ref.rules import omega
from tape import ops, vjp
from tape.core import recording
from tests.support.close import (
    ANALYTIC,
    EXACT,
    FINITE_DIFFERENCE,
    assert_close,
    assert_differs,
    reordered,
)
from tests.support.gated import (
    D_IN,
    D_MODEL,
    D_OUT,
    B,
    H,
    T,
    central,
    gaussian,
    one_gate,
    parameters,
    token_level,
)

STEP = 1e-30


# -- computed gates --------------------------------------------------------------------------------


@pytest.mark.clause("GATES-6", "GATES-7")
@pytest.mark.parametrize("rows", [1, D_OUT])
def test_computed_gates_are_affine_maps_and_activations(rows: int) -> None:
    p = parameters("omega", rows)
    k, v = gaussian(B, H, T, D_IN, seed=30), gaussian(B, H, T, D_OUT, seed=31)
    names = ("retain", "momentum", "step_size")
    got = gates.compute(
        GateSet(**{name: GateParams(W=p[f"W_{name}"], b=p[f"b_{name}"]) for name in names}), k, v
    )
    assert got.keys() == set(names)
    for name in names:
        assert got[name].shape == ((B, H, T) if rows == 1 else (B, H, T, D_OUT))
        for b, h, t in np.ndindex(B, H, T):
            both = [*k[b, h, t], *v[b, h, t]]
            for n in range(rows):
                z = p[f"b_{name}"][h, n] + sum(
                    p[f"W_{name}"][h, n, i] * both[i] for i in range(D_IN + D_OUT)
                )
                want = math.log(1 + math.exp(z)) if name == "step_size" else 1 / (1 + math.exp(-z))
                value = got[name][b, h, t] if rows == 1 else got[name][b, h, t, n]
                assert_close(name, value, want, ANALYTIC)


@pytest.mark.clause("GATES-7")
def test_one_row_and_one_output_dimension_coincide() -> None:
    k, v = gaussian(1, 1, T, 2), gaussian(1, 1, T, 1)
    gate = GateParams(W=gaussian(1, 1, 3), b=gaussian(1, 1))
    value = gates.compute(GateSet(retain=gate), k, v)["retain"]
    assert value.shape == (1, 1, T)
    assert (
        gates.as_column(value, per_dimension=False).shape
        == (1, 1, T, 1, 1)
        == gates.as_column(value[..., None], per_dimension=True).shape
    )


@pytest.mark.clause("GATES-7")
def test_gates_that_are_not_there_are_not_computed() -> None:
    k, v = gaussian(1, 1, T, 1), gaussian(1, 1, T, 1)
    assert gates.compute(GateSet(), k, v) == {}
    assert gates.compute(one_gate("retain", [0.0]), k, v).keys() == {"retain"}


@pytest.mark.clause("GATES-7")
def test_misshapen_parameters_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"b: shape \(2, 2\) makes n 2, but W makes it 1"):
        GateParams(W=np.ones((2, 1, 5)), b=np.ones((2, 2)))
    with pytest.raises(ValueError, match=r"W: shape \(1, 5\), expected axes"):
        GateParams(W=np.ones((1, 5)), b=np.ones((2, 1)))
    with pytest.raises(
        ValueError, match=r"gates disagree on the number of heads: {'retain': 1, 'momentum': 2}"
    ):
        GateSet(
            retain=GateParams(W=np.ones((1, 1, 5)), b=np.ones((1, 1))),
            momentum=GateParams(W=np.ones((2, 1, 5)), b=np.ones((2, 1))),
        )
    for rows in (2, D_OUT + 1):
        with pytest.raises(
            atlas_ref.CaseError,
            match=f"in/param/W_retain: {rows} gates, expected 1 or one per output dimension, {D_OUT}",
        ):
            token_level("delta", rows=rows)
    with pytest.raises(atlas_ref.CaseError, match="in/param/b_retain: missing"):
        token_level("delta", param={"b_retain": None})


@pytest.mark.clause("GATES-7")
def test_rate_split_has_no_computed_form() -> None:
    with pytest.raises(atlas_ref.CaseError, match="rate split has no second rate at level token"):
        token_level("omega", {"rate": "split"})


@pytest.mark.clause("GATES-6", "PHI-1")
def test_gates_read_the_key_before_the_map_and_after_a_norm_before_it() -> None:
    x = gaussian(B, T, D_MODEL)
    params = {name: parameters("omega")[name] for name in ("W_K", "W_V", "W_Q")}
    own = GateSet(
        retain=GateParams(W=parameters("omega")["W_retain"], b=parameters("omega")["b_retain"])
    )
    k, v = (np.einsum("hij,btj->bhti", params[name], x) for name in ("W_K", "W_V"))

    def retain(**config: Any) -> Any:
        sizes = {"d_in": D_IN, "d_out": D_OUT, "d_model": D_MODEL, "heads": H, "window": 1}
        return projection.project(
            omega.Config(**sizes, **config), projection.Params(**params, gates=own), x
        )["retain"]

    raw = gates.compute(own, k, v)["retain"]
    normed = gates.compute(own, k / np.sqrt(np.sum(k * k, axis=-1, keepdims=True) + 1e-6), v)[
        "retain"
    ]
    assert_differs("the norm shows", normed, raw, 1e-3)
    before, after = ({"k_norm": "l2", "norm_place": place} for place in ("before_phi", "after_phi"))
    assert_close("raw key", retain(), raw, ANALYTIC)
    assert_close("feature map", retain(feature_map=Monomials()), retain(), EXACT)
    assert_close("norm before", retain(convention=before), normed, ANALYTIC)
    assert_close(
        "norm before, feature map",
        retain(convention=before, feature_map=Monomials()),
        retain(convention=before),
        EXACT,
    )
    assert_close("norm after", retain(convention=after), raw, ANALYTIC)


# -- initial biases --------------------------------------------------------------------------------


def value_at(name: str, bias: float) -> float:
    return float(
        gates.compute(one_gate(name, [bias]), np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 1, 1)))[
            name
        ].item()
    )


@pytest.mark.clause("GATES-8")
def test_initial_biases_as_numbers() -> None:
    bias = gates.INITIAL_BIAS
    assert bias == {"retain": 3.0, "forget": -3.0, "momentum": 1.5, "step_size": -4.6}
    kept, forgotten = value_at("retain", bias["retain"]), value_at("retain", bias["forget"])
    assert (kept, forgotten) == pytest.approx((0.9526, 0.0474), abs=5e-5)
    assert gates.multiplier(forgotten, "forget") == pytest.approx(kept, rel=1e-14)
    # tokens until half is gone
    assert math.log(0.5) / math.log(kept) == pytest.approx(14.3, abs=0.05)
    momentum = value_at("momentum", bias["momentum"])
    assert momentum == pytest.approx(0.8176, abs=5e-5)
    # what a constant gradient accumulates to
    assert 1 / (1 - momentum) == pytest.approx(5.48, abs=0.005)
    assert value_at("step_size", bias["step_size"]) == pytest.approx(0.0100, abs=5e-5)
    wrong = gates.multiplier(value_at("retain", 3.0), "forget")
    assert (wrong, wrong**10, kept**10) == pytest.approx((0.0474, 6e-14, 0.615), rel=0.05)


@pytest.mark.clause("GATES-8")
@pytest.mark.parametrize("forget", [False, True])
@pytest.mark.parametrize("per_dimension", [False, True])
def test_gates_start_at_their_biases_with_small_weights(forget: bool, per_dimension: bool) -> None:
    names = ("retain", "momentum", "step_size")
    draw = np.random.Generator(np.random.Philox(1))
    made = gates.init(
        names, heads=40, d_in=30, d_out=20, per_dimension=per_dimension, forget=forget, draw=draw
    )
    n = 20 if per_dimension else 1
    for name in names:
        gate = getattr(made, name)
        assert (gate.W.shape, gate.b.shape) == ((40, n, 50), (40, n))
        assert_close(
            name,
            gate.b,
            np.full((40, n), gates.INITIAL_BIAS["forget" if forget and name == "retain" else name]),
            EXACT,
        )
        assert np.std(gate.W) == pytest.approx(0.02, rel=0.1)
        assert abs(np.mean(gate.W)) < 0.02 * 5 / math.sqrt(gate.W.size)
    assert (
        gates.init((), heads=1, d_in=1, d_out=1, per_dimension=False, forget=False, draw=draw)
        == GateSet()
    )


@pytest.mark.clause("GATES-8", "GATES-2")
def test_a_rule_starts_with_the_bias_of_its_reading() -> None:
    for gate, bias in (("retain", 3.0), ("forget", -3.0)):
        config = omega.Config(d_in=3, d_out=2, d_model=4, convention={"gate": gate})
        made = projection.init(config, 0).gates
        assert made.retain is not None
        assert_close(gate, made.retain.b, np.full((1, 1), bias), EXACT)
    assert (
        projection.init(
            omega.Config(d_in=3, d_out=2, d_model=4, convention={"gate": "none"}), 0
        ).gates.retain
        is None
    )


@pytest.mark.clause("GATES-9")
def test_slower_levels_hold_more_under_both_readings() -> None:
    biases, want = (3.0, 4.0, 4.5, 5.0), (0.9526, 0.9820, 0.9890, 0.9933)
    kept = [gates.multiplier(value_at("retain", b), "retain") for b in biases]
    forgot = [gates.multiplier(value_at("retain", -b), "forget") for b in biases]
    assert kept == pytest.approx(want, abs=5e-5)
    assert forgot == pytest.approx(kept, rel=1e-14)
    raised = [gates.multiplier(value_at("retain", b), "forget") for b in (-3.0, -2.0, -1.5, -1.0)]
    assert raised == sorted(raised, reverse=True)  # raising a forget bias forgets faster


# -- stable evaluation -----------------------------------------------------------------------------


@pytest.mark.clause("GATES-10")
def test_activations_keep_their_relative_precision_at_every_size() -> None:
    z = np.array(
        [
            -744.0,
            -700.0,
            -300.0,
            -40.0,
            -37.0,
            -20.0,
            -1.0,
            -1e-8,
            0.0,
            1e-300,
            1e-8,
            1.0,
            20.0,
            37.0,
            40.0,
            300.0,
            1e308,
        ]
    )
    with localcontext(prec=700):  # 1 + exp(-744) has to be seen
        exact = [(Decimal(0) if each > 1e6 else (-Decimal(each)).exp()) for each in z]
        sigmoid = np.array([float(1 / (1 + e)) for e in exact])
        softplus = np.array(
            [float(Decimal(each) + (1 + e).ln()) for each, e in zip(z, exact, strict=True)]
        )
    normal = z >= -700  # below that float64 itself has fewer digits
    for name, want in (("momentum", sigmoid), ("step_size", softplus)):
        params = GateSet(**{name: GateParams(W=np.zeros((1, len(z), 2)), b=z[None])})
        got = gates.compute(params, np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 1, 1)))[name].ravel()
        assert np.all(got > 0)
        assert np.abs(got[normal] / want[normal] - 1).max() < 4e-16
        assert got[0] == pytest.approx(want[0], rel=0.5)
    below = gates.compute(
        one_gate("retain", [-1e308, 1e308]), np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 1, 1))
    )["retain"].ravel()
    assert_close("far out", below, np.array([0.0, 1.0]), EXACT)


@pytest.mark.clause("GATES-10", "GATES-12")
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_extreme_inputs_give_finite_gates_and_gradients(kind: Any) -> None:
    z = np.array([-1e30, -200.0, -90.0, 0.0, 90.0, 200.0, 1e30], dtype=kind)
    for name in ("retain", "momentum", "step_size"):

        def total(b: Any, name: str = name) -> Any:
            gate = GateParams.trusted(W=np.zeros((1, len(z), 2), kind), b=b)
            return ops.sum(
                gates.compute(
                    GateSet.trusted(**{name: gate}),
                    np.zeros((1, 1, 1, 1), kind),
                    np.zeros((1, 1, 1, 1), kind),
                )[name]
            )

        value, pullback = vjp(total, z[None])
        gradient = pullback(kind(1.0))[0]
        assert (np.asarray(value).dtype, gradient.dtype) == (kind, kind)
        assert np.isfinite(value)
        assert np.all((gradient >= 0) & (gradient <= 1))


# -- reductions ------------------------------------------------------------------------------------


@pytest.mark.clause("GATES-11")
def test_retain_is_forget_with_the_signs_of_its_parameters_changed() -> None:
    k, v = gaussian(B, H, T, D_IN), gaussian(B, H, T, D_OUT, seed=1)
    p = parameters("omega", D_OUT)
    plus, minus = (
        GateSet(retain=GateParams(W=s * p["W_retain"], b=s * p["b_retain"])) for s in (1, -1)
    )
    kept = gates.multiplier(gates.compute(plus, k, v)["retain"], "retain")
    forgot = gates.multiplier(gates.compute(minus, k, v)["retain"], "forget")
    assert_close("multiplier", forgot, kept, reordered(1))
    turned = {
        "W_retain": -parameters("delta")["W_retain"],
        "b_retain": -parameters("delta")["b_retain"],
    }
    for name in ("out/y", "out/M"):
        got = token_level("delta", {"gate": "forget"}, param=turned)[name]
        assert_close(
            name,
            got,
            token_level("delta", {"gate": "retain"})[name],
            reordered(T, amplification=10),
        )


# -- gradients -------------------------------------------------------------------------------------


@pytest.mark.clause("GATES-12")
@pytest.mark.parametrize("rows", [1, D_OUT])
@pytest.mark.parametrize("name", ["retain", "momentum", "step_size"])
def test_the_pullback_of_a_computed_gate(name: str, rows: int) -> None:
    p = parameters("omega", rows)
    W, b = p[f"W_{name}"], p[f"b_{name}"]
    k, v = gaussian(B, H, T, D_IN, seed=40), gaussian(B, H, T, D_OUT, seed=41)

    def function(W: Any, b: Any, k: Any, v: Any) -> Any:
        return gates.compute(GateSet.trusted(**{name: GateParams.trusted(W=W, b=b)}), k, v)[name]

    value, pullback = vjp(function, W, b, k, v)
    bar = gaussian(*value.shape, seed=42)
    got = dict(zip(("W", "b", "k", "v"), pullback(bar), strict=True))
    want = {
        "W": np.zeros_like(W),
        "b": np.zeros_like(b),
        "k": np.zeros_like(k),
        "v": np.zeros_like(v),
    }
    for i, h, t in np.ndindex(B, H, T):
        both = np.concatenate([k[i, h, t], v[i, h, t]])
        u, u_bar = np.atleast_1d(value[i, h, t]), np.atleast_1d(bar[i, h, t])
        z_bar = (
            1 - np.exp(-u) if name == "step_size" else u * (1 - u)
        ) * u_bar  # sigmoid(z) = 1 - exp(-softplus(z))
        want["W"][h] += np.outer(z_bar, both)
        want["b"][h] += z_bar
        want["k"][i, h, t] = W[h, :, :D_IN].T @ z_bar
        want["v"][i, h, t] = W[h, :, D_IN:].T @ z_bar
    for each, expected in want.items():
        assert_close(each, got[each], expected, ANALYTIC)


@pytest.mark.clause("GATES-12")
def test_the_pullback_of_a_computed_gate_is_its_complex_step() -> None:
    p = parameters("omega", D_OUT)
    k, v = gaussian(1, H, 2, D_IN, seed=40), gaussian(1, H, 2, D_OUT, seed=41)
    for name in ("retain", "momentum", "step_size"):
        args = [p[f"W_{name}"], p[f"b_{name}"], k, v]

        def literal(W: Any, b: Any, k: Any, v: Any, name: str = name) -> Any:
            z = (
                np.einsum("hni,bhti->bhtn", W, np.concatenate([k, v], axis=-1))
                + b[None, :, None, :]
            )
            return np.log(1 + np.exp(z)) if name == "step_size" else 1 / (1 + np.exp(-z))

        def function(W: Any, b: Any, k: Any, v: Any, name: str = name) -> Any:
            return gates.compute(GateSet.trusted(**{name: GateParams.trusted(W=W, b=b)}), k, v)[
                name
            ]

        value, pullback = vjp(function, *args)
        bar = gaussian(*value.shape, seed=43)
        for position, got in enumerate(pullback(bar)):
            direction = gaussian(*args[position].shape, seed=44)
            moved = [
                each + 1j * STEP * direction if i == position else each
                for i, each in enumerate(args)
            ]
            want = np.imag(np.sum(bar * literal(*moved))) / STEP
            assert_close(f"{name} {position}", np.sum(got * direction), want, ANALYTIC)


@pytest.mark.clause("GATES-12")
def test_computed_gates_carry_gradient_to_keys_and_values() -> None:
    p, bar = parameters("titans_lmm"), gaussian(B, H, T, D_OUT, seed=52)
    found = token_level("titans_lmm", grad=True, y_bar=bar)
    for name in ("W_K", "W_V", "W_retain", "b_retain", "W_step_size", "b_momentum"):

        def loss(value: Any, name: str = name) -> float:
            return float(np.sum(bar * token_level("titans_lmm", param={name: value})["out/y"]))

        assert_close(name, found[f"grad/param/{name}"], central(loss, p[name]), FINITE_DIFFERENCE)


# -- cost ------------------------------------------------------------------------------------------


@pytest.mark.clause("GATES-13")
@pytest.mark.parametrize("rows", [1, D_OUT])
def test_multiply_adds_per_gate_and_token(rows: int) -> None:
    counts: list[int] = []

    def note(name: str, arguments: Any, value: Any) -> None:
        if name == "matmul":
            counts.append(int(np.prod(value.shape)) * arguments[0].shape[-1])

    p = parameters("omega", rows)
    params = GateSet(
        **{
            name: GateParams(W=p[f"W_{name}"], b=p[f"b_{name}"])
            for name in ("retain", "momentum", "step_size")
        }
    )
    with recording() as tape:
        tape.guard = note
        gates.compute(params, tape.variable(gaussian(B, H, T, D_IN)), gaussian(B, H, T, D_OUT))
    assert counts == [B * H * T * rows * (D_IN + D_OUT)] * 3
