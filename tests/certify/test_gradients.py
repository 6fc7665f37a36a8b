"""Certified gradients: against the complex step, against differences of values to 30 digits, and
along directions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flint import arb, arb_mat, ctx
from hypothesis import given, settings

from atlas_ref.certify import certify
from atlas_ref.certify.certified import DIRECTIONS, direction, exact
from atlas_ref.certify.differences import Difference, derivative, differences
from atlas_ref.certify.matrix import Matrix, cotangents, norm, scaled
from atlas_ref.oracle.cases.case import Case, make
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.evaluate import evaluate
from tests.support.close import ANALYTIC, assert_close, reordered
from tests.support.strategies import cases, header_of, repeatable
from tests.truth.literal_gradient import COTANGENTS, complex_step

#: A case of each rule and level with most of what has a derivative: a packed sequence, pulses, a
#: window with history, spans.
REQUESTS: dict[str, dict[str, Any]] = {
    "delta": {"rule": "delta", "convention": "fla-gated-delta"},
    "delta frozen": {
        "rule": "delta",
        "span": 2,
        "convention": {"reference": "chunk_start", "k_norm": "l2"},
    },
    "hebbian": {"rule": "hebbian", "level": "token"},
    "titans": {"rule": "titans_lmm", "convention": "titans-paper", "per_dimension_gates": True},
    "titans token": {"rule": "titans_lmm", "level": "token", "reset": 3},
    "omega": {"rule": "omega", "window": 2, "history": 1},
    "omega carry": {
        "rule": "omega",
        "window": 3,
        "history": 2,
        "span": 2,
        "convention": {
            "preset": "atlas-eq40",
            "window_at_boundary": "carry",
            "newton_schulz": "none",
        },
    },
    "omega momenta": {
        "rule": "omega",
        "window": 3,
        "convention": {"order": "momentum_then_window", "newton_schulz": {"steps": 2}},
    },
    "omega nesterov": {
        "rule": "omega",
        "window": 2,
        "convention": {
            "newton_schulz": {"argument": "nesterov", "scale": "norm", "guard": "clamp"},
            "window_edge": "renormalise",
        },
    },
    "omega token": {
        "rule": "omega",
        "level": "token",
        "window": 2,
        "window_weights": {"kind": "product", "of": [{"kind": "softmax"}, {"kind": "gate"}]},
        "feature_map": {"kind": "linear"},
        "convention": {"newton_schulz": {"argument": "accumulated", "steps": 2}, "q_norm": "rms"},
    },
    "omega mlp": {
        "rule": "omega",
        "level": "token",
        "feature_map": {"kind": "residual_mlp", "activation": "gelu"},
    },
    "omega polynomial": {
        "rule": "omega",
        "feature_map": {"kind": "polynomial", "degree": 3},
        "convention": {"newton_schulz": "none"},
    },
    "omega tensor sketch": {
        "rule": "omega",
        "feature_map": {"kind": "tensor_sketch", "degree": 3},
        "convention": {"newton_schulz": "none"},
    },
    "omega fourier": {
        "rule": "omega",
        "feature_map": {"kind": "random_fourier"},
        "pulse": 2,
        "convention": {"newton_schulz": "none"},
    },
}


def made(name: str) -> Case:
    return new(
        Request(
            **(
                {
                    "tokens": 4,
                    "d_in": 3,
                    "d_out": 2,
                    "heads": 1,
                    "d_model": 3,
                    "cotangent": True,
                    "seed": 5,
                }
                | REQUESTS[name]
            )
        )
    )


@pytest.mark.sample(5)
@pytest.mark.clause("CERT-9")
@pytest.mark.clause("CERT-11")
@pytest.mark.parametrize("name", REQUESTS)
def test_differences_of_values_confirm_every_entry_to_its_last_bit(name: str) -> None:
    case = made(name)
    found = certify(case, grad=True)
    proofs = list(differences(case, found))
    assert len(proofs) == sum(
        value.size for tensor, value in found.values.items() if tensor.startswith("grad/")
    )
    assert [proof for proof in proofs if not confirmed(proof)] == []


def confirmed(proof: Difference) -> bool:
    """Whether the enclosure is one float64, the certified one, or a derivative of exactly 0.

    No difference can be exact about a derivative of 0.
    """
    return proof.low == proof.certified == proof.high or (
        proof.certified == 0.0 and abs(proof.low) == proof.high < 2.0**-300
    )


@pytest.mark.clause("CERT-11")
def test_differences_contradict_a_gradient_that_is_off_by_one_unit() -> None:
    case = made("delta")
    found = certify(case, grad=True)
    found.values["grad/v"][0, 1, 1] = np.nextafter(found.values["grad/v"][0, 1, 1], np.inf)
    assert [
        (proof.name, proof.place) for proof in differences(case, found) if not proof.agrees
    ] == [("grad/v", (0, 1, 1))]


@pytest.mark.clause("CERT-11")
def test_a_difference_has_thirty_digits() -> None:
    case = made("omega nesterov")
    unit = np.zeros(case.inputs["in/k"].shape)
    unit[0, 1, 2] = 1.0
    coarse = derivative(case, exact(case), "in/k", unit)
    fine = derivative(case, exact(case), "in/k", unit, max_bits=512)
    assert coarse.rel_accuracy_bits() >= 100
    with ctx.workprec(512):
        assert coarse.overlaps(fine)


@pytest.mark.clause("CERT-9")
@settings(repeatable, max_examples=12)
@given(cases())
def test_the_complex_step_of_the_literal_loops_agrees(case: Case) -> None:
    found = certify(case, grad=True)
    floats = {name: value.astype(float) for name, value in case.inputs.items()}
    bars = {name: value for name, value in floats.items() if name in COTANGENTS}
    draw = np.random.default_rng(0)
    for name, value in found.values.items():
        if name.startswith("grad/"):
            place = tuple(int(draw.integers(n)) for n in value.shape)
            want = complex_step(
                header_of(case), floats, "in/" + name.removeprefix("grad/"), bars, entries=[place]
            )
            assert abs(value[place] - want[place]) <= 1e-11 * max(1.0, abs(want[place])), name


@pytest.mark.clause("CERT-9")
@pytest.mark.parametrize(
    ("rule", "inputs"),
    [("newton_schulz", ("in/G", "in/X_bar")), ("feature_map", ("in/x", "in/phi_bar"))],
)
def test_the_two_bare_functions_have_gradients_too(rule: str, inputs: tuple[str, str]) -> None:
    draw = np.random.default_rng(3)
    tensors = {name: draw.standard_normal((2, 3)) for name in inputs}
    header: dict[str, Any] = {"schema": 1, "rule": rule}
    header |= (
        {"feature_map": {"kind": "elu"}}
        if rule == "feature_map"
        else {"convention": {"newton_schulz": {"scale": "sqrt"}}}
    )
    case = make(header, tensors)
    found = certify(case, grad=True)
    assert all(confirmed(proof) for proof in differences(case, found))
    assert found.values["grad/" + inputs[0].removeprefix("in/")].shape == (2, 3)


@pytest.mark.clause("CERT-10")
def test_directions_are_signs_that_depend_on_shape_and_number_alone() -> None:
    assert set(np.unique(direction((40,), 0))) == {-1.0, 1.0}
    assert np.array_equal(direction((4, 3), 5), direction((4, 3), 5))
    assert len({direction((4, 3), i).tobytes() for i in range(DIRECTIONS)}) == DIRECTIONS


@pytest.mark.clause("CERT-10")
def test_a_larger_case_is_certified_along_directions_and_differences_agree() -> None:
    case = new(Request(rule="titans_lmm", tokens=9, heads=1, cotangent=True))
    found = certify(case, grad=True)
    assert found.directions.keys() == {name for name in found.values if name.startswith("grad/")}
    for name, values in found.directions.items():
        slopes = found.values[name]
        assert values.shape == (DIRECTIONS,)
        for i, value in enumerate(values):
            assert value == pytest.approx(
                float(np.sum(slopes * direction(slopes.shape, i))), rel=1e-12, abs=1e-15
            )
    proofs = list(differences(case, found))
    assert len(proofs) == DIRECTIONS * len(found.directions)
    assert all(confirmed(proof) for proof in proofs)
    assert certify(made("delta"), grad=True).directions == {}


def test_a_derivative_by_what_nothing_depends_on_is_exactly_zero() -> None:
    # tokens 1 and 2 are inactive
    case = new(Request(rule="delta", tokens=3, pulse=3, heads=1, cotangent=True))
    slopes = certify(case, grad=True).values
    assert not np.any(slopes["grad/step_size"][0, 1:])
    assert np.any(slopes["grad/step_size"][0, :1])


@pytest.mark.clause("CERT-8")
def test_the_derivative_of_a_norm_is_enclosed_where_it_may_be_zero() -> None:
    with ctx.workprec(64):
        for entries, low, high in (
            ([0, 0], 0.0, 0.0),
            ([arb(0, 1e-20), 0], -1.0, 1.0),
            ([3, 4], 0.6, 0.8),
        ):
            leaf = Matrix(arb_mat(1, 2, entries), live=True)
            (slope,) = cotangents([(norm(leaf), arb_mat(1, 1, [1]))], [leaf])
            assert slope is not None
            assert all(low - 1e-8 <= float(x.mid()) - float(x.rad()) for x in slope.entries())
            assert all(float(x.mid()) + float(x.rad()) <= high + 1e-8 for x in slope.entries())


def test_a_matrix_that_is_used_twice_collects_both_cotangents() -> None:
    leaf = Matrix(arb_mat(2, 2, [1, 2, 3, 4]), live=True)
    gate = Matrix(arb_mat(1, 1, [5]), live=True)
    product = scaled(gate, leaf @ leaf) + leaf.T
    slope, of_gate, nothing = cotangents(
        [(product, arb_mat(2, 2, [1, 0, 0, 0]))],
        [leaf, gate, Matrix(arb_mat(1, 1, [1]), live=True)],
    )
    assert slope is not None
    assert of_gate is not None
    # d/dX of 5 (X11 X11 + X12 X21) + X11
    assert [int(x.unique_fmpz()) for x in slope.entries()] == [11, 15, 10, 0]
    assert int(of_gate[0, 0].unique_fmpz()) == 7
    assert nothing is None


@pytest.mark.clause("NS-21", "NS-7", "CERT-9")
@pytest.mark.parametrize("shape", [(3, 4), (4, 3)])
@pytest.mark.parametrize("guard", ["add", "clamp", "return"])
def test_at_zero_without_eps_the_divisor_counts_as_one(guard: str, shape: tuple[int, int]) -> None:
    """The steps at X = 0 are a times X, so five of Muon's multiply by 3.4445^5."""
    G = np.random.default_rng(2).standard_normal(shape)
    factors = {"1": 1.0, "sqrt": max(1.0, shape[0] / shape[1]) ** 0.5, "norm": 0.0}
    for scale, factor in factors.items():
        axes = {"newton_schulz": {"eps": 0.0, "guard": guard, "scale": scale}}
        header = {"schema": 1, "rule": "newton_schulz", "convention": axes}
        certificate = certify(make(header, {"in/G": np.zeros(shape), "in/X_bar": G}), grad=True)
        assert not certificate.unresolved
        assert not certificate.values["out/X"].any()
        want = factor * 3.4445**5 * G
        assert_close(scale, certificate.values["grad/G"], want, reordered(5))


