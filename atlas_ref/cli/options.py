"""Readers of the options of the command line."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer


def list_in_one_line(app: typer.Typer) -> None:
    """Let lists of commands show first paragraphs without the line ends of their docstrings."""
    for command in app.registered_commands:
        text = command.help or (command.callback.__doc__ if command.callback else None) or ""
        command.short_help = " ".join(text.strip().partition("\n\n")[0].split())
    for group in app.registered_groups:
        if group.typer_instance is not None:
            list_in_one_line(group.typer_instance)


def convention_changes(options: list[str] | None) -> dict[str, Any] | None:
    """A convention from options such as `atlas-paper`, `read=before`, `newton_schulz.steps=3`.

    Raises:
        CaseError: two presets, or one axis twice.
    """
    if not options:
        return None
    chosen: dict[str, Any] = {}
    for option in options:
        axis, equals, text = option.partition("=")
        if not equals:
            axis, text = "preset", option
        inside = chosen
        key = axis.removeprefix("newton_schulz.")
        if key != axis:
            inside = chosen.setdefault("newton_schulz", {})
        if not isinstance(inside, dict) or key in inside:
            raise _error(f"--convention: {axis.partition('.')[0]} is given twice")
        inside[key] = _value(axis, text)
    return chosen


def _value(axis: str, text: str) -> Any:
    """Numbers, lists and objects as JSON, everything else as a word.

    The values of preset and scale are always words.
    """
    if axis in ("preset", "newton_schulz.scale"):
        return text.strip('"')
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def parameters(texts: list[str] | None) -> dict[str, Any]:
    """Parameters from options such as `chunk=4`, `memory.kind=mlp`, `fast=["W_1"]` (DEEPCASE-10).

    Raises:
        CaseError: no value, or one parameter twice.
    """
    chosen: dict[str, Any] = {}
    for option in texts or ():
        name, equals, text = option.partition("=")
        if not equals:
            raise _error(f"--parameter: NAME=VALUE is needed, as in chunk=4, found {option!r}")
        *outer, last = name.split(".")
        inside: Any = chosen
        for key in outer:
            inside = inside.setdefault(key, {}) if isinstance(inside, dict) else None
        if not isinstance(inside, dict) or last in inside:
            raise _error(f"--parameter: {name} is given twice")
        inside[last] = _value(name, text)
    return chosen


def kind(option: str, text: str | None) -> dict[str, Any]:
    """A settings object from a kind's name or from JSON.

    Raises:
        CaseError: not JSON, or a key twice.
    """
    if text is None:
        return {}
    if not text.lstrip().startswith("{"):
        return {"kind": text}
    return dict(_json(option, text))


def numbers(option: str, text: str | None) -> tuple[int, ...]:
    """Whole numbers between commas.

    Raises:
        CaseError: the text is something else.
    """
    try:
        return () if text is None else tuple(int(part) for part in text.split(","))
    except ValueError:
        raise _error(
            f"{option}: whole numbers between commas are needed, as in 1,8,64, found {text!r}"
        ) from None


def levels(option: str, text: str | None) -> tuple[str | dict[str, Any], ...]:
    """Rules between commas, or a JSON array with an object for each level.

    Raises:
        CaseError: not JSON, a key twice, or not such an array.
    """
    if text is None:
        return ()
    if not text.lstrip().startswith("["):
        return tuple(name.strip() for name in text.split(","))
    objects = _json(option, text)
    if not objects or not all(isinstance(each, dict) for each in objects):
        raise _error(f"{option}: an object for each level is needed")
    return tuple(objects)


def _json(option: str, text: str) -> Any:
    """The value of a JSON text in which no object has a key twice (CASE-2)."""
    from atlas_ref.storage.files import unique

    try:
        return json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise _error(f"{option}: not JSON: {error}") from None


def use_backend(name: str | None) -> str | None:
    """Compute on a backend from now on, also in the processes that this one starts (BACKEND-1)."""
    if name is None:
        return None
    from atlas_ref import backend

    try:
        backend.use(name)
    except backend.BackendError as error:
        raise typer.BadParameter(str(error)) from None
    os.environ[backend.VARIABLE] = name
    return name


#: The option of every command that computes; its callback sets the backend.
Backend = Annotated[
    str | None,
    typer.Option(
        "--backend",
        metavar="NAME",
        callback=use_backend,
        help="Compute on numpy or on a GPU with cupy; else ATLAS_REF_BACKEND.",
    ),
]


#: The work of a search for a convention, in the words of its progress.
SEARCH = {"conventions": "conventions compared", "departures": "departures compared"}

#: The option of every command that asks an implementation.
Without = Annotated[
    str | None,
    typer.Option(
        "--without",
        metavar="pulse,reset,rows",
        help="What your code does not have: cases with it are skipped and counted. Of pulse, "
        "reset, sequences, snapshots, rows, heads, rectangular, state, history, resumed, span, window, "
        "weights, momentum, logarithms, map, iterations, token, nested, learned, gradient.",
    ),
]


#: Panel of the options that name a source.
SOURCES = "Where results come from"

#: Options of every command that judges results: their sources (CASE-23).
Against = Annotated[
    Path | None,
    typer.Option(
        "--against",
        metavar="OUT|FOLDER",
        help="A result file, or a folder of them.",
        rich_help_panel=SOURCES,
    ),
]
Impl = Annotated[
    str | None,
    typer.Option(
        "--impl",
        metavar="PKG.MODULE:FUNCTION",
        help="f(case, inputs) -> results.",
        rich_help_panel=SOURCES,
    ),
]
Program = Annotated[
    str | None,
    typer.Option(
        "--exec",
        metavar="'./mine {case} {out}'",
        help="A program, run once per case.",
        rich_help_panel=SOURCES,
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        help="For one case, of --impl and --exec.",
        rich_help_panel=SOURCES,
    ),
]

#: Options of every command that asks an implementation about many cases (SRC-32).
Stop = Annotated[bool, typer.Option("--exitfirst", "-x", help="End at the first case that fails.")]
LastFailed = Annotated[
    bool,
    typer.Option(
        "--last-failed", help="Those that failed in the last run here alone; all where none did."
    ),
]


def source(
    stack: contextlib.ExitStack,
    against: Path | None,
    impl: str | None,
    command: str | None,
    timeout: float,
    cases: int,
) -> Any:
    """The one source of results that the options name, or none.

    Raises:
        CaseError: two of them, a time-out that is none, or one file for several cases.
    """
    from atlas_ref.oracle.sources import sources

    given = {"--against": against, "--impl": impl, "--exec": command}
    flags = [name for name, value in given.items() if value is not None]
    if len(flags) > 1:
        raise _error(f"{' and '.join(flags)}: one source of results at a time")
    if not timeout > 0:
        raise _error(f"--timeout: must be greater than 0, found {timeout:g}")
    if against is not None:
        if cases > 1 and os.path.isfile(against):
            raise _error(
                f"--against {against}: is one file for {cases} cases; a folder with a file of "
                "the same name for each is needed"
            )
        return sources.against(against)
    if impl is not None:
        return stack.enter_context(sources.Isolated(impl, timeout=timeout))
    return None if command is None else sources.program(command, timeout=timeout)


def without(text: str | None) -> tuple[str, ...]:
    """Features between commas that an implementation does not have.

    Raises:
        CaseError: one that does not exist, or none.
    """
    from atlas_ref.oracle.cases.features import declared_features

    return declared_features(
        names("--without", text, "of features are needed, as in pulse,reset") or ()
    )


def names(
    option: str, text: str | None, needed: str = "of results are needed, as in y,M,grad/k"
) -> list[str] | None:
    """Names between commas, of results unless `needed` says of what.

    Raises:
        CaseError: there is none.
    """
    if text is None:
        return None
    entries = [name.strip() for name in text.split(",") if name.strip()]
    if not entries:
        raise _error(f"{option}: names {needed}")
    return entries


def case_file(path: Path) -> Path:
    """The file of a case, or of the vector that an id such as `v1:delta-rows` names.

    Raises:
        CaseError: no vector has that id.
    """
    if ":" not in str(path):
        return path
    from atlas_ref.vectors.sets.cases import place

    return place(str(path))


def case_files(paths: Iterable[Path]) -> Iterator[Path]:
    """Case files, with those of a folder in its place.

    An empty folder stays itself, so that its reader refuses it.
    """
    for path in map(case_file, paths):
        with contextlib.suppress(OSError):
            inside = sorted(path.glob("*.safetensors"))
            yield from inside or [path]
            continue
        yield path


def set_files(names: list[str] | None, *, larger: bool, targets: list[str] | None) -> list[Path]:
    """Case files of sets of vectors.

    Args:
        larger: the larger cases too.
        targets: these alone; None for all.

    Raises:
        CaseError: no such set or target; larger cases, or targets, of none.
    """
    if not names:
        if larger or targets:
            raise _error(f"{'--large' if larger else '--target'}: belongs to --set")
        return []
    from atlas_ref.vectors.sets.cases import selected

    return selected(names, large=larger, targets=targets or ())


def refuse_same(out: Path, source: Path, *, what: str = "case") -> None:
    """Refuse to overwrite a file that is read, under any of its names (CASE-19).

    Args:
        what: the kind of the file that is read.

    Raises:
        CaseError: both are one file.
    """
    # also where a folder on the way does not exist
    same = os.path.realpath(out) == os.path.realpath(source)
    with contextlib.suppress(OSError):  # one of them does not exist, or opening it will say more
        same = same or out.samefile(source)
    if same:
        raise _error(f"{out}: is the {what} itself, which is not overwritten")


def refuse_inside(out: Path, folder: Path) -> None:
    """Refuse to write into the folder of a set, whose files are all listed (VEC-1).

    Raises:
        CaseError: it lies there.
    """
    if Path(os.path.realpath(out)).is_relative_to(os.path.realpath(folder)):
        raise _error(f"{out}: lies in the set {folder}, into which nothing else is written")


def rules(incomplete: str) -> list[str]:
    """Names of rules, for the completion of a shell."""
    from atlas_ref.oracle.registry import SUBJECTS

    return [name for name in SUBJECTS if name.startswith(incomplete)]


def presets(incomplete: str) -> list[str]:
    """Names of presets, for the completion of a shell."""
    from atlas_ref.conventions import PRESETS

    return [name for name in PRESETS if name.startswith(incomplete)]


def convention(text: str) -> Any:
    """The option --convention, with a text that says whose it is."""
    return typer.Option(
        "--convention", metavar="PRESET|AXIS=VALUE", autocompletion=settings, help=text
    )


def settings(incomplete: str) -> list[str]:
    """Presets, axes, and an axis with each of its values, for the completion of a shell."""
    from atlas_ref.conventions import AXES
    from atlas_ref.oracle.schema.schema import axis_values

    axis, equals, _ = incomplete.partition("=")
    if equals and axis in AXES:
        words = [f"{axis}={value}" for value in axis_values(axis) if " " not in value]
    else:
        words = [*presets(""), *(f"{axis}=" for axis in AXES)]
    return [word for word in words if word.startswith(incomplete)]


def _error(message: str) -> Exception:
    from atlas_ref.oracle.cases.case import CaseError

    return CaseError(message)
