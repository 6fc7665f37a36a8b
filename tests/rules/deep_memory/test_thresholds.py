"""Thresholds of Huber for each token: loops, the complex step, cases, replay, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.case import CaseError
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.identify.identify import identify
from atlas_ref.oracle.replay.replay import first_wrong, replay
from atlas_ref.oracle.replay.trace import trace
from atlas_ref.parts import memory_functions
from atlas_ref.parts.biases import Bias, half_slope
from atlas_ref.rules import deep_memory, delta, sequence
from tape import grad, ops
from tests.rules.deep_memory.test_against_loops import amplified
from tests.rules.deep_memory.test_biases import plain
from tests.support import deep_cases, plain_loops
from tests.support import deep_memories as deep
from tests.support.close import EXACT, assert_close, assert_differs, reordered
from tests.truth import bias_loops
from tests.truth import deep_memory_loops as loops

pytestmark = pytest.mark.host("plain loops of the tests")

HUBERS: dict[str, dict[str, Any]] = {
    "coordinate": {"kind": "huber", "form": "coordinate", "smoothing": "none"},
    "norm": {"kind": "huber", "form": "norm", "quadratic": "whole"},
    "mixture": {"kind": "huber", "threshold": 0.7},
    "mixture root": {"kind": "huber", "smoothing": "root"},
}


def with_thresholds(choice: dict[str, Any], **how: Any) -> Any:
    """Inputs whose tokens bring thresholds on both sides of their errors."""
    given = deep.inputs(choice, **how)
    limits = np.random.default_rng(9).uniform(0.1, 2.5, given.k.shape[:2])
    return given._replace(gates={**given.gates, "threshold": limits})


@pytest.mark.clause("DEEP-36")
@pytest.mark.parametrize("name", HUBERS)
def test_slopes_and_their_derivatives_are_those_of_loops(name: str) -> None:
    bias, rng = HUBERS[name], np.random.default_rng(3)
    e, d, bar = rng.standard_normal((9, 3)), rng.uniform(0.1, 2.0, 9), rng.standard_normal((9, 3))

    def slopes(e: Any, d: Any) -> Any:
        own = zip(e, d, strict=True)
        return np.array([bias_loops.slope(a, 0.0 * a, **bias | {"threshold": b}) for a, b in own])

    settings = Bias(**bias)
    assert_close("slope", 2.0 * half_slope(settings, e, d), slopes(e, d), reordered(8))
    at = {"e": e, "d": d}
    got = grad(lambda x: ops.sum(bar * (2.0 * half_slope(settings, x["e"], x["d"]))))(at)
    for each in at:
        way = rng.standard_normal(at[each].shape)
        moved = at | {each: at[each] + 1e-40j * way}
        want = np.sum(bar * np.imag(slopes(moved["e"], moved["d"]))) / 1e-40
        assert abs(np.sum(got[each] * way) - want) <= 1e-12 * np.sum(np.abs(got[each] * way))
        assert abs(want) > 1e-3
    assert not half_slope(settings, e, np.zeros(9)).any()


@pytest.mark.clause("DEEP-36")
@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize("name", HUBERS)
def test_reads_and_states_are_those_of_plain_loops(name: str, number: int) -> None:
    choice, bias = deep.drawn(800 + number), HUBERS[name]
    given = with_thresholds(choice, seed=number)
    state, y = deep.run(deep.config(choice, bias=bias), given)
    reset = None if given.reset is None else np.tile(given.reset, (len(given.k), 1))
    rows = (given.tensors, given.k, given.v, given.q, deep.kept(choice, given))
    want, after = loops.run(deep.of_loops(choice, bias=bias), *rows, reset=reset, calls=given.calls)
    tolerance = amplified(choice, given, bias=bias)
    assert_close("y", y, want, tolerance)
    for each, tensor in state.weights.items():
        full = np.broadcast_to(tensor, after[f"memory/{each}"].shape)
        assert_close(each, full, after[f"memory/{each}"], tolerance)


@pytest.mark.clause("DEEP-36")
@pytest.mark.parametrize("name", HUBERS)
def test_outer_gradients_are_complex_steps_of_plain_loops(name: str) -> None:
    bias, choice = HUBERS[name], plain("mlp", chunk=2, window=4, read="after")
    given = with_thresholds(choice, tokens=6)
    config, gates = deep.config(choice, bias=bias), deep.kept(choice, given)
    bar = np.random.default_rng(2).standard_normal(given.v.shape)

    def loss(at: Any) -> Any:
        moved = given._replace(k=at["k"], gates={**given.gates, "threshold": at["threshold"]})
        return ops.sum(bar * deep.run(config, moved)[1])

    got = grad(loss)({"k": given.k, "threshold": given.gates["threshold"]})
    for label, x in got.items():
        way = np.random.default_rng(7).standard_normal(x.shape)
        rows = (given.tensors, given.k, given.v, given.q, gates, {"y": bar})
        want = loops.along(deep.of_loops(choice, bias=bias), *rows, {label: way})
        size = np.linalg.norm(x) * np.linalg.norm(way)
        assert size > 0.0
        assert abs(np.sum(x * way) - want) <= 1e-11 * size, label


@pytest.mark.clause("DEEP-36")
def test_equal_thresholds_are_the_number_of_the_settings() -> None:
    choice = plain(chunk=2, window=4, read="after")
    given = deep.inputs(choice)
    limits = np.full(given.k.shape[:2], 0.7)
    ours = given._replace(gates={**given.gates, "threshold": limits})
    bias = {"kind": "huber", "threshold": 0.7}
    _, want = deep.run(deep.config(choice, bias=bias), given)
    _, got = deep.run(deep.config(choice, bias={"kind": "huber"}), ours)
    assert_close("y", got, want, EXACT)
    _, other = deep.run(deep.config(choice, bias={"kind": "huber"}), given)
    assert_differs("y", other, want, 1e-4)


# -- cases -----------------------------------------------------------------------------------------


def case_of(name: str = "mixture", *, bar: bool = True) -> Any:
    kept = {"memory_reset": "sequence", "unfinished": "wait"}
    choice = plain("mlp", chunk=2, window=4, read="after", **kept)
    given = with_thresholds(choice, batch=1, tokens=7)
    header, tensors = deep_cases.of_choice(choice, given, bias=HUBERS[name])
    rng = np.random.default_rng(1)
    tensors |= {"in/y_bar": rng.standard_normal(given.v.shape)} if bar else {}
    n = 2
    tensors |= {
        "in/state/position": np.asarray(n, np.int64),
        "in/state/keys": rng.standard_normal((1, n, given.k.shape[-1])),
        "in/state/values": rng.standard_normal((1, n, given.v.shape[-1])),
        "in/state/thresholds": rng.uniform(0.2, 1.0, (1, n)),
    }
    if "in/window_gate" in tensors:
        tensors["in/state/token_gates"] = np.ones((1, n))
    return atlas_ref.make(header, tensors)


@pytest.mark.clause("DEEP-36", "DEEPCASE-3", "DEEPCASE-5", "DEEPCASE-6")
@pytest.mark.parametrize("name", HUBERS)
def test_the_rule_the_plain_loop_and_certified_results_agree(name: str) -> None:
    ours = plain_loops.assert_all_agree(case_of(name))
    assert {"out/state/thresholds", "grad/threshold", "grad/state/thresholds"} <= ours


@pytest.mark.clause("DEEP-36", "DEEPCASE-5")
def test_a_call_that_goes_on_carries_the_thresholds_of_its_window() -> None:
    case = case_of(bar=False)
    whole, inputs = evaluate(case).tensors, dict(case.inputs)
    own = {n: x for n, x in inputs.items() if not n.startswith("in/state/")}
    state = {n: x for n, x in inputs.items() if n.startswith("in/state/")}
    first = evaluate(case.replaced(inputs=deep_cases.cut(own, 0, 3) | state)).tensors
    rest = deep_cases.cut(own, 3, 7) | deep_cases.resumed(first)
    last = evaluate(atlas_ref.make(dict(case.header), rest)).tensors
    joined = np.concatenate([first["out/y"], last["out/y"]], axis=-2)
    assert_close("y", joined, whole["out/y"], reordered(16))
    assert_close("thresholds", last["out/state/thresholds"], whole["out/state/thresholds"], EXACT)
    del rest["in/state/thresholds"]
    other = evaluate(atlas_ref.make(dict(case.header), rest)).tensors["out/y"]
    assert_differs("y", other, last["out/y"], 1e-6)


@pytest.mark.clause("DEEP-36")
def test_a_replay_names_the_threshold_where_a_slope_is_wrong() -> None:
    case = case_of(bar=False)
    right = trace(case, dtype="float32")
    assert first_wrong(replay(case, right, nearest=False)) is None
    wrong = dict(right) | {"trace/cotangent": np.float32(1.02) * right["trace/cotangent"]}
    first = first_wrong(replay(case, wrong, nearest=False))
    assert first is not None
    assert first.tensor == "trace/cotangent"


@pytest.mark.clause("DEEP-36")
def test_identify_tries_no_number_in_place_of_given_thresholds() -> None:
    case = case_of(bar=False)
    answer = identify(case, dict(evaluate(case).tensors), depth=1)
    assert answer.verdict == "MATCH"


@pytest.mark.clause("DEEP-36")
def test_thresholds_elsewhere_are_refused_in_one_line() -> None:
    case = case_of(bar=False)
    header, tensors = dict(case.header), dict(case.inputs)
    settings = {**header["parameters"], "bias": {"kind": "l2"}}
    with pytest.raises(
        CaseError, match=r"in/threshold: .* bias l2 has none; it belongs to bias hu"
    ):
        atlas_ref.make({**header, "parameters": settings}, tensors)
    alone = {n: x for n, x in tensors.items() if n != "in/threshold"}
    with pytest.raises(CaseError, match=r"in/state/thresholds: .*no token brings a threshold"):
        atlas_ref.make(header, alone)
    with pytest.raises(CaseError, match="in/threshold"):
        atlas_ref.make(header, tensors | {"in/threshold": -tensors["in/threshold"]})
    k, ones = np.ones((3, 2)), np.ones(3)
    tokens = sequence.Tokens(k=k, v=k, q=k, retain=ones, step_size=ones, threshold=ones)
    config = delta.Config(d_in=2, d_out=2, convention={"gate": "retain"})
    with pytest.raises(ValueError, match="threshold: the rule delta has no bias huber"):
        sequence.run(delta.RULE, config, tokens, delta.start(config))
    deep_config = deep_memory.Config(d_in=2, d_out=2)
    weights = memory_functions.initial(deep_config.memory, 2, 2, seed=0)
    with pytest.raises(ValueError, match="threshold: given, but only bias huber has one"):
        sequence.run(
            deep_memory.RULE, deep_config, tokens, deep_memory.start(deep_config), phi=weights
        )
    learned = tokens.replaced(threshold=None, surrogate=k)
    with pytest.raises(ValueError, match="surrogate: given, the rule deep_memory"):
        sequence.run(
            deep_memory.RULE, deep_config, learned, deep_memory.start(deep_config), phi=weights
        )
