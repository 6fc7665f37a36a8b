"""The steps of Atlas parallel, against the literal loops and the sequential form.

The reference is the same frozen or zero one.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atlas_ref import forms as parallel
from atlas_ref.forms.scan import segments
from atlas_ref.oracle.cases.case import Case, make
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.rules import omega
from tests.support.close import ANALYTIC, assert_close, assert_differs
from tests.support.form_results import (
    assert_equal_the_loops,
    assert_gradients_equal_the_sequential,
    call_of,
    results,
    tolerance,
    with_edges,
)
from tests.support.strategies import form_cases, header_of, repeatable

CHUNKS = [None, 1, 2, 3, 5, 100]
NEWTON_SCHULZ: dict[str, Any] = {
    "none": "none",
    "S": {"steps": 3},
    "nesterov": {"argument": "nesterov", "guard": "clamp"},
}


def example(rule: str = "omega", newton_schulz: str = "none", **more: Any) -> Case:
    """13 tokens in spans of 4 and packed sequences of 9, with a window that is longer than a
    span.
    """
    convention = (
        {"reference": "chunk_start"}
        | more.pop("convention", {})
        | {"newton_schulz": NEWTON_SCHULZ[newton_schulz]}
    )
    sizes: dict[str, Any] = {
        "tokens": 13,
        "window": 6 if rule == "omega" else 1,
        "span": 4,
        "reset": 9,
        "cotangent": True,
    }
    return new(Request(rule=rule, convention=convention, **(sizes | more)))


@pytest.mark.clause("ATLASP-1", "ATLASP-2", "ATLASP-6", "ATLASP-7", "CHUNK-1", "CHUNK-3")
@settings(repeatable, max_examples=200)
@given(form_cases("atlas_parallel"), st.sampled_from(CHUNKS))
def test_every_result_equals_the_literal_loops(case: Case, chunk: int | None) -> None:
    assert_equal_the_loops(case, "atlas_parallel", chunk)


@pytest.mark.clause("ATLASP-3", "CHUNK-5", "CHUNK-24")
@settings(repeatable, max_examples=100)
@given(form_cases("atlas_parallel", level="projected", tokens=13))
def test_every_result_equals_the_literal_loops_where_gates_are_zero_one_or_tiny(case: Case) -> None:
    for seed, chunk in enumerate((None, 4)):
        assert_equal_the_loops(with_edges(case, seed), "atlas_parallel", chunk)


@pytest.mark.clause("ATLASP-15")
@settings(repeatable, max_examples=80)
@given(form_cases("atlas_parallel"), st.sampled_from(CHUNKS), st.sampled_from([None, 0]))
def test_every_gradient_equals_that_of_the_sequential_form(
    case: Case, chunk: int | None, edges: int | None
) -> None:
    assert_gradients_equal_the_sequential(
        case if edges is None else with_edges(case, edges), "atlas_parallel", chunk
    )


@pytest.mark.slow
@settings(repeatable, max_examples=2000)
@given(form_cases("atlas_parallel"), st.sampled_from(CHUNKS), st.sampled_from([None, 0, 1, 2]))
def test_every_result_and_gradient_at_length(
    case: Case, chunk: int | None, edges: int | None
) -> None:
    case = case if edges is None else with_edges(case, edges)
    assert_equal_the_loops(case, "atlas_parallel", chunk)
    assert_gradients_equal_the_sequential(case, "atlas_parallel", chunk)


@pytest.mark.sample(18)
@pytest.mark.clause("ATLASP-1", "ATLASP-2", "ATLASP-4", "CHUNK-9", "CHUNK-14", "CHUNK-24")
@pytest.mark.parametrize("boundary", ["recompute", "carry", "cut"])
@pytest.mark.parametrize("decay", ["after_error", "before_error"])
@pytest.mark.parametrize("reference", ["chunk_start", "call_start", "zero"])
@pytest.mark.parametrize("newton_schulz", list(NEWTON_SCHULZ))
def test_every_boundary_reference_and_argument(
    boundary: str, decay: str, reference: str, newton_schulz: str
) -> None:
    axes = {
        "window_at_boundary": boundary,
        "decay": decay,
        "reference": reference,
        "gradient_scale": 0.7,
    }
    case = example(newton_schulz=newton_schulz, convention=axes, history=5, pulse=3)
    for chunk in (None, 1, 3):
        assert_equal_the_loops(case, "atlas_parallel", chunk)
    assert_gradients_equal_the_sequential(case, "atlas_parallel", 3)


@pytest.mark.sample(12)
@pytest.mark.clause("ATLASP-5", "CHUNK-2")
@pytest.mark.parametrize("decay", ["after_error", "before_error"])
@pytest.mark.parametrize("sign", ["plus", "minus"])
@pytest.mark.parametrize("newton_schulz", list(NEWTON_SCHULZ))
@pytest.mark.parametrize("scale", [1, 0.7, 0])
def test_momentum_before_the_window_with_any_gradient_scale(
    decay: str, sign: str, newton_schulz: str, scale: float
) -> None:
    axes = {
        "order": "momentum_then_window",
        "decay": decay,
        "gradient_scale": scale,
        "momentum_sign": sign,
    }
    case = example(newton_schulz=newton_schulz, convention=axes, pulse=2)
    momenta = np.random.default_rng(0).standard_normal((2, 5, 3, 4))
    case = make(header_of(case), {**case.inputs, "in/window_momentum": momenta})
    for chunk in (None, 1, 3):
        assert_equal_the_loops(case, "atlas_parallel", chunk)
    assert_gradients_equal_the_sequential(case, "atlas_parallel", 3)


@pytest.mark.clause("ATLASP-3", "ATLASP-14", "CHUNK-20")
@pytest.mark.parametrize("rule", ["omega", "titans_lmm", "delta", "hebbian"])
@pytest.mark.parametrize("per_dimension", [False, True])
@pytest.mark.parametrize("read", ["after", "before", "chunk_start", "call_end"])
def test_every_rule_gate_and_read(rule: str, per_dimension: bool, read: str) -> None:
    axes = {
        "read": read,
        "span_origin": "multiple",
        "order": "momentum_then_window" if rule == "titans_lmm" else "window_then_momentum",
    }
    case = example(rule, convention=axes, per_dimension_gates=per_dimension)
    for chunk in (None, 3):
        assert_equal_the_loops(case, "atlas_parallel", chunk)
    assert_gradients_equal_the_sequential(case, "atlas_parallel", 3)


@pytest.mark.clause("CHUNK-14")
@pytest.mark.parametrize("longest", [1, 2, 3, 100])
def test_a_segment_never_crosses_a_refresh(longest: int) -> None:
    for refresh in itertools.product([False, True], repeat=6):
        pieces = list(segments(np.array(refresh), longest))
        assert [t for first, last in pieces for t in range(first, last)] == list(range(6))
        assert all(
            last - first <= longest and not any(refresh[first + 1 : last]) for first, last in pieces
        )
        count = sum(refresh[1:]) + 1
        assert longest < 6 or len(pieces) == count  # no cut without a reason


@pytest.mark.clause("ATLASP-16", "CHUNK-1", "CHUNK-19")
@pytest.mark.parametrize(
    "axes",
    [
        {"window_at_boundary": "carry"},
        {"window_at_boundary": "carry", "decay": "before_error", "momentum_sign": "minus"},
        {"order": "momentum_then_window", "momentum_sign": "minus"},
        {"reference": "call_start", "window_at_boundary": "carry"},
        {"reference": "zero", "read": "chunk_start"},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("atlas_parallel", "atlas_parallel"),
        ("atlas_parallel", "sequential"),
        ("sequential", "atlas_parallel"),
    ],
)
def test_a_call_can_be_continued_in_another_form(
    axes: dict[str, Any], first: str, then: str
) -> None:
    case = example(newton_schulz="S", convention=axes, reset=0, window_gate=True)
    config, tokens, state = call_of(case, case.inputs)
    whole, y = parallel.run(omega.RULE, config, tokens, state)
    timed = ("k", "v", "q", "retain", "momentum", "step_size", "window_gate")
    for at in (1, 2, 7):
        parts = [
            tokens.replaced(**{name: getattr(tokens, name)[:, part] for name in timed})
            for part in (slice(0, at), slice(at, None))
        ]
        middle, early = parallel.run(omega.RULE, config, parts[0], state, form=first, chunk=3)
        end, late = parallel.run(omega.RULE, config, parts[1], middle, form=then, chunk=3)
        assert_close("y", np.concatenate([early, late], axis=-2), y, ANALYTIC)
        for name, want in whole.__dict__.items():
            if isinstance(want, np.ndarray):
                assert_close(name, getattr(end, name), want, ANALYTIC)
            else:
                assert getattr(end, name) == want


@pytest.mark.clause("ATLASP-9")
@pytest.mark.parametrize("newton_schulz", list(NEWTON_SCHULZ))
@pytest.mark.parametrize("boundary", ["recompute", "carry", "cut"])
def test_span_one_with_recompute_is_the_running_rule(newton_schulz: str, boundary: str) -> None:
    case = example(newton_schulz=newton_schulz, convention={"window_at_boundary": boundary}, span=1)
    running = make(
        header_of(case) | {"convention": header_of(case)["convention"] | {"reference": "running"}},
        case.inputs,
    )
    result, want = results(case, "atlas_parallel")[0], results(running, "sequential")[0]
    for name in ("out/y", "out/M", "out/S"):
        if boundary == "recompute":
            assert_close(name, result[name], want[name], ANALYTIC)
        else:
            assert_differs(name, result[name], want[name], 1e-3)


def momentum_of(case: Case, S0: Any) -> Any:
    return results(make(header_of(case), {**case.inputs, "in/S0": S0}), "atlas_parallel")[0][
        "out/S"
    ]


@pytest.mark.clause("ATLASP-8", "OMEGA-16")
@pytest.mark.parametrize("newton_schulz", ["none", "S"])
def test_within_a_span_the_momentum_is_its_start_decayed_plus_what_does_not_depend_on_it(
    newton_schulz: str,
) -> None:
    case = example(newton_schulz=newton_schulz, convention={"reference": "call_start"}, reset=0)
    S0 = case.inputs["in/S0"]
    decayed = np.prod(case.inputs["in/momentum"], axis=-1)[:, None, None] * S0
    assert_close("S_T", momentum_of(case, S0) - momentum_of(case, 0.0 * S0), decayed, ANALYTIC)
    across = example(newton_schulz=newton_schulz, reset=0)
    assert_differs(
        "across spans", momentum_of(across, S0) - momentum_of(across, 0.0 * S0), decayed, 1e-3
    )


def distance(case: Case, factor: float) -> float:
    """Relative distance of y to that of the running rule, all step sizes times `factor`."""
    inputs = {**case.inputs, "in/step_size": factor * case.inputs["in/step_size"]}
    running = header_of(case) | {
        "convention": header_of(case)["convention"] | {"reference": "running"}
    }
    frozen, want = (
        results(make(header_of(case), inputs), "atlas_parallel")[0],
        results(make(running, inputs), "sequential")[0],
    )
    return float(np.linalg.norm(frozen["out/y"] - want["out/y"]) / np.linalg.norm(want["out/y"]))


@pytest.mark.clause("ATLASP-10")
def test_the_distance_to_the_running_rule_is_of_first_order_in_the_step_size_and_zero_at_span_one() -> (
    None
):
    for span in (2, 4, 8):
        case = example(convention={"rate": "memory"}, span=span, reset=0)
        for factor in (2**-6, 2**-9):
            assert 1.9 < distance(case, factor) / distance(case, factor / 2) < 2.1
    assert distance(example(convention={"rate": "memory"}, span=1), 1.0) < 1e-12


@pytest.mark.clause("ATLASP-11")
@pytest.mark.parametrize(("span", "h"), [(1, 0.5), (4, 0.3), (4, 0.6), (8, 0.2), (8, 0.4)])
def test_a_span_of_equal_keys_multiplies_the_error_by_one_minus_its_length_times_the_step_size(
    span: int, h: float
) -> None:
    T, k = 16, np.zeros((16, 2))
    k[:, 0] = 1.0
    header = {
        "schema": 1,
        "rule": "delta",
        "span": span,
        "convention": {"reference": "chunk_start"},
    }
    inputs = {
        "in/k": k,
        "in/v": np.ones((T, 1)),
        "in/q": k,
        "in/retain": np.ones(T),
        "in/step_size": np.full(T, h),
    }
    y = results(make(header, inputs), "atlas_parallel")[0]["out/y"][:, 0]
    ends = y[span - 1 :: span] - 1.0
    assert_close("errors", ends, -((1.0 - h * span) ** np.arange(1, T // span + 1)), ANALYTIC)
    assert (abs(ends[-1]) < 1.0) == (h * span < 2.0)


@pytest.mark.clause("ATLASP-12")
def test_a_state_keeps_no_chunk_and_precision_is_that_of_the_tokens() -> None:
    case = example(newton_schulz="S", convention={"window_at_boundary": "carry"})
    config, tokens, state = call_of(case, case.inputs)
    end, _ = parallel.run(omega.RULE, config, tokens, state, form="atlas_parallel")
    for array in (end.M, end.S, end.reference, end.residuals):
        assert array.base is None or array.base.size == array.size
    inputs = {
        name: value if value.dtype == np.uint8 else value.astype(np.float32)
        for name, value in case.inputs.items()
    }
    assert {value.dtype for value in results(case, "atlas_parallel", 3, inputs)[0].values()} == {
        np.dtype(np.float32)
    }


@pytest.mark.clause("ATLASP-13")
@settings(repeatable, max_examples=40)
@given(form_cases("atlas_parallel"))
def test_the_results_are_those_of_the_chunkwise_form(case: Case) -> None:
    result, want = results(case, "atlas_parallel", 3)[0], results(case, "chunkwise", 2)[0]
    assert result.keys() == want.keys()
    for name, value in want.items():
        assert_close(name, result[name], value, tolerance(case))
