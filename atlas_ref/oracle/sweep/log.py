"""The log of a sweep: one JSON object a line, only ever appended to.

A kill costs the tasks under way and no more. The first line says which sweep it is; each further
one is the outcome of one case, or of shrinking one, with its checksum. Specified in specs/sweep.md, SWEEP-9.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from atlas_ref.oracle.cases.case import CaseError, named
from atlas_ref.storage.files import read_bytes

#: Key of the first line, with the version of the log.
KEY = "atlas_ref_sweep"
VERSION = 1

#: Key of a line's checksum, and how many digits of SHA-256 it has.
SUM, DIGITS = "sum", 16


def plain(value: Any) -> Any:
    """A value as a log returns it.

    Keys are in order, tuples are lists, and numbers that JSON does not have are words.
    """
    if isinstance(value, Mapping):
        return {str(key): plain(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


class Log:
    """A log that is read, then appended to.

    Args:
        plan: what an outcome depends on, which the first line holds.
        key: of the first line.
        what: what is logged, in words.
        holds: whether a further line is one that the work writes; any task with the number of a
            case where None.

    Raises:
        CaseError: it cannot be read or written, is no log, or is that of another sweep.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        plan: Mapping[str, Any],
        *,
        key: str = KEY,
        what: str = "a sweep",
        holds: Callable[[Mapping[str, Any]], bool] | None = None,
    ) -> None:
        self.path, self._key, self._what, self._holds = Path(path), key, what, holds or _is_task
        self._plan = {key: VERSION, **plain(plan)}
        self.known = self._outcomes()
        # bad input leaves no file behind: the first line creates it
        self._stream: FileIO | None = None
        if not os.path.isdir(self.path.parent):
            raise CaseError(f"{path}: the folder {self.path.parent} does not exist")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._stream is not None:
            self._stream.close()

    def append(self, line: Mapping[str, Any]) -> None:
        """Append a line, which is in the file on return; one that does not fit leaves no part.

        Raises:
            CaseError: the log cannot be written.
        """
        data = _bytes({**line, SUM: self._sum(line)})
        try:
            if self._stream is None:
                self._stream = self.path.open("ab", buffering=0)
                data = self._before() + data
            self._write(self._stream, data)
        except OSError as error:
            raise CaseError(
                f"{self.path}: cannot be written: {error.strerror or error}; what it holds is "
                "kept, repeat the command to go on"
            ) from None

    def _write(self, stream: FileIO, data: bytes) -> None:
        length = os.fstat(stream.fileno()).st_size
        try:
            while data:
                data = data[stream.write(data) :]
        except BaseException:
            os.ftruncate(stream.fileno(), length)
            raise

    def _before(self) -> bytes:
        """What stands before the first line that is appended: the plan, or the end of a line."""
        if not self.path.stat().st_size:
            return _bytes(self._plan)
        with self.path.open("rb") as stream:
            stream.seek(-1, os.SEEK_END)
            # a partial line stays behind as one that is no JSON
            return b"" if stream.read() == b"\n" else b"\n"

    def _outcomes(self) -> dict[tuple[str, int], dict[str, Any]]:
        """(task, number) -> outcome."""
        try:
            self.path.stat()
            lines = read_bytes(self.path).split(b"\n")
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise CaseError(f"{self.path}: cannot be read: {error.strerror or error}") from None
        except ValueError as error:
            raise named(str(self.path), error) from None
        if not any(lines):
            return {}
        plan = _object(lines[0])
        if plan is None or plan.get(self._key) != VERSION:
            raise CaseError(
                f"{self.path}: not the log of {self._what}: its first line has no "
                f"{self._key!r} {VERSION}"
            )
        for key, value in self._plan.items():
            if plan.get(key) != value:
                theirs = json.dumps(plan.get(key))
                raise CaseError(
                    f"{self.path}: {key}: the log is that of {self._what} with {theirs}, this "
                    f"one has {json.dumps(value)}"
                )
        outcomes: dict[tuple[str, int], dict[str, Any]] = {}
        for number, line in enumerate(lines[1:], start=2):
            each = _object(line)
            if each is None:  # cut short, or empty
                continue
            theirs = each.pop(SUM, None)
            if not self._holds(each):
                raise CaseError(f"{self.path}: line {number}: not what {self._what} writes there")
            if theirs != self._sum(each):
                raise CaseError(
                    f"{self.path}: line {number}: was changed after it was written, its checksum "
                    "is another; remove the line, and its task is done again"
                )
            outcomes[each["task"], each["case"]] = each
        return outcomes

    def _sum(self, line: Mapping[str, Any]) -> str:
        """The checksum of a line of this log; the same line in another log has another one.

        A line with a number that JSON does not have was never written, and has none.
        """
        try:
            data = _bytes(self._plan) + _bytes(line)
        except ValueError:
            return ""
        return hashlib.sha256(data).hexdigest()[:DIGITS]


def _bytes(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, sort_keys=True, allow_nan=False).encode() + b"\n"


def _object(line: bytes) -> dict[str, Any] | None:
    """A whole line; None for one that was cut short."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _is_task(line: Mapping[str, Any]) -> bool:
    """Whether a whole line is the outcome of a task."""
    return isinstance(line.get("task"), str) and type(line.get("case")) is int
