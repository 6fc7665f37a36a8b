"""However an implementation ends, on a case of whatever rule, there is a row with the reason.

Every rule, member and layer of the registries x {raises, exits, aborts, takes too long, hands over
nothing} x {--impl, --exec, --against, --set, pytest}; a last case, which it answers, shows that the run goes on.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.vectors.sets.cases import selected
from tests.support.casefiles import some
from tests.support.every_rule import cases

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[3]

#: The end of an implementation -> the verdicts of its case, and what their reason holds.
ENDS: dict[str, tuple[set[str], str]] = {
    "raises": ({"FAILED"}, r"crash: .*no power of two"),
    "exits": ({"FAILED"}, r"crash: (exit code 5|SystemExit: 5)"),
    "aborts": ({"FAILED"}, r"crash: killed by SIGABRT"),
    "sleeps": ({"FAILED"}, r"time-out: did not end within"),
    "nothing": ({"FAILED", "MISSING"}, r"no \{out\} was written|was not handed over|holds no"),
}

KERNEL = """
import os, sys, time
import numpy as np

def answers(end):
    def call(case, inputs):
        return dict(np.load("answer.npz")) if case.get("note") == "answered" else end()
    return call

def wants(): raise ValueError("no power of two")

raises, exits, aborts = answers(wants), answers(lambda: sys.exit(5)), answers(os.abort)
sleeps, nothing = answers(lambda: time.sleep(60)), answers(dict)
"""

PROGRAM = """
if grep -aq answered "$2"; then cp answer.safetensors "$3"; exit 0; fi
case $1 in
  raises) echo "ValueError: no power of two" >&2; exit 1;;
  exits) exit 5;;
  aborts) ulimit -c 0; kill -ABRT $$;;
  sleeps) exec sleep 60;;
