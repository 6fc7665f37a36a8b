"""The page of the command line, from the program itself."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import Any

import typer

from docs import cells, tables


def page() -> str:
    """Every command with its arguments and options."""
    from atlas_ref.cli.main import program

    parts = [
        "# Command line\n\nResults go to standard output, words and progress to standard "
        "error. Every command takes "
        "`--json`, which prints one object. "
        "Exit codes: 4 for a fault of the tool itself, else 2 for bad input, else 1 if something is not right, "
        "else 3 if nothing could be compared, else 0.\n"
    ]
    parts += [
        _command(name, command) for name, command in commands(typer.main.get_command(program()))
    ]
    return "\n".join(parts)


def commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """(name, command) of all of them, those of a group under its own: "vectors make"."""
    for name, command in sorted(group.commands.items()):
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def _command(name: str, command: Any) -> str:
    parameters = [each for each in command.params if each.name != "help"]
    arguments = [_argument(each) for each in parameters if each.param_type_name == "argument"]
    options = [each for each in parameters if each.param_type_name == "option"]
    usage = " ".join(["atlas-ref", name, *arguments, "[OPTIONS]"])
    rows = [
        (tables.code(_argument(each)), html.escape(getattr(each, "help", None) or ""), "")
        for each in parameters
        if each not in options
    ]
    rows += [
        (
            tables.code(" ".join([*each.opts, *each.secondary_opts, _metavar(each)]).strip()),
            html.escape(each.help or ""),
            _default(each),
        )
        for each in options
    ]
    text = f"## {name}\n\n{html.escape(' '.join((command.help or '').split()))}\n\n    {usage}\n\n"
    return text + cells.table(("argument, option", "meaning", "default"), rows)


def _argument(argument: Any) -> str:
    word = argument.metavar or argument.name.upper()
    return word if argument.required else f"[{word}]"


def _metavar(option: Any) -> str:
    return "" if option.is_flag else str(option.metavar or option.bare_type()).upper()


def _default(option: Any) -> str:
    if option.required:
        return "must be given"
    return (
        ""
        if option.default in (None, False, (), []) or option.is_flag
        else tables.code(str(option.default))
    )
