"""Logs that something else than a sweep wrote, or that were changed since."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from atlas_ref.oracle.cases.case import CaseError
from atlas_ref.oracle.sweep import sweep as sweeps
from atlas_ref.oracle.sweep.sweep import Sweep, sweep
from tests.oracle.sweep.test_sweep import PLAIN, kernel

ROOT = Path(__file__).parents[3]

ROW = {"tensor": "out/y", "error": 0.5, "tolerance": 1.0, "why": ""}
JUDGED = {"verdict": "PASS", "row": ROW, "drawn": None}
SHRUNK = {"verdict": "WRONG", "row": ROW, "comparisons": 3, "numbers": [9, 3]}


def swept(folder: Path, source: str = "right", **how: Any) -> Sweep:
    return sweep(
        "delta",
        kernel(source),
        cases=2,
        choices=PLAIN,
        folder=folder,
        resume=folder / "log",
        **how,
    )


def written(folder: Path, line: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A log with this line for every task, whole and right but for what the line says."""
    with monkeypatch.context() as patched:
        patched.setattr(sweeps, "_line", lambda result, place: line)
        with contextlib.suppress(KeyError, TypeError, ZeroDivisionError):
            swept(folder)


@pytest.mark.clause("SWEEP-9")
@pytest.mark.parametrize(
    "line",
    [
        JUDGED | {"row": ROW | {"tolerance": 0.0}},
        JUDGED | {"row": ROW | {"tolerance": None}},
        JUDGED | {"row": ROW | {"error": "nan"}},
        JUDGED | {"row": ROW | {"error": "much"}},
        JUDGED | {"row": ROW | {"error": [1.0]}},
        JUDGED | {"row": ROW | {"why": 3}},
        JUDGED | {"row": ROW | {"colour": 3}},
        JUDGED | {"verdict": "WRONG"},
        JUDGED | {"verdict": "GOOD"},
        JUDGED | {"drawn": 3},
        JUDGED | {"task": "judge", "case": True},
        JUDGED | {"task": "judge", "case": -1},
        JUDGED | {"colour": 3},
        SHRUNK | {"task": "shrink", "file": "../../delta-0.safetensors"},
        SHRUNK | {"task": "shrink", "file": "/delta-0.safetensors"},
        SHRUNK | {"task": "shrink", "file": "delta-0.safetensors", "numbers": [3]},
        SHRUNK | {"task": "shrink", "file": "delta-0.safetensors", "comparisons": "x"},
    ],
)
def test_a_line_with_what_no_sweep_writes_is_refused(
    line: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, line, monkeypatch)
    text = (tmp_path / "log").read_bytes()
    with pytest.raises(CaseError) as refusal:
        swept(tmp_path)
    assert str(refusal.value) == f"{tmp_path / 'log'}: line 2: not what a sweep writes there"
    assert (tmp_path / "log").read_bytes() == text


@pytest.mark.clause("SWEEP-9")
def test_what_a_sweep_writes_is_read(tmp_path: Path) -> None:
    for source in ("no_pulse", "another_result"):
        folder = tmp_path / source
        folder.mkdir()
        first = swept(folder, source, keep=1)
        assert first.exit_code == 1
        assert swept(folder, source, keep=1) == first


@pytest.mark.clause("SWEEP-9")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"error": ', '"error": 0.5e-3, "was": '),
        ('"verdict": "PASS"', '"verdict": "NOT SUPPORTED"'),
        ('"sum": "', '"sum": "0'),
        ('"sum": "', '"summed": "'),
        ('"case": 1', '"case": 7'),
    ],
)
def test_a_line_that_was_changed_is_refused_by_its_number(
    before: str, after: str, tmp_path: Path
) -> None:
    swept(tmp_path)
    log = tmp_path / "log"
    first, second, third = log.read_text().splitlines()
    assert before in third
    third = third.replace(before, after)
    log.write_text("\n".join((first, second, third)) + "\n")
    with pytest.raises(CaseError) as refusal:
        swept(tmp_path)
    said = str(refusal.value)
    strange = "was" in after or "summed" in after
    assert said.startswith(f"{log}: line 3: {'not what' if strange else 'was changed after it'}")
    # without the line its task is done again
    log.write_text("\n".join((first, second)) + "\n")
    assert swept(tmp_path).counts == {"PASS": 2}


@pytest.mark.clause("SWEEP-9")
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("key", ["reset", "tokens", "error", "seed"])
def test_a_number_that_json_does_not_have_was_never_written(
    key: str, value: str, tmp_path: Path
) -> None:
    swept(tmp_path, "another_result", keep=0)
    log = tmp_path / "log"
    text = log.read_text()
    number = next(i for i, line in enumerate(text.splitlines(), 1) if f'"{key}": ' in line)
    log.write_text(re.sub(f'"{key}": [^,}}]+', f'"{key}": {value}', text))
    said = "(was changed after it was written|not what a sweep writes there)"
    with pytest.raises(CaseError, match=f"^{log}: (line {number}: {said}|{key}: the log is)"):
        swept(tmp_path, "another_result", keep=0)


@pytest.mark.clause("SWEEP-9")
def test_a_line_of_another_sweep_is_no_line_of_this_one(tmp_path: Path) -> None:
    swept(tmp_path, seed=5)
    log = tmp_path / "log"
    foreign = log.read_text().splitlines()[1]
    log.unlink()
    swept(tmp_path)
    log.write_text(log.read_text() + foreign + "\n")
    with pytest.raises(CaseError, match=f"^{log}: line 4: was changed after it was written"):
        swept(tmp_path)


@pytest.mark.slow
@pytest.mark.clause("SWEEP-9")
def test_a_full_disk_is_one_line_and_loses_no_line(tmp_path: Path) -> None:
    """Files of the process may have so many bytes: the plan and some lines, not all of them."""
    swept(tmp_path)
    whole = (tmp_path / "log").read_bytes()
    for room in (10, whole.index(b"\n") + 1 + 40, len(whole) - 1):
        log = tmp_path / f"log-{room}"
        code = (
            "import resource, sys; from pathlib import Path; sys.path.append(sys.argv[1]); "
            "from tests.oracle.sweep.test_log import kernel, sweep, PLAIN; "
            f"resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room})); "
            f"sweep('delta', kernel('right'), cases=2, choices=PLAIN, folder={str(tmp_path)!r}, "
            f"resume={str(log)!r})"
        )
        words = [sys.executable, "-c", code, str(ROOT)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        said = done.stderr.splitlines()[-1]
        assert said.endswith(
            f"CaseError: {log}: cannot be written: File too large; what it holds is kept, repeat "
            "the command to go on"
        )
        assert "During handling" not in done.stderr
        text = log.read_bytes()
        assert whole.startswith(text)
        assert text == b"" or text.endswith(b"\n")
        log.rename(tmp_path / "log")
        assert swept(tmp_path).counts == {"PASS": 2}
        assert (tmp_path / "log").read_bytes() == whole
