"""Parts of messages: problems of a validation, names that were meant, what to install, progress."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import ValidationError

#: Version of the JSON objects that commands write (CASE-28).
FORMAT = 1

#: A function called with the kind of work, how much of it is done, and how much there is.
Progress = Callable[[str, int, int], None]

#: Where the package lies: a clone has its project file there, an installation has not.
ROOT = Path(__file__).parents[1]


def unwatched(kind: str, done: int, of: int) -> None:
    """Ignore progress."""


def first_problem(error: ValidationError) -> str:
    """The main problem of a validation in one line: place, value, and the values that are legal."""
    problems = error.errors(include_url=False)
    problem = max(problems, key=lambda each: (each["type"] == "extra_forbidden", len(each["loc"])))
    where = ".".join(
        str(part)
        for part in problem["loc"]
        if not (isinstance(part, str) and not part.isidentifier())
    )
    where = f"{where}: " if where else ""
    if problem["type"] == "extra_forbidden":
        return f"{where}unknown key"
    if problem["type"] == "missing":
        return f"{where}missing"
    if problem["type"] == "union_tag_not_found":
        return f"{where}kind: missing"
    text = _plain_words(problem)
    complete = isinstance(problem["input"], dict | list | tuple) or "found" in text
    found = "" if complete else f", found {shown(problem['input'])}"
    return f"{where}{text}{found}{_meant_value(problem)}"


@contextlib.contextmanager
def in_one_line(before: str = "") -> Iterator[None]:
    """Turn a validation that fails into a `ValueError` that tells its main problem.

    Args:
        before: what stands before each message, such as "probe recall: ".
    """
    try:
        yield
    except ValidationError as error:
        raise ValueError(f"{before}{first_problem(error)}") from None
    except ValueError as error:
        if not before:
            raise
        raise ValueError(f"{before}{error}") from None


def shown(value: Any) -> str:
    """A value in a message: null, true and false as in JSON, and at most 60 characters."""
    text = json.dumps(value) if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _plain_words(problem: Any) -> str:
    """The message of pydantic, in words that name no library."""
    context = problem.get("ctx", {})
    if problem["type"] == "union_tag_invalid":
        return f"kind {context['tag']!r} does not exist; kinds are {context['expected_tags']}"
    if problem["type"] in ("greater_than_equal", "less_than_equal"):
        word, bound = ("least", context["ge"]) if "ge" in context else ("most", context["le"])
        return f"must be at {word} {bound if isinstance(bound, int) else format(bound, 'g')}"
    if problem["type"] == "string_pattern_mismatch":
        return f"must match {context['pattern']}"
    if problem["type"] == "too_short":
        return f"must have at least {context['min_length']} entry, found {context['actual_length']}"
    if problem["type"] == "too_long":
        return f"must have at most {context['max_length']} entries"
    text = str(problem["msg"]).removeprefix("Assertion failed, ")
    if problem["type"] == "value_error":  # our own words, which may begin with the name of a tensor
        return text.removeprefix("Value error, ")
    text = (
        text.replace("Input should be a valid integer", "must be an integer")
        .replace("Input should be", "must be")
        .replace("a valid array", "a list")
        .replace("a valid ", "a ")
    )
    return text[0].lower() + text[1:]


def _meant_value(problem: Any) -> str:
    """Suggestion for a word that is not one of a field's."""
    if problem["type"] != "literal_error" or not isinstance(problem["input"], str):
        return ""
    return meant(problem["input"], re.findall(r"'([^']*)'", problem["ctx"]["expected"]))


def meant(word: str, names: Iterable[str]) -> str:
    """The end of a message about a name that does not exist: those that resemble it.

    Source: CASE-35.
    """
    near = get_close_matches(word, list(names))
    return f"; did you mean {' or '.join(near)}?" if near else ""


def no_such(word: str, name: object, known: Iterable[str]) -> str:
    """The message about a name that does not exist: those that do, and those that resemble it.

    Args:
        word: what the name is of, such as preset.
    """
    names = list(known)
    plural = "axes" if word == "axis" else f"{word}s"
    listed = f"{plural} are {', '.join(names)}{meant(str(name), names)}"
    return f"{word} {name!r} does not exist; {listed}"


def install(extra: str, *, root: Path = ROOT) -> str:
    """The command that adds an extra to this Python, from where the package came.

    Args:
        root: of the package; a folder with a project file is a clone.
    """
    clone = root if (root / "pyproject.toml").is_file() else None
    source = f"atlas-ref[{extra}]"
    if clone is None and (place := _came_from()) is not None:
        source += f" @ {place}"
    what = shlex.quote(source) if clone is None else f"-e {shlex.quote(f'{clone}[{extra}]')}"
    return f"{shlex.quote(sys.executable)} -m pip install {what}"


def _came_from() -> str | None:
    """Address that the installed package came from, where it was no index (PEP 610)."""
    try:
        text = metadata.distribution("atlas-ref").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return None
    origin = json.loads(text) if text else {}
    if "vcs_info" in origin:
        return f"{origin['vcs_info']['vcs']}+{origin['url']}@{origin['vcs_info']['commit_id']}"
    return origin.get("url")
