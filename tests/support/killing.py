"""Runs that are killed: `python -m tests.support.killing FOLDER SEED KILLS`.

A run has many lives, each a process of its own that is forked from here, so that what is imported
is imported once. A life ends by SIGKILL, at a place that is planted or at a random moment, or with
the run. Prints a JSON object.

Planted places are before and after each rename, removal and flush to the disk, in the midst of each
write, behind each gradient and each update: life n of them ends at its n-th place, so that each
kind of place comes, and the run goes on.
"""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from atlas_ref.models import checkpoint as models
from atlas_ref.optim import groups
from atlas_ref.train import checkpoint, loop, run
from atlas_ref.train.settings import Settings


def live(folder: Path) -> None:
    """One life of the run of a folder, from its start or from where it was killed."""
    begun = (folder / run.SETTINGS).exists()
    asked = run.settings_of(folder) if begun else asked_of(folder)
    own, moment = run.prepare(folder, asked, resume=begun)
    run.run(folder, own, moment)


def asked_of(folder: Path) -> Settings:
    """Settings of a run that has none in its folder yet."""
    return Settings.model_validate_json(folder.with_suffix(".json").read_text())


class Planted:
    """Places of a life that are counted; the process is killed at one of them."""

    def __init__(self, last: int) -> None:
        self.left = last

    def pass_by(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, owner: Any, name: str) -> None:
        """Places before and after each call of a function."""
        true: Callable[..., Any] = getattr(owner, name)

        def watched(*args: Any, **how: Any) -> Any:
            self.pass_by()
            found = true(*args, **how)
            self.pass_by()
            return found

        setattr(owner, name, watched)

    def within_writes(self) -> None:
        """A place when half of what is written has left the process."""
        fdopen, append = os.fdopen, run._Log._append

        def opened(handle: int, *args: Any, **how: Any) -> Any:
            stream = fdopen(handle, *args, **how)
            return _Halved(stream, self.pass_by) if "wb" in args else stream

        def appended(log: Any, data: bytes) -> None:
            for part in (data[: len(data) // 2], data[len(data) // 2 :]):
                append(log, part)
                self.pass_by()

        os.fdopen = opened  # type: ignore[assignment]
        run._Log._append = appended  # type: ignore[method-assign,assignment]


class _Halved:
    def __init__(self, stream: Any, between: Callable[[], None]) -> None:
        self.stream, self.between = stream, between

    def __enter__(self) -> _Halved:
        return self

    def __exit__(self, *how: Any) -> None:
        self.stream.close()

    def write(self, data: bytes) -> None:
        for part in (data[: len(data) // 2], data[len(data) // 2 :]):
            self.stream.write(part)
            self.stream.flush()
            self.between()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def plant(last: int) -> None:
    """End this process at so manieth a place."""
    own = Planted(last)
    for owner, name in (
        (os, "replace"),
        (os, "fsync"),
        (os, "unlink"),
        (loop, "gradient"),
        (loop, "evaluate"),
        (groups, "update"),
        (checkpoint, "keep"),
        (models, "save"),
    ):
        own.around(owner, name)
    own.within_writes()


def ended(folder: Path, before: Callable[[], None], meanwhile: Callable[[int], None]) -> bool:
    """Whether a life ended by SIGKILL; any other end but that of the run is an error."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            before()
            live(folder)
            code = 0
        finally:
            os._exit(code)
    meanwhile(child)
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert killed or status == 0, f"a life ended with status {status}"
    return killed


def at_places(folder: Path) -> int:
    """Kill a run at planted places until it ends; the number of kills."""
    kills = 0
    while ended(folder, functools.partial(plant, kills + 1), lambda child: None):
        kills += 1
    return kills


def kill(child: int, seconds: float) -> None:
    """Kill a process some time from now."""
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)


def at_random(folder: Path, kills: int, seed: int) -> int:
    """Kill a run at random moments, then let it end; the number of kills that hit it.

    A run that ended before goes back to its oldest checkpoint, and is killed sooner from then on.
    """
    draw, hits, longest = random.Random(seed), 0, 0.2
    while hits < kills:
        before = checkpoint.steps(folder)[:1] if folder.exists() else []
        moment = draw.random() * longest
        if not ended(folder, lambda: None, functools.partial(kill, seconds=moment)):
            checkpoint.roll_back(folder, checkpoint.steps(folder)[-1])
            longest *= 0.5
            continue
        hits += 1
        longest *= 0.8 if checkpoint.steps(folder)[:1] > before else 1.25
    assert not ended(folder, lambda: None, lambda child: None)
    return hits


def main(place: str, seed: str, kills: str) -> None:
    folder = Path(place)
    folder.mkdir(exist_ok=True)
    found = at_random(folder, int(kills), int(seed)) if int(kills) else at_places(folder)
    print(json.dumps({"kills": found}))


if __name__ == "__main__":
    main(*sys.argv[1:])
