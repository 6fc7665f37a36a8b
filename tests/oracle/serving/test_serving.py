"""Schedules of several requests: recordings, a right server, planted mistakes, and bad input."""

from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.case import CaseError
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.judge import ensemble
from atlas_ref.oracle.judge.answers import Answer
from atlas_ref.oracle.judge.compare import checked
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.report.failures import explain
from atlas_ref.oracle.report.nearest import nothing
from atlas_ref.oracle.schema.schema import case_schema
from atlas_ref.oracle.serving import mistakes
from atlas_ref.oracle.serving.draw import full, prefill_decode
from atlas_ref.oracle.serving.parameters import parse
from atlas_ref.oracle.serving.plan import moments, places
from tests.oracle.serving.__main__ import alarms
from tests.oracle.serving.kernels import KERNELS, case_of, source
from tests.oracle.serving.server import FAULTS

FOLDER = Path(__file__).parents[2] / "data" / "peers_schedules"
FILES = sorted(FOLDER.glob("*.safetensors"))


def verdicts(rows):
    return {row.verdict for row in rows}


# -- right ---------------------------------------------------------------------------------------------


def test_there_are_ten_recordings_of_five_members():
    members = [atlas_ref.load(file).header.parameters["member"] for file in FILES]
    assert sorted(members) == sorted([*KERNELS] * 2)


@pytest.mark.clause("SCHED-7", "SCHED-8")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_recorded_read_and_state_passes(file):
    case = atlas_ref.load(file)
    rows = atlas_ref.check(case)
    assert {row.tensor for row in rows} == set(case.recorded)
    assert verdicts(rows) == {"PASS"}
    assert all(row.error <= row.tolerance == 1e-12 for row in rows)


@pytest.mark.clause("SCHED-8")
@pytest.mark.parametrize("member", KERNELS)
def test_what_is_right_depends_on_no_schedule(member):
    """One call of all tokens gives the reads of each request that 20 steps of all four give."""
    whole = case_of(member, full())
    own, found = parse(whole.header), evaluate(whole).tensors["out/y"]
    for r in range(4):
        one = case_of(member, [{"op": "prefill", "r": r, "n": 24}])
        inputs = {name: x for name, x in whole.inputs.items() if "draft_" not in name}
        alone = evaluate(one.replaced(inputs=inputs)).tensors["out/y"]
        rows = [i for i, at in enumerate(places(own)) if at.request == r and at.step.op != "draft"]
        tokens = [places(own)[i].token for i in rows]
        assert rows
        np.testing.assert_array_equal(found[rows], alone[tokens])


@pytest.mark.clause("SCHED-8", "SCHED-11")
@pytest.mark.parametrize("member", KERNELS)
@pytest.mark.parametrize("steps", [full(), prefill_decode()], ids=["full", "prefill_decode"])
def test_a_right_server_passes(member, steps):
    rows = checked(case_of(member, steps, seed=3), source=source()).rows
    assert verdicts(rows) == {"PASS"}
    assert len(rows) > len(steps)


@pytest.mark.clause("SCHED-8")
def test_a_right_server_in_float32_passes_by_a_measured_tolerance():
    case = case_of("kda", prefill_decode())

    def narrow(case):
        found = evaluate(case, dtype="float32").tensors
        return Answer({name: x.astype(np.float32) for name, x in found.items()})

    assert verdicts(checked(case, source=narrow).rows) == {"PASS"}


def test_no_random_legal_schedule_is_an_alarm():
    assert alarms(25) == 0


@pytest.mark.slow
def test_no_legal_schedule_of_a_thousand_is_an_alarm():
    assert alarms(1000) == 0


# -- mistakes ------------------------------------------------------------------------------------------


@pytest.mark.clause("SCHED-9", "SCHED-10")
@pytest.mark.sample(4)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_mistake_is_found_and_named(fault):
    member, words = FAULTS[fault]
    got = checked(case_of(member, full()), source=source(fault))
    failure = explain(got, got.rows, "again")
    assert failure.verdict == "WRONG"
    assert failure.why.startswith("step ")
    assert words in failure.nearest


@pytest.mark.clause("SCHED-9")
@pytest.mark.parametrize(
    ("fault", "first"),
    {
        "draft keeps everything": "step 4 draft, request 0, state M",
        "prefill forgets the memory": "step 4 draft, request 0, token 7, y",
        "narrow snapshots": "step 10 restore, request 1, state M",
        "packed window leaks": "step 14 packed, request 3, token 0, y",
    }.items(),
)
def test_the_first_wrong_result_is_told_with_its_step(fault, first):
    rows = checked(case_of(FAULTS[fault][0], full()), source=source(fault)).rows
    assert rows[0].why == first
    assert rows[0].verdict == "WRONG"
    assert all(row.why == "" for row in rows[1:])


