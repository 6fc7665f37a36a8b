"""Traces of recurrences: listed ops, values by another hand, and the first wrong op."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref.oracle.cases.case import make
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.family.arithmetic import PLAIN
from atlas_ref.oracle.recurrences.members import MEMBERS
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.replay.ops import ops_of
from atlas_ref.oracle.replay.replay import replay
from atlas_ref.oracle.replay.trace import trace
from atlas_ref.oracle.sweep.first import first_tokens
from tests.support.close import ANALYTIC, assert_close
from tests.support.recurrence_cases import EVERY, case
from tests.support.replayed import assert_first_wrong, assert_listed

#: Ops of a token in a case whose tokens are all active.
OPS = {
    "gsa": ["gate", "K", "M", "scores", "powers", "weights", "y"],
    "hgrn": ["gate", "h", "y"],
    "mesa": ["gate", "G", "M", "solved", "y"],
    "ttt_linear": [
        *("found", "centred", "deviation", "normed", "error", "slope"),
        *("read", "read_centred", "read_deviation", "read_normed", "y", "M", "bias"),
    ],
    "log_linear": ["gate", "decayed", "joined1", "joined2", "M", "y"],
    "short_conv": ["rows", "total", "biased", "y", "window"],
}


@pytest.mark.clause("PROG-2", "PROG-3", "RECUR-15", "REPLAY-2")
@pytest.mark.parametrize(("member", "kind"), EVERY)
def test_the_listed_ops_are_those_of_the_loop_and_lead_back_to_inputs(
    member: str, kind: str
) -> None:
    names = assert_listed(case(member, kind))
    if kind == "long":
        assert sorted(names) == sorted(OPS[member])
    assert {*names} <= {*OPS[member], "joined3"}
    assert "y" in names or (member, kind) == ("short_conv", "silent")  # no token is there


@pytest.mark.clause("PROG-3", "RECUR-15")
def test_inputs_are_read_off_the_run() -> None:
    listed = {op.name: op.inputs for op in ops_of(case("gsa", "masks"))}
    assert list(listed) == OPS["gsa"]  # though the first token is silent
    assert listed["K"] == ("K[t-1]", "gate", "in/s", "in/k")
    assert listed["scores"] == ("K", "in/q")
    joined = {op.name: op.inputs for op in ops_of(case("log_linear", "long"))}
    assert joined["joined1"] == ("decayed",)
    assert joined["joined2"] == ("decayed", "joined1")
    of_batch = {op.name: op.inputs for op in ops_of(case("ttt_linear", "long"))}
    assert {"slope", "slope[t-1]", "M[t-1]", "in/step_size"} <= {*of_batch["M"]}


@pytest.mark.clause("RECUR-15", "REPLAY-1", "REPLAY-4")
@pytest.mark.parametrize(("member", "kind"), [each for each in EVERY if each[1] != "silent"])
def test_states_are_those_that_the_rule_leaves_after_each_token(member: str, kind: str) -> None:
    of, subject = case(member, kind), SUBJECTS["recurrence"]
    found, y = trace(of), evaluate(of).tensors["out/y"]
    assert_close("y", found["trace/y"], y, ANALYTIC)
    assert subject.traced is not None
    lead = y.ndim - 2
    for state in MEMBERS[member].program.states:
        for place, t in enumerate(subject.traced.tokens(of, state)):
            part = first_tokens(of, t + 1)
            assert part is not None
            want = evaluate(part).tensors[f"out/{state}"]
            got = np.take(found[f"trace/{state}"], place, axis=lead)
            assert_close(f"{state} at {t}", got, want, ANALYTIC)


def _softmax(x: Any) -> Any:
    powers = np.exp(x)
    return powers / powers.sum(axis=-1, keepdims=True)


@pytest.mark.clause("RECUR-2", "RECUR-10", "RECUR-11", "RECUR-15", "SHORT-5")
def test_ops_are_what_their_equations_say() -> None:
    of = case("gsa", "long")
    found, q = trace(of), of.inputs["in/q"]
    scores = np.einsum("htmi,hti->htm", found["trace/K"], q) / np.sqrt(q.shape[-1])
    assert_close("scores", found["trace/scores"], scores, ANALYTIC)
    assert_close("weights", found["trace/weights"], _softmax(scores), ANALYTIC)
    of = case("mesa", "long")
    found, ridge = trace(of), of.inputs["in/ridge"]
    systems = found["trace/G"] + ridge[:, None, :, None] * np.eye(ridge.shape[-1])
    solved = np.linalg.solve(systems, of.inputs["in/q"][..., None])[..., 0]
    assert_close("solved", found["trace/solved"], solved, ANALYTIC)
    of = case("ttt_linear", "long")
    found, x = trace(of), of.inputs
    z = np.einsum("hij,htj->hti", x["in/M0"], x["in/k"]) + x["in/bias0"][:, None]
    assert_close(
        "found", found["trace/found"][:, :2], z[:, :2], ANALYTIC
    )  # of the first mini-batch
    norm = (z - z.mean(-1, keepdims=True)) / np.sqrt(z.var(-1, keepdims=True) + 0.01)
    assert_close("normed", found["trace/normed"][:, :2], norm[:, :2], ANALYTIC)
    of = case("short_conv", "long")
    found, x = trace(of), of.inputs
    total = np.einsum("htdj,hdj->htd", found["trace/rows"], x["in/w"])
    assert_close("total", found["trace/total"], total, ANALYTIC)
    biased = total + x["in/bias"][:, None]
    assert_close("biased", found["trace/biased"], biased, ANALYTIC)
    assert_close("y", found["trace/y"], biased / (1.0 + np.exp(-biased)), ANALYTIC)


@pytest.mark.clause("RECUR-15", "REPLAY-11", "REPLAY-23")
@pytest.mark.sample(8)
@pytest.mark.parametrize(("member", "kind"), EVERY)
def test_a_trace_with_adjoints_passes_and_they_are_gradients(member: str, kind: str) -> None:
    of = case(member, kind)
    found = trace(of, grad=True)
    assert {each.verdict for each in replay(of, found)} == {"PASS"}
    if f"trace_grad/{'gate'}" in found and kind != "silent":
        gate, log = found["trace_grad/gate"], evaluate(of, grad=True).tensors["grad/log_retain"]
        assert_close("gate", gate * found["trace/gate"], log, ANALYTIC)


@pytest.mark.clause("RECUR-15", "REPLAY-15")
@pytest.mark.sample(12)
@pytest.mark.parametrize(("member", "op"), [(each, op) for each in MEMBERS for op in OPS[each]])
def test_the_op_that_is_wrong_is_named(member: str, op: str) -> None:
    assert_first_wrong(case(member, "long"), op)


@pytest.mark.clause("RECUR-15", "REPLAY-16", "PROG-5")
@pytest.mark.parametrize(
    ("member", "name", "ops"),
    [
        ("gsa", "no softmax", {"powers", "weights"}),
        ("hgrn", "gate after write", {"h"}),
        ("mesa", "solved by the diagonal", {"solved"}),
        ("ttt_linear", "step of each token", {"read", "M", "bias"}),
        ("log_linear", "level dropped", {"joined1", "joined2"}),
        ("short_conv", "activation before bias", {"biased", "y"}),
        ("short_conv", "window of outputs", {"window"}),
    ],
)
def test_a_mistake_is_found_in_its_ops_and_named(member: str, name: str, ops: set[str]) -> None:
    of, subject = case(member, "long"), SUBJECTS["recurrence"]
    assert subject.traced is not None
    assert subject.searched is not None
    (mistake,) = [each for each in subject.searched.departures(of) if each.name == name]
    values: dict[str, dict[int, Any]] = {}

    def take(op: str, t: int, compute: Any, *arguments: Any, counts: Any = None) -> Any:
        values.setdefault(op, {})[t] = compute(*arguments)
        return values[op][t]

    subject.traced.run(of, of.inputs, take, PLAIN, (mistake,))
    lead = of.inputs["in/y_bar"].ndim - 2
    mine = {}
    for each, rows in values.items():
        zero = np.zeros_like(next(iter(rows.values())))
        tokens = subject.traced.tokens(of, each)
        mine[f"trace/{each}"] = np.stack([rows.get(t, zero) for t in tokens], axis=lead)
    findings = [each for each in replay(of, mine) if each.verdict != "PASS"]
    assert {each.op for each in findings} == ops
    assert any(mistake.words in each.nearest for each in findings), findings


@pytest.mark.clause("PROG-5", "RECUR-15", "REPLAY-16")
@pytest.mark.sample(6)
@pytest.mark.parametrize(
    ("member", "kind"),
    [each for each in EVERY if each != ("short_conv", "silent")],  # where no token is there to read
)
def test_readings_whose_ops_have_other_tokens_are_no_fault(member: str, kind: str) -> None:
    """Another mini-batch, or no mask, has an op at tokens where the case has none."""
    of = case(member, kind)
    found = trace(of)
    found["trace/y"] = 1.001 * found["trace/y"]
    wrong = [each for each in replay(of, found) if each.verdict != "PASS"]
    assert [each.op for each in wrong] == ["y"]
    assert "fault" not in wrong[0].nearest


@pytest.mark.clause("RECUR-15", "REPLAY-10")
def test_an_op_of_another_member_is_refused() -> None:
    of = case("hgrn", "long")
    with pytest.raises(ValueError, match="trace/M: not an op of this case; it has gate, h, y"):
        replay(of, {"trace/M": np.zeros(3)})
    assert make(of.header.plain(), of.inputs).header.rule == "recurrence"
