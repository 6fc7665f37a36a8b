"""Clones with files that are none, or no Python: one line and exit code 2."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from docs.clauses import record

SPEC = "# Toy\n\n### TOY-1 First\n\nText.\n"

Run = Callable[..., Any]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs/toy.md").write_text(SPEC)
    (tmp_path / "atlas_ref").mkdir()
    (tmp_path / "tests").mkdir()
    return tmp_path


@pytest.mark.clause("TRACE-4")
def test_a_folder_that_is_called_like_a_file_of_code_cannot_be_read(clone: Path, cli: Run) -> None:
    record.write(clone, record.Record({}))
    (clone / "atlas_ref/toy.py").mkdir()
    ran = cli("trace-spec", "--root", clone, "--json")
    assert ran.code == 2
    words = "cannot be read: not a regular file"
    assert ran.json["bad_input"] == [f"{clone}/atlas_ref/toy.py: {words}"]


@pytest.mark.clause("TRACE-10")
def test_a_title_with_a_zero_byte_is_written_out(clone: Path, cli: Run) -> None:
    spec = next((clone / "specs").glob("*.md"))
    spec.write_text(spec.read_text().replace("1 ", "1 \0", 1))
    record.write(clone, record.Record({}))
    ran = cli("trace-spec", "--root", clone)
    assert ran.code == 1
    assert "\\x00" in ran.out
    assert "\0" not in ran.out


@pytest.mark.clause("TRACE-4")
def test_a_pipe_among_the_files_is_not_waited_for(clone: Path, cli: Run) -> None:
    record.write(clone, record.Record({}))
    os.mkfifo(clone / "tests/test_toy.py")
    ran = cli("trace-spec", "--root", clone)
    words = "cannot be read: not a regular file"
    assert (ran.code, ran.err) == (2, f"atlas-ref: {clone}/tests/test_toy.py: {words}\n")


@pytest.mark.clause("TRACE-4")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, "maximum recursion depth exceeded"),
        (
            '{"schema": 1, "tests": {"a": {"clauses": [], "passed": true, "lines": '
            '{"a.py": "1-999999999999"}}}}',
            "line 999999999999, a file has at most 1000000",
        ),
    ],
    ids=["deep", "long"],
)
def test_a_record_without_an_end_is_none(text: str, said: str, clone: Path, cli: Run) -> None:
    record.write(clone, record.Record({})).write_text(text)
    ran = cli("trace-spec", "--root", clone)
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert f"not a record of a run: {said}" in ran.err


@pytest.mark.clause("TRACE-4")
@pytest.mark.parametrize("code", ["1+" * 3000 + "1", "-" * 20_000 + "1"], ids=["sum", "signs"])
def test_code_that_no_parser_takes_is_not_python(code: str, clone: Path, cli: Run) -> None:
    (clone / "atlas_ref/toy.py").write_text(code)
    record.write(clone, record.Record({}))
    ran = cli("trace-spec", "--root", clone)
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "atlas_ref/toy.py" in ran.err
    assert "not Python" in ran.err
