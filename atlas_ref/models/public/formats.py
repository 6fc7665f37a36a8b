"""Files of public projects: what each project provides, and what reading them has in common.

Specified in specs/language_model.md (MODEL-12, MODEL-13).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from atlas_ref.messages import shown
from atlas_ref.models import checkpoint, language_model
from atlas_ref.models.initial import Initial
from atlas_ref.storage import files
from atlas_ref.storage.json_text import decoded

Path = str | os.PathLike[str]

#: Metadata key of the arguments of the public constructor (MODEL-12).
KEY = "config"

#: What a pickle, alone or in a zip archive, begins with.
PICKLES = (b"PK\x03\x04", *(b"\x80" + bytes([version]) for version in range(2, 6)))


class Imported(NamedTuple):
    """A model of public code.

    Attributes:
        told: what told its settings, which `Format.settings` puts in words.
        initial: for each block None, or memories that it starts from; () for none (MODEL-16).
    """

    config: language_model.Config
    params: language_model.Params
    told: Any
    initial: Initial = ()


class Setting(NamedTuple):
    """A setting of a model of public code.

    Attributes:
        value: in the types of JSON.
        by: what told it: shapes (names and shapes of the tensors), given, or default.
    """

    value: Any
    by: str


class Format(NamedTuple):
    """Files of a public project, read and written: what `model import` and `export` ask of it.

    A project provides a table of names (`public.names`), a reader of its settings, and the module
    with its `FORMAT`, which `cli.models.programs.PROGRAMS` lists. Each function raises a ValueError
    of one line.

    Attributes:
        read: (path, arguments of the constructor) -> model. It takes tensors by `names.check` and
            `names.parameters`, and arguments by `arguments_of`; it refuses those that contradict
            the tensors or that the constructor does not have, and begins with the path.
        write: (path, model) -> arguments of the constructor, as the file has them under `KEY`. It
            refuses a model that the project does not have, by the first setting that differs.
            `read` takes the file back, with every bit.
        settings: (what told them) -> every setting that has an effect, with what told it.
        source: (what told them) -> where the model came from, for its checkpoint: "from", the
            name of the project, and whatever `write` needs to write the same arguments again.
    """

    read: Callable[[Path, Mapping[str, Any]], Imported]
    write: Callable[[Path, checkpoint.Checkpoint], dict[str, Any]]
    settings: Callable[[Any], dict[str, Setting]]
    source: Callable[[Any], dict[str, Any]]


def tensors_of(path: Path) -> tuple[dict[str, str], dict[str, Any]]:
    """Metadata and tensors of a public state_dict in a safetensors file (MODEL-12).

    Raises:
        ValueError: what is wrong with the file, without its name: a pickle, with how to convert it;
            a model of ours.
    """
    try:
        metadata, tensors = files.read(path, "is a folder, a file of tensors is needed")
    except ValueError:
        if _is_pickle(path):
            raise ValueError(
                "is a pickle, as torch.save writes it, and reading one may run its code; convert it "
                "with safetensors.torch.save_file(torch.load(FILE, weights_only=True), NEW)"
            ) from None
        raise
    if checkpoint.KEY in metadata:
        raise ValueError("is a model of atlas-ref already")
    return metadata, tensors


def _is_pickle(path: Path) -> bool:
    try:
        start = files.read_bytes(path, read=lambda stream: stream.read(9))
    except ValueError:
        return False
    return start.startswith(PICKLES) and start[8:] != b"{"


def arguments_of(metadata: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of the metadata, and others that do not contradict them (MODEL-12).

    Raises:
        ValueError: metadata that are no JSON object, or an argument that differs from them.
    """
    if KEY not in metadata:
        return dict(given)
    try:
        own = decoded(metadata[KEY])
    except ValueError as error:
        raise ValueError(f"metadata key {KEY!r}: {error}") from None
    if not isinstance(own, dict):
        raise ValueError(f"metadata key {KEY!r}: an object is needed, found {shown(own)}")
    for name, value in given.items():
        if name in own and json.dumps(own[name]) != json.dumps(value):
            raise ValueError(
                f"{name}: {shown(value)}, but metadata key {KEY!r} has {shown(own[name])}"
            )
    return {**own, **given}
