"""One input: drawn from a seed and a number, run, and judged by what it leaves behind."""

from __future__ import annotations

import ast
import json
import os
import shutil
import tomllib
import xml.etree.ElementTree
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import jsonschema
import safetensors

from atlas_ref.cli.formats import REPLIES, schema
from tests.fuzz import commands
from tests.fuzz.room import Corpus, Room

#: Exit codes of CASE-26 but that of a fault.
CODES = (0, 1, 2, 3)

#: Commands that are drawn more often, since they read more kinds of files.
MORE = ("check", "check", "check", "check", "show", "show", "eval", "eval", "replay", "sweep")
MORE += ("identify", "levels", "certify", "vectors verify", "vectors verify", "vectors diff")
MORE += ("tolerance", "new", "new", "trace-spec", "model import", "model show")

ORDER = (*commands.COMMANDS, *MORE)

#: Commands that write one file, and none where they refuse.
WRITERS = ("new", "eval", "certify", "tolerance", "model import", "model export")

#: The folder, beside the room, where temporary files go.
TEMPORARY = "temporary"


class Ran(NamedTuple):
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str


class Input(NamedTuple):
    """The words of a command line, and the room in which its files lie."""

    command: str
    words: list[str]
    room: Room
    before: dict[str, bytes | None]


def drawn(seed: str, number: int, folder: Path, good: Corpus) -> Input:
    """The input of a number, whose files are written into a new folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    room = Room(Random(f"{seed}:{number}"), folder, good)
    command = ORDER[number % len(ORDER)]
    words = commands.draw(room, commands.COMMANDS[command])
    return Input(command, words, room, _files(folder))


def problems(each: Input, ran: Ran, temporary: Path) -> list[str]:
    """Everything that an input may not bring about and did."""
    return [
        *ended(each, ran),
        *printed(each, ran),
        *left(each, ran),
        *(
            f"left in the folder for temporary files: {file}"
            for file in sorted(os.listdir(temporary))
        ),
    ]


def ended(each: Input, ran: Ran) -> Iterator[str]:
    """What is wrong with the exit code and the words of a run."""
    if ran.code not in CODES:
        yield f"exit code {ran.code}"
    if "Traceback" in ran.err + ran.out:
        yield "a traceback"
    for line in ran.err.splitlines():
        if "Warning" in line:
            yield f"a warning: {line}"
        if "more memory than there is" in line:
            yield f"memory: {line}"
        if ": cannot be used: " in line:
            yield f"an error of the system that no reader of files expected: {line}"
    if ran.code == 2 and not ran.err.strip():
        yield "exit code 2 without a word"
    if ran.code == 2 and each.command != "check" and ran.err.count("\n") != 1:
        yield f"exit code 2 with {ran.err.count(chr(10))} lines on standard error"


def printed(each: Input, ran: Ran) -> Iterator[str]:
    """What a terminal would act upon, and what is not the one object of --json."""
    for stream, text in (("output", ran.out), ("error", ran.err)):
        bad = {c for c in text if not (c.isprintable() or c == "\n")}
        if bad:
            yield f"control characters on standard {stream}: {sorted(bad)!r}"
    if not commands.wants_json(each.words):
        return
    try:
        value = json.loads(ran.out, parse_constant=_refuse)
    except ValueError as error:
        yield f"--json: no JSON object on standard output: {error}"
        return
    if not isinstance(value, dict) or value.get("exit", ran.code) != ran.code:
        yield f"--json: exit {value.get('exit') if isinstance(value, dict) else value!r}"
    elif each.command in REPLIES and (problem := _unlike(each.command, value)):
        yield f"--json: not of its schema: {problem}"


def _unlike(command: str, value: Any) -> str:
    error = jsonschema.exceptions.best_match(_validator(command).iter_errors(value))
    return "" if error is None else f"{error.json_path}: {error.message[:200]}"


@lru_cache
def _validator(command: str) -> Any:
    return jsonschema.Draft202012Validator(schema(command))


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _files(folder: Path) -> dict[str, bytes | None]:
    """Bytes of every regular file by its path, None for what is none."""
    found: dict[str, bytes | None] = {}
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(place, name)
            regular = os.path.isfile(path) and not os.path.islink(path)
            found[os.path.relpath(path, folder)] = Path(path).read_bytes() if regular else None
    return found


def left(each: Input, ran: Ran) -> Iterator[str]:
    """Files that were read and have changed, that are in part, or that no option names."""
    after, written = _files(each.room.folder), each.room.written
    for name in sorted(each.before.keys() - after.keys()):
        if not _within(name, written):
            yield f"{name!r} is gone"
    for name, data in after.items():
        if name in each.before and each.before[name] == data:
            continue
        if not _within(name, written):
            yield f"{name!r} was {'changed' if name in each.before else 'left behind'}"
        elif data is not None and not complete(data, name):
            yield f"{name!r} is not complete: {data[:80]!r}"
        elif ran.code == 2 and each.command in WRITERS:
            yield f"{name!r} was written beside exit code 2"


def _within(name: str, written: set[str]) -> bool:
    parts = Path(name).parts
    places = {os.path.normpath(each) for each in written}
    return "." in places or any(
        os.path.join(*parts[:count]) in places for count in range(1, len(parts) + 1)
    )


def complete(data: bytes, name: str) -> bool:
    """Whether a file is whole, in any of the formats that a command writes."""
    text = data.decode(errors="replace")
    if ".tfevents." in name:
        return _ends_with_a_record(data)
    match Path(name).suffix:
        case ".html":
            return text.rstrip().endswith("</html>")
        case ".md" | ".jsonl" | "":
            if text.endswith("\n"):
                return True
        case ".png":
            return data.startswith(b"\x89PNG") and data.endswith(b"IEND\xaeB`\x82")
        case ".xml" | ".svg":
            return _reads(xml.etree.ElementTree.fromstring, data)
        case ".toml":
            return _reads(tomllib.loads, text)
        case ".py":
            return text.endswith("\n") and _reads(ast.parse, text)
    if name.endswith("SHA256SUMS"):
        return text.endswith("\n")
    return _reads(safetensors.deserialize, data) or _reads(json.loads, text)


def _ends_with_a_record(data: bytes) -> bool:
    """Whether a file of TensorBoard is whole records: length, its checksum, bytes, theirs."""
    at = 0
    while at + 8 <= len(data):
        at += 8 + 4 + int.from_bytes(data[at : at + 8], "little") + 4
    return at == len(data)


def _reads(read: Callable[[Any], Any], data: Any) -> bool:
    try:
        read(data)
    except (ValueError, safetensors.SafetensorError, xml.etree.ElementTree.ParseError):
        return False
    return True
