"""The command line in this process, as a fixture.

`cli("eval", case, "-o", out)` gives exit code, standard output and error.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jsonschema
import pytest
import typer

from atlas_ref.cli import main as command_line
from atlas_ref.cli.formats import REPLIES, schema
from atlas_ref.cli.formats.parts import Reply


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one JSON object on standard output, without the versions that lead it.

        `check_format` has seen them.
        """
        value = json.loads(self.out)
        assert isinstance(value, dict)
        return {key: each for key, each in value.items() if key not in Reply.model_fields}


#: Built once: building is most of the time of a small command.
COMMANDS = typer.main.get_command(command_line.program())


def check_format(words: list[str], text: str) -> None:
    """Check an object against the schema that `atlas-ref schema COMMAND` publishes (CASE-28).

    A reader of the schema takes keys that it does not know; here each is one that it does know, at
    any depth, so that none is left undocumented.
    """
    command = " ".join(words[:2]) if words[0] in ("vectors", "model", "probe") else words[0]
    if command not in REPLIES:
        return
    error = jsonschema.exceptions.best_match(strict(command).iter_errors(json.loads(text)))
    if error is not None:
        raise error


@functools.cache
def strict(command: str) -> Any:
    """A validator of what a command prints that knows no other key; making one takes 50 ms."""
    published = schema(command)
    for kind in published["$defs"].values():
        if "properties" in kind:
            kind["additionalProperties"] = False
    jsonschema.Draft202012Validator.check_schema(published)
    return jsonschema.Draft202012Validator(published)


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    def run(*arguments: Any) -> Ran:
        monkeypatch.setattr(command_line, "program", lambda command: COMMANDS)
        monkeypatch.setattr(sys, "argv", ["atlas-ref", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            command_line.main()
        captured = capsys.readouterr()
        code = stopped.value.code
        if "--json" in arguments and captured.out:
            check_format([str(word) for word in arguments], captured.out)
        return Ran(code if isinstance(code, int) else 0, captured.out, captured.err)

    return run
