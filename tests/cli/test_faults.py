"""Faults of the tool: one line, exit code 4, the traceback in a file; and never the code 1."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest

import atlas_ref
from atlas_ref.oracle.judge import compare
from tests.support.casefiles import PEERS

PEER = PEERS / "fla_delta_11.safetensors"


@pytest.fixture
def broken(monkeypatch, tmp_path):
    """A comparison that raises what nobody expects."""

    def fault(*arguments, **options):
        raise KeyError("a bug\nin two lines\x1b[2J")

    monkeypatch.setattr(compare, "checked", fault)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.clause("CASE-26", "CASE-34")
def test_a_fault_is_one_line_with_code_4_and_its_traceback_is_in_a_file(broken, cli):
    ran = cli("check", PEER)
    assert (ran.code, ran.out, ran.err.count("\n")) == (4, "", 1)
    assert "\x1b" not in ran.err
    assert ran.err.startswith(
        "atlas-ref: a fault of atlas-ref itself, not of your input: KeyError: "
    )
    (file,) = broken.iterdir()
    assert f"please report it with {file}" in ran.err
    text = file.read_text()
    assert f"atlas-ref {atlas_ref.__version__}" in text
    assert "Traceback (most recent call last)" in text
    assert re.search(r'test_faults\.py", line \d+, in fault', text)
    assert str(PEER) in text


@pytest.mark.clause("CASE-28", "CASE-34")
def test_with_json_a_fault_is_an_object(broken, cli):
    ran = cli("check", PEER, "--json")
    assert ran.code == 4
    assert ran.json == {"exit": 4, "fault": ran.err.removeprefix("atlas-ref: ").rstrip("\n")}


@pytest.mark.clause("CASE-34")
def test_a_traceback_that_cannot_be_written_leaves_the_line(broken, cli, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(broken / "absent"))
    ran = cli("check", PEER)
    assert (ran.code, ran.err.count("\n")) == (4, 1)
    assert "the traceback cannot be written: No such file or directory" in ran.err
    assert list(Path(broken).iterdir()) == []
