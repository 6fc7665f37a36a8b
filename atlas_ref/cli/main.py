"""The command line: the program, whose commands stand in files of their own.

Words and progress go to standard error, results to standard output; every command takes --json.
Exit codes: 4 for a fault of the tool itself, else 2 for bad input, else 1 if a compared tensor is
not PASS, else 3 if nothing could be compared, else 0.
"""

from __future__ import annotations

import contextlib
import sys
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer

import atlas_ref
from atlas_ref.cli import options, output
from atlas_ref.oracle.sources import ending

#: File of commands -> their names, in the order of the help; one is imported when it is asked for.
TOPICS = {
    "cases": ("new", "show", "conventions", "forms", "schema", "eval"),
    "front": ("try",),
    "check": ("check",),
    "identify": ("identify", "tolerance"),
    "levels": ("levels",),
    "replay": ("replay",),
    "sweep": ("sweep",),
    "certify": ("certify",),
    "vectors": ("vectors",),
    "models": ("model",),
    "train": ("train", "plot", "evaluate", "generate"),
    "probe": ("probe",),
    "trace_spec": ("trace-spec",),
}


def program(command: str = "") -> typer.Typer:
    """The program with one command, which is built alone; with all of them where it has none so."""
    app = typer.Typer(
        name="atlas-ref",
        help="Reference rules for neural memories that learn at test time, and an oracle for "
        "implementations of them.",
        invoke_without_command=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
    )
    app.callback()(start)
    known = any(command in names for names in TOPICS.values())
    for topic, names in TOPICS.items():
        if not known or command in names:
            import_module(f"atlas_ref.cli.{topic}").register(app)
    if known:
        app.registered_commands = [
            each for each in app.registered_commands if command == (each.name or _name(each))
        ]
    options.list_in_one_line(app)
    return app


def _name(command: typer.models.CommandInfo) -> str:
    assert command.callback is not None
    return command.callback.__name__


def main() -> None:
    """Run the command line: every error of a user is one line on standard error and exit code 2.

    One of ours is a line too, with exit code 4. Without arguments it prints the help.
    """
    output.complete_streams()
    with ending.in_order():
        code = _run()
    sys.exit(code if isinstance(code, int) else 0)


def _run() -> Any:
    try:
        words = sys.argv[1:] or ["--help"]
        return program(words[0])(args=words, standalone_mode=False)
    except typer.TyperException as error:
        _fail(f"{error.format_message().rstrip('.')} (see atlas-ref --help)")
    except MemoryError as error:
        _fail(f"needs more memory than there is: {error}")
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)
    except (
        atlas_ref.CaseError
    ) as error:  # looked up in this case alone, since it brings every array library
        from atlas_ref.oracle.cases.case import Unsupported

        _fail(str(error), 3 if isinstance(error, Unsupported) else 2)
    except atlas_ref.BackendError as error:
        _fail(str(error))
    except OSError as error:
        if error.filename is not None:  # a place that its reader did not expect to be refused
            _fail(f"{error.filename}: cannot be used: {error.strerror}")
        output.discard(sys.stdout)  # a help text
        _fail(f"standard output: cannot be written: {error.strerror}")
    except Exception as error:
        from atlas_ref.storage import faults

        _fail(faults.reported(error), faults.FAULT)


def _fail(message: str, code: int = 2) -> NoReturn:
    output.say(f"atlas-ref: {message}")
    if "--json" in sys.argv:
        about: dict[int, dict[str, Any]] = {
            2: {"bad_input": [message]},
            3: {"not_supported": message},
        }
        with contextlib.suppress(atlas_ref.CaseError):  # the line above is all that can be told
            output.emit_json({"exit": code, **about.get(code, {"fault": message})})
    sys.exit(code)


def start(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version, and nothing else.")
    ] = False,
) -> None:
    """Options of the program itself."""
    if version:
        typer.echo(f"atlas-ref {atlas_ref.__version__}")
        raise typer.Exit
