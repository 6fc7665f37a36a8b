"""States behind some tokens of a call are those of calls that end there (CASE-49, CASE-50)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref.oracle.cases.case import Case, CaseError, make
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.identify.identify import identify
from atlas_ref.oracle.judge.answers import Answer
from atlas_ref.oracle.judge.compare import checked
from atlas_ref.oracle.judge.tolerance import tolerances
from tests.oracle.sequences.test_sequences import RULES, words

GATED: dict[str, Any] = {"rule": "dplr", "parameters": {"member": "gated_delta"}}
TOKENS = 11


def prefix(case: Case, count: int, tokens: int = TOKENS) -> Case:
    """The first tokens as a case of its own: no other axis has as many places as there are tokens."""
    inputs: dict[str, Any] = {}
    for name, x in case.inputs.items():
        if name == "in/states_after":
            continue
        axes = [i for i, size in enumerate(x.shape) if size in (tokens, 2 * tokens)]
        for axis in axes[:1]:
            each = x.shape[axis] // tokens
            x = np.take(x, range(count * each), axis=axis)
        inputs[name] = x
    return make(case.header.plain(), inputs)


@pytest.mark.clause("CASE-50", "CASE-49")
@pytest.mark.parametrize("fields", RULES, ids=words)
def test_each_state_is_that_of_a_call_that_ends_there(fields: dict[str, Any]) -> None:
    tokens = 32 if fields.get("parameters", {}).get("member") == "ttt_linear" else TOKENS
    case = new(Request(**fields, tokens=tokens, d_in=4, d_out=3, cotangent=True))
    places = [3, TOKENS - 1, TOKENS] if tokens == TOKENS else [16, 32]
    asked = make(case.header.plain(), {**case.inputs, "in/states_after": np.array(places)})
    found, plain = evaluate(asked, grad=True).tensors, evaluate(case, grad=True).tensors
    for name, x in plain.items():
        np.testing.assert_array_equal(found[name], x, err_msg=name)
    states = {name for name in found if name.startswith("out/states/")}
    assert states
    for name in states:
        last = name.replace("states/", "")
        np.testing.assert_array_equal(found[name][-1], plain[last])
        for j, place in enumerate(places[:-1]):
            want = evaluate(prefix(asked, place, tokens)).tensors[last]
            np.testing.assert_allclose(found[name][j], want, rtol=1e-12, atol=1e-14)


@pytest.mark.clause("CASE-50")
def test_states_of_gated_delta_by_a_loop() -> None:
    """A literal loop, which knows nothing of calls."""
    case = new(Request(**GATED, tokens=6, d_in=3, d_out=2, heads=2, states=6))
    x = {name[3:]: np.asarray(value, float) for name, value in case.inputs.items()}
    found = evaluate(case).tensors["out/states/M"]
    for h in range(2):
        M = x["M0"][h]
        for t in range(6):
            M = np.exp(x["log_retain"][h, t]) * M
            M = M + x["beta"][h, t] * np.outer(x["v"][h, t] - M @ x["k"][h, t], x["k"][h, t])
            np.testing.assert_allclose(found[t, h], M, rtol=1e-13)


@pytest.mark.clause("CASE-50")
@pytest.mark.parametrize("state", [True, False])
def test_behind_no_token_is_what_the_call_starts_from(state: bool) -> None:
    case = new(Request(**GATED, tokens=4, state=state))
    asked = make(case.header.plain(), {**case.inputs, "in/states_after": np.array([0, 0, 4])})
    found = evaluate(asked).tensors
    first = case.inputs.get("in/M0", np.zeros_like(found["out/M"]))
    np.testing.assert_array_equal(found["out/states/M"], [first, first, found["out/M"]])


@pytest.mark.clause("CASE-50")
def test_a_state_of_another_shape_at_some_place_is_left_out() -> None:
    """The window of a call of one token is no window of three."""
    case = new(Request(rule="omega", window=3, tokens=4))
    asked = make(case.header.plain(), {**case.inputs, "in/states_after": np.array([1, 4])})
    assert "out/window_k" in evaluate(asked).tensors
    assert "out/states/window_k" not in evaluate(asked).tensors
    assert "out/states/M" in evaluate(asked).tensors


def moved(case: Case, places: list[int]) -> dict[str, Any]:
    """Results whose states are those of other places."""
    inputs = {**case.inputs, "in/states_after": np.sort(places)}
    other = evaluate(make(case.header.plain(), inputs)).tensors["out/states/M"]
    order = np.argsort(np.argsort(places, kind="stable"))
    return {**evaluate(case).tensors, "out/states/M": other[order]}


@pytest.mark.clause("CASE-50")
@pytest.mark.parametrize("fields", [GATED, {"rule": "delta"}], ids=words)
@pytest.mark.parametrize(
    ("places", "said"),
    [
        ([20, 19, 18, 17], "the states stood in reverse order"),
        ([16, 17, 18, 19], "each state was that of one token earlier"),
        ([18, 19, 20, 20], "each state was that of one token later"),
        ([20, 20, 20, 20], "each state was the last one"),
        ([0, 0, 0, 0], "each state was the first one"),
        ([17, 17, 17, 17], "each state was that of the first place"),
        ([16, 18, 18, 20], "each state was that of the last whole block of 2 tokens"),
        ([16, 16, 16, 16], "each state was that of the last whole block of 8 tokens"),
    ],
)
def test_a_mistake_about_states_is_named(fields: Any, places: list[int], said: str) -> None:
    # the state of 16 tokens is that of whole blocks of 8 and of 16: a case in which they differ
    case = new(Request(**fields, tokens=20, states=4))
    if "block of 8" in said:
        case = make(
            case.header.plain(), {**case.inputs, "in/states_after": np.array([9, 12, 17, 20])}
        )
        places = [8, 8, 16, 16]
    found = identify(case, moved(case, places))
    assert found.verdict == "NO MATCH"
    assert found.departures[0].words == f"{said} (CASE-50)"


@pytest.mark.clause("CASE-50")
def test_another_mistake_of_the_call_is_named_as_without_the_question() -> None:
    case = new(Request(rule="delta", tokens=12, states=2, cotangent=True))
    other = evaluate(case, convention={"read": "before"}).tensors
    found = identify(case, other)
    assert found.match is not None
    assert found.match.distance < 1e-12
    assert (found.verdict, found.match.convention["read"]) == ("MATCH", "before")
    assert not found.own


@pytest.mark.clause("CASE-50")
def test_states_that_are_asked_for_and_not_handed_over_are_missing() -> None:
    case = new(Request(**GATED, tokens=5, states=2))
    ours = dict(evaluate(case).tensors)
    del ours["out/states/M"]
    rows = {row.tensor: row.verdict for row in checked(case, source=lambda _: Answer(ours)).rows}
    assert rows == {"out/y": "PASS", "out/M": "PASS", "out/states/M": "MISSING"}
    alone = {"out/y": ours["out/y"]}
    rows = {row.tensor: row.verdict for row in checked(case, source=lambda _: Answer(alone)).rows}
    assert rows == {"out/y": "PASS", "out/states/M": "MISSING"}
    skipped = checked(case, source=lambda _: Answer(ours), without=("snapshots",))
    assert [row.verdict for row in skipped.rows] == ["NOT SUPPORTED"]


@pytest.mark.clause("CASE-50")
def test_states_have_tolerances_of_their_own() -> None:
    case = new(Request(**GATED, tokens=7, states=3))
    for dtype in ("float32", "bfloat16"):
        own = tolerances(case, dtype=dtype)
        assert own["out/states/M"].norms.rms > 0
    rows = checked(
        case,
        source=lambda _: Answer(
            {n: x.astype(np.float32) for n, x in evaluate(case).tensors.items()}
        ),
        dtype="float32",
    ).rows
    assert {row.verdict for row in rows} == {"PASS"}


@pytest.mark.clause("CASE-49")
@pytest.mark.parametrize(
    ("places", "more", "message"),
    [
        (np.array([[1]]), {}, r"in/states_after: shape \(1, 1\), expected \(K,\) of at least 1"),
        (np.array([], np.int64), {}, r"in/states_after: shape \(0,\), expected \(K,\)"),
        (np.array([1.0]), {}, "in/states_after: dtype float64, int64 or int32 is needed"),
        (np.array([-1]), {}, r"in/states_after: entries must be at least 0, found -1 at \(0,\)"),
        (np.array([1, 6]), {}, r"in/states_after: 6 at \(1,\), but there are 5 tokens"),
        (np.array([3, 2]), {}, r"in/states_after: places never fall, found 2 behind 3 at \(1,\)"),
        (
            np.array([1]),
            {"in/sequences": np.array([0, 5])},
            "in/states_after: counts tokens of one",
        ),
    ],
)
def test_bad_places_are_one_line(places: Any, more: dict[str, Any], message: str) -> None:
    case = new(Request(rule="delta", tokens=5, state=False))
    with pytest.raises(CaseError, match=message) as raised:
        make(case.header.plain(), {**case.inputs, **more, "in/states_after": places})
    assert "\n" not in str(raised.value)


@pytest.mark.clause("CASE-49")
def test_a_rule_without_calls_and_places_within_a_mini_batch_are_refused() -> None:
    case = new(Request(rule="newton_schulz"))
    with pytest.raises(CaseError, match="in/states_after: rule newton_schulz has no calls"):
        make(case.header.plain(), {**case.inputs, "in/states_after": np.array([1])})
    case = new(Request(rule="recurrence", tokens=16, parameters={"member": "ttt_linear"}))
    with pytest.raises(CaseError, match="in/states_after: no call of this case may end after 3"):
        make(case.header.plain(), {**case.inputs, "in/states_after": np.array([3])})
    with pytest.raises(CaseError, match="states: 9 of a call of 8 tokens"):
        new(Request(rule="delta", tokens=8, states=9))
    with pytest.raises(CaseError, match="sequences and states: one of them is needed"):
        new(Request(rule="delta", sequences=(3, 2), states=1))


@pytest.mark.clause("CASE-50", "CASE-49")
def test_the_commands_take_such_a_case(cli: Any, tmp_path: Any) -> None:
    place = tmp_path / "c.safetensors"
    assert cli("new", "kda", "--tokens", 6, "--states", 3, "-o", place).code == 0
    assert "in/states_after" in cli("show", place).out
    ran = cli("eval", place, "-o", tmp_path / "r.safetensors")
    assert "out/states/M" in ran.err
    assert cli("check", place, "--against", tmp_path / "r.safetensors").code == 0
    for words_ in (
        ("eval", place, "--trace", "-o", tmp_path / "t.safetensors"),
        ("certify", place),
    ):
        refused = cli(*words_)
        assert refused.code == 2
        assert "in/states_after: " in refused.err
        assert refused.err.count("\n") == 1
