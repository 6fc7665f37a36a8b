"""Sequences with states of their own are N calls in one case (CASE-44, CASE-45, CASE-48)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref.oracle.cases.case import Case, make
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.dplr.members import MEMBERS as LINEAR
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.judge.compare import check
from atlas_ref.oracle.judge.tolerance import tolerances
from atlas_ref.oracle.recurrences.members import MEMBERS as RECURRENCES
from atlas_ref.rules.deep_memory.presets import PRESETS

Arrays = dict[str, Any]

#: Fields of a request, of every rule whose calls can be cut.
RULES: list[dict[str, Any]] = [
    *({"rule": name} for name in ("omega", "titans_lmm", "delta", "hebbian", "deep_memory", "tnt")),
    {"rule": "omega", "window": 3},
    {"rule": "omega", "window": 3, "history": 2},
    {"rule": "omega", "level": "token", "batch": 2},
    {"rule": "delta", "span": 3, "convention": {"reference": "chunk_start"}},
    {"rule": "deep_memory", "history": 2, "parameters": {"window": 3}},
    {"rule": "tnt", "history": 2},
    *({"rule": "dplr", "parameters": {"member": name}} for name in LINEAR),
    {"rule": "dplr", "parameters": {"member": "gated_delta_product", "steps": 2}},
    {"rule": "dplr", "parameters": {"member": "kda"}, "groups": 2},
    *({"rule": "recurrence", "parameters": {"member": name}} for name in RECURRENCES),
]


def words(fields: dict[str, Any]) -> str:
    return "-".join(str(value) for value in fields.values())


def case_of(fields: dict[str, Any], lengths: tuple[int, ...], **more: Any) -> Case:
    return new(Request(**fields, sequences=lengths, cotangent=True, **more))


def one_call(case: Case, n: int, names: set[str]) -> Case:
    """Sequence n of a case as a case of its own, made anew by the names of its axes."""
    first, last = (int(t) for t in case.inputs["in/sequences"][n : n + 2])
    tokens = int(case.inputs["in/sequences"][-1])
    initial = case.inputs.get("in/has_initial_state", np.ones(n + 1, bool))[n]
    inputs: Arrays = {}
    for name, x in case.inputs.items():
        if name in ("in/sequences", "in/has_initial_state"):
            continue
        if name in names:
            if initial or "_bar" in name:
                inputs[name] = x[n, ...]
            continue
        # no other axis of these cases has as many places as there are tokens, or steps of them
        axes = [i for i, size in enumerate(x.shape) if size in (tokens, 2 * tokens)]
        if axes:
            each = x.shape[axes[0]] // tokens
            x = np.take(x, range(first * each, last * each), axis=axes[0])
        inputs[name] = x
    return make(case.header.plain(), inputs, name="one")


def with_states(case: Case) -> set[str]:
    """Inputs with an axis of sequences in front, by their names alone."""
    count = case.inputs["in/sequences"].shape[0] - 1
    ends = ("0", "_bar")
    return {
        name
        for name, x in case.inputs.items()
        if name != "in/y_bar"
        and x.shape[:1] == (count,)
        and (name.endswith(ends) or name.startswith(("in/state", "in/window_")))
        and name != "in/window_weights"
    }


@pytest.mark.sample(12)
@pytest.mark.clause("CASE-45")
@pytest.mark.parametrize("fields", RULES, ids=words)
def test_a_packed_case_is_the_calls_of_its_sequences(fields: dict[str, Any]) -> None:
    """Reads, last states and gradients are those of five calls, one of them without a first state."""
    case = case_of(fields, (6, 7, 3, 4, 9))
    results, states = evaluate(case, grad=True).tensors, with_states(case)
    assert ("in/has_initial_state" in case.inputs) == any("_bar" not in each for each in states)
    calls = [evaluate(one_call(case, n, states), grad=True).tensors for n in range(5)]
    reads = np.concatenate([each["out/y"] for each in calls], axis=-2)
    np.testing.assert_allclose(results["out/y"], reads, rtol=1e-13, atol=1e-13)
    lasts = [name for name in calls[0] if name.startswith("out/") and name != "out/y"]
    compared = 0
    for name in lasts:
        if len({each[name].shape for each in calls}) == 1:
            np.testing.assert_array_equal(results[name], np.stack([each[name] for each in calls]))
            compared += 1
        else:
            assert name not in results
    assert compared
    for name in states:
        if (grad := name.replace("in/", "grad/", 1)) in results:
            zero = np.zeros_like(results[grad][0])
            each = np.stack([call.get(grad, zero) for call in calls])
            np.testing.assert_allclose(results[grad], each, rtol=1e-12, atol=1e-13)
    shared = [
        n for n in calls[0] if n.startswith("grad/") and n.replace("grad/", "in/") not in states
    ]
    for name in shared:
        own, parts = results[name], [each[name] for each in calls]
        if own.shape == parts[0].shape:  # a parameter that sequences share
            np.testing.assert_allclose(own, sum(parts), rtol=1e-11, atol=1e-12)
        else:
            axis = next(i for i, n in enumerate(own.shape) if n != parts[0].shape[i])
            joint = np.concatenate(parts, axis=axis)
            np.testing.assert_allclose(own, joint, rtol=1e-11, atol=1e-12)


def gated_delta(x: Arrays) -> Arrays:
    """The gated delta rule over sequences as plain loops over rows, in any arithmetic."""
    heads, _, d_in = x["k"].shape
    d_out = x["v"].shape[-1]
    kind = np.result_type(*(each for name, each in x.items() if name not in ("bounds", "initial")))
    y, last = np.zeros(x["v"].shape, kind), np.zeros(x["M0"].shape, kind)
    for n in range(len(x["bounds"]) - 1):
        for h in range(heads):
            M = np.zeros((d_out, d_in), kind)
            if x["initial"][n]:
                M = M + x["M0"][n, h]
            for t in range(x["bounds"][n], x["bounds"][n + 1]):
                M = np.exp(x["g"][h, t]) * M
                for i in range(d_out):
                    error = x["v"][h, t, i]
                    for j in range(d_in):
                        error = error - M[i, j] * x["k"][h, t, j]
                    for j in range(d_in):
                        M[i, j] = M[i, j] + x["beta"][h, t] * error * x["k"][h, t, j]
                for i in range(d_out):
                    for j in range(d_in):
                        y[h, t, i] += M[i, j] * x["q"][h, t, j] / np.sqrt(d_in)
            last[n, h] = M
    return {"y": y, "M": last}


@pytest.mark.clause("CASE-45")
@pytest.mark.parametrize("lengths", [(0, 4, 0, 3, 0), (3, 4), (1, 0, 6, 2), (0, 0, 5)], ids=str)
def test_the_definition_of_gated_delta_as_plain_loops(lengths: tuple[int, ...]) -> None:
    """Values by plain loops, gradients by the complex step, with empty sequences in every place."""
    fields = {"rule": "dplr", "parameters": {"member": "gated_delta"}, "d_in": 3, "d_out": 2}
    case = case_of(fields, lengths, gate="head", log=True)
    x = {name.removeprefix("in/"): value for name, value in case.inputs.items()}
    count = len(lengths)
    given: Arrays = {
        "bounds": x["sequences"],
        "initial": x.get("has_initial_state", np.ones(count, bool)),
        "g": x["log_retain"],
        **{name: x[name] for name in ("q", "k", "v", "beta", "M0")},
    }
    results, want = evaluate(case, grad=True).tensors, gated_delta(given)
    np.testing.assert_allclose(results["out/y"], want["y"], rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(results["out/M"], want["M"], rtol=1e-12, atol=1e-13)
    names = {"g": "log_retain", "q": "q", "k": "k", "v": "v", "beta": "beta", "M0": "M0"}
    for short, name in names.items():
        gradient = results[f"grad/{name}"]
        for at in np.ndindex(gradient.shape):
            moved = given[short].astype(complex)
            moved[at] += 1e-30j
            out = gated_delta({**given, short: moved})
            loss = (out["y"] * x["y_bar"]).sum() + (out["M"] * x["M_bar"]).sum()
            assert gradient[at] == pytest.approx(loss.imag / 1e-30, rel=1e-11, abs=1e-12), (
                name,
                at,
            )
    for n, length in enumerate(lengths):
        if length == 0:
            first = x["M0"][n] if given["initial"][n] else np.zeros_like(x["M0"][n])
            np.testing.assert_array_equal(results["out/M"][n], first)
            bar = x["M_bar"][n] if given["initial"][n] else np.zeros_like(x["M_bar"][n])
            np.testing.assert_array_equal(results["grad/M0"][n], bar)


@pytest.mark.sample(6)
@pytest.mark.clause("CASE-45")
@pytest.mark.parametrize("fields", RULES, ids=words)
def test_own_results_pass_in_every_format(fields: dict[str, Any]) -> None:
    """Tolerances are measured of such cases too; an empty sequence is one of them."""
    case = case_of(fields, (5, 0, 7, 1))
    if "window" in fields and fields["rule"] == "omega" and "history" not in fields:
        assert "out/window_k" not in evaluate(case).tensors  # an empty sequence has none
    for dtype in ("float64", "float32"):
        results = evaluate(case, dtype=dtype).tensors
        recorded = {name: x for name, x in results.items() if name.startswith("out/")}
        rows = check(make(case.header.plain(), {**case.inputs, **recorded}))
        assert {row.verdict for row in rows} == {"PASS"}, rows
    bound = tolerances(case, dtype="float32")["out/y"].max
    wrong = {**recorded, "out/y": recorded["out/y"] + np.float32(100 * bound)}
    rows = check(make(case.header.plain(), {**case.inputs, **wrong}))
    assert "WRONG" in {row.verdict for row in rows}


@pytest.mark.clause("CASE-45")
def test_an_empty_sequence_without_a_first_state_has_zeros() -> None:
    case = case_of({"rule": "delta"}, (0, 4), state=False)
    assert "in/M0" not in case.inputs
    results = evaluate(case).tensors
    assert results["out/M"].shape[0] == 2
    assert not results["out/M"][0].any()
    assert results["out/M"][1].any()


@pytest.mark.clause("CASE-45")
@pytest.mark.parametrize(
    "parameters",
    [{}, {"deep_momentum": {}}, {"coupling": "batch_shared"}, *({"preset": p} for p in PRESETS)],
    ids=str,
)
def test_an_empty_sequence_is_a_call_that_writes_nothing(parameters: dict[str, Any]) -> None:
    """One token of a longer chunk leaves every state as it was, so an empty sequence has the same."""
    fields = {"rule": "deep_memory", "parameters": {**parameters, "chunk": 8}, "d_out": 4}
    case = new(Request(**fields, sequences=(0, 1), state=False, batch=2))
    results = evaluate(case).tensors
    for name, x in results.items():
        if name.startswith("out/state/") and not name.endswith("/position"):
            np.testing.assert_array_equal(x[0], x[1])
    assert results["out/state/position"].tolist() == [0, 1]


@pytest.mark.clause("CASE-45")
@pytest.mark.parametrize("rule", ["deep_memory", "tnt"])
def test_an_empty_sequence_of_a_rule_that_begins_elsewhere(rule: str) -> None:
    """Where no call left states, a memory begins from its parameters, not from zeros."""
    results = evaluate(case := case_of({"rule": rule}, (0, 4))).tensors
    own = "weights/W_1" if rule == "deep_memory" else "global/M"
    first = case.inputs["in/memory/W_1" if rule == "deep_memory" else "in/global/M0"]
    found = results[f"out/state/{own}"][0]
    if f"in/state/{own}" in case.inputs:
        first = case.inputs[f"in/state/{own}"][0]
    np.testing.assert_array_equal(found, np.broadcast_to(first, found.shape))
    assert results["out/state/position"].tolist() == [0, 4]


@pytest.mark.clause("CASE-48")
def test_a_new_case_has_the_tokens_of_one_without_sequences() -> None:
    case = new(Request(rule="delta", sequences=(5, 0, 17, 1), cotangent=True))
    plain = new(Request(rule="delta", tokens=23, cotangent=True))
    assert case.inputs["in/sequences"].tolist() == [0, 5, 5, 22, 23]
    assert case.inputs["in/has_initial_state"].tolist() == [True, True, False, True]
    for name, x in plain.inputs.items():
        own = case.inputs[name]
        np.testing.assert_array_equal(own[0] if name in ("in/M0", "in/M_bar") else own, x)
    assert len({each.tobytes() for each in case.inputs["in/M0"]}) == 4
    assert "in/has_initial_state" not in new(Request(rule="delta", sequences=(3, 4))).inputs
    assert (
        "in/has_initial_state"
        not in new(Request(rule="delta", sequences=(3, 1, 2), state=False)).inputs
    )


@pytest.mark.clause("CASE-47")
def test_features_name_sequences() -> None:
    from atlas_ref.oracle.cases.features import features

    case = new(Request(rule="delta", sequences=(3, 4)))
    assert "sequences" in features(case)
    assert "state" in features(case)
    assert "sequences" not in features(new(Request(rule="delta")))
    rows = check(case, source=lambda case: pytest.fail("asked"), without=["sequences"])
    assert [row.verdict for row in rows] == ["NOT SUPPORTED"]


@pytest.mark.clause("CASE-45")
def test_results_say_where_calls_go_on_where_all_sequences_end_at_one_place() -> None:
    """Spans of 3 tokens: 4 and 7 tokens end behind the first of a span, 5 behind the second."""
    fields = {"rule": "delta", "span": 3, "convention": {"reference": "chunk_start"}}
    alike = evaluate(new(Request(**fields, sequences=(4, 7)))).header
    assert alike["phase"] == evaluate(new(Request(**fields, tokens=4))).header["phase"]
    assert "phase" not in evaluate(new(Request(**fields, sequences=(4, 5)))).header
