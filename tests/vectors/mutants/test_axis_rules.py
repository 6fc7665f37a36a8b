"""Mutants of younger feature maps, and of gates by a formula: their kernels, and that v2 rejects
every one of them.
"""

from __future__ import annotations

import types

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.inputs import convert, round_inputs
from atlas_ref.oracle.family.mistake import Mistake, compute
from atlas_ref.oracle.family.mistakes import maps
from atlas_ref.oracle.judge.arrays import relative_error
from atlas_ref.oracle.judge.tolerance import PASS, tolerances
from atlas_ref.parts.feature_maps import tensor_sketch
from atlas_ref.vectors.inputs.axes.formulas import FORMULAS
from atlas_ref.vectors.inputs.axes.maps import MAPS
from atlas_ref.vectors.inputs.draw import drawn, exact
from atlas_ref.vectors.mutants import mutants, own, score
from tests.support.killed import (
    FOLDER,
    assert_backward_mistakes_leave_values,
    assert_kernel_is_the_rule,
    case_of,
    kills,
    of_target,
    possible,
)
from tests.truth import family_loops, gate_formula_loops, literal, momentum_delta

#: Mistakes that are known of kernels or easily made, and a target that rejects them.
LIST = {
    "signs of the sketch ignored": "feature_map-tensor_sketch",
    "first hash for all": "feature_map-tensor_sketch",
    "second hash for the third": "feature_map-tensor_sketch-3",
    "sums for the convolution": "feature_map-tensor_sketch",
    "correlation for the convolution": "feature_map-tensor_sketch-frozen",
    "hashes held fixed": "feature_map-tensor_sketch-3",
    "gradient of a frozen map": "omega-random_fourier-frozen",
    "frozen map that passes nothing": "omega-random_fourier-frozen",
    "dplr: bias forgotten": "dplr-kda-softplus",
    "dplr: rate without exp": "dplr-kda-softplus",
    "dplr: sign forgotten": "dplr-gla-log_sigmoid",
    "dplr: bias late": "dplr-kda-bounded",
    "dplr: gate_input held": "dplr-rwkv6-exponential",
    "dplr: gate_floor held": "dplr-gla-floored_sigmoid",
    "parameters.gate_least=None": "dplr-gla-log_sigmoid",
    "parameters.beta_formula=twice_sigmoid": "dplr-kda-softplus",
    "parameters.beta_formula=sigmoid": "dplr-gated_delta-twice_sigmoid",
    "dplr: momentum average": "dplr-momentum_delta",
    "dplr: rates exchanged": "dplr-momentum_delta",
    "dplr: S0 ignored": "dplr-momentum_delta",
    "dplr: A0 ignored": "dplr-precond_kda",
}

OF_MAPS = [target.name for target in MAPS]
OF_FORMULAS = [target.name for target in FORMULAS]


def passes(case, mistake) -> bool:
    """Whether a kernel with something planted in it has every result of the rule."""
    want = atlas_ref.evaluate(case, grad=mistake is not None and mistake.grad).tensors
    allowed = tolerances(case, dtype="float32", only=list(want), results=want, alternatives=False)
    return score.ratio(compute(case, mistake, "float32"), want, allowed) <= PASS


