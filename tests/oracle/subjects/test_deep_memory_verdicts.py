"""Verdicts on deep memories: every result is judged, right programs pass and a mistake does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.features import features
from atlas_ref.oracle.cases.inputs import convert
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.family.arithmetic import MEMBERS, Arithmetic
from atlas_ref.oracle.judge import ensemble
from atlas_ref.oracle.judge.answers import Answer
from atlas_ref.oracle.judge.arrays import judged
from atlas_ref.oracle.judge.compare import checked
from atlas_ref.oracle.judge.tolerance import tolerances
from atlas_ref.oracle.report.failures import explain
from atlas_ref.oracle.sources import sources
from tests.support import deep_cases, deep_implementations, deep_memories
from tests.support.close import relative_error
from tests.support.deep_requests import REQUESTS


def rounded_program(case: Any) -> Answer:
    """The rule in the precision of the case: what a right program answers."""
    names = {value.dtype.name for value in case.inputs.values() if value.dtype.kind != "u"}
    kind = next((n for n in ("bfloat16", "float16", "float32") if n in names), "float64")
    return Answer(dict(evaluate(case, grad=True, dtype=kind).tensors))


@pytest.mark.clause("DEEPCASE-9", "TOL-3", "TOL-8")
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", REQUESTS)
def test_the_rule_in_any_precision_passes_and_every_result_is_judged(name: str, dtype: str) -> None:
    case = deep_cases.made(**REQUESTS[name])
    rows = atlas_ref.check(case, source=rounded_program, dtype=dtype)
    assert {row.tensor for row in rows} == set(evaluate(case, grad=True).tensors)
    for row in rows:
        assert row.verdict == "PASS", row


@pytest.mark.clause("DEEPCASE-9", "TOL-3")
@pytest.mark.parametrize("number", range(30))
def test_the_plain_loop_of_the_ensemble_is_the_rule(number: int) -> None:
    choice = deep_memories.drawn(number, calls=False)
    given = deep_memories.inputs(choice, tokens=9, seed=number)
    header, tensors = deep_cases.of_choice(
        choice,
        given,
        outer_gradient=("full", "first_order", "straight_through", "none")[number % 4],
    )
    bars = np.random.default_rng(number)
    tensors["in/y_bar"] = bars.standard_normal(given.v.shape)
    case = atlas_ref.make(header, tensors)
    for name, x in evaluate(case).tensors.items():
        if name.startswith("out/state/weights/"):
            bar = name.replace("out/state/", "in/state_bar/")
            tensors[bar] = bars.standard_normal(x.shape)
    case = atlas_ref.make(header, tensors)
    want = evaluate(case, grad=True).tensors
    inputs = convert(case, "float64")
    names = [name for name, x in want.items() if x.dtype.kind == "f"]
    allowed = tolerances(case, dtype="float64", only=names, results=want)
    for way in (MEMBERS[0], Arithmetic("tree", "pairwise", transposed=True, early=True)):
        got = ensemble.evaluate(case, inputs, way, grad=True)
        assert got.keys() == want.keys()
        for name in names:
            error = relative_error(np.asarray(got[name]), want[name])
            row = judged("case", name, np.asarray(got[name]), want[name], allowed[name])
            assert error <= 1e-12 or row.verdict == "PASS", (name, error)
            assert error <= 1e-6, name


@pytest.mark.clause("DEEPCASE-9", "CASE-22")
@pytest.mark.parametrize("dtype", [None, "float32", "bfloat16"])
def test_a_program_by_somebody_passes_and_its_mistake_is_wrong_at_the_first_write(
    dtype: str | None,
) -> None:
    case = deep_cases.made(**deep_implementations.REQUEST)
    assert case.inputs["in/k"].dtype == np.float64
    rows = atlas_ref.check(
        case, source=sources.function("tests.support.deep_implementations:right"), dtype=dtype
    )
    assert {row.tensor: row.verdict for row in rows} == dict.fromkeys(
        ("out/y", "out/state/weights/W_1", "out/state/weights/W_2"), "PASS"
    )
    function = "tests.support.deep_implementations:gates_of_the_first_token"
    wrong = checked(case, source=sources.function(function), dtype=dtype)
    assert {row.verdict for row in wrong.rows} == {"WRONG"}
    first = wrong.rows[0].first
    assert first is not None
    assert (wrong.rows[0].tensor, first.token) == ("out/y", 1)
    failure = explain(wrong, wrong.rows, "again")
    assert failure is not None
    assert (failure.op, failure.clause, failure.rule) == ("out/y", "DEEP-15", "deep_memory")


@pytest.mark.clause("DEEPCASE-9", "CASE-22")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", REQUESTS)
def test_every_result_that_is_off_is_wrong(name: str, dtype: str) -> None:
    """Entries moved by a hundredth of their tensor's size, in bfloat16 by half of it."""
    case = deep_cases.made(**REQUESTS[name])
    off = 0.01 if dtype == "float32" else 0.5

    def moved(rounded: Any) -> Answer:
        answer = dict(rounded_program(rounded).tensors or {})
        for key, x in answer.items():
            if x.dtype.kind == "i":
                answer[key] = x + 1
            elif np.any(x):
                wide = x.astype(np.float64)
                answer[key] = wide + off * np.max(np.abs(wide))
        return Answer(answer)

    zero = {n for n, x in evaluate(case, grad=True).tensors.items() if not np.any(x)}
    for row in atlas_ref.check(case, source=moved, dtype=dtype):
        whole = row.tensor == "out/state/position"
        assert row.verdict == ("WRONG" if whole or row.tensor not in zero else "PASS"), row


