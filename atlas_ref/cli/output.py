"""Output of the command line: results to standard output, words to standard error."""

from __future__ import annotations

import gc
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import atlas_ref

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from atlas_ref.messages import Progress
    from atlas_ref.oracle.cases.header import Header
    from atlas_ref.oracle.judge.verdicts import Comparison

T = TypeVar("T")


@contextmanager
def importing() -> Iterator[None]:
    """Import without collections of garbage, and leave what was imported out of later ones.

    Modules stay until the end, and a collection looks at all that they hold: a tenth of the time of
    a small command.
    """
    gc.disable()
    try:
        yield
    finally:
        if gc.get_freeze_count() == 0:  # once: what later commands of a process leave is garbage
            gc.freeze()
        gc.enable()


#: Columns of a table in a pipe, which has no width of its own.
PIPE = 120

COLOURS = {
    "PASS": "green",
    "MARGINAL": "yellow",
    "WRONG": "bold red",
    "MISSING": "red",
    "UNDECIDABLE": "yellow",
    "FAILED": "bold red",
}
COLOURS |= {"XFAIL": "yellow", "NOT SUPPORTED": "dim"}


def say(message: str) -> None:
    """Write one line to standard error; where that is full, there is nobody to tell."""
    try:
        print(one_line(message), file=sys.stderr)
    except OSError:
        discard(sys.stderr)


def one_line(text: str) -> str:
    """The text without line breaks, characters that a terminal would act upon written out."""
    return printable(" ".join(text.split()))


def printable(text: str) -> str:
    """The text with every character that a terminal would act upon written out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def readable(text: str) -> str:
    """`printable` line by line, with a tab as four blanks."""
    return "\n".join(printable(line.replace("\t", " " * 4)) for line in text.split("\n"))


def emit(text: str) -> None:
    """Write to standard output; a pipe that its reader has closed, as `head` does, is no error."""
    from atlas_ref.oracle.cases.case import CaseError

    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        discard(sys.stdout)
    except OSError as error:
        discard(sys.stdout)
        raise CaseError(f"standard output: cannot be written: {error.strerror}") from None


def emit_json(value: Mapping[str, Any]) -> None:
    """Write one JSON object, led by the versions of the tool and of the object (CASE-28)."""
    from atlas_ref.messages import FORMAT

    emit_document({"atlas_ref": atlas_ref.__version__, "format": FORMAT, **value})


def emit_document(value: Mapping[str, Any]) -> None:
    """Write one JSON object as it is.

    Numbers that JSON does not have become the words nan, inf and -inf.
    """
    emit(json.dumps(_plain(value), indent=2, allow_nan=False) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def emit_rich(*parts: RenderableType) -> None:
    """Write lines, and tables that fit the terminal, or 120 columns of a pipe.

    Lines may hold names of a stranger's file, and the cells of `table` are plain words already.
    """
    from rich.console import Console
    from rich.table import Table

    from atlas_ref.cli.tables import fitted

    console = Console() if sys.stdout.isatty() else Console(width=PIPE)
    with console.capture() as capture:
        for part in parts:
            if isinstance(part, str):
                text = "\n".join(map(printable, part.split("\n")))
                console.print(text, markup=False, highlight=False, soft_wrap=True)
            else:
                shown = fitted(part, console.width) if isinstance(part, Table) else part
                console.print(
                    shown, markup=False, highlight=False, soft_wrap=isinstance(shown, str)
                )
    emit(capture.get())


@contextmanager
def progress(words: Mapping[str, str]) -> Iterator[Progress]:
    """A bar for each kind of work under way on standard error, where that is a terminal.

    The function takes the kind, the count done and the total. A kind without words is its own.
    """
    if not sys.stderr.isatty():
        yield lambda kind, done, of: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def show(kind: str, done: int, of: int) -> None:
            if kind not in tasks:
                tasks[kind] = bar.add_task(words.get(kind, kind), total=of)
            bar.update(tasks[kind], completed=done, total=of, visible=done < of)

        yield show


def counted(items: Sequence[T], kind: str, progress: Progress) -> Iterator[T]:
    """The items one by one, with their progress where there are several."""
    for number, item in enumerate(items):
        if len(items) > 1:
            progress(kind, number, len(items))
        yield item


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """A table of plain words: brackets in a tensor's name are no markup."""
    from rich.table import Table
    from rich.text import Text

    grid = Table(*columns, title=one_line(title) or None, title_justify="left")
    for row in rows:
        grid.add_row(
            *[cell if isinstance(cell, Text) else Text(one_line(str(cell))) for cell in row]
        )
    return grid


def number(value: float | str | None) -> str:
    """A number in three digits, or nothing for None; a word stays as it is."""
    return "" if value is None else value if isinstance(value, str) else f"{value:.3g}"