@pytest.mark.clause("VEC-25")
@pytest.mark.parametrize("target", MAPS, ids=lambda target: target.name)
def test_the_kernel_of_a_map_without_a_mistake_is_the_rule(target) -> None:
    for topic in target.topics[:: max(1, len(target.topics) // 2)]:
        assert passes(drawn(target, topic, 1), None), topic.name


@pytest.mark.clause("VEC-25")
@pytest.mark.sample(3)
@pytest.mark.parametrize("target", FORMULAS, ids=lambda target: target.name)
def test_the_kernel_of_a_formula_without_a_mistake_is_the_rule(target) -> None:
    for topic in target.topics[:: len(target.topics) - 1]:
        assert_kernel_is_the_rule(drawn(target, topic, 1), grad=topic.grad)


@pytest.mark.clause("VEC-25")
def test_a_sketch_with_the_right_product_is_the_map() -> None:
    for name in ("feature_map-tensor_sketch", "feature_map-tensor_sketch-3"):
        case = case_of(name, "gradient")
        for product, right in ((tensor_sketch.circular, True), (maps._correlate, False)):
            kernel = Mistake("", "", lambda _: True, True, mapped=maps._with(product))
            assert passes(case, kernel) == right


@pytest.mark.clause("VEC-25")
def test_a_gradient_of_a_frozen_tensor_is_rejected_by_its_name_alone() -> None:
    case = case_of("feature_map-random_fourier-frozen", "gradient")
    want = atlas_ref.evaluate(case, grad=True).tensors
    allowed = tolerances(case, dtype="float32", only=list(want), results=want)
    assert score.ratio(want, want, allowed) == 0.0
    given = {**want, "grad/phi/W": np.zeros_like(case.inputs["in/phi/W"])}
    assert score.ratio(given, want, allowed) == np.inf
    learned = {**want, "grad/phi/W": given["grad/phi/W"]}
    assert score.ratio(learned, learned, allowed | {"grad/phi/W": allowed["grad/x"]}) == 0.0


@pytest.mark.clause("VEC-25")
@pytest.mark.parametrize("dtype", score.FORMATS)
def test_v2_rejects_what_is_known_of_kernels(listing, dtype) -> None:
    for mutant, target in LIST.items():
        assert mutant in kills(listing, target, dtype), (mutant, target)


@pytest.mark.clause("VEC-25")
@pytest.mark.sample(4)
@pytest.mark.parametrize("name", OF_MAPS)
def test_every_mutant_of_a_map_is_killed_by_a_vector_of_its_target(listing, name) -> None:
    cases = [atlas_ref.load(FOLDER / each.file) for each in of_target(listing, name)]
    made = {mutant for case in cases for mutant, _ in mutants.mutants(case, "float32")}
    for dtype in score.FORMATS:
        assert made == kills(listing, name, dtype)


@pytest.mark.clause("VEC-25")
@pytest.mark.sample(3)
@pytest.mark.parametrize("name", OF_FORMULAS)
def test_every_mutant_of_a_formula_is_killed_by_a_vector_of_its_target(listing, name) -> None:
    made = possible(listing, name, "dplr")
    assert not any(each.removeprefix("dplr: ") in own.FINE_MISTAKES for each in made)
    for dtype in score.FORMATS:
        killed = kills(listing, name, dtype)
        assert made == {each for each in killed if " in chunks of " not in each}


@pytest.mark.clause("VEC-25")
@pytest.mark.parametrize(
    ("name", "first", "cotangent"),
    [
        ("dplr-momentum_delta", "in/S0", "in/S_bar"),
        ("dplr-precond_kda", "in/A0", "in/A_bar"),
        ("dplr-precond_gated_delta", "in/A0", "in/A_bar"),
    ],
)
def test_a_reset_of_a_vector_returns_to_a_further_state_that_is_not_zero(
    listing, name, first, cotangent
) -> None:
    """So that a kernel which begins or resets it at zero is rejected, forward and back."""
    held = [atlas_ref.load(FOLDER / each.file) for each in of_target(listing, name)]
    states = [case for case in held if first in case.inputs and "in/reset" in case.inputs]
    packed = [case for case in states if case.inputs["in/reset"][1:50].any()]  # soon enough to show
    assert {"in/y_bar" in case.inputs for case in packed} == {False, True}
    for case in packed:
        assert np.all(np.any(case.inputs[first] != 0.0, axis=-1))
        assert ("in/y_bar" in case.inputs) == (cotangent in case.inputs)
        wrong = case.replaced(
            inputs={n: np.zeros_like(x) if n == first else x for n, x in case.inputs.items()}
        )
        found = atlas_ref.evaluate(wrong).tensors
        last = f"out/{first[3]}"
        assert relative_error(found[last], case.recorded[last]) > 0.05


@pytest.mark.clause("VEC-25")
def test_a_narrow_log_gate_is_rejected_by_float32_alone() -> None:
    """So that it is no mutant: a set rejects its mutants in every format."""
    for dtype, rejected in (("float32", True), ("bfloat16", False)):
        case = round_inputs(case_of("dplr-kda-softplus", "square"), dtype)
        want = atlas_ref.evaluate(case).tensors
        allowed = tolerances(case, dtype=dtype, only=list(want), results=want)
        tried = {each.name: each for each in own._searched("dplr").departures(case)}
        assert not tried.keys() & {each.name for each in own.readings(case)} & {*own.FINE_MISTAKES}
        for name in ("gate in bfloat16", "gate in float16"):
            found = own.kernel(case, dtype, (tried[name],))
            assert (score.ratio(found, want, allowed) > PASS) == rejected, (dtype, name)


@pytest.mark.clause("VEC-25")
def test_every_mistake_of_a_map_is_made_and_has_its_words(listing) -> None:
    made = set()
    for name in OF_MAPS:
        for each in of_target(listing, name):
            made |= {each.name for each in maps.mistakes(atlas_ref.load(FOLDER / each.file))}
    assert made == set(maps.words_by_name())
    assert all(listing.mutants[name] == mutants.words(name) for name in made)
    for target in ("feature_map-sketch", "feature_map-random_fourier", "omega-polynomial"):
        assert maps.mistakes(case_of(target, "gradient")) == []


@pytest.mark.clause("VEC-25")
def test_hashes_of_a_vector_are_count_sketches() -> None:
    for name in ("feature_map-tensor_sketch-3", "omega-tensor_sketch"):
        first, second = (case_of(name, "gradient", seed).inputs["in/phi/H"] for seed in (0, 1))
        for H in (first, second):
            assert set(np.abs(H).sum(axis=1).ravel()) == {1.0}
            assert set(H.ravel()) == {-1.0, 0.0, 1.0}
        assert not np.array_equal(first, second)


@pytest.mark.clause("VEC-25")
def test_values_of_a_backward_mistake_of_a_formula_are_right() -> None:
    for name in OF_FORMULAS:
        assert assert_backward_mistakes_leave_values(case_of(name, "gradient-packed")) >= 5, name


@pytest.mark.clause("VEC-25")
@pytest.mark.parametrize("name", OF_MAPS)
def test_recorded_values_of_a_map_are_those_of_a_literal_loop(listing, name) -> None:
    for each in of_target(listing, name):
        case = atlas_ref.load(FOLDER / each.file)
        found = literal.evaluate(case.header.plain(), dict(convert(case, "float64")))
        for key in ("out/y", "out/M", "out/S", "out/phi"):
            if key in case.recorded:
                assert relative_error(found[key], case.recorded[key]) < 1e-12, (each.name, key)
        assert all(exact(x) for x in case.inputs.values() if x.dtype.kind == "f")


@pytest.mark.clause("VEC-25")
@pytest.mark.parametrize("name", OF_FORMULAS)
def test_recorded_values_of_a_formula_are_those_of_a_literal_loop(listing, name) -> None:
    """Of square, which has neither groups nor packed sequences."""
    (each,) = (each for each in of_target(listing, name) if each.topic == "square")
    case = atlas_ref.load(FOLDER / each.file)
    settings = case.header.parameters
    x = {key.removeprefix("in/"): v for key, v in convert(case, "float64").items()}
    if "gate_formula" in settings:
        of = {n: settings[f"gate_{n}"] for n in ("lower_bound", "normalizer", "least")
              if f"gate_{n}" in settings}  # fmt: skip
        of |= {"floor": x["gate_floor"]} if "gate_floor" in x else {}
        raw = (x["gate_input"], x.get("gate_log_rate", np.zeros(2)), x["gate_bias"])
        x["log_decay"] = gate_formula_loops.run(settings["gate_formula"], *raw, **of).real
    else:
        x["log_decay"] = np.log(x["retain"])
    if "beta_formula" in settings:
        twice = settings["beta_formula"] == "twice_sigmoid"
        x["beta"] = (2 if twice else 1) / (1 + np.exp(-x["beta_input"]))
    if "log_retain_precond" in x:
        x["log_decay_precond"] = x["log_retain_precond"]
    y, M = (_with_momentum if settings["member"] == "momentum_delta" else _of_family)(x, settings)
    assert relative_error(y, case.recorded["out/y"]) < 1e-12
    assert relative_error(M, case.recorded["out/M"]) < 1e-12


def _of_family(x, settings):
    """y and M by the loops that the recordings of public code are compared with."""
    heads, d_in = x["k"].shape[0], x["k"].shape[-1]
    state = {"state0": x["M0"].swapaxes(-1, -2), "A0": np.zeros((heads, d_in))}
    batched = {key: value[None] for key, value in (x | state).items()}
    if "bonus" in x:
        batched["bonus"] = np.broadcast_to(x["bonus"], (heads, d_in))
    found = family_loops.run(settings["member"], batched)
    return found["y"][0], found["state"][0].swapaxes(-1, -2)


def _with_momentum(x, settings):
    """The same under a gate for each channel, which those loops do not have."""
    scale = x["k"].shape[-1] ** -0.5
    own = types.SimpleNamespace(
        order="after_error", scale=scale, groups=1, k_norm="none", q_norm="none", eps=0.0
    )
    y, M, _ = momentum_delta.run({n: v for n, v in x.items() if n != "log_decay"}, own)
    return y, M


@pytest.mark.clause("VEC-6", "VEC-25")
@pytest.mark.sample(4)
@pytest.mark.parametrize("name", [*OF_MAPS, *OF_FORMULAS])
def test_recorded_values_are_certified(listing, name) -> None:
    pytest.importorskip("flint", reason="python-flint is not installed")
    from atlas_ref.vectors.sets.expected import expected

    for each in of_target(listing, name):
        case = atlas_ref.load(FOLDER / each.file)
        found = expected(case, grad=each.grad)
        assert found.keys() == case.recorded.keys()
        assert all(value.tobytes() == case.recorded[key].tobytes() for key, value in found.items())
