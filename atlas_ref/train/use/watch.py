"""A folder of checkpoints, each evaluated once: lines of JSON, as seed 001's worker has them.

Specified in specs/evaluate.md (EVAL-5).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from atlas_ref.storage import files
from atlas_ref.train import checkpoint, run
from atlas_ref.train.use.measure import Unfit

#: File of results in the folder that is watched.
RESULTS = "evaluations.jsonl"

#: Seconds between two looks at whether the watch was stopped.
SLICE = 0.05

#: How each line of results begins, where it is not cut off before.
BEGIN = b'{"'

Line = dict[str, Any]


def watch(
    folder: Path,
    results: Path,
    evaluate: Callable[[Path], Mapping[str, Any]],
    *,
    told: Callable[[Line], None] = lambda line: None,
    stopped: Callable[[], bool] = lambda: False,
    once: bool = False,
    poll: float = 30.0,
) -> list[Line]:
    """Evaluate each checkpoint of a folder that the results do not have, until it is stopped (EVAL-5).

    Args:
        results: file of lines, of earlier watches too.
        evaluate: gives what a line says of a checkpoint beside its name and step; a ValueError is
            the line of a checkpoint that is wrong, an `Unfit` ends the watch.
        told: called with each new line.
        stopped: asked before each checkpoint, and while nothing is to be done.
        once: whether the watch ends where no checkpoint is left.
        poll: seconds between two looks at the folder.

    Returns:
        the new lines.

    Raises:
        ValueError: names the folder that cannot be read, or the file that cannot be written.
        Unfit: of text or settings with which no checkpoint can be evaluated.
    """
    before = _begun(results)
    known, new = {line["checkpoint"] for line in before}, list[Line]()
    while not stopped():
        for step in reversed(_steps(folder)):
            path = folder / checkpoint.NAME.format(step)
            if path.name in known or stopped():
                continue
            line = _line(path, step, evaluate)
            known.add(path.name)
            if line is not None:
                _append(results, line)
                new.append(line)
                told(line)
        if once:
            break
        _wait(poll, stopped)
    return new


def _line(path: Path, step: int, evaluate: Callable[[Path], Mapping[str, Any]]) -> Line | None:
    """What a line says; None for a checkpoint that the run has removed meanwhile."""
    about: Line = {"checkpoint": path.name, "step": step}
    try:
        return about | dict(evaluate(path))
    except Unfit:
        raise
    except ValueError as error:
        if not os.path.lexists(path):
            return None
        return about | {"error": " ".join(str(error).split())}


def _steps(folder: Path) -> list[int]:
    try:
        return checkpoint.steps(folder)
    except OSError as error:
        raise ValueError(f"{folder}: cannot be read: {error.strerror or error}") from None


def _begun(results: Path) -> list[Line]:
    """The lines of earlier watches; an end that was cut off becomes a line of its own, which is none.

    A file of anything else, as a checkpoint that was named by mistake, is not written to.
    """
    try:
        files.writable(results)
        data = files.read_bytes(results) if os.path.exists(results) else b""
        if not all(line.startswith(BEGIN[: len(line)]) for line in data.split(b"\n")):
            raise ValueError("has other lines than results, and is left as it is")
        found = run.lines(results)
        if data[-1:] not in (b"", b"\n"):
            files.write_bytes(results, data + b"\n")
    except ValueError as error:
        raise ValueError(f"{results}: {error}") from None
    return [each for each in found if isinstance(each.get("checkpoint"), str)]


def _encoded(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, allow_nan=False).encode() + b"\n"


def _append(results: Path, line: Line) -> None:
    try:
        with results.open("ab") as stream:
            stream.write(_encoded(line))
    except OSError as error:
        raise ValueError(f"{results}: cannot be written: {error.strerror or error}") from None


def _wait(seconds: float, stopped: Callable[[], bool]) -> None:
    end = time.monotonic() + max(seconds, SLICE)
    while not stopped() and (left := end - time.monotonic()) > 0:
        time.sleep(min(SLICE, left))