@pytest.mark.clause("DEEPCASE-9", "TOL-8")
def test_a_state_that_is_kept_in_bfloat16_is_told_from_one_that_is_handed_over_in_it() -> None:
    case = deep_cases.made(tokens=9, parameters={"chunk": 1})
    state = "out/state/weights/W_1"
    kinds = {
        kept: tolerances(case, dtype="bfloat16", state_dtype=kept, states=True, only=[state])[state]
        for kept in (None, "bfloat16")
    }
    assert kinds[None].max < kinds["bfloat16"].max / 50
    assert {
        row.verdict for row in atlas_ref.check(case, source=rounded_program, dtype="bfloat16")
    } == {"PASS"}
    kept = ensemble.evaluate(case, convert(case, "float32"), MEMBERS[0], state_dtype="bfloat16")
    answer = Answer({name: np.asarray(x) for name, x in kept.items()})
    strict, told = (
        {
            row.tensor: row.verdict
            for row in atlas_ref.check(
                case, source=lambda _: answer, dtype="bfloat16", state_dtype=kind
            )
        }
        for kind in (None, "bfloat16")
    )
    assert strict[state] == "WRONG"
    assert told[state] == "PASS"


@pytest.mark.clause("DEEPCASE-9")
def test_rounding_that_a_case_grows_is_judged_by_the_case_and_a_mistake_is_not_excused() -> None:
    request = {
        "tokens": 33,
        "d_in": 3,
        "convention": {"rate": "split", "newton_schulz": {"steps": 10}},
        "parameters": {
            "memory": {"kind": "mlp", "residual_norm": True, "activation": "silu"},
            "window": 2,
            "clip": "soft",
            "clip_norm": 0.5,
        },
    }
    case = deep_cases.made(**request)

    def other(case: Any) -> Answer:
        way = Arithmetic("tree", "pairwise", transposed=True)
        plain = ensemble.evaluate(case, convert(case, "float64"), way)
        return Answer({name: np.asarray(x) for name, x in plain.items()})

    rows = atlas_ref.check(case, source=other)
    assert {row.verdict for row in rows} == {"PASS"}
    grown = [row for row in rows if row.allowed == 2.0]
    assert grown  # beyond 1e-12
    name = grown[0].tensor

    def wrong(case: Any) -> Answer:
        tensors = dict(evaluate(case).tensors)
        moved = tensors[name] * (1.0 + 1e-2)
        return Answer({**tensors, name: moved})

    verdicts = {row.tensor: row for row in atlas_ref.check(case, source=wrong)}
    assert verdicts[name].verdict == "WRONG"
    assert verdicts[name].tolerance == 1e-12


@pytest.mark.sample(2)
@pytest.mark.clause("DEEPCASE-11", "SRC-14", "CASE-27")
@pytest.mark.parametrize(
    ("tensor", "clause"),
    [
        ("out/y", "DEEP-15"),
        ("out/state/weights/W_1", "DEEP-13"),
        ("out/state/momentum/norm/gain", "DEEP-11"),
        ("out/state/reference/W_2", "DEEP-8"),
        ("out/state/keys", "DEEP-5"),
        ("out/state/position", "DEEP-5"),
        ("grad/k", "DEEP-18"),
        ("grad/memory/W_1", "DEEP-18"),
        ("grad/state/values", "DEEP-18"),
    ],
)
def test_a_failure_names_the_clause_of_its_result(tensor: str, clause: str) -> None:
    case = deep_cases.made(**deep_cases.FULL)
    results = evaluate(case, grad=True).tensors
    moved = results[tensor] + 1
    done = checked(case.replaced(recorded={**results, tensor: moved}))
    failure = explain(done, done.rows, "again")
    assert failure is not None
    assert (failure.op, failure.clause, failure.verdict) == (tensor, clause, "WRONG")


@pytest.mark.clause("DEEPCASE-11")
@pytest.mark.parametrize(
    ("reading", "clause"),
    [
        ("full", "DEEP-18"),
        ("first_order", "DEEP-19"),
        ("straight_through", "DEEP-20"),
        ("none", "DEEP-21"),
    ],
)
def test_a_gradient_has_the_clause_of_its_outer_gradient(reading: str, clause: str) -> None:
    case = deep_cases.made(parameters={"outer_gradient": reading})
    results = evaluate(case, grad=True).tensors
    wrong = {**results, "grad/q": results["grad/q"] + 1}
    done = checked(case.replaced(recorded=wrong))
    failure = explain(done, done.rows, "again")
    assert failure is not None
    assert failure.clause == clause


