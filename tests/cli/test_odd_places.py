"""Places that the system refuses to look at, and places into which nothing may be written."""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atlas_ref.oracle.judge import compare
from atlas_ref.vectors.sets import manifest
from tests.support.casefiles import PEERS, some, written

PEER = PEERS / "fla_delta_11.safetensors"
LONG = "x" * 300

Run = Callable[..., Any]


@pytest.fixture
def loop(tmp_path: Path) -> Path:
    """A link that leads to itself."""
    path = tmp_path / "loop"
    path.symlink_to("loop")
    return path


@pytest.mark.clause("CASE-17", "CASE-26")
def test_a_link_that_leads_to_itself_is_bad_input_and_no_fault(cli: Run, loop: Path) -> None:
    words = "cannot be read: Too many levels of symbolic links"
    ran = cli("check", loop)
    assert (ran.code, ran.err) == (2, f"atlas-ref: {loop}: {words}\n")
    ran = cli("check", loop / "case.safetensors")
    assert (ran.code, ran.err) == (2, f"atlas-ref: {loop}/case.safetensors: {words}\n")
    ran = cli("vectors", "make", "v1", "-o", loop)
    assert (ran.code, ran.err) == (2, f"atlas-ref: {loop}: is no folder\n")


@pytest.mark.clause("CASE-17", "CASE-28")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("vectors", "verify", LONG), f"set '{LONG}' is neither a folder nor a shipped set"),
        (("vectors", "kill-matrix", LONG), f"set '{LONG}' is neither a folder nor a shipped set"),
        (("check", "--set", LONG), f"set '{LONG}' is neither a folder nor a shipped set"),
        (("trace-spec", "--root", LONG), f"--root {LONG}: holds no specs"),
    ],
)
def test_a_name_that_no_system_has_is_said_to_be_missing(
    words: tuple[str, ...], said: str, cli: Run
) -> None:
    ran = cli(*words, "--json")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert ran.err.startswith(f"atlas-ref: {said}")
    assert ran.json["exit"] == 2


@pytest.mark.clause("VEC-15")
def test_a_link_in_a_set_that_leads_to_no_possible_name_is_a_problem_of_the_set(
    cli: Run, spoilt: Path
) -> None:
    file = spoilt / "cases" / "delta-edges.safetensors"
    file.unlink()
    file.symlink_to(LONG)
    (spoilt / "large" / "stray").symlink_to(LONG)
    ran = cli("vectors", "verify", spoilt, "--json")
    assert ran.code == 1
    assert any("cases/delta-edges.safetensors" in problem for problem in ran.json["problems"])


@pytest.mark.clause("CASE-28")
def test_an_error_about_a_file_leaves_standard_output_to_the_object(
    cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: Any, **options: Any) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO), "a file")

    monkeypatch.setattr(compare, "checked", refused)
    ran = cli("check", PEER, "--json")
    assert ran.json == {"exit": 2, "bad_input": ["a file: cannot be used: Input/output error"]}


@pytest.mark.clause("CASE-19", "VEC-1")
@pytest.mark.parametrize("name", [manifest.MANIFEST, manifest.SUMS, "cases/new"])
def test_no_report_is_written_into_a_set(name: str, cli: Run, spoilt: Path) -> None:
    before = {path: path.read_bytes() for path in spoilt.rglob("*") if path.is_file()}
    report = (spoilt / name).with_suffix(".json") if name != manifest.SUMS else spoilt / "sums.json"
    for words in (
        ("vectors", "kill-matrix", spoilt, "--target", "hebbian"),
        ("check", "--set", spoilt, "--target", "hebbian"),
    ):
        ran = cli(*words, "--report", report)
        assert (ran.code, ran.err) == (
            2,
            f"atlas-ref: {report}: lies in the set {spoilt}, into which nothing else is written\n",
        )
    assert before == {path: path.read_bytes() for path in spoilt.rglob("*") if path.is_file()}


@pytest.mark.clause("SRC-1", "SRC-5")
def test_a_program_whose_result_cannot_be_looked_at_has_failed(cli: Run, tmp_path: Path) -> None:
    case = written(tmp_path / "case.safetensors", *some("delta"))
    links = shlex.quote(f'ln -s {LONG} "$2"')
    ran = cli("check", case, "--exec", f"sh -c {links} sh {{case}} {{out}}")
    assert (ran.code, ran.err) == (1, "")
    assert "FAILED" in ran.out
    assert "garbage: exit code 0, and no {out}" in " ".join(ran.out.split())
