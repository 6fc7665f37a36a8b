"""New cases of frequency levels: schedules of one memory, and blocks."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.schema.schema import case_schema
from tests.support.close import assert_differs


@pytest.mark.clause("CASE-30", "CASE-31", "CASE-36", "CASE-37")
@pytest.mark.parametrize(
    "options",
    [
        ["omega", "--window", 3, "--periods", "1,8,64", "--schedule-level", 1, "--first-step", 1],
        ["delta", "--level", "token", "--periods", "2"],
        ["cms"],
        [
            "cms",
            "--levels",
            "delta,delta,hebbian",
            "--periods",
            "1,2,4",
            "--combine",
            "masked",
            "--first-step",
            1,
            "--reset",
            3,
        ],
        [
            "cms",
            "--levels",
            '[{"rule": "omega", "window": 3, "feature_map": {"kind": "elu"}}]',
            "--history",
            5,
            "--dtype",
            "float32",
        ],
        ["cms", "--per-dimension", "--batch", 2, "--heads", 1],
        ["cms", "--nested", "--combine", "masked", "--reset", 4],
        ["cms", "--learned", "--batch", 2, "--dtype", "float32", "--first-step", 1],
    ],
    ids=str,
)
def test_new_makes_cases_of_levels(options: list[Any], cli: Any, tmp_path: Any) -> None:
    case, out = tmp_path / "case", tmp_path / "out"
    ran = cli("new", *options, "-o", case, "--tokens", 9, "--cotangent")
    assert (ran.code, ran.err) == (0, f"wrote {case}\n")
    loaded = atlas_ref.load(case)
    jsonschema.Draft202012Validator(case_schema()).validate(loaded.header.plain())
    ran = cli("eval", case, "-o", out, "--grad", "--json")
    assert (ran.code, ran.json["not_finite"]) == (0, [])
    assert cli("check", case, "--against", out).code == 0
    again = tmp_path / "again"
    cli("new", *options, "-o", again, "--tokens", 9, "--cotangent")
    assert again.read_bytes() == case.read_bytes()


@pytest.mark.clause("CASE-16", "CASE-17")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ["omega", "--periods", "a"],
            "--periods: whole numbers between commas are needed, as in 1,8,64, found 'a'",
        ),
        (["omega", "--periods", "1,0"], "{case}: schedule.periods.1: must be at least 1, found 0"),
        (
            ["omega", "--periods", "1,2", "--pulse", 2],
            "{case}: pulse and periods both say when the memory writes; one of them is needed",
        ),
        (["omega", "--schedule-level", 1], "{case}: schedule_level: needs periods"),
        (["omega", "--first-step", 1], "{case}: first_step: needs periods"),
        (["omega", "--levels", "delta"], "{case}: levels: belongs to rule cms"),
        (["omega", "--combine", "masked"], "{case}: combine: belongs to rule cms"),
        (["omega", "--nested"], "{case}: nested: belongs to rule cms"),
        (["delta", "--learned"], "{case}: learned: belongs to rule cms"),
        (["cms", "--nested", "--learned"], "{case}: nested: contexts begin by periods, and"),
        (
            ["cms", "--nested", "--periods", "1,2,2,4"],
            "{case}: nested: at least two levels, each of another period, are needed, found",
        ),
        (
            ["newton_schulz", "--periods", "1"],
            "{case}: schedule: the rule newton_schulz has no sequence",
        ),
        (
            ["cms", "--levels", "delta,hat"],
            (
                "{case}: levels.1.rule: must be 'omega', 'titans_lmm', 'delta' or 'hebbian', "
                "found 'hat'"
            ),
        ),
        (["cms", "--levels", "[1]"], "--levels: an object for each level is needed"),
        (["cms", "--levels", "[{"], "--levels: not JSON: "),
        (["cms", "--levels", '[{"rule": "delta", "hat": 1}]'], "{case}: levels.0.hat: unknown key"),
        (
            ["cms", "--levels", '[{"rule": "delta", "window": "3"}]'],
            "{case}: levels.0.window: must be an integer, found '3'",
        ),
        (
            ["cms", "--levels", "delta", "--periods", "1,2"],
            "{case}: schedule.periods: 2 periods for 1 levels",
        ),
        (
            ["cms", "--levels", "delta,delta,delta,delta,delta"],
            "{case}: schedule.periods: 4 periods for 5 levels",
        ),
        (["cms", "--pulse", 2], "{case}: pulse: rule cms has all levels, each with its period"),
        (
            ["cms", "--schedule-level", 1],
            "{case}: schedule_level: rule cms has all levels, each with its period",
        ),
        (["cms", "--window", 2], "{case}: window: rule cms has it for each level, in levels"),
        (
            ["cms", "--convention", "read=before"],
            "{case}: convention: rule cms has it for each level, in levels",
        ),
        (
            ["cms", "--combine", "mean"],
            "{case}: combine: must be 'softmax' or 'masked', found 'mean'",
        ),
        (["cms", "--levels", "[]"], "--levels: an object for each level is needed"),
        (
            ["cms", "--levels", '[{"rule": "delta", "rule": "omega"}]'],
            "--levels: not JSON: key 'rule' stands twice",
        ),
        (
            ["cms", "--first-step", 10**18],
            "{case}: atlas_ref: the integer 1000000000000000000 has more than 18 digits",
        ),
        (
            ["cms", "--first-step", 10**18 - 8],
            (
                "{case}: levels[0]: schedule.first_step: 999999999999999992, the step after 8 "
                "tokens has"
            ),
        ),
        (
            ["cms", "--combine", "masked", "--periods", "2,3,4,5"],
            "{case}: combine: masked needs a level of period 1",
        ),
        (["cms", "--window-gate"], "{case}: window_gate: belongs to rule omega at level projected"),
    ],
    ids=str,
)
def test_new_refuses_levels_that_mean_nothing_in_one_line(
    options: list[Any], words: str, cli: Any, tmp_path: Any
) -> None:
    case = tmp_path / "case"
    ran = cli("new", *options, "-o", case)
    assert ran.code == 2
    assert ran.err.startswith(f"atlas-ref: {words.format(case=case)}")
    assert ran.err.count("\n") == 1
    assert not case.exists()
    assert json.loads(cli("new", *options, "-o", case, "--json").out)["exit"] == 2


@pytest.mark.clause("CASE-31")
def test_levels_of_a_new_block_differ() -> None:
    case = new(Request(rule="cms", levels=("delta", "delta"), periods=(1, 2)))
    assert_differs(
        "W_K", case.inputs["in/level0/param/W_K"], case.inputs["in/level1/param/W_K"], 0.1
    )


@pytest.mark.clause("CASE-31", "CASE-33")
def test_a_level_may_begin_inside_its_span() -> None:
    own = {"rule": "titans_lmm", "span": 4, "convention": {"reference": "chunk_start"}}
    case = new(Request(rule="cms", tokens=9, periods=(1,), levels=({**own, "phase": 3},)))
    other = new(Request(rule="cms", tokens=9, periods=(1,), levels=(own,)))
    assert case.inputs.keys() == other.inputs.keys()
    assert all((case.inputs[name] == value).all() for name, value in other.inputs.items())
    after = atlas_ref.evaluate(case)
    assert after.header["levels"][0]["phase"] == (3 + 9) % 4
    assert not np.array_equal(after.tensors["out/y"], atlas_ref.evaluate(other).tensors["out/y"])
    with pytest.raises(atlas_ref.CaseError, match=r"^new: levels\[0\]: phase: "):
        new(Request(rule="cms", periods=(1,), levels=({**own, "phase": 4},)))