@pytest.mark.clause("CASE-23")
def test_a_result_that_the_memory_does_not_have_is_refused_by_name() -> None:
    case = deep_cases.made()
    y = evaluate(case).tensors["out/y"]
    with pytest.raises(atlas_ref.CaseError, match="out/M: not a result of this case; it has out/y"):
        atlas_ref.check(case.replaced(recorded={"out/y": y, "out/M": y}))
    rows = atlas_ref.check(case.replaced(recorded={"out/y": y}), only=["state/weights/W_1"])
    assert rows == []
    words = r"only: out/weights: no rule has such a result; .* has out/y, .*out/state/weights/W_1.*grad/k"
    with pytest.raises(atlas_ref.CaseError, match=words) as told:
        atlas_ref.check(case, only=["weights"])
    assert "M_ref" not in str(told.value)  # a result of a matrix memory


# -- void settings and features --------------------------------------------------------------------

VOID: dict[str, tuple[dict[str, Any], set[str]]] = {
    "nothing": ({}, set()),
    "layout": ({"convention": {"layout": "transposed"}}, {"layout"}),
    "norm_place": (
        {"convention": {"norm_place": "after_phi", "k_norm": "l2"}},
        {"norm_place"},
    ),
    "decay": ({"convention": {"gate": "none", "decay": "before_error"}}, {"decay"}),
    "window_edge": ({"convention": {"window_edge": "renormalise"}}, {"window_edge"}),
    "weights": (
        {
            "convention": {"window_edge": "renormalise"},
            "window_gate": True,
            "parameters": {"window": 3},
        },
        {"window_edge"},
    ),
    "newton_schulz": (
        {
            "convention": {"newton_schulz": {"steps": 3}},
            "parameters": {
                "memory": {"kind": "polynomial", "key_width": 2},
                "fast": ["read_scale"],
                "vectors": "unit",
            },
        },
        {"newton_schulz"},
    ),
    "retention": (
        {
            "parameters": {
                "memory": {"kind": "polynomial", "key_width": 2},
                "fast": ["read_scale"],
                "vectors": "raw",
                "retention": {"kind": "sphere"},
            },
        },
        {"parameters.retention"},
    ),
    "parameters": (
        {
            "tokens": 4,
            "heads": 1,
            "parameters": {
                "chunk": 2,
                "span": 4,
                "vectors": "unit",
                "clip_norm": 0.5,
                "training": False,
                "unfinished": "flush",
                "memory_reset": "never",
                "momentum_reset": "batch",
                "coupling": "batch_shared",
            },
        },
        {
            f"parameters.{name}"
            for name in (
                "span",
                "vectors",
                "clip_norm",
                "training",
                "unfinished",
                "memory_reset",
                "momentum_reset",
                "coupling",
            )
        },
    ),
    "no write": (
        {
            "parameters": {
                "phase": "train",
                "training": False,
                "clip": "hard",
                "adaptive": True,
                "reduction": "mean",
                "fast": "mlp",
                "bias": {"kind": "l1"},
                "retention": {"kind": "kl"},
            }
        },
        {
            f"parameters.{name}"
            for name in ("clip", "adaptive", "reduction", "fast", "bias", "retention")
        },
    ),
}


@pytest.mark.clause("DEEPCASE-8", "CASE-18")
@pytest.mark.parametrize("name", VOID)
def test_a_void_setting_is_listed_and_changes_no_result(name: str) -> None:
    request, void = VOID[name]
    case = deep_cases.made(**request)
    assert set(case.void) == void
    header = case.header.plain()
    convention = dict(header.get("convention", {}))
    parameters = dict(header.get("parameters", {}))
    for each in void:
        (parameters if each.startswith("parameters.") else convention).pop(each.split(".")[-1])
    plain = atlas_ref.make(
        {**header, "convention": convention, "parameters": parameters}, case.inputs
    )
    a, b = (evaluate(each).tensors for each in (case, plain))
    assert a.keys() == b.keys()
    assert all(np.array_equal(a[key], b[key]) for key in a)


@pytest.mark.clause("DEEPCASE-8", "SRC-21")
def test_the_features_of_a_case_are_those_of_other_memories() -> None:
    assert features(deep_cases.made()) == (
        "heads",
        "rectangular",
        "momentum",
        "iterations",
        "gradient",
    )
    assert set(features(deep_cases.made(**deep_cases.FULL))) == {
        *("pulse", "reset", "heads", "state", "history", "resumed", "span", "window", "weights"),
        *("momentum", "iterations", "gradient"),
    }
    plain = deep_cases.made(heads=1, cotangent=False, d_out=4, convention={"newton_schulz": "none"})
    assert features(plain) == ("momentum",)
    done = checked(plain, source=rounded_program, without=["momentum"])
    assert (done.skipped, done.rows[0].verdict) == (("momentum",), "NOT SUPPORTED")
