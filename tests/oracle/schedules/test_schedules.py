"""Kernels called by schedules: right ones of every rule, planted mistakes, bits, and bad answers."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atlas_ref
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.judge.answers import Answer
from atlas_ref.oracle.schedules import judge
from atlas_ref.oracle.schedules.judge import check_schedule
from atlas_ref.oracle.sweep.first import tokens_of
from atlas_ref.oracle.sweep.split import part
from tests.support.casefiles import RESERVED

SIZES = {"tokens": 24, "d_in": 4, "d_out": 4, "seed": 2, "cotangent": True}
#: Rules whose calls can be cut, with the states that go on.
RULES = {
    "omega": {},
    "titans_lmm": {},
    "delta": {},
    "hebbian": {},
    "deep_memory": {},
    "tnt": {},
    "dplr": {"parameters": {"member": "kda"}},
    "recurrence": {"parameters": {"member": "mesa"}},
}
FIXED = {"omega": {"window": 3}}


def drawn(rule, **request):
    return new(Request(rule=rule, **SIZES, **RULES[rule], **FIXED.get(rule, {}), **request))


def ours(case):
    return Answer(evaluate(case).tensors)


def verdicts(checked):
    return {row.tensor: row.verdict for row in checked.rows}


def only(checked):
    (row,) = checked.rows
    return row.verdict, row.why


# -- right ----------------------------------------------------------------------------------------------


@pytest.mark.clause("SCHED-2")
@pytest.mark.clause("SCHED-4")
@pytest.mark.parametrize("rule", RULES)
def test_what_is_right_in_one_call_is_right_under_a_schedule(rule):
    found = check_schedule(drawn(rule), ours, "serving")
    assert {*verdicts(found).values()} == {"PASS"}
    assert {judge.REPEATED, judge.SPLIT, judge.STATES} <= {*verdicts(found)}


#: Steps without their sizes: kind, tokens, how many of them are kept.
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["prefill", "decode", "draft"]), st.integers(1, 5), st.integers(0, 5)
    ),
    max_size=6,
)


@settings(max_examples=25)
@given(
    steps=STEPS, back=st.integers(0, 3), rule=st.sampled_from(["titans_lmm", "dplr", "recurrence"])
)
def test_no_legal_schedule_of_a_right_kernel_is_an_alarm(steps, back, rule):
    case, words, ends, place = drawn(rule), [], [], 0
    for kind, count, kept in steps:
        kept = min(kept, count)
        if place + count > 20:
            continue
        words.append(f"draft:{count}/{kept}" if kind == "draft" else f"{kind}:{count}")
        place += kept if kind == "draft" else count
        ends.append(place)
    if ends:
        place = ends[min(back, len(ends) - 1)]
        words += [f"restore@{place}"]
    words.append(f"prefill:{24 - place}")
    found = check_schedule(case, ours, ",".join(words))
    assert {*verdicts(found).values()} == {"PASS"}, words


# -- mistakes -------------------------------------------------------------------------------------------


def without_states(concerns):
    """A kernel that starts some calls from nothing."""

    def kernel(case):
        if concerns(tokens_of(case)):
            inputs = {name: x for name, x in case.inputs.items() if not name.endswith("0")}
            case = atlas_ref.make(case.header.plain(), inputs)
        return ours(case)

    return kernel


def with_states(place):
    """A kernel whose last states are those after fewer tokens of its call."""

    def kernel(case):
        found, count = evaluate(case).tensors, place(tokens_of(case))
        if 0 < count < tokens_of(case):
            found |= {
                name: x
                for name, x in evaluate(part(case, range(count))).tensors.items()
                if name != "out/y"
            }
        return Answer(found)

    return kernel


def changed(*names, change):
    """A kernel that hands some states over after a change."""

    def kernel(case):
        found = evaluate(case).tensors
        return Answer({**found, **{name: change(found[name]) for name in names}})

    return kernel


def in_bfloat16(x):
    return x.astype(ml_dtypes.bfloat16).astype(float)


KERNELS = {
    "calls of several tokens started from no state": without_states(lambda n: n > 1),
    "calls of one token started from no state": without_states(lambda n: n == 1),
    "each call started from no state": without_states(lambda n: True),
    "states were those before the last token of a call, of several tokens": with_states(
        lambda n: n - 1
    ),
    "states were those of the last whole block of 4 tokens, of calls longer than it": with_states(
        lambda n: n // 4 * 4
    ),
    "matrices of states were handed on transposed": changed(
        "out/M", change=lambda x: np.swapaxes(x, -1, -2).copy()
    ),
    "states were kept in bfloat16 between calls": changed("out/M", change=in_bfloat16),
}


@pytest.mark.clause("SCHED-6")
@pytest.mark.parametrize("words", KERNELS)
def test_a_mistake_between_calls_is_found_and_named(words):
    case = drawn("dplr", state=False)
    found = check_schedule(case, KERNELS[words], "serving")
    read = next(row for row in found.rows if row.tensor == "out/y")
    assert read.verdict == "WRONG"
    assert read.why.endswith(f"as if {words}")


@pytest.mark.clause("SCHED-6")
def test_an_error_that_is_like_no_mistake_has_no_name():
    kernel = off(lambda count, tokens: tokens == 14)
    found = check_schedule(drawn("dplr", state=False), kernel, "prefill:10,prefill:14")
    assert (found.rows[0].verdict, found.rows[0].tensor) == ("WRONG", "out/y")
    assert found.rows[0].why == "first in prefill:14 (tokens 10 to 23)"


@pytest.mark.clause("SCHED-6")
def test_a_momentum_that_is_lost_is_named():
    case = drawn("titans_lmm", state=False)

    def kernel(case):
        inputs = {name: x for name, x in case.inputs.items() if name != "in/S0"}
        return ours(atlas_ref.make(case.header.plain(), inputs))

    found = check_schedule(case, kernel, "serving")
    (read,) = [row for row in found.rows if row.tensor == "out/y"]
    assert read.why.endswith("as if out/S was lost between calls")


@pytest.mark.clause("SCHED-4")
def test_one_call_of_these_kernels_shows_nothing_and_a_schedule_the_call():
    """From no state, so that what is lost is nothing."""
    case, kernel = drawn("dplr", state=False), KERNELS["calls of one token started from no state"]
    rows = atlas_ref.check(case, source=kernel, only=["y", "M"])
    assert {row.verdict for row in rows} == {"PASS"}
    found = check_schedule(case, kernel, "prefill:10,decode:2,prefill:12")
    by_name = {row.tensor: row for row in found.rows}
    assert by_name["out/y"].why.startswith("first in decode:2 (token 10)")
    assert by_name["out/y"].first.token == 10
    assert by_name[judge.SPLIT].verdict == "WRONG"
    assert "one call is right, these calls are not: out/y" in by_name[judge.SPLIT].why
    assert "out/M after 11" in by_name


# -- bits -----------------------------------------------------------------------------------------------


def nudged(concerns):
    """A kernel whose reads differ in the last bits in some calls."""
    count = [0]

    def kernel(case):
        found = evaluate(case).tensors
        count[0] += 1
        factor = 1 + 2e-16 * concerns(count[0], tokens_of(case))
        return Answer({**found, "out/y": found["out/y"] * factor})

    return kernel


@pytest.mark.clause("SCHED-5")
@pytest.mark.parametrize(
    ("concerns", "row"),
    [
        (lambda count, tokens: count == 3, judge.REPEATED),
        (lambda count, tokens: tokens > 20, judge.SPLIT),
    ],
    ids=["third call", "long calls"],
)
def test_other_bits_pass_unless_bits_are_claimed(concerns, row):
    case = drawn("dplr")
    for exactly, verdict in ((False, "PASS"), (True, "WRONG")):
        found = check_schedule(case, nudged(concerns), "prefill:10,prefill:14", exactly=exactly)
        (one,) = [each for each in found.rows if each.tensor == row]
        assert one.verdict == verdict
        assert "other bits" in one.why
        assert verdicts(found)["out/y"] == "PASS"


@pytest.mark.clause("SCHED-5")
def test_a_row_of_a_batch_is_asked_alone():
    case = drawn("dplr", heads=2, batch=3)
    assert case.inputs["in/q"].shape == (3, 2, 24, 4)
    assert verdicts(check_schedule(case, ours, "serving"))[judge.BATCHED] == "PASS"

    def mixing(case):
        found = evaluate(case).tensors
        mean = found["out/y"].mean(axis=0, keepdims=True)
        return Answer({**found, "out/y": found["out/y"] + 0.0 * mean + 0.1 * (mean - mean[:1])})

    def neighbour(case):
        found = evaluate(case).tensors
        return Answer({**found, "out/y": found["out/y"] + found["out/y"].sum(axis=0)})

    assert verdicts(check_schedule(case, mixing, "serving"))[judge.BATCHED] == "PASS"
    found = verdicts(check_schedule(case, neighbour, "serving"))
    assert (found["out/y"], found[judge.BATCHED]) == ("WRONG", "WRONG")


@pytest.mark.parametrize(
    ("dtype", "kind"), [("float32", np.float32), ("bfloat16", ml_dtypes.bfloat16)]
)
def test_states_of_a_narrow_kernel_go_on_in_the_format_in_which_they_come(dtype, kind):
    seen = set()

    def kernel(case):
        seen.update(x.dtype.name for name, x in case.inputs.items() if name == "in/M0")
        found = {name: x.astype(np.float32) for name, x in evaluate(case).tensors.items()}
        return Answer({**found, "out/y": found["out/y"].astype(kind)})

    found = check_schedule(drawn("dplr", state=False), kernel, "serving", dtype=dtype)
    assert {*verdicts(found).values()} == {"PASS"}
    assert seen == {"float32"}


# -- bad answers ----------------------------------------------------------------------------------------


def handing(**results):
    """A kernel that answers with other results."""

    def kernel(case):
        found = dict(evaluate(case).tensors)
        for name, change in results.items():
            found[f"out/{name}"] = None if change is None else change(found[f"out/{name}"])
        return Answer({name: x for name, x in found.items() if x is not None})

    return kernel


@pytest.mark.clause("SCHED-2")
@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (handing(M=None), "prefill:8 (tokens 0 to 7): out/M: no state is handed over"),
        (
            handing(M=lambda x: x[..., :-1]),
            "decode:16 (token 8): out/M of the call before: shape (2, 4, 3), expected (2, 4, 4)",
        ),
        (handing(M=lambda x: x * np.nan), "out/M of the call before: entries must be finite"),
        (
            handing(y=lambda x: x[..., :1, :]),
            "shape (2, 1, 4), a call of 8 tokens has as many reads",
        ),
        (lambda case: Answer.no_answer("crash: no"), "prefill:8 (tokens 0 to 7): crash: no"),
    ],
)
def test_an_answer_that_no_call_can_go_on_from_fails_with_the_call(kernel, said):
    found = check_schedule(drawn("dplr", heads=2), kernel, "prefill:8,decode:16")
    verdict, why = only(found)
    assert verdict == "FAILED"
    assert said in why


def test_a_call_that_is_not_supported_makes_the_case_so():
    def kernel(case):
        return Answer.no_support("one token") if tokens_of(case) == 1 else ours(case)

    found = check_schedule(drawn("dplr"), kernel, "prefill:23,decode:1")
    assert only(found) == ("NOT SUPPORTED", "decode:1 (token 23): one token")


@pytest.mark.clause("SCHED-2")
@pytest.mark.parametrize(
    ("case", "said"),
    [
        (lambda: drawn("dplr", reset=5), "in/reset goes back to the first state of its own call"),
        (
            lambda: new(Request(rule="delta", **SIZES, convention={"read": "call_end"})),
            "reads are of the end of a call",
        ),
        (
            lambda: new(Request(rule="recurrence", **SIZES, parameters={"member": "ttt_linear"})),
            "no call of this case may end after 8 tokens",
        ),
        (lambda: new(Request(rule="newton_schulz", d_in=4, d_out=4)), "a case with tokens"),
    ],
    ids=["resets", "call_end", "mini-batches", "no tokens"],
)
def test_a_case_that_cannot_be_cut_is_not_supported(case, said):
    verdict, why = only(check_schedule(case(), ours, "prefill:8,prefill:16"))
    assert verdict == "NOT SUPPORTED"
    assert said in why


@pytest.mark.clause("SCHED-2")
@pytest.mark.parametrize(("token", "supported"), [(3, True), (9, True), (10, False), (20, False)])
def test_a_reset_in_the_first_call_hinders_no_schedule_and_one_behind_a_cut_does(token, supported):
    case = drawn("dplr")
    reset = (np.arange(24) == token).astype(np.uint8)
    packed = atlas_ref.make(case.header.plain(), {**case.inputs, "in/reset": reset})
    found = verdicts(check_schedule(packed, ours, "prefill:10,decode:14"))
    assert {*found.values()} == ({"PASS"} if supported else {"NOT SUPPORTED"})


@pytest.mark.clause("SCHED-2")
@pytest.mark.parametrize(("reset_to", "supported"), [("zero", True), ("first", False)])
def test_a_reset_to_zero_hinders_no_schedule(reset_to, supported):
    parameters = {"member": "short_conv", "reset_to": reset_to}
    case = new(Request(rule="recurrence", **SIZES, parameters=parameters, reset=5))
    found = verdicts(check_schedule(case, ours, "serving"))
    assert {*found.values()} == ({"PASS"} if supported else {"NOT SUPPORTED"})


def test_a_reserved_rule_is_not_supported():
    found = check_schedule(atlas_ref.load(RESERVED), ours, "serving")
    assert only(found)[0] == "NOT SUPPORTED"


# -- what another rounding is not -----------------------------------------------------------------------


def off(concerns, name="out/y"):
    """A kernel whose result is half too large in some of its calls, by their number and tokens."""
    count = [0]

    def kernel(case):
        found = evaluate(case).tensors
        count[0] += 1
        factor = 1.5 if concerns(count[0], tokens_of(case)) else 1.0
        return Answer({**found, name: found[name] * factor})

    return kernel


@pytest.mark.clause("SCHED-5")
@pytest.mark.parametrize("name", ["out/y", "out/M"])
def test_one_call_that_is_wrong_is_no_other_rounding(name):
    found = check_schedule(
        drawn("dplr"), off(lambda count, n: n > 20, name), "prefill:10,prefill:14"
    )
    (row,) = [each for each in found.rows if each.tensor == judge.SPLIT]
    assert (row.verdict, row.why) == ("WRONG", f"one call is not right: {name}")
    assert verdicts(found)["out/y"] == "PASS"


@pytest.mark.clause("SCHED-5")
def test_a_second_answer_that_is_wrong_is_no_other_rounding():
    found = check_schedule(drawn("dplr"), off(lambda count, n: count == 3), "prefill:10,prefill:14")
    (row,) = [each for each in found.rows if each.tensor == judge.REPEATED]
    assert row.verdict == "WRONG"
    assert row.why == "prefill:10 (tokens 0 to 9), asked again: out/y WRONG"


@pytest.mark.clause("SCHED-5")
def test_a_row_alone_that_is_wrong_is_no_other_rounding():
    def kernel(case):
        found = evaluate(case).tensors
        alone = case.inputs["in/q"].shape[0] == 1
        return Answer({**found, "out/y": found["out/y"] * (1.5 if alone else 1.0)})

    found = check_schedule(drawn("dplr", batch=3), kernel, "serving")
    (row,) = [each for each in found.rows if each.tensor == judge.BATCHED]
    assert (row.verdict, row.why) == ("WRONG", "row 0 alone: out/y WRONG")


@pytest.mark.parametrize(
    ("rule", "parameters", "batch"),
    [
        ("tnt", None, 2),
        ("deep_memory", None, 2),
        ("recurrence", {"member": "mesa"}, 2),
        ("dplr", {"member": "kda", "gate_formula": "softplus"}, 2),
        ("dplr", {"member": "kda", "gate_formula": "softplus"}, 3),
    ],
)
def test_a_batch_of_any_rule_is_judged_though_it_has_as_many_rows_as_heads(rule, parameters, batch):
    own = {} if parameters is None else {"parameters": parameters}
    case = new(Request(rule=rule, **SIZES, batch=batch, **own))
    found = verdicts(check_schedule(case, ours, "serving"))
    assert found.pop(judge.BATCHED) in ("PASS", "NOT SUPPORTED")
    assert {*found.values()} == {"PASS"}


def test_the_wrong_call_is_named_where_tokens_are_computed_more_than_once():
    """The second call over two tokens, behind a draft of the same that is right."""

    def kernel(case):
        found = evaluate(case).tensors
        if tokens_of(case) == 3:
            found["out/y"] = 1.5 * found["out/y"]
        return Answer(found)

    found = check_schedule(drawn("dplr"), kernel, "prefill:8,draft:4/0,prefill:3,prefill:13")
    assert found.rows[0].why.startswith("first in prefill:3 (tokens 8 to 10)")


def test_one_call_that_is_refused_leaves_the_verdicts_on_the_schedule():
    def kernel(case):
        return Answer.no_support("short calls") if tokens_of(case) > 20 else ours(case)

    found = check_schedule(drawn("dplr"), kernel, "prefill:10,prefill:14")
    assert (verdicts(found)["out/y"], verdicts(found)[judge.SPLIT]) == ("PASS", "NOT SUPPORTED")


@pytest.mark.clause("SCHED-6")
@pytest.mark.parametrize("size", [4, 16])
def test_a_call_shorter_than_a_block_leaves_the_state_of_before(size):
    def kernel(case):
        found, tokens = evaluate(case).tensors, tokens_of(case)
        count = tokens // size * size
        if count == 0:
            empty = np.zeros_like(found["out/M"])
            return Answer({**found, "out/M": case.inputs.get("in/M0", empty)})
        return with_states(lambda tokens: count)(case)

    case = new(Request(rule="dplr", **{**SIZES, "tokens": 60}, **RULES["dplr"], state=False))
    found = check_schedule(case, kernel, "serving")
    assert f"as if states were those of the last whole block of {size} tokens" in found.rows[0].why


@pytest.mark.clause("SCHED-6")
def test_a_momentum_that_one_path_alone_loses_is_named():
    def kernel(case):
        inputs = {n: x for n, x in case.inputs.items() if n != "in/S0" or tokens_of(case) > 1}
        return ours(atlas_ref.make(case.header.plain(), inputs))

    found = check_schedule(drawn("titans_lmm", state=False), kernel, "serving")
    assert found.rows[0].why.endswith("as if calls of one token started without out/S")
