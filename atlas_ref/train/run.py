"""A run in a folder: steps, evaluations, a log of JSON lines, checkpoints, and going on after a stop.

Specified in specs/train.md (TRAIN-7, TRAIN-10 to TRAIN-15).
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from atlas_ref.messages import first_problem
from atlas_ref.models import checkpoint as models
from atlas_ref.storage import files
from atlas_ref.storage.json_text import decoded
from atlas_ref.train import checkpoint, data, gates, loop, stages
from atlas_ref.train.loop import Diverged, Elsewhere, Lost, Moment, Task
from atlas_ref.train.settings import Settings
from atlas_ref.train.vocabulary import NAME

#: Files of the folder of a run.
SETTINGS, LOG, MODEL = "run.json", "log.jsonl", "model.safetensors"

#: Steps of which the speed is the mean.
RECENT = 20

Line = Mapping[str, Any]

#: What takes the lines of a log.
Told = Callable[[Line], None]


class Watcher(NamedTuple):
    """What is told of a run while it goes on.

    Attributes:
        told: called with each line of the log, whether it is written or not.
        stopped: asked after each step; True ends the run with a checkpoint.
    """

    told: Told = lambda line: None
    stopped: Callable[[], bool] = lambda: False


class Ended(NamedTuple):
    """The end of a run.

    Attributes:
        step: the last one.
        loss: of the last step; None where there was none.
        held_out: of the last evaluation.
        path: the last checkpoint.
        finished: False where it was stopped.
    """

    step: int
    loss: float | None
    held_out: loop.Loss | None
    path: Path
    finished: bool


def prepare(
    folder: Path, settings: Settings, *, resume: bool = False, at_most: int | None = None
) -> tuple[Task, Moment]:
    """Read the text, make the model, and find the moment to begin with (TRAIN-7, TRAIN-13).

    Args:
        resume: whether the folder has a run that goes on.
        at_most: the last step that it goes on from; checkpoints after it stay, until
            `checkpoint.roll_back` removes them.

    Raises:
        ValueError: names the file or the setting that is wrong, in one line.
    """
    if not resume:
        _refuse_run(folder)
    own = loop.task(settings, data.load(settings))
    _make(folder)
    for name in (LOG, MODEL):
        with _named(folder / name):
            files.writable(folder / name)
    checkpoint.clean(folder)
    if resume:
        found = checkpoint.newest(folder, own, at_most=at_most)
        if found is not None:
            if settings.steps != settings_of(folder).steps:  # it goes on behind its end
                _put_settings(folder, settings)
            return own, found.moment
    moment = stages.begun(own, loop.start(own))
    if settings.text.tokenizer is not None:
        _put(folder / NAME, files.read_bytes(settings.text.tokenizer))
    _put_settings(folder, settings)
    checkpoint.save(folder, own, moment)
    return own, moment


def _put_settings(folder: Path, settings: Settings) -> None:
    text = json.dumps(settings.model_dump(mode="json"), indent=2) + "\n"
    _put(folder / SETTINGS, text.encode())


def _refuse_run(folder: Path) -> None:
    """Refuse a folder with settings of a run, or with checkpoints whose settings are gone."""
    if os.path.lexists(folder / SETTINGS):
        raise ValueError(f"{folder}: has a run already; --resume goes on with it")
    if os.path.isdir(folder) and checkpoint.steps(folder):
        raise ValueError(f"{folder}: has checkpoints of a run, but no {SETTINGS}")


def _put(path: Path, data: bytes) -> None:
    with _named(path):
        files.write_bytes(path, data, durable=True)


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Put the name of a file before an error."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{folder}: cannot be made: {error.strerror or error}") from None


def settings_of(folder: Path) -> Settings:
    """The settings of the run of a folder (TRAIN-7).

    Raises:
        ValueError: no run is there, or its file is not whole.
    """
    path = folder / SETTINGS
    try:
        value = decoded(files.read_bytes(path))
        return Settings.model_validate_json(json.dumps(value))
    except ValidationError as error:
        raise ValueError(f"{path}: {first_problem(error)}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def run(
    folder: Path,
    own: Task,
    moment: Moment,
    watcher: Watcher | None = None,
    *,
    elsewhere: Elsewhere | None = None,
) -> Ended:
    """Train from a moment to the last step (TRAIN-10 to TRAIN-15).

    Args:
        elsewhere: what computes the batches of a step; None for this process (TRAIN-20).

    Raises:
        Diverged: the loss is not finite; the folder has the last checkpoint, and the message its
            name.
        Lost: no worker is left; the folder has a checkpoint of the last step, and the message its
            name.
        ValueError: names the file that cannot be written; the last checkpoint is whole.
    """
    watcher, s = watcher or Watcher(), own.settings
    log = _Log(folder / LOG, moment.step, watcher.told)
    last = folder / checkpoint.NAME.format(moment.step)
    saved, loss, held, clock = moment.step, None, None, _Clock()
    finished = True
    # a kill may have come between the last save and this
    checkpoint.keep(folder, s.keep, moment.step)
    while moment.step < s.steps:
        with _told_last(last), _saved_last(folder, own, moment, last):
            moment, told = loop.step(own, moment, elsewhere)
        loss, number = told.loss, moment.step
        line = _line(own, number, told, clock.speed(told.tokens))
        log.write(line, kept=number % s.log_every == 0 or number == s.steps)
        if s.evaluate_every and (number % s.evaluate_every == 0 or number == s.steps):
            with _told_last(last):
                held = _evaluated(own, moment, log)
            clock.skip()
        stopped = watcher.stopped()
        if number % s.save_every == 0 or number == s.steps or stopped:
            last, saved = checkpoint.save(folder, own, moment), number
            checkpoint.keep(folder, s.keep, number)
            clock.skip()
        if stopped and number < s.steps:
            finished = False
            break
    assert saved == moment.step
    if finished:
        initial = loop.memories(own.config, moment.state)
        models.save(
            folder / MODEL,
            own.config,
            moment.params,
            source=_source(moment.step, own),
            initial=initial,
        )
    return Ended(moment.step, loss, held, last, finished)


@contextlib.contextmanager
def _told_last(path: Path) -> Iterator[None]:
    """Say in a message about what is not finite which checkpoint is left."""
    try:
        yield
    except Diverged as error:
        raise Diverged(f"{error}; the last checkpoint is {path}") from None


@contextlib.contextmanager
def _saved_last(folder: Path, own: Task, moment: Moment, last: Path) -> Iterator[None]:
    """Leave a checkpoint of the moment before a step that no worker is left for (TRAIN-21)."""
    try:
        yield
    except Lost as error:
        if last.name != checkpoint.NAME.format(moment.step):
            last = checkpoint.save(folder, own, moment)
            checkpoint.keep(folder, own.settings.keep, moment.step)
        raise Lost(f"{error}; the last checkpoint is {last}, --resume goes on") from None


def _source(step: int, own: Task) -> dict[str, Any]:
    settings = own.settings.model_dump(mode="json")
    text = own.data.fingerprint
    return {"from": checkpoint.ORIGIN, "step": step, "settings": settings, "text": text}


def _line(own: Task, step: int, told: loop.Measured, speed: float) -> dict[str, Any]:
    return {
        "step": step,
        "tokens": step * told.tokens,
        "loss": told.loss,
        "bits_per_byte": loop.bits(told.loss, own.data.bytes_per_token),
        "norm": told.norm,
        "rate": told.rate,
        "tokens_per_second": round(speed, 1),
    }


def _evaluated(own: Task, moment: Moment, log: _Log) -> loop.Loss | None:
    found = loop.evaluate(own, moment)
    if found is not None:
        line = {"step": moment.step, "held_out": found._asdict()}
        spread = gates.deviation(own, moment)
        log.write(line if spread is None else line | {"gate_std": spread})
    return found


class _Clock:
    """Tokens a second over the last steps; what is no step does not count."""

    def __init__(self) -> None:
        self.last, self.steps = time.perf_counter(), [(0, 0.0)]

    def speed(self, tokens: int) -> float:
        now = time.perf_counter()
        self.steps = [*self.steps[-RECENT + 1 :], (tokens, now - self.last)]
        self.last = now
        return sum(each[0] for each in self.steps) / sum(each[1] for each in self.steps)

    def skip(self) -> None:
        self.last = time.perf_counter()


class _Log:
    """Lines of JSON, without those after the step from which a run goes on (TRAIN-15)."""

    def __init__(self, path: Path, step: int, told: Told) -> None:
        self.path, self.told = path, told
        kept = [line for line in lines(path) if int(line["step"]) <= step]
        self._try(lambda: files.write_bytes(path, b"".join(map(_encoded, kept))))

    def write(self, line: Line, *, kept: bool = True) -> None:
        self.told(line)
        if kept:
            self._try(lambda: self._append(_encoded(line)))

    def _append(self, data: bytes) -> None:
        with self.path.open("ab") as stream:
            stream.write(data)

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except OSError as error:
            raise ValueError(f"{self.path}: cannot be written: {error.strerror}") from None
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from None


def _encoded(line: Line) -> bytes:
    return json.dumps(line).encode() + b"\n"


def is_finished(folder: Path) -> bool:
    """Whether a run has come to its last step, and has left its model (TRAIN-17)."""
    if not os.path.exists(folder / MODEL):
        return False
    last = max((int(line["step"]) for line in lines(folder / LOG)), default=0)
    return last >= settings_of(folder).steps


def lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a log that are whole; none where there is no log (TRAIN-15)."""
    if not os.path.exists(path):
        return []
    found = []
    for text in files.read_bytes(path).split(b"\n")[:-1]:
        try:
            line = decoded(text)
        except ValueError:
            continue  # the end of a run that was killed
        if isinstance(line, dict) and isinstance(line.get("step"), int):
            found.append(line)
    return found
