"""Tables within a width: borders, then none, then records, and never a cut number or name."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys

import pytest
from rich.console import Console

from atlas_ref.cli import output
from atlas_ref.cli.tables import fitted

COLUMNS = ("case", "tensor", "error", "where it is worst: got, expected")
ROWS = [
    ("titans_lmm-nl-hecate-gradient-1", "grad/step_size", "0.0263", "[0, 3, 2]: -0.0554, 1e-12"),
    ("", "out/window_gate_before", "", "crash: ValueError: operands could not be broadcast"),
]
WORDS = {word for row in [COLUMNS, *ROWS] for cell in row for word in cell.split()}


def printed(width: int) -> str:
    stream = io.StringIO()
    table = fitted(output.table("", COLUMNS, ROWS), width)
    Console(width=width, file=stream).print(table, soft_wrap=isinstance(table, str))
    return stream.getvalue()


@pytest.mark.clause("CASE-35")
@pytest.mark.parametrize("width", range(45, 140))
def test_every_number_and_name_stands_whole_within_the_width(width: int) -> None:
    text = printed(width)
    assert max(map(len, text.splitlines())) <= width
    found = set(re.sub("[┃│]", " ", text).split())
    assert found >= WORDS


def test_a_narrow_table_loses_its_borders_first_and_then_its_columns() -> None:
    assert "┃ case" in printed(120)
    assert "│" not in printed(82)
    assert "case   " in printed(82)
    assert printed(70).startswith("case" + " " * 30 + "titans_lmm-nl-hecate-gradient-1\n")
    assert printed(60).startswith("case\n  titans_lmm-nl-hecate-gradient-1\n")


def test_a_pipe_has_120_columns_and_a_terminal_its_own() -> None:
    words = [sys.executable, "-m", "atlas_ref.cli", "conventions"]
    environment = {**os.environ, "COLUMNS": "91", "TERM": "dumb"}
    piped = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    assert max(map(len, piped.stdout.splitlines())) == output.PIPE == 120
    ours, theirs = pty.openpty()
    with subprocess.Popen(words, stdout=theirs, env=environment) as process:
        os.close(theirs)
        text = b""
        while part := _read(ours):
            text += part
        os.close(ours)
    assert process.returncode == 0
    assert max(map(len, text.decode().splitlines())) <= 91


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # what a closed terminal gives on Linux
        return b""
