"""Programs of a TNT by another hand: their verdicts, the failure, and the reading that they have."""

from __future__ import annotations

from typing import Any

import pytest

import atlas_ref
from atlas_ref.oracle.judge.compare import checked
from atlas_ref.oracle.report.failures import explain
from atlas_ref.oracle.sources import sources
from tests.support import tnt_cases, tnt_implementations

RIGHT = "tests.support.tnt_implementations:right"
WRONG = "tests.support.tnt_implementations:never_reset"


@pytest.mark.clause("TNTCASE-7", "TNTCASE-11", "CASE-22")
@pytest.mark.parametrize("dtype", [None, "float32", "bfloat16"])
def test_a_program_passes_and_its_mistake_is_wrong_at_the_first_reset(dtype: str | None) -> None:
    case = tnt_cases.made(**tnt_implementations.REQUEST)
    rows = atlas_ref.check(case, source=sources.function(RIGHT), dtype=dtype)
    names = ("out/y", "out/state/global/M", "out/state/local0/M")
    assert {row.tensor: row.verdict for row in rows} == dict.fromkeys(names, "PASS")
    wrong = checked(case, source=sources.function(WRONG), dtype=dtype)
    verdicts = {row.tensor: row.verdict for row in wrong.rows}
    assert verdicts == {
        "out/y": "WRONG",
        "out/state/global/M": "PASS",
        "out/state/local0/M": "WRONG",
    }
    first = wrong.rows[0].first
    assert first is not None
    assert (wrong.rows[0].tensor, first.token) == ("out/y", 4)
    failure = explain(wrong, wrong.rows, "again")
    assert failure is not None
    assert (failure.op, failure.clause, failure.rule) == ("out/y", "TNT-1", "tnt")


@pytest.mark.clause("TNTCASE-11", "TNTCASE-13")
def test_the_commands_say_what_a_program_does(cli: Any, tmp_path: Any) -> None:
    file = tmp_path / "case.safetensors"
    case = tnt_cases.made(**tnt_implementations.REQUEST)
    atlas_ref.save(file, case.header, case.inputs)
    ran = cli("check", file, "--impl", RIGHT)
    assert (ran.code, ran.err) == (0, "")
    ran = cli("check", file, "--impl", WRONG)
    assert ran.code == 1
    assert "parameters.locals.0.shard=11" in ran.out  # as long as the call: no reset
    out = tmp_path / "out.safetensors"
    assert cli("eval", file, "-o", out, "--grad").code == 0
    assert cli("check", file, "--against", out).code == 0
    only = {name: x for name, x in atlas_ref.evaluate(case).tensors.items() if name == "out/y"}
    atlas_ref.save(out, case.header, only)
    ran = cli("identify", file, "--out", out, "--depth", 1)
    assert ran.code == 0
    assert "MATCH" in ran.out
