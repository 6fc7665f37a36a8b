"""Kept runs of associative recall: of the cases as they are, and what the documents make of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from atlas_ref.train.probes.lessons import Lesson
from atlas_ref.types import Frozen
from benchmarks import kept, recall
from docs import run_tables

pytestmark = pytest.mark.host("numbers of the host")


def lesson(pairs: int, **own: Any) -> Lesson:
    found = Lesson(pairs, 25, 0.96, 0.1, True, 2.0, 9600, 4800.0)
    return found._replace(**own)


@pytest.fixture
def file(tmp_path, monkeypatch):
    """An empty place for runs, and learning that only counts."""
    monkeypatch.setattr(recall, "KEPT", recall.KEPT._replace(file=tmp_path / "recall.json"))
    asked: list[tuple[str, int, int]] = []

    def learn(settings: Any, seed: int = 0) -> tuple[Lesson, ...]:
        asked.append((settings.memory, settings.kernel, seed))
        return (lesson(4), lesson(8, steps=50 + seed))

    monkeypatch.setattr(recall, "learn", learn)
    return asked


def test_kept_runs_are_those_of_the_cases_in_force() -> None:
    """A change of a default or of a case asks for `python -m benchmarks.recall`."""
    runs = recall.KEPT.runs()
    assert {run["case"] for run in runs} == set(recall.CASES)
    for run in runs:
        assert run["settings"] == json.loads(recall.CASES[run["case"]].model_dump_json())
        assert run["threads"] == "1"
        assert [each["pairs"] for each in run["lessons"]] == (
            run["settings"]["pairs"][: len(run["lessons"])]
        )


def test_the_kept_runs_reach_what_is_asked_of_them() -> None:
    """Delta, gated Delta and Titans: 16 pairs within 400 steps, 32 within 1,000, each seed."""
    for run in recall.KEPT.runs():
        if run["case"] in ("delta", "gated_delta", "titans_lmm"):
            steps = {each["pairs"]: each["steps"] for each in run["lessons"] if each["reached"]}
            assert steps[16] <= 400
            assert steps[32] <= 1000
        if run["settings"]["kernel"] == 1:
            assert not run["lessons"][0]["reached"]


def test_runs_are_kept_once_by_case_and_seed_in_their_order(file) -> None:
    recall.main(["hebbian", "delta"], seeds=2)
    kept = [(run["case"], run["seed"]) for run in recall.KEPT.runs()]
    assert kept == [("delta", 0), ("delta", 1), ("hebbian", 0), ("hebbian", 1)]
    count = len(file)
    recall.main(["delta"], seeds=2)
    assert len(file) == count
    recall.main(["delta"], seeds=3)
    assert file[count:] == [("delta", 4, 0), ("delta", 4, 2)]
    recall.main(["delta"], seeds=1, anew=True)
    assert len(recall.KEPT.runs()) == 5


def test_the_table_has_a_row_for_each_case_and_number_of_pairs(file, monkeypatch, tmp_path) -> None:
    recall.main(["delta", "delta without convolution"], seeds=2)
    runs = recall.KEPT.runs()
    runs[-1]["lessons"] = [lesson(4, steps=1000, reached=False, accuracy=0.1)._asdict()]
    (tmp_path / "recall.json").write_text(json.dumps(runs))
    monkeypatch.setattr(run_tables, "BENCHMARKS", tmp_path)
    found = run_tables.recall(None, "associative_recall.md")  # type: ignore[arg-type]
    lines = [line.strip("| ").split(" | ") for line in found.splitlines() if line[:1] == "|"]
    assert [line[:4] for line in lines[2:]] == [
        ["delta", "4", "25, 25", "0.960, 0.960"],
        ["delta", "8", "50, 51", "0.960, 0.960"],
        ["delta without convolution", "4", "25, 1000 (not reached)", "0.960, 0.100"],
        ["delta without convolution", "8", "50", "0.960"],
    ]
    assert lines[2][4:] == ["2, 2", "4,800, 4,800"]
    assert "load of the machine" in found


def test_a_run_older_than_a_setting_has_its_default() -> None:
    class Inner(Frozen):
        width: int = 2
        sizes: tuple[int, ...] = (3,)

    class Outer(Frozen):
        inner: Inner = Inner()
        rate: float = 0.5

    assert kept.completed({"inner": {"width": 7}}, Outer) == {
        "inner": {"width": 7, "sizes": [3]},
        "rate": 0.5,
    }
    assert kept.completed({}, Outer)["inner"] == {"width": 2, "sizes": [3]}
