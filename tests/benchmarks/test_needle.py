"""Kept runs of needles: of the cases as they are, what they find, and the texts that they learn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atlas_ref.train.settings import Text
from benchmarks import needle
from benchmarks import text as on_text
from docs import run_tables
from tests.support.training import library

pytestmark = pytest.mark.host("trains in folders")


def found(case: str, length: int) -> list[float]:
    """Shares of whole answers at a length, beyond the reach of attention."""
    return [
        cell["exact"]
        for run in needle.KEPT.runs()
        if run["case"] == case
        for cell in run["cells"]
        if cell["beyond"] and cell["length"] == length
    ]


def test_kept_runs_are_those_of_the_cases_in_force() -> None:
    """A change of a default or of a case asks for `python -m benchmarks.needle`."""
    runs = needle.KEPT.runs()
    assert {run["case"] for run in runs} == set(needle.CASES)
    for run in runs:
        now = json.loads(json.dumps(needle._told(run["case"], run["seed"])))
        now["text"]["paths"] = run["settings"]["text"]["paths"]  # of another Python
        assert run["settings"] == now
        assert run["threads"] == "1"


def test_a_memory_finds_needles_where_attention_alone_finds_none() -> None:
    """At lengths near those of the texts that were learned most, nearly all."""
    for length, least in ((64, 0.9), (96, 0.5), (128, 0.2)):
        assert min(found("MAG", length)) > least
        assert max(found("attention alone", length)) < 0.1


def test_a_small_run_tells_a_cell_for_each_length_and_depth(tmp_path, monkeypatch) -> None:
    """And the texts that it learns end with what their needle says."""
    own = Text(paths=(str(library(tmp_path, files=8, size=3000)),))
    monkeypatch.setattr(on_text, "library", lambda: own)
    for each in needle.texts(20):
        fact = each[each.rindex(b"\nThe number of ") :]
        assert each.count(fact) == 2
        assert fact[-needle.DIGITS :].isdigit()
    model = needle.MAG.replaced(dim=8, layers=1, heads=2, window=26)
    monkeypatch.setattr(needle, "CASES", {"MAG": model})
    for name, value in {"ROWS": 2, "TOKENS": 16, "STEPS": 2, "TEXTS": 60}.items():
        monkeypatch.setattr(needle, name, value)
    kept = needle.KEPT._replace(file=tmp_path / "needle.json", order=["MAG"])
    monkeypatch.setattr(needle, "KEPT", kept)
    monkeypatch.setattr(needle, "ASKED", needle.ASKED.replaced(samples=1))
    needle.main()
    needle.main()
    (run,) = kept.runs()
    assert str(tmp_path) not in kept.file.read_text()
    asked = needle.ASKED
    assert [(cell["length"], cell["depth"]) for cell in run["cells"]] == [
        (length, depth) for length in asked.lengths for depth in asked.depths
    ]
    monkeypatch.setattr(run_tables, "BENCHMARKS", Path(tmp_path))
    lines = run_tables.needle(None, "text.md").splitlines()  # type: ignore[arg-type]
    assert sum(line.startswith("|") for line in lines) == 2 + len(asked.lengths)
    within = sum(not cell["beyond"] for cell in run["cells"])
    assert 0 < "".join(lines).count("(within)") == within < len(run["cells"])
