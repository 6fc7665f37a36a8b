"""Results of a run on a GPU: verdicts on the targets, the table, lines, JSON without nan,
pictures.
"""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import figures, table
from benchmarks.gpu.results import Found, Verdict
from tests.support.synthetic_gpu import check, figure, found, ratio, theirs

TARGETS = 7


def verdict(made: Found, words: str) -> Verdict:
    (one,) = [each for each in made.verdicts() if words in each.target]
    return one


def test_every_target_of_the_issue_has_one_line() -> None:
    verdicts = found().verdicts()
    assert len(verdicts) == TARGETS
    assert {each.word for each in verdicts} == {"met"}


def test_a_run_on_the_cpu_decides_nothing() -> None:
    assert {each.word for each in found(measured=False).verdicts()} == {"open"}


@pytest.mark.parametrize(
    ("words", "reference", "times", "word"),
    [
        ("PyTorch eager", "PyTorch eager", 0.9, "missed"),
        ("PyTorch eager", "PyTorch eager", 1.0, "met"),
        ("20 times", "atlas-rnn cell", 19.0, "missed"),
        ("20 times", "atlas-rnn cell", 20.5, "met"),
        ("within 3 times", "fla Triton chunk, float32", 0.3, "missed"),
        ("within 3 times", "fla Triton chunk, float32", 0.34, "met"),
    ],
)
def test_a_ratio_is_held_against_its_bound(
    words: str, reference: str, times: float, word: str
) -> None:
    slow = ratio(figure(), theirs(reference, seconds=times * 1e-3))
    made = found(ratios=[slow])
    assert verdict(made, words).word == word
    assert f"{times:.3g}" in verdict(made, words).found


def test_one_row_below_its_bound_misses_the_target_and_is_named() -> None:
    rows = [
        ratio(figure(), theirs("PyTorch eager")),
        ratio(figure(tokens=1024), theirs("PyTorch eager", seconds=5e-4)),
    ]
    missed = verdict(found(ratios=rows), "PyTorch eager")
    assert missed.word == "missed"
    assert "1 of 2 rows" in missed.found
    assert "T = 1024" in missed.found


@pytest.mark.parametrize("changes", [{"error": 0.1}, {"error": math.inf}])
def test_a_wrong_result_keeps_no_target(changes: dict[str, Any]) -> None:
    assert (
        verdict(
            found(ratios=[ratio(figure(**changes), theirs("PyTorch eager"))]), "PyTorch eager"
        ).word
        == "missed"
    )


def test_what_is_not_judged_decides_nothing() -> None:
    rows = [ratio(figure("sequential", judged=False, seconds=1.0), theirs("PyTorch eager"))]
    assert verdict(found(ratios=rows), "PyTorch eager").word == "open"


def test_other_sizes_do_not_enter_the_target_at_8k() -> None:
    rows = [ratio(figure(tokens=1024, seconds=1.0), theirs("fla Triton chunk, bfloat16", 1024))]
    assert verdict(found(ratios=rows), "within 3 times").word == "open"


def test_the_share_of_the_matrix_rate_is_asked_by_format() -> None:
    made = found()
    half = [
        each._replace(rate=0.4) if each.storage == "bfloat16" else each for each in made.figures
    ]
    assert verdict(made._replace(figures=half), "float32 matrix rate").word == "met"
    assert verdict(made._replace(figures=half), "bfloat16 matrix rate").word == "missed"


def test_one_form_that_differs_from_numpy_misses_the_target_and_is_shown() -> None:
    made = found(checks=[check(), check(error=1e-3), check(what="gradients")])
    assert verdict(made, "reads").word == "missed"
    assert verdict(made, "gradients").word == "met"
    lines = list(table.checked(made.checks))
    assert "2 of 3 within their bounds" in lines[0]
    assert [line for line in lines if "NOT KEPT" in line] == [
        "  NOT KEPT  delta, exact, reads, float64: 1.0e-03, allowed 1.0e-13"
    ]


def printed(made: Found) -> str:
    console = Console(width=220, record=True, file=io.StringIO())
    console.print(table.table(made))
    return console.export_text()


def test_the_table_shows_time_ratio_shares_memory_and_error() -> None:
    text = printed(found())
    (row,) = [line for line in text.splitlines() if "atlas-rnn" in line and "chunkwise" in line]
    for word in (
        "1 (0.9 to 1.1)",
        "2 PyTorch eager, 30 atlas-rnn cell",
        "0.2",
        "0.1",
        "5",
        "1.0e-06",
    ):
        assert word in row
    assert "scan" not in text  # it did not run


def test_what_did_not_run_is_one_line_a_reason() -> None:
    some = [
        figure("scan", tokens=tokens, kind=kind, skipped="too large")
        for tokens in (1024, 8192)
        for kind in ("forward", "both")
    ]
    lines = list(table.skipped([*some, figure("scan", skipped="out of memory")]))
    assert (
        lines[0]
        == "not run  frozen Omega, scan: too large; heads x d x T: 8 x 64 x 1024, 8 x 64 x 8192"
    )
    assert (
        lines[1]
        == "not run  frozen Omega, scan: out of memory; heads x d x T: 8 x 64 x 8192 (forward)"
    )


def test_everything_goes_to_one_json_file_without_nan(tmp_path: Path) -> None:
    made = found(figures=[*found().figures, figure(peak=math.nan, error=None)])
    paths = command.written(made, tmp_path / "new", Console(file=io.StringIO()))
    data = json.loads(paths[0].read_text(), parse_constant=pytest.fail)
    assert data["figures"][-1]["peak"] is None
    assert data["figures"][0]["seconds"]["median"] == 2e-4
    sides = {
        "subject": "frozen Omega",
        "kind": "forward",
        "heads": 8,
        "d": 64,
        "tokens": 8192,
        "ours": "chunkwise",
        "theirs": "atlas-rnn cell",
    }
    assert data["ratios"][2] == sides | {"faster": {"low": 30.0, "median": 30.0, "high": 30.0}}
    assert [each["word"] for each in data["targets"]] == ["met"] * TARGETS
    assert data["left_out"] == made.left_out
    assert not list(tmp_path.glob("new/*.part"))


def test_pictures_show_every_side_over_t(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the pictures need matplotlib")
    paths = list(figures.draw(found(), tmp_path))
    assert [path.name for path in paths] == ["time-8-heads-d-64.png"]
    assert all(path.stat().st_size > 10_000 for path in paths)


def test_without_matplotlib_the_pictures_alone_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    assert command.written(found(), tmp_path, Console(width=200)) == [tmp_path / "bench-gpu.json"]
    assert "not drawn" in capsys.readouterr().out