def words(value: Any) -> str:
    """A setting in words."""
    if isinstance(value, Mapping):
        return ", ".join(
            f"{key} ({words(each)})" if isinstance(each, Mapping) else f"{key} {words(each)}"
            for key, each in value.items()
        )
    return f"{value:g}" if isinstance(value, float) else str(value)


def described(
    name: str,
    header: Header,
    tensors: Mapping[str, Any],
    convention: Mapping[str, Any],
    void: Mapping[str, str],
) -> dict[str, Any]:
    """A file as JSON can hold it: header, convention in force, settings without effect, tensors."""
    summaries = {
        key: {"dtype": value.dtype.name, "shape": list(value.shape), **_range(value)}
        for key, value in tensors.items()
    }
    return {
        "case": name,
        "header": header.plain(),
        "convention": dict(convention),
        "void": dict(void),
        "tensors": summaries,
    }


def _range(value: Any) -> dict[str, Any]:
    import numpy as np

    if value.dtype.kind == "c" or not value.size:
        return {"least": None, "greatest": None, "finite": bool(np.isfinite(value).all())}
    numbers = value.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    least, greatest = (float(finite.min()), float(finite.max())) if finite.size else (None, None)
    return {"least": least, "greatest": greatest, "finite": finite.size == numbers.size}


def emit_description(description: Mapping[str, Any]) -> None:
    """Write the result of `described` for a reader."""
    header = description["header"]
    what = (
        f"layer {header['layer']}"
        if "layer" in header
        else f"level {header.get('level', 'projected')}"
    )
    head = f"{one_line(description['case'])}  rule {header['rule']}, {what}"
    lines = [head, json.dumps(header, indent=2)]
    if description["convention"]:
        lines.append(f"convention in force: {words(description['convention'])}")
    lines += [f"void: {axis}: {why}" for axis, why in description["void"].items()]
    rows = [
        (
            name,
            t["dtype"],
            tuple(t["shape"]),
            number(t["least"]),
            number(t["greatest"]),
            "yes" if t["finite"] else "no",
        )
        for name, t in description["tensors"].items()
    ]
    emit_rich(*lines, table("", ("tensor", "dtype", "shape", "least", "greatest", "finite"), rows))


def emit_comparisons(
    rows: Sequence[Comparison],
    messages: Sequence[str] = (),
    *,
    shown: Sequence[Comparison],
    note: str = "",
) -> None:
    """Write a verdict per line, messages about failing cases, and the count of each verdict.

    Args:
        rows: all verdicts, which are counted. shown: those that have a line.
        note: what to say behind the counts.
    """
    from rich.text import Text

    lines, previous = [], ""
    for row in shown:
        detail = row.why or (
            ""
            if row.verdict == "PASS" or row.place is None
            else f"{list(row.place)}: {row.got!r}, {row.want!r}"
        )
        detail += f" (expected to fail: {row.xfail})" if row.xfail else ""
        word = _word(row)
        case = "" if row.case == previous else Path(row.case).stem
        lines.append(
            (
                case,
                row.tensor,
                Text(word, style=COLOURS[word]),
                number(row.error),
                number(row.tolerance),
                detail,
            )
        )
        previous = row.case
    columns = (
        "case",
        "tensor",
        "verdict",
        "error",
        "tolerance",
        "where it is worst: got, expected",
    )
    counts = {word: sum(_word(row) == word for row in rows) for word in COLOURS}
    notes = [line for message in messages for line in (*map(printable, message.splitlines()), "")]
    hidden = len(rows) - len(shown)
    emit_rich(
        *([table("", columns, lines)] if lines else []),
        *notes,
        *([f"{hidden} of {len(rows)} rows, which do not fail, are shown by -v"] if hidden else []),
        ", ".join(f"{count} {word}" for word, count in counts.items() if count)
        + (f" ({note})" if note else ""),
    )


def skipped(counts: Mapping[str, int]) -> str:
    """The line about cases that were left out, by feature."""
    words = ", ".join(f"{count} with {name}" for name, count in counts.items())
    return f"skipped by --without: {words}"


def _word(row: Comparison) -> str:
    return "XFAIL" if row.xfail else row.verdict


# -- the standard streams, which may be closed or full --------------------------------------------


def complete_streams() -> None:
    """Open the standard streams that are closed, so that no file of ours takes their place.

    Nothing can be written to a standard output that was closed, and nothing is lost in silence;
    what goes to a standard error that was closed is lost, since there is no place to say so.
    """
    for number, name, flags in (
        (0, "stdin", os.O_RDONLY),
        (1, "stdout", os.O_RDONLY),
        (2, "stderr", os.O_WRONLY),
    ):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, flags)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def discard(stream: TextIO) -> None:
    """Send the rest of a stream nowhere, so that the interpreter's last flush works."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
