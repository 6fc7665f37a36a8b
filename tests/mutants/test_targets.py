"""Small tests for mutants of the rules: the package against literal loops, one feature at a time.

Values are compared with `tests/truth/literal.py`, gradients with its complex step; ops of the tape
with loops written here. Nothing in this file, and nothing that it takes as truth, is changed by a
mutant.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.parts import gates
from tape import TapeError, checkpoint, grad, hvp, ops, vjp
from tests.support.close import ANALYTIC, EXACT, assert_close
from tests.truth.literal import evaluate
from tests.truth.literal_gradient import complex_step

PEERS = Path(__file__).parents[1] / "data" / "peers"
Tensors = dict[str, np.ndarray]
Change = Callable[[Tensors], Tensors]

# -- cases -----------------------------------------------------------------------------------------


def request(rule: str = "omega", **fields: Any) -> Request:
    sizes = {
        "tokens": 5,
        "d_in": 3,
        "d_out": 2,
        "heads": 1,
        "window": 3 if rule == "omega" else 1,
        "cotangent": True,
        "seed": 5,
    }
    return Request(rule=rule, **{**sizes, **fields})


def scaled(factor: float, *names: str) -> Change:
    return lambda tensors: {
        name: value * factor if name in names else value for name, value in tensors.items()
    }


def dropped(*names: str) -> Change:
    return lambda tensors: {name: value for name, value in tensors.items() if name not in names}


def signed_weights(tensors: Tensors) -> Tensors:
    """Weights that are neither uniform nor a function of the lag alone, some negative."""
    varied = tensors["in/window_weights"] * np.array([1.0, -0.7, 2.0])
    return tensors | {"in/window_weights": varied}


def resumed(tensors: Tensors) -> Tensors:
    return tensors | {"in/M_ref": 0.3 + 0.5 * tensors["in/M0"]}


def twice_the_same_key(tensors: Tensors) -> Tensors:
    keys = tensors["in/k"].copy()
    keys[..., 3, :] = keys[..., 1, :]
    return tensors | {"in/k": keys}


NONE: dict[str, Any] = {"newton_schulz": "none"}
SPAN: dict[str, Any] = {**NONE, "reference": "chunk_start"}
UNIFORM = {"kind": "uniform"}
SQUARES = {"kind": "elementwise", "degree": 2}
NEAR_EPS = {"newton_schulz": {"eps": 1e-2}}

#: name -> (request, change of the tensors, further keys of the header)
CASES: dict[str, tuple[Request, Change | None, dict[str, Any]]] = {
    "omega": (request(), signed_weights, {}),
    "omega-plain": (request(convention=NONE), signed_weights, {}),
    "omega-square": (
        request(d_in=3, d_out=3, convention={"newton_schulz": {"steps": 2}}),
        None,
        {},
    ),
    "titans": (request("titans_lmm"), None, {}),
    "titans-split": (
        request("titans_lmm", convention={"rate": "split", "momentum_sign": "minus"}),
        None,
        {},
    ),
    "titans-still": (request("titans_lmm"), dropped("in/momentum", "in/S0"), {}),
    "omega-still": (request(convention=NONE), dropped("in/momentum", "in/S0"), {}),
    "delta": (request("delta"), None, {}),
    "hebbian": (request("hebbian"), None, {}),
    "per-dimension": (
        request(d_in=3, d_out=3, per_dimension_gates=True, convention=NONE),
        None,
        {},
    ),
    "forget": (request(convention={**NONE, "gate": "forget"}), None, {}),
    "before-error": (request(convention={**NONE, "decay": "before_error"}), None, {}),
    "both": (request(convention={**NONE, "rate": "both"}), None, {}),
    "history": (request(convention=NONE, history=2, tokens=4), None, {}),
    "pulse": (request(convention=NONE, pulse=2), None, {}),
    "reset": (request(convention=NONE, reset=2, history=2), None, {}),
    "window-gate": (request(convention=NONE, window_gate=True, history=2), None, {}),
    "renormalise": (request(convention={**NONE, "window_edge": "renormalise"}, tokens=3), None, {}),
    "recompute": (request(convention=SPAN, span=3, tokens=6), None, {}),
    "carry": (
        request(convention={**SPAN, "window_at_boundary": "carry"}, span=3, tokens=6, history=1),
        None,
        {},
    ),
    "cut": (request(convention={**SPAN, "window_at_boundary": "cut"}, span=3, tokens=6), None, {}),
    "multiple": (
        request(convention={**SPAN, "span_origin": "multiple"}, span=3, tokens=6),
        None,
        {},
    ),
    "resumed": (request(convention=SPAN, span=3), resumed, {"phase": 1}),
    "call-start": (request(convention={**NONE, "reference": "call_start"}), None, {}),
    "momentum-first": (request(convention={**NONE, "order": "momentum_then_window"}), None, {}),
    "nesterov": (request(convention={"newton_schulz": {"argument": "nesterov"}}), None, {}),
    "written-back": (request(convention={"newton_schulz": {"argument": "written_back"}}), None, {}),
    "accumulated": (request(convention={"newton_schulz": {"argument": "accumulated"}}), None, {}),
    "read-before": (request(convention={**NONE, "read": "before"}), None, {}),
    "call-end": (request(convention={**NONE, "read": "call_end"}, reset=3), None, {}),
    "query-scale": (request(convention={**NONE, "query_scale": "1/sqrt(d_in)"}), None, {}),
    "layout": (request(d_in=3, d_out=3, convention={**NONE, "layout": "transposed"}), None, {}),
    "norms": (
        request(convention={**NONE, "q_norm": "l2", "k_norm": "rms"}),
        scaled(1e-3, "in/k", "in/q"),
        {},
    ),
    "average": (request("titans_lmm", convention={"momentum_kind": "average"}), None, {}),
    "faded": (request("titans_lmm", convention={"momentum_kind": "delta_momentum"}), None, {}),
    "bounded": (
        request("delta", convention={"retain_bounds": [0.5, 0.5], "step_bounds": [0.2, 0.2]}),
        None,
        {},
    ),
    "ceiling": (request("titans_lmm", convention={"memory_ceiling": 0.6}), None, {}),
    "ceiling-high": (request("delta", convention={"memory_ceiling": 1e3}), None, {}),
    "norm-add": (
        request(convention={**NONE, "k_norm": "l2", "norm_eps": 1e-2, "norm_guard": "add"}),
        None,
        {},
    ),
    "norm-clamp": (
        request(convention={**NONE, "q_norm": "rms", "norm_eps": 1e-2, "norm_guard": "clamp"}),
        scaled(1e-3, "in/q"),
        {},
    ),
    "norm-after": (
        request(
            convention={**NONE, "k_norm": "l2", "q_norm": "l2", "norm_place": "after_phi"},
            feature_map=SQUARES,
        ),
        None,
        {},
    ),
    "mapped": (request(convention=NONE, feature_map={"kind": "monomials"}), None, {}),
    "token": (request(level="token", convention=NONE, window_weights=UNIFORM), None, {}),
    "token-titans": (request("titans_lmm", level="token"), None, {}),
    "token-norm": (
        request(
            level="token",
            convention={**NONE, "k_norm": "l2"},
            feature_map=SQUARES,
            window_weights=UNIFORM,
        ),
        None,
        {},
    ),
    "token-softmax": (
        request(level="token", heads=2, convention=NONE, window_weights={"kind": "softmax"}),
        None,
        {},
    ),
    "token-gate": (
        request(level="token", convention=NONE, window_weights={"kind": "gate"}),
        None,
        {},
    ),
    "token-decay": (
        request(level="token", convention=NONE, window_weights={"kind": "decay", "base": 0.6}),
        None,
        {},
    ),
    "ns": (request("newton_schulz", d_in=5), None, {}),
    "ns-tall": (
        request("newton_schulz", d_in=3, d_out=5, convention={"newton_schulz": {"scale": "sqrt"}}),
        None,
        {},
    ),
    "ns-square": (
        request("newton_schulz", d_in=3, d_out=3, convention={"newton_schulz": {"steps": 3}}),
        None,
        {},
    ),
    "ns-near-eps": (request("newton_schulz", convention=NEAR_EPS), scaled(1e-2, "in/G"), {}),
    "ns-clamp": (
        request("newton_schulz", convention={"newton_schulz": {"eps": 1e-2, "guard": "clamp"}}),
        scaled(2e-2, "in/G"),
        {},
    ),
    "ns-rows": (
        request(
            "newton_schulz",
            convention={"newton_schulz": {"coefficients": [[2, -1, 0.2], [1.5, -0.5, 0]]}},
        ),
        None,
        {},
    ),
    "ns-polar": (
        request("newton_schulz", convention={"newton_schulz": {"coefficients": "polar_express"}}),
        None,
        {},
    ),
    **{
        f"map-{kind['kind']}": (
            request("feature_map", heads=2, window=1, feature_map=kind),
            None,
            {},
        )
        for kind in (
            {"kind": "random_fourier"},
            {"kind": "elu"},
            {"kind": "residual_mlp", "activation": "gelu"},
            {"kind": "polynomial", "degree": 3},
            {"kind": "monomials"},
            {"kind": "elementwise", "degree": 3},
            {"kind": "sketch"},
            {"kind": "tensor_sketch", "degree": 3},
        )
    },
    "map-frozen": (
        request(
            "feature_map",
            heads=2,
            window=1,
            feature_map={"kind": "random_fourier", "learned": False},
        ),
        None,
        {},
    ),
}


def built(name: str) -> tuple[dict[str, Any], Tensors]:
    """Header and tensors of a case."""
    return made(*CASES[name])


def made(
    asked: Request, change: Change | None, more: dict[str, Any]
) -> tuple[dict[str, Any], Tensors]:
    """Header and tensors of a request with changes and further keys of the header."""
    case = new(asked)
    header = case.header.model_dump(mode="json", by_alias=True, exclude_unset=True) | more
    tensors = dict(case.inputs)
    if asked.rule in ("omega", "titans_lmm", "delta", "hebbian"):  # cotangents of the states too
        random = np.random.default_rng(1)
        tensors |= {
            f"in/{state}_bar": random.standard_normal(tensors[f"in/{state}0"].shape)
            for state in "MS"
            if f"in/{state}0" in tensors
        }
    tensors = change(tensors) if change else tensors
    if "in/S0" not in tensors:
        tensors.pop("in/S_bar", None)
    return header, tensors


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    header, tensors = built(name)
    want = evaluate(
        header, {key: value for key, value in tensors.items() if not key.endswith("_bar")}
    )
    found = atlas_ref.evaluate(atlas_ref.make(header, tensors))
    assert found.header.get("phase") == want.pop("phase", None)
    assert set(found.tensors) == set(want)
    for key, value in want.items():
        assert_close(f"{name}: {key}", found.tensors[key], value, ANALYTIC)


GRADIENTS = {
    "omega": "k v retain momentum step_size window_weights M0 S0",
    "omega-plain": "k v q retain momentum step_size window_weights M0 S0",
    "omega-square": "k v M0 S0",
    "titans": "k v retain momentum step_size M0 S0",
    "carry": "k v M0 window_k window_residual",
    "cut": "M0",
    "call-start": "M0",
    "resumed": "M_ref M0",
    "ceiling": "M0 step_size",
    "token": "x param/W_K param/W_V param/W_retain param/b_step_size",
    "momentum-first": "k S0 window_weights",
    "window-gate": "window_gate window_gate_before",
    "layout": "M0",
    "ns": "G",
    "ns-square": "G",
    "ns-tall": "G",
    "ns-near-eps": "G",
    "ns-clamp": "G",
    "map-frozen": "x",
}


@pytest.mark.parametrize(
    ("name", "key"), [(name, key) for name, keys in GRADIENTS.items() for key in keys.split()]
)
def test_gradient(name: str, key: str) -> None:
    header, tensors = built(name)
    bars = {tensor: value for tensor, value in tensors.items() if tensor.endswith("_bar")}
    inputs = {tensor: value for tensor, value in tensors.items() if tensor not in bars}
    want = complex_step(header, inputs, f"in/{key}", bars)
    found = atlas_ref.evaluate(atlas_ref.make(header, tensors), grad=True).tensors[f"grad/{key}"]
    assert_close(f"{name}: grad/{key}", found, want, ANALYTIC)


def test_frozen_tensors_have_no_gradient() -> None:
    found = atlas_ref.evaluate(atlas_ref.make(*built("map-frozen")), grad=True).tensors
    assert {name for name in found if name.startswith("grad/")} == {"grad/x"}


# -- splitting -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["omega-plain", "carry", "window-gate", "momentum-first", "resumed"]
)
def test_split_and_resume(name: str) -> None:
    header, tensors = built(name)
    tensors = {key: value for key, value in tensors.items() if not key.endswith("_bar")}
    per_token = (
        "in/k",
        "in/v",
        "in/q",
        "in/retain",
        "in/momentum",
        "in/step_size",
        "in/window_weights",
        "in/window_gate",
    )
    axis = tensors["in/k"].ndim - 2
    whole = atlas_ref.evaluate(atlas_ref.make(header, tensors))
    cut = 3

    def part(span: slice) -> Tensors:
        return {
            key: value[(slice(None),) * axis + (span,)]
            for key, value in tensors.items()
            if key in per_token
        }

    states = {key: value for key, value in tensors.items() if key not in per_token}
    first = atlas_ref.evaluate(atlas_ref.make(header, {**states, **part(slice(cut))}))
    names = {"out/M": "in/M0", "out/S": "in/S0"}
    carried = {
        names.get(key, key.replace("out/", "in/")): value
        for key, value in first.tensors.items()
        if key != "out/y"
    }
    second = atlas_ref.evaluate(atlas_ref.make(first.header, {**carried, **part(slice(cut, None))}))
    joined = np.concatenate([first.tensors["out/y"], second.tensors["out/y"]], axis=-2)
    assert_close(f"{name}: y of the two parts", joined, whole.tensors["out/y"], EXACT)
    assert_close(
        f"{name}: M of the second part", second.tensors["out/M"], whole.tensors["out/M"], EXACT
    )


# -- what others computed --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "fla_delta_11",
        "fla_gated_delta_11",
        "fla_momentum_delta_11",
        "atlas_rnn_omega4_11",
        "mag_ns_6x10_5_11",
    ],
)
def test_recorded(name: str) -> None:
    """Outputs of public implementations that share nothing with this project."""
    results = atlas_ref.check(atlas_ref.load(PEERS / f"{name}.safetensors"))
    assert results
    for result in results:
        assert result.verdict == "PASS", result


# -- gates -----------------------------------------------------------------------------------------


def test_gates_start_by_keeping() -> None:
    """The first gate, which keeps about 0.953 of the memory per token under every name."""
    for forget in (False, True):
        made = gates.init(
            ("retain",),
            heads=1,
            d_in=3,
            d_out=2,
            per_dimension=False,
            forget=forget,
            draw=np.random.default_rng(0),
        )
        value = gates.compute(made, np.zeros((1, 1, 1, 3)), np.zeros((1, 1, 1, 2)))["retain"]
        kept = 1.0 - value if forget else value
        assert abs(float(kept[0, 0, 0]) - 1.0 / (1.0 + np.exp(-3.0))) < 1e-12


# -- the tape --------------------------------------------------------------------------------------

A = np.array([[1.0, 2.0, -1.0], [0.5, -3.0, 2.0], [4.0, 1.0, 0.25]])
B = np.array([[2.0, -1.0, 0.5], [1.5, 3.0, -2.0], [0.0, 1.0, -4.0]])
C = np.array([[0.3, -1.1, 0.7], [2.0, 0.1, -0.4], [-0.6, 0.9, 1.3]])


def test_matmul_pulls_back_as_its_sum() -> None:
    """d sum C_ij A_ik B_kj: dA_ik = sum_j C_ij B_kj, dB_kj = sum_i A_ik C_ij."""
    dA, dB = np.zeros((3, 3)), np.zeros((3, 3))
    for i in range(3):
        for k in range(3):
            for j in range(3):
                dA[i, k] += C[i, j] * B[k, j]
                dB[k, j] += A[i, k] * C[i, j]
    _, pullback = vjp(lambda a, b: a @ b, A, B)
    for name, got, want in zip(("A", "B"), pullback(C), (dA, dB), strict=True):
        assert_close(f"matmul, {name}", got, want, ANALYTIC)


def test_multiply_pulls_back_to_both_factors() -> None:
    """The backward of a repeated row: a sum over the rows of the other factor."""
    row = A[:1]
    dA, dB = np.zeros((1, 3)), np.zeros((3, 3))
    for i in range(3):
        for j in range(3):
            dA[0, j] += C[i, j] * B[i, j]
            dB[i, j] += C[i, j] * row[0, j]
    _, pullback = vjp(lambda a, b: a * b, row, B)
    for name, got, want in zip(("first", "second"), pullback(C), (dA, dB), strict=True):
        assert_close(f"multiply, {name}", got, want, ANALYTIC)


def test_divide_pulls_back_to_both_sides() -> None:
    dA, dB = np.zeros((3, 3)), np.zeros((3, 3))
    denominator = B + 5.0
    for i in range(3):
        for j in range(3):
            dA[i, j] = C[i, j] / denominator[i, j]
            dB[i, j] = -C[i, j] * A[i, j] / denominator[i, j] ** 2
    _, pullback = vjp(lambda a, b: a / b, A, denominator)
    for name, got, want in zip(("numerator", "denominator"), pullback(C), (dA, dB), strict=True):
        assert_close(f"divide, {name}", got, want, ANALYTIC)


def test_uses_of_a_variable_add_up() -> None:
    """d/dx sum(x + x^2 + 3 x) = 1 + 2 x + 3."""
    got = grad(lambda x: ops.sum(x + x * x + 3.0 * x))(A)
    assert_close("x used four times", got, 4.0 + 2.0 * A, ANALYTIC)


def test_a_repeated_index_counts_twice() -> None:
    """d/dx (2 x_0 + x_0 + 5 x_2) by the index (0, 0, 2)."""
    got = grad(lambda x: ops.sum(x[np.array([0, 0, 2])] * np.array([2.0, 1.0, 5.0])))(
        np.array([1.0, 2.0, 3.0])
    )
    assert_close("x[[0, 0, 2]]", got, np.array([3.0, 0.0, 5.0]), EXACT)


def test_slide_pulls_back_to_the_rows_it_keeps() -> None:
    window, row, weights = np.arange(6.0).reshape(3, 2), np.array([7.0, 8.0]), C[:, :2]
    _, pullback = vjp(lambda w, r: ops.slide(w, r), window, row)
    got_window, got_row = pullback(weights)
    assert_close("window", got_window, np.concatenate([np.zeros((1, 2)), weights[:2]]), EXACT)
    assert_close("row", got_row, weights[2], EXACT)


def test_a_concatenation_pulls_back_to_its_parts() -> None:
    _, pullback = vjp(lambda a, b: ops.concatenate([a, b], axis=-1), A[:, :1], A[:, :2])
    first, second = pullback(C)
    assert_close("first", first, C[:, :1], EXACT)
    assert_close("second", second, C[:, 1:], EXACT)


def test_where_pulls_back_to_what_was_chosen() -> None:
    chosen = A > 0.0
    _, pullback = vjp(lambda a, b: ops.where(chosen, a, b), A, B)
    first, second = pullback(C)
    assert_close("first", first, np.where(chosen, C, 0.0), EXACT)
    assert_close("second", second, np.where(chosen, 0.0, C), EXACT)


def test_second_derivatives_are_not_cut() -> None:
    """The Hessian of sum x^3 times v is 6 x v."""
    x, v = A[0], B[0]
    assert_close("hessian times v", hvp(lambda y: ops.sum(y * y * y))(x, v), 6.0 * x * v, ANALYTIC)


def test_a_checkpoint_refuses_what_it_would_lose() -> None:
    def captures(x: Any) -> Any:
        return ops.sum(checkpoint(lambda y: y * x)(x))

    with pytest.raises(TapeError, match="captured"):
        grad(captures)(A)


def test_a_variable_that_left_its_function_is_refused() -> None:
    kept: list[Any] = []

    def leaks(x: Any) -> Any:
        kept.append(x)
        return ops.sum(x)

    grad(leaks)(A)
    with pytest.raises(TapeError, match="left the function"):
        grad(lambda x: ops.sum(x * kept[0]))(A)


def test_softplus_and_sigmoid_far_out() -> None:
    x = np.array([-800.0, -40.0, 0.0, 40.0, 800.0])
    sigmoid = np.array(
        [0.0, np.exp(-40.0) / (1.0 + np.exp(-40.0)), 0.5, 1.0 / (1.0 + np.exp(-40.0)), 1.0]
    )
    softplus = np.array(
        [0.0, np.log1p(np.exp(-40.0)), np.log(2.0), 40.0 + np.log1p(np.exp(-40.0)), 800.0]
    )
    for i in range(5):
        assert_close(f"sigmoid at {x[i]}", ops.sigmoid(x)[i], sigmoid[i], ANALYTIC)
        assert_close(f"softplus at {x[i]}", ops.softplus(x)[i], softplus[i], ANALYTIC)
