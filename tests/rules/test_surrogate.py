"""A learned residual that reads no memory: values, gradients, forms, state-independence, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref.certify import certify
from atlas_ref.forms import kernel
from atlas_ref.layers import projection
from atlas_ref.oracle.cases.case import Case, CaseError, make
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.family.arithmetic import PLAIN
from atlas_ref.oracle.identify.identify import identify
from atlas_ref.oracle.judge.arrays import compare_arrays, judged
from atlas_ref.oracle.judge.tolerance import tolerances
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.replay.replay import first_wrong, replay
from atlas_ref.oracle.replay.trace import trace
from atlas_ref.oracle.subjects.subject import Rounding
from atlas_ref.parts import surrogate
from atlas_ref.rules import omega, sequence, titans_lmm
from tests.rules.test_literal import (
    amplification,
    gradients_equal_the_complex_step_of_the_loops,
    results_equal_the_loops,
)
from tests.support.close import ANALYTIC, assert_close, reordered

LEARNED = {"reference": "surrogate"}
PLAINLY = Rounding(PLAIN, lambda x: x, lambda x: x, None)
CASES: dict[str, dict[str, Any]] = {
    "titans_lmm": {"rule": "titans_lmm"},
    "delta": {"rule": "delta", "convention": {**LEARNED, "direction": "ascent"}},
    "omega": {"rule": "omega", "window": 3, "history": 2},
    "plain omega": {
        "rule": "omega",
        "window": 3,
        "convention": {**LEARNED, "newton_schulz": "none", "value_sign": "plus", "k_norm": "l2"},
        "history": 1,
        "reset": 5,
        "pulse": 2,
    },
    "map": {"rule": "omega", "window": 2, "feature_map": {"kind": "polynomial"}},
    "momenta": {
        "rule": "omega",
        "window": 2,
        "convention": {**LEARNED, "order": "momentum_then_window", "decay": "before_error"},
    },
    "chunk read": {
        "rule": "titans_lmm",
        "span": 3,
        "convention": {**LEARNED, "read": "chunk_start", "rate": "both", "momentum_sign": "minus"},
    },
    "tokens": {"rule": "omega", "level": "token", "window": 2},
    "tokens of titans_lmm": {"rule": "titans_lmm", "level": "token", "per_dimension_gates": True},
}


def drawn(name: str, **more: Any) -> Case:
    fields = {"convention": LEARNED, "tokens": 7, "cotangent": True, "seed": 3, **CASES[name]}
    return new(Request(**{**fields, **more}))


def with_own_pair(case: Case) -> Case:
    """A case of level token whose learned residual has projections of its own."""
    draw = np.random.default_rng(4)
    tensors = {
        f"in/param/W_{each}_surrogate": draw.standard_normal(
            case.inputs[f"in/param/W_{each}"].shape
        )
        for each in "KV"
    }
    return make(dict(case.header), {**case.inputs, **tensors})


def all_cases() -> list[Case]:
    return [*map(drawn, CASES), with_own_pair(drawn("tokens of titans_lmm"))]


@pytest.mark.clause("SURROGATE-1", "SURROGATE-2", "SURROGATE-3", "SURROGATE-4")
@pytest.mark.parametrize("case", all_cases(), ids=[*CASES, "own pair"])
def test_results_and_gradients_equal_the_literal_loops(case: Case) -> None:
    results_equal_the_loops(case)
    gradients_equal_the_complex_step_of_the_loops(case)


@pytest.mark.clause("SURROGATE-3", "SURROGATE-6")
@pytest.mark.parametrize("form", ["chunkwise", "atlas_parallel", "kernel"])
@pytest.mark.parametrize("name", list(CASES))
def test_parallel_forms_compute_the_same_values_and_gradients(name: str, form: str) -> None:
    case = drawn(name)
    want, got = evaluate(case, grad=True), evaluate(case, form=form, chunk=3, grad=True)
    for key, value in want.tensors.items():
        assert_close(key, got.tensors[key], value, reordered(1, amplification=amplification(case)))


@pytest.mark.clause("SURROGATE-6")
@pytest.mark.parametrize("form", ["exact", "scan"])
def test_forms_of_the_running_reference_refuse_it(form: str) -> None:
    with pytest.raises(CaseError, match=f"form {form}: .*not running"):
        evaluate(drawn("plain omega"), form=form)


@pytest.mark.clause("SURROGATE-5")
def test_momentum_and_all_that_a_write_adds_are_the_same_bits_from_any_memory() -> None:
    case = drawn("omega")
    draw = np.random.default_rng(8)
    other = make(
        dict(case.header),
        {**case.inputs, "in/M0": draw.standard_normal(case.inputs["in/M0"].shape)},
    )
    one, two = evaluate(case).tensors, evaluate(other).tensors
    np.testing.assert_array_equal(one["out/S"], two["out/S"])
    assert np.abs(one["out/M"] - two["out/M"]).max() > 0.1
    running = [
        evaluate(make({**dict(each.header), "convention": "spec"}, without(each))).tensors["out/S"]
        for each in (case, other)
    ]
    assert np.abs(running[0] - running[1]).max() > 1e-3


def without(case: Case) -> dict[str, Any]:
    """The inputs of a case but for those of a learned residual."""
    return {name: value for name, value in case.inputs.items() if "surrogate" not in name}


@pytest.mark.clause("SURROGATE-5")
def test_it_is_the_zero_reference_with_the_learned_vector_subtracted_for_a_value() -> None:
    case = drawn("plain omega", history=0)
    k = case.inputs["in/k"]
    key = k / np.sqrt(np.sum(k * k, axis=-1, keepdims=True) + 1e-6)
    learned = surrogate.apply(case.inputs["in/param/W_surrogate"], key, case.inputs["in/v"])
    convention = {**dict(case.header)["convention"], "reference": "zero"}
    zero = make({**dict(case.header), "convention": convention}, {**without(case), "in/v": learned})
    want, got = evaluate(zero).tensors, evaluate(case).tensors
    for name in ("out/y", "out/M", "out/S"):
        assert_close(name, got[name], want[name], ANALYTIC)


@pytest.mark.clause("SURROGATE-5")
def test_of_many_readings_of_a_residual_it_alone_is_told_from_any_memory() -> None:
    """The negative twin: another W gives other bits, so the values do come from W."""
    case = drawn("omega")
    W = case.inputs["in/param/W_surrogate"]
    other = make(dict(case.header), {**case.inputs, "in/param/W_surrogate": 1.01 * W[:, ::-1]})
    assert np.abs(evaluate(case).tensors["out/S"] - evaluate(other).tensors["out/S"]).max() > 1e-2


@pytest.mark.clause("SURROGATE-7")
@pytest.mark.parametrize("case", all_cases(), ids=[*CASES, "own pair"])
def test_certified_values_and_the_plain_loop_agree(case: Case) -> None:
    ours, found = evaluate(case, grad=True).tensors, certify(case, grad=True)
    assert found.values.keys() == ours.keys()
    for name, want in found.values.items():
        scale = max(1.0, float(np.max(np.abs(want), initial=0.0)))
        if np.all(np.abs(ours[name] - want) <= 1e-12 * scale):
            continue
        allowed = tolerances(case, dtype="float64", only=[name])[name]
        assert judged(case.name, name, ours[name], want, allowed).verdict == "PASS", name
    subject = SUBJECTS[case.header.rule]
    assert subject.plain is not None
    for name, value in subject.plain(case.inputs, case, PLAINLY).items():
        assert_close(name, ours[name], value, reordered(1, amplification=amplification(case)))


@pytest.mark.clause("SURROGATE-7")
@pytest.mark.parametrize("case", all_cases(), ids=[*CASES, "own pair"])
def test_a_replay_finds_the_learned_residual_wrong_and_nothing_before_it(case: Case) -> None:
    right = trace(case, dtype="float32")
    assert first_wrong(replay(case, right, nearest=False)) is None
    wrong = {**right, "trace/surrogate": 1.01 * right["trace/surrogate"].astype(np.float64)}
    wrong["trace/surrogate"] = wrong["trace/surrogate"].astype(np.float32)
    first = first_wrong(replay(case, wrong, nearest=False))
    assert first is not None
    assert (first.tensor, first.clause) == ("trace/surrogate", "SURROGATE-1")


@pytest.mark.clause("SURROGATE-7")
def test_identify_tells_it_from_the_zero_reference_and_from_running_ones() -> None:
    case = drawn("titans_lmm", cotangent=False)
    for reference in ("running", "zero", "surrogate"):
        tensors = case.inputs if reference == "surrogate" else without(case)
        other = make({**dict(case.header), "convention": {"reference": reference}}, tensors)
        mine = dict(evaluate(other).tensors)
        answer = identify(case, mine, depth=1)
        assert answer.verdict == "MATCH"
        assert answer.match.convention.get("reference", "running") == reference
    without_it = new(Request(rule="titans_lmm", tokens=7, seed=3))
    untried = identify(without_it, {"out/y": evaluate(case).tensors["out/y"]}, depth=1)
    assert untried.verdict != "MATCH"
    assert "reference surrogate" not in untried.untried  # a case without W has no such reading


def mistakes(case: Case) -> dict[str, dict[str, Any]]:
    """What an implementation of the learned residual may do instead, as results."""
    k, v, W = (case.inputs[f"in/{name}"] for name in ("k", "v", "param/W_surrogate"))

    def silu(x: Any) -> Any:
        return x / (1 + np.exp(-x))

    pair = np.concatenate([k, v], axis=-1)
    swapped = np.concatenate([v, k], axis=-1)
    vectors = {
        "activation after W": silu(pair @ W.T),
        "no activation": pair @ W.T,
        "sigmoid for silu": (1 / (1 + np.exp(-pair))) @ W.T,
        "pair in the other order": silu(swapped) @ W.T,
        "value left out": silu(k) @ W[:, : k.shape[-1]].T,
        "one token late": np.roll(silu(pair) @ W.T, 1, axis=-2),
        "added with a plus": -silu(pair) @ W.T,
    }
    zero = {**dict(case.header), "convention": {"reference": "zero"}}
    return {
        name: evaluate(make(zero, {**without(case), "in/v": -vector})).tensors
        for name, vector in vectors.items()
    }


@pytest.mark.clause("SURROGATE-7")
def test_every_mistake_shows() -> None:
    case = drawn("titans_lmm", cotangent=False)
    want = evaluate(case).tensors
    for name, wrong in mistakes(case).items():
        assert np.abs(wrong["out/y"] - want["out/y"]).max() > 1e-3, name
        row = compare_arrays(case.name, "out/y", wrong["out/y"], want["out/y"])
        assert row.verdict == "WRONG", name


@pytest.mark.clause("SURROGATE-2", "SURROGATE-6")
def test_a_layer_draws_runs_and_splits_it() -> None:
    config = titans_lmm.Config(d_in=3, d_out=2, d_model=5, heads=2, convention=LEARNED)
    params = projection.init(config, 0)
    W = params.surrogate["W"]
    assert W.shape == (2, 2, 5)
    assert np.abs(W).max() <= np.sqrt(1 / 5)
    x = np.random.default_rng(1).standard_normal((1, 6, 5))
    start = titans_lmm.start(config, (1, 2))
    whole, y = projection.run_tokens(titans_lmm.RULE, config, params, x, start)
    half, first = projection.run_tokens(titans_lmm.RULE, config, params, x[:, :4], start)
    after, second = projection.run_tokens(titans_lmm.RULE, config, params, x[:, 4:], half)
    assert_close("y", np.concatenate([first, second], axis=-2), y, reordered(16))
    assert_close("M", after.M, whole.M, reordered(16))
    k, v = (x @ getattr(params, name)[0].T for name in ("W_K", "W_V"))
    got = projection.project(config, params, x)["surrogate"][0, 0]
    assert_close("omega", got, surrogate.apply(W[0], k, v)[0], reordered(16))


def tokens(**more: Any) -> Any:
    draw = np.random.default_rng(2)
    arrays = {"k": (4, 3), "v": (4, 2), "q": (4, 3)}
    gates = {"retain": np.full(4, 0.9), "step_size": np.full(4, 0.1)}
    return sequence.Tokens(
        **{name: draw.standard_normal(shape) for name, shape in arrays.items()}, **gates, **more
    )


@pytest.mark.clause("SURROGATE-1", "SURROGATE-2", "SURROGATE-4", "SURROGATE-6")
def test_what_does_not_fit_is_refused_in_one_line() -> None:
    config = titans_lmm.Config(d_in=3, d_out=2, d_model=5, convention={**LEARNED, "gate": "retain"})
    plain = config.replaced(convention=config.convention.replaced(reference="running"))
    start = titans_lmm.start(config)
    refused = [
        (config, tokens(), "surrogate: missing, .* under reference surrogate needs it"),
        (plain, tokens(surrogate=np.ones((4, 2))), "surrogate: given, .* running has none"),
        (config, tokens(surrogate=np.ones((4, 2), np.float32)), "surrogate: float32, but k"),
    ]
    for each, given, words in refused:
        with pytest.raises(ValueError, match=words):
            sequence.run(titans_lmm.RULE, each, given, start)
    with pytest.raises(ValueError, match=r"surrogate: W: shape \(2, 4\), expected \(2, 5\)"):
        surrogate.apply(np.ones((2, 4)), np.ones((4, 3)), np.ones((4, 2)))
    params, x = projection.init(config, 0), np.ones((1, 2, 5))
    for tensors, words in (
        ({}, "surrogate: W: missing"),
        ({"W": np.ones((1, 2, 4))}, "surrogate: W: shape"),
        ({**params.surrogate, "V": np.ones(1)}, "surrogate: V: unknown"),
        ({**params.surrogate, "W_K": params.W_K}, "W_K and W_V belong together"),
    ):
        with pytest.raises(ValueError, match=words):
            projection.check_params(config, params.replaced(surrogate=tensors), x)
    with pytest.raises(ValueError, match="params: surrogate: reference running has none"):
        projection.check_params(plain, params, x)
    wide = omega.Config(d_in=3, d_out=2, d_model=5, window=2, convention=LEARNED)
    own = {**params.surrogate, "W_K": params.W_K, "W_V": params.W_V}
    with pytest.raises(ValueError, match="a surrogate with a pair of its own looks at one token"):
        projection.check_params(wide, projection.init(wide, 0).replaced(surrogate=own), x)
    with pytest.raises(ValueError, match="reference: surrogate; pass -surrogate as v"):
        kernel.attend(lambda a, b: a @ b.T, x[0], x[0], x[0], reference="surrogate")


@pytest.mark.clause("SURROGATE-4")
@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("titans_lmm", {"in/param/W_surrogate": None}, "in/param/W_surrogate: missing"),
        ("titans_lmm", {"in/param/W_surrogate": np.ones((3, 6))}, "makes d_kv 6, but d_in"),
        ("titans_lmm", {"in/param/W_K_surrogate": np.ones((2, 4, 6))}, "belongs to level token"),
        ("tokens", {"in/param/W_K_surrogate": np.ones((2, 4, 6))}, "looks at one token"),
        (
            "tokens of titans_lmm",
            {"in/param/W_K_surrogate": np.ones((2, 4, 6))},
            "in/param/W_V_surrogate: missing",
        ),
    ],
)
def test_a_case_without_its_tensors_is_refused(name: str, change: Any, words: str) -> None:
    case = drawn(name)
    tensors = {key: value for key, value in {**case.inputs, **change}.items() if value is not None}
    with pytest.raises(CaseError, match=words):
        make(dict(case.header), tensors)


@pytest.mark.clause("SURROGATE-4")
def test_another_reference_and_a_rule_without_an_error_have_no_such_tensor() -> None:
    case = drawn("titans_lmm")
    with pytest.raises(CaseError, match="reference running has none"):
        make({**dict(case.header), "convention": "spec"}, dict(case.inputs))
    hebbian = new(Request(rule="hebbian"))
    with pytest.raises(CaseError, match="hebbian has none"):
        make(dict(hebbian.header), {**hebbian.inputs, "in/param/W_surrogate": np.ones((3, 7))})
