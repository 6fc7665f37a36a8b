"""Checkpoints of a run: all that moves in one safetensors file, written whole or not at all.

Specified in specs/train.md (TRAIN-12 to TRAIN-15).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.messages import shown
from atlas_ref.models import checkpoint as models
from atlas_ref.models import language_model
from atlas_ref.models.shapes import check_tensors
from atlas_ref.optim import groups
from atlas_ref.storage import files, lifetimes
from atlas_ref.storage.json_text import decoded
from atlas_ref.train.loop import Moment, Task

#: Where a model's file came from, in its metadata, if a run wrote it.
ORIGIN = "atlas-ref train"

#: Member of a file's JSON object for what only a run has; metadata key of files of earlier versions.
MEMBER, EARLIER = "training", "atlas_ref_training"

#: Name of a checkpoint by its step.
NAME = "step-{:08d}.safetensors"
NAMED = re.compile(r"step-(\d{8,})\.safetensors")

#: What the names of tensors begin with.
PARAMS, OPTIMISER = "params/", "optimiser/"

#: Settings that a run may change between two lives: where text lies, and what is told and kept.
MAY_CHANGE = (
    *("text.paths", "text.held_out", "text.tokenizer"),
    *("evaluate_every", "evaluate_batches", "save_every", "keep", "log_every"),
)

#: The setting that a run may raise, so that it goes on behind its end.
LONGER = "steps"


class Last(NamedTuple):
    """The last whole checkpoint of a folder, as it was read.

    Attributes:
        path: of the file.
        header: its JSON object.
        tensors: all of them by name.
        broken: checkpoints after it that are not whole, with the reasons.
    """

    path: Path
    header: Mapping[str, Any]
    tensors: Mapping[str, Any]
    broken: tuple[str, ...]


class Found(NamedTuple):
    """A checkpoint of a folder, and those after it that are not whole, with the reasons."""

    moment: Moment
    path: Path
    broken: tuple[str, ...]


def save(folder: Path, own: Task, moment: Moment) -> Path:
    """Write the checkpoint of a moment, durably, and nothing in part (TRAIN-12).

    Raises:
        ValueError: names the file that cannot be written, or the parameter that is not finite.
    """
    contents, tensors = lifetimes.packed(lifetimes.Held(moment.params, context=moment.state))
    check_tensors(models.needed_by(own.config), _below(PARAMS, tensors))
    held = groups.tensors_of(moment.optimiser)
    tensors |= {OPTIMISER + name: np.asarray(each) for name, each in held.items()}
    contents[MEMBER] = {
        "step": moment.step,
        "place": moment.place,
        "text": own.data.fingerprint,
        "settings": own.settings.model_dump(mode="json"),
        "config": models.described(own.config),
    }
    path = folder / NAME.format(moment.step)
    try:
        files.write(path, lifetimes.sealed(contents, tensors), tensors, durable=True)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return path


def whole(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and tensors of a checkpoint that is neither cut short nor damaged (TRAIN-12).

    Raises:
        ValueError: what is wrong with it, without its name.
    """
    metadata, tensors = files.read(path, "is a folder, a checkpoint is needed")
    if not of_run(metadata):
        raise ValueError(f"metadata key {lifetimes.KEY!r}: no checkpoint of training")
    return header_of(metadata, tensors), tensors


def of_run(metadata: Mapping[str, str]) -> bool:
    """Whether the file with this metadata is read as a checkpoint of training."""
    return lifetimes.KEY in metadata or EARLIER in metadata


def header_of(metadata: Mapping[str, str], tensors: Mapping[str, Any]) -> dict[str, Any]:
    """What a run wrote beside tensors, with the structure of the model's state (TRAIN-12).

    Raises:
        ValueError: it is of another version, or not what was written with these tensors.
    """
    if lifetimes.KEY not in metadata:
        return _earlier(metadata[EARLIER], tensors)
    header = lifetimes.header_of(metadata, tensors)
    own = header.get(MEMBER)
    if not isinstance(own, dict):
        raise ValueError(f"{MEMBER}: an object is needed, found {shown(own)}")
    return own | {"state": header["parts"].get("context")}


