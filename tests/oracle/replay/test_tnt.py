"""Traces of a TNT against literal loops, and the first wrong op of another program's memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.replay.replay import replay
from atlas_ref.oracle.replay.trace import add_trace, trace
from atlas_ref.oracle.subjects.tnt import SUBJECT
from tests.support import tnt_cases
from tests.support.close import assert_close, reordered
from tests.support.replayed import assert_first_wrong, assert_listed
from tests.truth import tnt_loops as loops

REQUESTS: dict[str, dict[str, Any]] = {
    "default": {},
    "full": tnt_cases.FULL,
    "newton_schulz": {
        "parameters": {"rule": "omega", "global": {"span": 3}, "locals": [{"span": 2, "shard": 5}]},
        "convention": {"momentum_sign": "minus", "newton_schulz": {"steps": 2}},
    },
    "literal": {
        "parameters": {
            "preset": "paper-literal",
            "global": {"span": 2},
            "locals": [{"span": 1, "shard": 4}],
        },
        "convention": {"gate": "none"},
    },
    "lost writes": {
        "parameters": {
            "rule": "delta",
            "locals": [{"span": 1, "shard": 3, "reset": "instead_of_write"}],
        },
        "history": 2,
    },
    "momenta": {
        "parameters": {
            "rule": "omega",
            "window": 3,
            "global": {"span": 3, "read": "none"},
            "locals": [{"span": 2, "shard": 6}],
        },
        "convention": {"order": "momentum_then_window", "newton_schulz": "none"},
        "history": 2,
    },
    "cut": {
        "parameters": {"rule": "omega", "window": 3, "locals": [{"span": 2, "shard": 6}]},
        "convention": {"window_at_boundary": "cut", "newton_schulz": "none"},
    },
    "hebbian": {"parameters": {"rule": "hebbian", "global": {"span": 3}}},
    "still": {
        "parameters": {"global": {"span": 3}, "locals": [{"span": 2, "shard": 4, "writes": False}]}
    },
}
assert SUBJECT.traced is not None
TRACED = SUBJECT.traced
CASES = {name: tnt_cases.made(**request) for name, request in REQUESTS.items()}
OPS = [(name, op) for name in CASES for op, _, _ in TRACED.ops(CASES[name])]
LOOSE = reordered(64, amplification=20.0)


@pytest.mark.clause("TNTCASE-9", "REPLAY-1")
@pytest.mark.host("literal loops of the tests")
@pytest.mark.parametrize("number", range(0, 60, 3))
def test_memories_and_queries_at_each_token_are_those_of_loops(number: int) -> None:
    case = tnt_cases.drawn(number)
    header, tensors = tnt_cases.some(**case.request)
    shared = next((tensors[n] for n in tensors if n.endswith("/W_QK")), None)
    tensors |= {n: shared for n in tensors if n.endswith("/W_QK")}
    recorded = trace(atlas_ref.make(header, tensors))
    reading, memories = case.reading._replace(W_QK=shared), case.memories(tensors, 1)
    names = [n for n in ("global", "local0", "local1") if f"in/{n}/M0" in tensors]
    for t in range(13):
        part = case.memories(tnt_cases.cut(tensors, 0, t + 1), 1)
        end = loops.paper(part, reading)
        for i, name in enumerate(names):
            if f"trace/{name}/M" in recorded:
                own = TRACED.tokens(atlas_ref.make(header, tensors), f"{name}/M")
                assert own is not None
                if t in own:
                    found = recorded[f"trace/{name}/M"][1, own.index(t)]
                    assert_close(f"{name}/M", found, end.M[i], LOOSE)
            if f"trace/{name}/projected" in recorded:
                found = recorded[f"trace/{name}/projected"][1, t]
                assert_close("projected", found, loops.moved(memories[i], t, reading), LOOSE)
    assert_close("y", recorded["trace/y"][1], loops.paper(memories, reading).y, LOOSE)


@pytest.mark.clause("TNTCASE-9", "REPLAY-2")
@pytest.mark.parametrize("name", CASES)
def test_the_listed_ops_are_those_that_are_computed(name: str) -> None:
    case = CASES[name]
    names = assert_listed(case)
    results = add_trace(case, evaluate(case))
    assert {f"trace/{op}" for op in names} == {n for n in results.tensors if "trace/" in n}


@pytest.mark.clause("TNTCASE-9")
def test_tokens_that_are_written_twice_or_whose_write_is_lost_are_told() -> None:
    assert TRACED.tokens(CASES["literal"], "global/extra/M") == (2, 4, 6)
    assert TRACED.tokens(CASES["lost writes"], "local0/M") == (0, 2, 3, 5, 6)  # from number 2 on
    every = tuple(range(CASES["default"].inputs["in/k"].shape[-2]))
    assert TRACED.tokens(CASES["default"], "local0/y") == every
    assert not [op for op, _, _ in TRACED.ops(CASES["still"]) if op == "local0/M"]


@pytest.mark.clause("TNTCASE-10", "REPLAY-12", "REPLAY-23")
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_a_right_trace_and_its_adjoints_pass(name: str, dtype: str) -> None:
    case = CASES[name]
    for row in replay(case, trace(case, dtype=dtype, grad=True), dtype=dtype):
        assert row.verdict == "PASS", row


@pytest.mark.sample(20)
@pytest.mark.clause("TNTCASE-10", "REPLAY-11", "REPLAY-15")
@pytest.mark.parametrize(("name", "op"), OPS)
def test_an_op_that_is_off_is_the_first_wrong_one(name: str, op: str) -> None:
    assert_first_wrong(CASES[name], op)


@pytest.mark.clause("TNTCASE-10", "REPLAY-9", "REPLAY-17", "CASE-26")
def test_the_command_names_the_first_wrong_op(cli: Any, tmp_path: Any) -> None:
    case = CASES["default"]
    file, mine = tmp_path / "case.safetensors", tmp_path / "mine.safetensors"
    atlas_ref.save(file, case.header, case.inputs)
    assert cli("eval", file, "-o", mine, "--trace", "--grad").code == 0
    assert cli("replay", file, "--trace", mine).code == 0
    tensors = trace(case, dtype="float32")
    wrong = tensors["trace/local0/S"].copy()
    wrong[1, 3, 2, 1] += 1.0
    atlas_ref.save(mine, case.header, {**tensors, "trace/local0/S": wrong})
    ran = cli("replay", file, "--trace", mine, "--no-nearest")
    assert ran.code == 1
    assert "token 3, local0/S, index (1, 2, 1)" in ran.out
    with pytest.raises(atlas_ref.CaseError, match="chunk/M: the rule tnt has no chunks"):
        replay(case, {"chunk/M": np.ones(3)})
