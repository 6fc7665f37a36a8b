"""Traces of deep memories against plain loops, and the first wrong op of somebody's write."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.deep.program import SEARCHED, TRACED
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.family.arithmetic import Arithmetic
from atlas_ref.oracle.replay.loop import run_ops
from atlas_ref.oracle.replay.replay import first_wrong, replay, replay_file
from atlas_ref.oracle.replay.trace import Recorder, add_trace, arithmetic_inputs, trace
from tests.support import deep_cases, deep_memories
from tests.support.close import assert_close, reordered
from tests.support.deep_requests import REQUESTS
from tests.support.replayed import assert_first_wrong, assert_listed
from tests.truth import deep_memory_loops as loops

CASES = {name: deep_cases.made(**request) for name, request in REQUESTS.items()}

OPS = [(name, op) for name in ("full", "polynomial") for op, _, _ in TRACED.ops(CASES[name])]


@pytest.mark.clause("DEEPCASE-12", "REPLAY-1")
@pytest.mark.host("plain loops of the tests")
@pytest.mark.parametrize("number", range(24))
def test_momentum_direction_and_weights_of_each_write_are_those_of_plain_loops(number: int) -> None:
    choice = deep_memories.drawn(number, calls=False, phase="both", coupling="per_sample")
    given = deep_memories.inputs(choice, seed=number)
    header, tensors = deep_cases.of_choice(choice, given)
    case = atlas_ref.make(header, tensors)
    rows = len(given.k)
    reset = None if given.reset is None else np.tile(given.reset, (rows, 1))
    driver = loops.driven(
        deep_memories.of_loops(choice),
        given.tensors,
        given.k,
        given.v,
        given.q,
        deep_memories.kept(choice, given),
        reset=reset,
    )
    recorded = trace(case)
    of_row = len(driver.log) // rows  # row after row
    if not of_row:
        assert not any(name.startswith("trace/U/") for name in recorded)
        return
    names = list(driver.log[0][0])
    for name in names:
        for place, kind in ((0, "U"), (2, "S")):
            want = np.array(
                [
                    [driver.log[row * of_row + n][place][name] for n in range(of_row)]
                    for row in range(rows)
                ]
            )
            assert_close(f"{kind}/{name}", recorded[f"trace/{kind}/{name}"], want, LOOSE)
        last = recorded[f"trace/W/{name}"][:, -1]
        want = evaluate(case).tensors[f"out/state/weights/{name}"]
        if choice["memory_reset"] != "sequence" or not choice["documents"]:
            assert_close(f"W/{name}", last, want, LOOSE)
    assert_close("y", recorded["trace/y"], driver.reads(), LOOSE)


#: A soft clip and Newton-Schulz give small gradients a size of their own, again at each write.
LOOSE = reordered(64, amplification=1e4)


@pytest.mark.clause("DEEPCASE-12", "REPLAY-2", "PROG-2", "PROG-3")
@pytest.mark.parametrize("name", CASES)
def test_the_listed_ops_are_those_that_are_computed_in_order(name: str) -> None:
    case = CASES[name]
    names = assert_listed(case)
    assert all(clause.startswith(("DEEP-", "MEMFUN-", "NS-")) for _, _, clause in TRACED.ops(case))
    results = add_trace(case, evaluate(case))
    assert {f"trace/{op}" for op in names} == {n for n in results.tensors if "trace/" in n}


@pytest.mark.clause("DEEPCASE-12", "PROG-3")
def test_inputs_of_an_op_are_what_it_is_computed_of() -> None:
    """Of tensors that no write moves, none decays before the error."""
    memory = {"kind": "polynomial", "key_width": 2, "expansion": 1.0}
    case = deep_cases.made(
        convention={"decay": "before_error"}, parameters={"memory": memory, "fast": ["W_in"]}
    )
    sources = {op: inputs for op, inputs, _ in TRACED.ops(case)}
    assert sources["write/a"] == ("W/W_in[t-1]", "write/normed", "in/retain")
    assert sources["write/z"] == ("in/memory/W_down", "in/k[t-j]")
    assert sources["S/W_in"][:3] == ("gradient/W_in", "S/W_in[t-1]", "in/momentum")
    assert sources["W/W_in"][:2] == ("W/W_in[t-1]", "U/W_in")


@pytest.mark.clause("DEEPCASE-12", "REPLAY-5")
def test_a_case_without_a_write_has_its_reads_alone() -> None:
    case = deep_cases.made(parameters={"phase": "off"})
    assert [op for op, _, _ in TRACED.ops(case)] == ["read/a_1", "read/s_1", "read/o", "y"]
    assert {row.verdict for row in replay(case, trace(case))} == {"PASS"}


@pytest.mark.sample(2)
@pytest.mark.clause("DEEPCASE-12", "DEEPCASE-13", "REPLAY-12", "REPLAY-23")
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_a_right_trace_and_its_adjoints_pass(name: str, dtype: str) -> None:
    case = CASES[name]
    for row in replay(case, trace(case, dtype=dtype, grad=True), dtype=dtype):
        assert row.verdict == "PASS", row


@pytest.mark.clause("DEEPCASE-13", "REPLAY-11", "REPLAY-15")
@pytest.mark.sample(10)
@pytest.mark.parametrize(("name", "op"), OPS)
def test_an_op_that_is_off_is_the_first_wrong_one(name: str, op: str) -> None:
    assert_first_wrong(CASES[name], op)


@pytest.mark.clause("DEEPCASE-13", "REPLAY-23")
@pytest.mark.sample(2)
@pytest.mark.parametrize(("name", "op"), OPS)
def test_an_adjoint_that_is_off_is_the_first_wrong_one(name: str, op: str) -> None:
    case = CASES[name]
    right = trace(case, dtype="float32", grad=True)
    tensor = f"trace_grad/{op}"
    moved = {**right, tensor: (right[tensor] * np.float32(1.05)).astype(np.float32)}
    first = first_wrong(replay(case, moved, nearest=False))
    exact = trace(case, grad=True)[tensor]
    if np.any(np.abs(exact) > ROUNDED_ADJOINT):
        assert first is not None
        assert first.tensor == tensor
    else:
        assert first is None


#: A soft clip leaves a scalar its sign alone: its adjoint is 0, of which float64 leaves some 1e-21.
ROUNDED_ADJOINT = 1e-15


@pytest.mark.clause("DEEPCASE-13", "REPLAY-10", "REPLAY-14")
def test_what_was_not_recorded_is_evaluated_together_and_named() -> None:
    case = CASES["default"]
    right = trace(case)
    some = {name: right[name] for name in ("trace/residual", "trace/W/W_1", "trace/y")}
    wrong = {**some, "trace/W/W_1": some["trace/W/W_1"] * 1.01}
    findings = {each.op: each for each in replay(case, wrong, nearest=False)}
    assert findings["W/W_1"].verdict == "WRONG"
    assert {"gradient/W_1", "S/W_1", "U/W_1", "cotangent"} <= set(findings["W/W_1"].gap)
    first = first_wrong(list(findings.values()))
    assert first is not None
    assert (first.op, first.token) == ("W/W_1", 0)  # what reads it is held against what it was


def misread(case: Any, name: str) -> dict[str, Any]:
    """The trace of a program with a mistake or another setting, in float32."""
    every = [*SEARCHED.settings(case), *SEARCHED.departures(case)]
    (each,) = [one for one in every if one.name == name]
    assert SEARCHED.keeps(case, each)
    recorder = Recorder(case)
    inputs = arithmetic_inputs(case, "float32")
    run_ops(case, inputs, recorder, way=Arithmetic("as a tree", "pairwise"), chosen=(each,))
    return {f"trace/{op}": x.astype(np.float32) for op, x in recorder.tensors().items()}


MISREAD = {
    "value_sign=plus": ("residual", "value_sign=plus"),
    "parameters.memory.activation=silu": ("write/s_1", "parameters.memory.activation=silu"),
    "slope left out": ("gradient/W_1", "as if the derivative of the activation were 1"),
    "momentum as an average": (
        "S/W_1",
        "as if gradients were multiplied by one minus the momentum",
    ),
    "newton_schulz.coefficients=cubic": ("X1/W_1", "newton_schulz.coefficients=cubic"),
    "retain after the step": ("W/W_1", "as if the decay came after the write, r (M - b U)"),
    "momentum for retain": ("W/W_1", "as if the momentum gate multiplied the weights"),
    "query one token late": ("read/a_1", "as if tokens read with the query before"),
}


@pytest.mark.sample(2)
@pytest.mark.clause("DEEPCASE-13", "DEEPCASE-15", "REPLAY-16")
@pytest.mark.parametrize("name", MISREAD)
def test_the_reading_that_explains_a_trace_is_named(name: str) -> None:
    case = deep_cases.made(dtype="float32", convention={"newton_schulz": {"steps": 3}})
    op, words = MISREAD[name]
    first = first_wrong(replay(case, misread(case, name)))
    assert first is not None
    assert first.op == op
    assert words in first.nearest.replace("r (W - b U)", "r (M - b U)").split(" or ")


@pytest.mark.clause("DEEPCASE-13", "REPLAY-9")
@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"trace/M": np.ones(3)}, "trace/M: not an op of this case; it has write/a_1, "),
        ({"trace/residual": np.ones((2, 5, 3))}, r"trace/residual: shape \(2, 5, 3\), expected"),
        ({"trace/S/W_1": np.ones((2, 5, 16, 4), int)}, "trace/S/W_1: dtype int64"),
        ({"chunk/M": np.ones(3)}, "chunk/M: the rule deep_memory has no chunks"),
        ({"out/state/position": np.asarray(5)}, "no trace/... or chunk/... tensor"),
        (
            {"trace/y": np.ones((2, 5, 3)), "in/k": np.ones((2, 5, 4))},
            "in/k: not the numbers of the case",
        ),
    ],
)
def test_a_trace_of_something_else_is_refused(tensors: Any, words: str) -> None:
    with pytest.raises(atlas_ref.CaseError, match=words):
        replay(CASES["default"], tensors)


@pytest.mark.clause("DEEPCASE-13", "REPLAY-9", "REPLAY-17", "CASE-26")
def test_the_command_names_the_first_wrong_op(cli: Any, tmp_path: Any) -> None:
    case = CASES["default"]
    file, mine = tmp_path / "case.safetensors", tmp_path / "mine.safetensors"
    atlas_ref.save(file, case.header, case.inputs)
    assert cli("eval", file, "-o", mine, "--trace", "--grad").code == 0
    assert cli("replay", file, "--trace", mine).code == 0
    tensors = trace(case, dtype="float32")
    wrong = tensors["trace/S/W_2"].copy()
    wrong[1, 3, 2, 5] += 1.0
    atlas_ref.save(mine, case.header, {**tensors, "trace/S/W_2": wrong})
    ran = cli("replay", file, "--trace", mine, "--no-nearest")
    assert ran.code == 1
    assert "token 3, S/W_2, index (1, 2, 5)" in ran.out
    assert "DEEP-11" in ran.out
    assert replay_file(case, mine, nearest=False)