@pytest.mark.clause("NS-21", "CERT-9")
def test_a_sequence_whose_first_momentum_is_zero_has_the_gradient_of_the_rule() -> None:
    plain = new(Request(rule="omega", window=2, tokens=4, cotangent=True, seed=3))
    axes = {"newton_schulz": {"eps": 0.0}, "reference": "zero"}
    inputs = {**plain.inputs, "in/S0": np.zeros_like(plain.inputs["in/S0"])}
    inputs["in/v"] = inputs["in/v"] * (np.arange(4) > 0)[:, None]  # no error at the first token
    case = make(plain.header.plain() | {"convention": axes}, inputs)
    certified, ours = certify(case, grad=True).values, evaluate(case, grad=True).tensors
    assert np.abs(certified["grad/v"][:, 0]).min() > 0
    for name, value in certified.items():
        assert_close(name, ours[name], value, ANALYTIC)


@pytest.mark.clause("CERT-16")
def test_progress_counts_the_tokens_of_all_sequences_forwards_and_backwards() -> None:
    case = new(Request(rule="omega", tokens=5, window=2, heads=2, cotangent=True))
    calls: list[tuple[str, int, int]] = []
    found = certify(case, grad=True, progress=lambda *call: calls.append(call))
    assert found.values.keys() == certify(case, grad=True).values.keys()
    by_kind: dict[str, list[int]] = {}
    for kind, done, of in calls:
        assert of == 2 * 5
        by_kind.setdefault(kind, []).append(done)
    attempts = sorted({kind.rpartition(" at ")[2] for kind in by_kind})
    assert "128 bits" in attempts
    for bits in attempts:
        for kind in ("tokens", "reads"):
            assert by_kind[f"{kind} at {bits}"] == list(range(10))
        backwards = by_kind[f"gradients at {bits}"]
        assert backwards == sorted(backwards)
        assert {*backwards} >= {*range(10)}


@pytest.mark.clause("CERT-16")
@pytest.mark.parametrize(
    ("rule", "kind"), [("newton_schulz", "matrices"), ("feature_map", "vectors")]
)
def test_progress_counts_the_matrices_or_vectors_of_a_part(rule: str, kind: str) -> None:
    calls: list[tuple[str, int, int]] = []
    case = new(Request(rule=rule, tokens=3, heads=2))
    certify(case, progress=lambda *call: calls.append(call))
    assert {name.partition(" at ")[0] for name, _, _ in calls} == {kind}
    first, _, of = calls[0]
    assert [done for name, done, _ in calls if name == first] == list(range(of))


@pytest.mark.clause("CERT-16")
def test_progress_counts_the_derivatives_that_differences_prove() -> None:
    case = new(Request(rule="delta", tokens=2, d_in=1, d_out=1, heads=1, cotangent=True))
    calls: list[tuple[str, int, int]] = []
    proofs = list(
        differences(case, certify(case, grad=True), progress=lambda *call: calls.append(call))
    )
    assert [done for _, done, _ in calls] == list(range(len(proofs)))
    assert {of for _, _, of in calls} == {len(proofs)}