esac
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of kernels, with `cases`, to which a test adds, and the answer to the last."""
    (tmp_path / "cases").mkdir()
    (tmp_path / "ends.py").write_text(KERNEL)
    (tmp_path / "ends.sh").write_text(PROGRAM)
    header, inputs = some("delta")
    last = atlas_ref.make(header | {"note": "answered"}, inputs)
    results = atlas_ref.evaluate(last)
    atlas_ref.save(tmp_path / "cases" / "zz.safetensors", last.header, last.inputs)
    atlas_ref.save(tmp_path / "answer.safetensors", results.header, results.tensors)
    bare = {name.removeprefix("out/"): x for name, x in results.tensors.items()}
    np.savez(tmp_path / "answer.npz", **bare)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("ends", None)
    sys.path[:] = [each for each in sys.path if each != str(tmp_path)]


def write(folder: Path, *, few: bool = False) -> list[str]:
    """Write the cases of every rule, or one of each, and return their names."""
    every = [case for some in cases().values() for case in (some[:1] if few else some)]
    for case in every:
        atlas_ref.save(folder / "cases" / f"{case.name}.safetensors", case.header, case.inputs)
    return [case.name for case in every]


def assert_told(end: str, ran: Any, names: list[str]) -> None:
    """A row with the reason for each case, whose message has no clause, and the last is right."""
    assert ran.code == 1, ran.err
    verdicts, why = ENDS[end]
    rows: dict[str, list[Any]] = {}
    for row in ran.json["results"]:
        rows.setdefault(Path(row["case"]).stem, []).append(row)
    assert {row["verdict"] for row in rows.pop("zz")} == {"PASS"}
    assert rows.keys() == {*names}
    for name, (row, *_) in rows.items():
        assert row["verdict"] in verdicts, (name, row)
        assert re.search(why, row["why"]), (name, row)
    told = {Path(each["case"]).stem: each for each in ran.json["failures"]}
    assert told.keys() == {*names}
    for each in told.values():
        assert re.search(why, each["why"])
        assert "fault of atlas-ref" not in json.dumps(each)
        if each["verdict"] == "FAILED":
            assert each["clause"] == ""


def options(end: str, source: str) -> list[str]:
    """The options of a source whose implementation ends in a way."""
    if source == "--impl":
        return ["--impl", f"ends:{end}", "--timeout", "10" if end == "sleeps" else "60"]
    return ["--exec", f"sh ends.sh {end} {{case}} {{out}}", "--timeout", seconds(end)]


def seconds(end: str) -> str:
    """What a program is given, that of the last case too."""
    return "1" if end == "sleeps" else "60"


#: Ways that take a process or a wait for each case: one of each rule, and in `make slow`.
LONG = [("--impl", "aborts"), ("--impl", "sleeps")]
SOON = [
    (source, end) for end in ENDS for source in ("--impl", "--exec") if (source, end) not in LONG
]


def test_every_rule_has_a_case() -> None:
    assert cases().keys() == SUBJECTS.keys()


@pytest.mark.clause("SRC-26", "SRC-1", "CASE-26")
@pytest.mark.sample(3)
@pytest.mark.parametrize(("source", "end"), SOON)
def test_every_rule_has_a_row_for_every_end(source: str, end: str, folder: Path, cli: Any) -> None:
    names = write(folder, few=end == "sleeps")
    ran = cli("check", "cases", *options(end, source), "--json")
    assert_told(end, ran, names)


@pytest.mark.slow
@pytest.mark.clause("SRC-26", "SRC-9")
@pytest.mark.parametrize(("source", "end"), LONG)
def test_a_process_that_ends_leaves_a_row(source: str, end: str, folder: Path, cli: Any) -> None:
    names = write(folder, few=True)
    assert_told(end, cli("check", "cases", *options(end, source), "--json"), names)


@pytest.mark.clause("SRC-26", "SRC-2")
def test_every_rule_has_a_row_for_a_file_that_is_missing(folder: Path, cli: Any) -> None:
    names = write(folder)
    (folder / "results").mkdir()
    (folder / "answer.safetensors").rename(folder / "results" / "zz.safetensors")
    assert_told("nothing", cli("check", "cases", "--against", "results", "--json"), names)


@pytest.mark.clause("SRC-26")
@pytest.mark.parametrize(
    "words",
    [
        ["v2", "--target", "dplr-iplr"],
        *(pytest.param([name], marks=pytest.mark.slow) for name in ("v1", "v2")),
    ],
    ids=" ".join,
)
def test_a_set_goes_on_after_every_end(words: list[str], folder: Path, cli: Any) -> None:
    """Each vector in turn by another end."""
    (folder / "turns.py").write_text(
        "from ends import raises, exits\nturn = iter(range(10**6))\n"
        "def each(*a): return (raises, exits)[next(turn) % 2](*a)\n"
    )
    ran = cli("check", "--set", *words, "--impl", "turns:each", "--json")
    assert ran.code == 1, ran.err
    assert {row["verdict"] for row in ran.json["results"]} == {"FAILED"}
    found = {Path(row["case"]).name for row in ran.json["results"]}
    assert found == {each.name for each in selected(words[:1], targets=words[2:])}
    assert len(ran.json["failures"]) == len(found)


@pytest.mark.sample(2)
@pytest.mark.clause("SRC-26", "SRC-20")
@pytest.mark.parametrize(
    ("option", "end"),
    [
        *(("impl", end) for end in ("raises", "exits", "nothing")),
        *(("exec", end) for end in ENDS),
    ],
)
def test_every_rule_fails_a_test_under_pytest(
    option: str, end: str, folder: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = write(folder, few=end == "sleeps")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (ROOT, folder))))
    given = [f"--atlas-{each.removeprefix('--')}" for each in ("--impl", "--exec")]
    word = options(end, f"--{option}")
    done = pytester.runpytest_inprocess(
        *("-p", "atlas_ref.pytest_plugin", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"),
        *("--atlas-no-nearest", "--atlas-cases", str(folder / "cases"), "-m", "atlas"),
        *(given[option == "exec"], word[1], "--atlas-timeout", seconds(end)),
    )
    done.assert_outcomes(passed=1, failed=len(names))
    text = done.stdout.str()
    assert "fault of atlas-ref" not in text
    assert len(re.findall(ENDS[end][1], text)) >= len(names)
