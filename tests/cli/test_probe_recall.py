"""The command probe recall: table, JSON, seeds and refusals."""

from __future__ import annotations

import pytest

from atlas_ref.train.probes.lessons import learn
from atlas_ref.train.probes.recall import Settings

pytestmark = pytest.mark.host("numbers of the host")

SMALL = ("--keys", 6, "--values", 5, "--dim", 8, "--batch", 2, "--steps", 3, "--every", 2)
SAME = {"keys": 6, "values": 5, "dim": 8, "batch": 2, "steps": 3, "every": 2}


def untimed(lesson):
    """A lesson without what differs from run to run."""
    return {key: each for key, each in lesson.items() if key not in ("seconds", "rate")}


@pytest.mark.clause("PROBE-22")
def test_the_object_is_what_the_models_learnt(cli):
    words = ("--pairs", "2,3", "--seeds", 2, "--seed", 4, "--no-convolution", "--json")
    ran = cli("probe", "recall", "titans_lmm", *SMALL, *words)
    assert ran.code == 0
    settings = Settings(memory="titans_lmm", pairs=(2, 3), kernel=1, **SAME)
    assert ran.json["settings"]["kernel"] == 1
    assert ran.json["settings"]["steps"] == 3
    assert [(run["memory"], run["seed"]) for run in ran.json["runs"]] == [
        ("titans_lmm", 4),
        ("titans_lmm", 5),
    ]
    for run in ran.json["runs"]:
        want = [untimed(each._asdict()) for each in learn(settings, run["seed"])]
        assert [untimed(each) for each in run["lessons"]] == want
    first, second = (run["lessons"][0]["loss"] for run in ran.json["runs"])
    assert first != second


@pytest.mark.clause("PROBE-22")
def test_the_table_has_a_row_for_each_lesson(cli):
    ran = cli("probe", "recall", *SMALL, "--pairs", "1,2", "--enough", 1e-9, "--steps", 4)
    assert ran.code == 0
    rows = [line.split("│")[1:-1] for line in ran.out.splitlines() if line.startswith("│")]
    cells = [[cell.strip() for cell in row] for row in rows]
    names = [row[0] for row in cells]
    assert list(dict.fromkeys(names)) == ["delta", "gated_delta", "titans_lmm", "hebbian"]
    assert {row[1] for row in cells} == {"0"}
    assert {row[5] for row in cells} <= {"yes", "no"}
    assert all(0 <= float(row[4]) <= 1 for row in cells)
    assert "examined every 2 steps" in ran.err


@pytest.mark.clause("PROBE-22")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("delt",), "probe recall: kind 'delt' does not exist; kinds are hebbian, "),
        (("--pairs", "200"), "pairs: 200, but there are 128 different keys"),
        (("--pairs", "0,2"), "pairs.0: must be at least 1, found 0"),
        (("--pairs", "x"), "--pairs: whole numbers between commas"),
        (("--length", "10"), "length: 10, 32 pairs and their queries need 96"),
        (("--preset", "caus"), "--preset: preset 'caus' does not exist; presets are unit, "),
        (("--rate", "nan"), "rate: "),
        (("--enough", "2"), "enough: must be at most 1, found 2.0"),
        (("--heads", "3"), "heads: 3 do not divide dim 64"),
        (("--seeds", "1001"), "--seeds: 1001, expected at most 1000"),
        (("omega", "--window", "5000"), "window: "),
        (("delta", "--rate", "1e300", "--pairs", "2", *map(str, SMALL)), "delta: step "),
    ],
    ids=str,
)
def test_what_cannot_be_learnt_is_one_line(cli, words, message):
    ran = cli("probe", "recall", *words)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert ran.err.count("\n") == 1