def _earlier(text: str, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The same of a file of an earlier version, which had an object of its own."""
    header = decoded(text)
    if not isinstance(header, dict) or header.get("schema") != 1:
        found = header.get("schema") if isinstance(header, dict) else header
        raise ValueError(f"schema: 1 is needed, found {shown(found)}")
    if header.pop("digest", None) not in (None, lifetimes.digest(header, tensors)):
        raise ValueError("digest: not that of what is in the file, which was damaged or changed")
    return header


def state_of(header: Mapping[str, Any], tensors: Mapping[str, Any]) -> Any:
    """The model's state in a checkpoint, None where it carries none (TRAIN-12).

    Raises:
        ValueError: names the place of what is not of this version.
    """
    structure = header["state"]
    return None if structure is None else lifetimes.rebuilt(structure, tensors, "context")


def _refuse_other(theirs: Mapping[str, Any], ours: Mapping[str, Any], where: str = "") -> None:
    """Refuse settings with which another run would be learnt (TRAIN-7).

    Where text lies may change, since its fingerprint tells; a setting that did not exist then too.
    """
    for name, value in ours.items():
        place = f"{where}{name}"
        if name not in theirs or place in MAY_CHANGE:
            continue
        if isinstance(value, dict):
            _refuse_other(theirs[name], value, f"{place}.")
        elif theirs[name] != value and not (place == LONGER and theirs[name] < value):
            raise ValueError(
                f"{place}: {shown(theirs[name])}, but the run has {shown(value)}; a run goes on "
                "with the settings that it began with"
            )


def _like(found: Any, wanted: Any) -> bool:
    """Whether a place in the data has the keys and kinds of another."""
    if isinstance(wanted, Mapping):
        return (
            isinstance(found, Mapping)
            and found.keys() == wanted.keys()
            and all(_like(found[name], each) for name, each in wanted.items())
        )
    return type(found) is type(wanted) and found >= 0


def _moment(header: Mapping[str, Any], tensors: Mapping[str, Any], own: Task) -> Moment:
    if not _like(header["place"], own.data.sampler.start()):
        raise ValueError(f"place: {shown(header['place'])} is none of this text")
    params = params_of(own.config, tensors)
    return Moment(
        step=int(header["step"]),
        params=params,
        optimiser=groups.of_tensors(own.optimiser, params, _below(OPTIMISER, tensors)),
        place=header["place"],
        state=state_of(header, tensors),
    )


def params_of(config: language_model.Config, tensors: Mapping[str, Any]) -> Any:
    """Parameters of the model of a checkpoint, from its tensors (TRAIN-12).

    Raises:
        ValueError: names those that contradict the settings.
    """
    return models.params_from(config, _below(PARAMS, tensors))


def _below(start: str, tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name.removeprefix(start): each for name, each in tensors.items() if name.startswith(start)
    }


# -- folders ---------------------------------------------------------------------------------------


def steps(folder: Path) -> list[int]:
    """Steps of the checkpoints of a folder, the last one first (TRAIN-13)."""
    found = [NAMED.fullmatch(name) for name in os.listdir(folder)]
    return sorted((int(each[1]) for each in found if each), reverse=True)


def last(folder: Path, *, at_most: int | None = None) -> Last | None:
    """The last checkpoint that is whole, of any run; a file is read once (TRAIN-13, TRAIN-14).

    Args:
        at_most: the last step that is taken.

    Returns:
        None where the folder has no checkpoint.

    Raises:
        ValueError: no checkpoint is whole, or there is none up to that step.
    """
    broken: list[str] = []
    found = steps(folder)
    if at_most is not None:
        found = _up_to(folder, found, at_most)
    for number in found:
        path = folder / NAME.format(number)
        try:
            return Last(path, *_of_step(path, number), tuple(broken))
        except ValueError as error:
            broken.append(f"{path.name}: {error}")
    if broken:
        raise ValueError(f"{folder}: no checkpoint is whole: {broken[0]}")
    return None


def _of_step(path: Path, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
    header, tensors = whole(path)
    if header.get("step") != number:
        raise ValueError(f"step: {number} by its name, {shown(header.get('step'))} within")
    return header, tensors


def _up_to(folder: Path, found: list[int], step: int) -> list[int]:
    """Those of the steps that a run may go back to.

    Raises:
        ValueError: there is none.
    """
    if not found or found[-1] > step:
        first = f"the first one is of step {found[-1]}" if found else "there is none"
        raise ValueError(f"{folder}: no checkpoint up to step {step}; {first}")
    return [number for number in found if number <= step]


def newest(folder: Path, own: Task, *, at_most: int | None = None) -> Found | None:
    """The moment of the last checkpoint of this run that is whole (TRAIN-13, TRAIN-14).

    Args, Returns: as for `last`.

    Raises:
        ValueError: no such checkpoint is whole, or it is of other settings or another text.
    """
    found = last(folder, at_most=at_most)
    if found is None:
        return None
    try:
        if found.header["text"] != own.data.fingerprint:
            raise ValueError("the text is not that of the run: a file has changed, or is another")
        _refuse_other(found.header["settings"], own.settings.model_dump(mode="json"))
        moment = _moment(found.header, found.tensors, own)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{found.path}: {error} is missing or wrong") from None
    except ValueError as error:
        raise ValueError(f"{found.path}: {error}") from None
    return Found(moment, found.path, found.broken)


def keep(folder: Path, count: int, step: int) -> None:
    """Remove all checkpoints but the last ones up to a step (TRAIN-14).

    Those after it were passed over, since they are not whole: they must not count.
    """
    for number in [each for each in steps(folder) if each <= step][count:]:
        _remove(folder / NAME.format(number))


def roll_back(folder: Path, step: int) -> None:
    """Remove the checkpoints after a step, the last one first (TRAIN-14).

    Raises:
        ValueError: no checkpoint would be left.
    """
    found = steps(folder)
    left = _up_to(folder, found, step)
    for number in found[: len(found) - len(left)]:
        _remove(folder / NAME.format(number))


def clean(folder: Path) -> None:
    """Remove what a run that was killed left under a temporary name (TRAIN-12)."""
    for name in os.listdir(folder):
        if name.startswith(files.TEMPORARY):
            _remove(folder / name)


def _remove(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


__all__ = [
    "Found",
    "Last",
    "clean",
    "header_of",
    "keep",
    "last",
    "newest",
    "params_of",
    "roll_back",
    "save",
    "state_of",
    "steps",
    "whole",
]