@pytest.mark.clause("SCHED-9")
def test_a_state_has_no_tokens_before_it_that_are_right():
    """A state stands at the last read of its step, and a read at its row."""
    case = case_of("kda", full())
    for fault, tokens in (("memory of a block", False), ("prefill forgets the memory", True)):
        got = checked(case, source=source(fault))
        failure = explain(got, got.rows, "", nearest=nothing)
        assert ("right at token" in failure.before) is tokens
        assert (failure.op == "out/y") is tokens


@pytest.mark.clause("SCHED-10")
@pytest.mark.sample(2)
@pytest.mark.parametrize("member", KERNELS)
def test_every_mistake_that_is_tried_has_words_and_changes_some_result(member):
    """A mistake that is none on the schedule of all features would be named of a right server."""
    case = case_of(member, full())
    own, subject = parse(case.header), SUBJECTS["schedule"]
    tried = list(mistakes.of_case(own))
    assert len({each.words for each in tried}) == len(tried) > 30
    ours = ensemble.exact(case)
    for each in tried:
        found = ensemble.exact(
            case,
            plain=lambda x, of, rounding, each=each: subject.searched.run(x, of, rounding, [each]),
        )
        assert found.keys() == ours.keys()
        assert any(not np.array_equal(found[name], ours[name]) for name in ours), each.words


# -- new cases ------------------------------------------------------------------------------------------


@pytest.mark.clause("SCHED-11")
def test_the_schedule_of_all_features_has_them():
    own = parse(case_of("kda", full()).header)
    looked = list(moments(own))
    drafts = {(m.step.accept, m.part.tokens) for m in looked if m.step.op == "draft"}
    assert {bool(kept) + (kept == rows) for kept, rows in drafts} == {0, 1, 2}
    assert {1, 2, 3, 4, 5} <= {m.part.tokens for m in looked}
    assert {m.step.side for m in looked} >= {"left", "right"}
    empty = [m for m in looked if m.step.op == "packed" and not m.part.tokens]
    assert [m.begins for m in empty] == [False]
    freed = [m.step.number for m in looked if m.step.op == "free"]
    assert any(m.begins and m.step.number > freed[0] for m in looked)


@pytest.mark.clause("SCHED-11")
def test_new_makes_a_case_of_a_preset_and_the_same_one_again():
    asked = Request(rule="schedule", parameters={"preset": "full", "member": "kda"})
    one, two = new(asked), new(asked)
    assert one.inputs["in/x"].shape == (4, 20, 24)
    assert all(np.array_equal(x, two.inputs[name]) for name, x in one.inputs.items())
    assert new(Request(rule="schedule")).header.parameters["member"] == "gated_delta"


# -- bad input ------------------------------------------------------------------------------------------

PREFILL = {"op": "prefill", "r": 0, "n": 5}
BAD = {
    "no step": ([{"op": "evict", "r": 0}], "step 0: op: 'evict' is no step; prefill, "),
    "unknown key": ([{**PREFILL, "k": 1}], "step 0 prefill: k: unknown key; it has r, n"),
    "no key": ([{"op": "prefill", "r": 0}], "step 0 prefill: n: missing"),
    "no count": ([{**PREFILL, "n": 1.5}], "step 0 prefill: n: a count is needed, found 1.5"),
    "no list": ([{"op": "decode", "r": 0}], "step 0 decode: r: a list is needed, found 0"),
    "twice": ([{"op": "decode", "r": [0, 0]}], "step 0 decode: r: a request stands there twice"),
    "other counts": (
        [{"op": "packed", "r": [0, 1], "n": [2]}],
        "step 0 packed: 2 requests, 1 counts and 2 words of fresh",
    ),
    "no side": (
        [{"op": "padded", "r": [0], "n": [2], "width": 3, "side": "up"}],
        "step 0 padded: side: left or right is needed, found 'up'",
    ),
    "beyond": ([PREFILL, {**PREFILL, "n": 30}], "step 1 prefill: request 0: goes to token 35"),
    "no such request": ([{**PREFILL, "r": 4}], "step 0 prefill: request 4: in/x has 4 requests"),
    "no state": (
        [{"op": "draft", "r": 0, "rows": [0], "accept": 0}],
        "step 0 draft: request 0: has no state",
    ),
    "freed": (
        [PREFILL, {"op": "free", "r": 0}, {"op": "snapshot", "r": 0, "name": "a"}],
        "step 2 snapshot: request 0: has no state",
    ),
    "not fresh": (
        [{"op": "packed", "r": [0], "n": [2], "fresh": [False]}],
        "step 0 packed: request 0: has no state",
    ),
    "begins twice": (
        [PREFILL, {"op": "packed", "r": [0], "n": [2], "fresh": [True]}],
        "step 1 packed: request 0: fresh, and has a state after 5 tokens",
    ),
    "no snapshot": (
        [PREFILL, {"op": "restore", "r": 1, "name": "b", "at": 5}],
        "step 1 restore: request 1: no snapshot 'b'; there is none",
    ),
    "another request's": (
        [
            PREFILL,
            {"op": "snapshot", "r": 0, "name": "a"},
            {"op": "restore", "r": 1, "from": 2, "name": "a", "at": 5},
        ],
        "step 2 restore: request 1: from 2, the snapshot 'a' is of request 0",
    ),
    "another place": (
        [
            PREFILL,
            {"op": "snapshot", "r": 0, "name": "a"},
            {"op": "restore", "r": 1, "name": "a", "at": 4},
        ],
        "step 2 restore: request 1: at 4, the snapshot 'a' is of 5 tokens",
    ),
    "keeps too many": (
        [PREFILL, {"op": "draft", "r": 0, "rows": [0], "accept": 2}],
        "step 1 draft: request 0: accepts 2 of 1 drafted rows",
    ),
    "no such row": (
        [PREFILL, {"op": "draft", "r": 0, "rows": [99], "accept": 0}],
        "step 1 draft: request 0: row 99, in/draft_x has 8",
    ),
    "too narrow": (
        [{"op": "padded", "r": [0], "n": [4], "width": 3, "side": "left"}],
        "step 0 padded: request 0: 4 tokens, the width is 3",
    ),
    "nothing": ([], "no call of a token, so there is nothing to judge"),
}


