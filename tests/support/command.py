"""The command line in this process, as a fixture.

`cli("eval", case, "-o", out)` gives exit code, standard output and error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import typer

from atlas_ref.cli import main as command_line


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one JSON object on standard output."""
        value = json.loads(self.out)
        assert isinstance(value, dict)
        return value


#: Built once: building is most of the time of a small command.
COMMANDS = typer.main.get_command(command_line.app)


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    def run(*arguments: Any) -> Ran:
        monkeypatch.setattr(command_line, "app", COMMANDS)
        monkeypatch.setattr(sys, "argv", ["atlas-ref", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            command_line.main()
        captured = capsys.readouterr()
        code = stopped.value.code
        return Ran(code if isinstance(code, int) else 0, captured.out, captured.err)

    return run