@pytest.mark.clause("SCHED-7")
@pytest.mark.parametrize("name", BAD)
def test_bad_steps_are_refused_in_one_line(name):
    case = case_of("gated_delta", full())
    steps, words = BAD[name]
    header = deepcopy(case.header.plain())
    header["parameters"]["schedule"] = steps
    with pytest.raises(CaseError) as refusal:
        atlas_ref.make(header, case.inputs)
    assert f"parameters.schedule: {words}" in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.clause("SCHED-7")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"in/x": lambda x: x + 1}, "keeps rows of in/draft_x that are not its own tokens"),
        ({"in/g": lambda x: x.swapaxes(0, 1)}, "in/g: shape .* makes requests 2"),
        ({"in/draft_g": None}, "in/draft_g: missing beside in/draft_x"),
        ({"in/g": lambda x: -x}, "in/g: "),
        ({"in/conv_w": lambda x: x[:, :3]}, "in/conv_w: shape .* makes taps 3"),
    ],
)
def test_bad_tensors_are_refused_in_one_line(change, words):
    case = case_of("gated_delta", full())
    inputs = dict(case.inputs)
    for name, value in change.items():
        inputs[name] = value and value(inputs[name])
    inputs = {name: x for name, x in inputs.items() if x is not None}
    with pytest.raises(CaseError, match=words):
        atlas_ref.make(case.header.plain(), inputs)


@pytest.mark.clause("SCHED-7")
def test_a_request_that_goes_on_from_other_tokens_is_refused():
    case = case_of("gated_delta", full())
    x = case.inputs["in/x"].copy()
    x[1, 2] += 1.0
    with pytest.raises(CaseError, match="its first 5 tokens are not those of request 0"):
        atlas_ref.make(case.header.plain(), {**case.inputs, "in/x": x})


@pytest.mark.clause("SCHED-7")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"member": "mamba3"}, "parameters.member: "),
        ({"conv": 1}, "parameters.conv: one tap leaves no window"),
        ({"rope": True, "d_in": 1}, "parameters.rope: d_in 1 has no pair to turn"),
        ({"dt_min": 0.5, "dt_max": 0.1}, "parameters.dt_max: 0.1 is below dt_min 0.5"),
        ({"taps": 3}, "parameters.taps: the rule schedule has none"),
    ],
)
def test_bad_settings_are_refused_in_one_line(change, words):
    case = case_of("gated_delta", full())
    header = deepcopy(case.header.plain())
    header["parameters"] |= change
    with pytest.raises(CaseError, match=words):
        atlas_ref.make(header, case.inputs)


@pytest.mark.clause("SCHED-7")
def test_the_schema_has_the_settings_of_the_rule():
    assert "the member of rule schedule, its sizes, and the steps of the server" in str(
        case_schema()
    )


@pytest.mark.clause("SCHED-11")
def test_a_cotangent_is_refused_since_there_are_no_gradients():
    with pytest.raises(CaseError, match="cotangent: rule schedule has no gradients"):
        new(Request(rule="schedule", cotangent=True))
