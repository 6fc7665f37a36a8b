"""Checkpoints: settings and parameters of a language model in one safetensors file.

Tensors are called by the path of each parameter, blocks.0.memory.levels.0.projection.W_Q, and the
settings are JSON in the metadata. Specified in specs/language_model.md (MODEL-11).
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from pydantic import TypeAdapter, ValidationError

from atlas_ref import backend
from atlas_ref.blocks import BLOCKS
from atlas_ref.forms import tnt
from atlas_ref.layers import memory, memory_tnt, shared_memory
from atlas_ref.levels import block
from atlas_ref.levels.level import Level
from atlas_ref.messages import first_problem, meant, shown
from atlas_ref.models import initial as memories
from atlas_ref.models import language_model
from atlas_ref.models.shapes import Needed, check_tensors, params_of
from atlas_ref.rules import RULES
from atlas_ref.storage import files
from atlas_ref.storage.json_text import decoded
from atlas_ref.storage.names import name_of
from atlas_ref.types import Frozen, read_only
from tape import plain
from tape.nested import flatten

#: Kinds of parts that a key of settings tells: a memory without it has its own projections, and
#: levels without it are a block of them.
SHARED, TNT = "shared", "tnt"

#: Metadata key of the JSON object, its version, and the model that it describes (MODEL-11).
KEY, SCHEMA, MODEL = "atlas_ref_model", 1, "language_model"


class Checkpoint(NamedTuple):
    """A language model, and where it came from.

    Attributes:
        source: of an imported model; empty for one of ours.
        initial: for each block None, or memories that it starts from; () for none (MODEL-16).
    """

    config: language_model.Config
    params: language_model.Params
    source: dict[str, Any]
    initial: memories.Initial = ()


def save(
    path: str | os.PathLike[str],
    config: language_model.Config,
    params: language_model.Params,
    *,
    source: Mapping[str, Any] | None = None,
    initial: memories.Initial = (),
) -> None:
    """Write a model whole or not at all (MODEL-11).

    Args:
        source: where an imported model came from.
        initial: for each block None, or memories that it starts from.

    Raises:
        ValueError: parameters that contradict the settings, or a place that cannot be written.
    """
    header: dict[str, Any] = {"schema": SCHEMA, "model": MODEL, "config": described(config)}
    if source:
        header["source"] = dict(source)
    try:
        files.write(path, {KEY: json.dumps(header)}, tensors_of(config, params, initial))
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)}: {error}") from None


def load(path: str | os.PathLike[str]) -> tuple[language_model.Config, language_model.Params]:
    """The settings and parameters of a file (MODEL-11).

    Raises:
        ValueError: names the file, and the tensor or key that is wrong.
    """
    return read(path)[:2]


def read(path: str | os.PathLike[str]) -> Checkpoint:
    """The settings, the parameters and the source of a file (MODEL-11).

    Raises:
        ValueError: names the file, and the tensor or key that is wrong.
    """
    try:
        return of_tensors(*files.read(path, "is a folder, the file of a model is needed"))
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)}: {error}") from None


def of_tensors(metadata: Mapping[str, str], tensors: Mapping[str, Any]) -> Checkpoint:
    """The same from what a file holds (MODEL-11).

    Raises:
        ValueError: names the tensor or key that is wrong.
    """
    if KEY not in metadata:
        raise ValueError(
            f"metadata key {KEY!r}: missing, a model needs its settings there; "
            "atlas-ref model import reads files of other programs"
        )
    header = _header(metadata[KEY])
    config = config_of(header["config"])
    params, initial = _parts(config, tensors)
    return Checkpoint(config, params, header.get("source", {}), initial)


def _header(text: str) -> dict[str, Any]:
    """The JSON object, of this version and with no key that is unknown."""
    try:
        header = decoded(text)
    except ValueError as error:
        raise ValueError(f"metadata key {KEY!r}: {error}") from None
    if not isinstance(header, dict):
        raise ValueError(f"metadata key {KEY!r}: an object is needed, found {shown(header)}")
    keys = ("schema", "model", "config", "source")
    for key in header:
        if key not in keys:
            raise ValueError(f"{key}: unknown key{meant(key, keys)}")
    for key, value in (("schema", SCHEMA), ("model", MODEL)):
        found = header.get(key)
        if type(found) is not type(value) or found != value:
            word = f"found {shown(found)}" if key in header else "missing"
            raise ValueError(f"{key}: {value!r} is needed, {word}")
    for key in ("config", "source"):
        if not isinstance(header.get(key, {}), dict) or (key == "config" and key not in header):
            raise ValueError(f"{key}: an object is needed, found {shown(header.get(key))}")
    return header


# -- parameters ------------------------------------------------------------------------------------


def needed_by(config: language_model.Config) -> dict[str, Needed]:
    """Every tensor of a model by its name, with its shape (MODEL-11)."""
    leaves, paths, _ = flatten(params_of(config), "params")
    return dict(zip(map(name_of, paths), leaves, strict=True))


def tensors_of(
    config: language_model.Config, params: language_model.Params, initial: memories.Initial = ()
) -> dict[str, Any]:
    """The tensors of a model by their names, on the host (MODEL-11).

    Raises:
        ValueError: names those that contradict the settings.
    """
    leaves, paths, _ = flatten(params, "params")
    named = dict(zip(map(name_of, paths), leaves, strict=True)) | memories.tensors_of(initial)
    tensors = {name: np.asarray(backend.host(plain(leaf))) for name, leaf in named.items()}
    check_tensors(needed_by(config) | memories.needed_by(config, list(tensors)), tensors)
    return tensors


def params_from(config: language_model.Config, tensors: Mapping[str, Any]) -> Any:
    """Parameters from their tensors by name (MODEL-11).

    Raises:
        ValueError: names those that contradict the settings.
    """
    return _parts(config, tensors)[0]


def _parts(config: language_model.Config, tensors: Mapping[str, Any]) -> tuple[Any, Any]:
    """Parameters, and memories that blocks start from."""
    _, paths, build = flatten(params_of(config), "params")
    check_tensors(needed_by(config) | memories.needed_by(config, list(tensors)), tensors)
    place = backend.current().from_host
    own = {name: read_only(place(each)) for name, each in tensors.items()}
    params: language_model.Params = build([own[name_of(path)] for path in paths])
    return params, memories.of_tensors(config, own)


# -- settings --------------------------------------------------------------------------------------


def described(config: Any) -> Any:
    """Settings as JSON has them; a block, a shared memory and a TNT have their kind, a level and a
    memory of a TNT their rule (MODEL-11).
    """
    if isinstance(config, tuple):
        return [described(each) for each in config]
    if not isinstance(config, Frozen):
        return config
    tag = {}
    if isinstance(config, Level | tnt.Global | tnt.Local):
        tag = {"rule": config.rule.name}
    if isinstance(config, memory_tnt.Config):
        tag = {"kind": TNT}
    if isinstance(config, shared_memory.Config):
        tag = {"kind": SHARED}
    for name, module in BLOCKS.items():
        if isinstance(config, module.Config):
            tag = {"kind": name}
    fields = {name: described(getattr(config, name)) for name in type(config).model_fields}
    return tag | fields


def config_of(value: Any) -> language_model.Config:
    """The settings of a model from JSON; a key that is missing has its default (MODEL-11).

    Raises:
        ValueError: names the key, what was found and what is needed.
    """
    config: language_model.Config = _built(language_model.Config, value, "config")
    return config


def _built(cls: type[Frozen], value: Any, where: str) -> Any:
    """Settings of a class, part by part: pydantic alone does not know the kind of a part."""
    _require_object(value, where)
    fields = cls.model_fields
    for key in value:
        if key not in fields:
            raise ValueError(f"{where}.{key}: unknown key{meant(key, fields)}")
    parts: dict[str, Any] = {}
    for name, each in value.items():
        plain_part = functools.partial(_plain_part, fields[name].annotation)
        part: Callable[[Any, str], Any] = _PARTS.get((cls, name), plain_part)
        parts[name] = part(each, f"{where}.{name}")
    try:
        return cls(**parts)
    except ValidationError as error:
        raise ValueError(f"{where}.{first_problem(error)}") from None


def _plain_part(annotation: Any, value: Any, where: str) -> Any:
    try:
        return TypeAdapter(annotation).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        inside = any(each["loc"] for each in error.errors())
        raise ValueError(f"{where}{'.' if inside else ': '}{first_problem(error)}") from None


def _blocks(value: Any, where: str) -> tuple[Any, ...]:
    return tuple(
        _built(BLOCKS[tag].Config, rest, f"{where}.{i}")
        for i, (tag, rest) in enumerate(_tagged(value, where, "kind", BLOCKS))
    )


def _ruled(kind: type[Frozen], value: Any, where: str) -> tuple[Any, ...]:
    """Parts of a kind, each with the settings of a rule."""
    found = []
    for i, (rule, rest) in enumerate(_tagged(value, where, "rule", RULES)):
        place = f"{where}.{i}"
        settings = _plain_part(RULES[rule].Config, rest.pop("config", {}), f"{place}.config")
        found.append(_built(kind, {**rest, "config": settings}, place))
    return tuple(found)


def _global(value: Any, where: str) -> Any:
    return None if value is None else _ruled(tnt.Global, [value], where)[0]


def _tagged(value: Any, where: str, key: str, known: Mapping[str, Any]) -> Any:
    """Objects of a list without the key that says what each of them is."""
    if not isinstance(value, list):
        raise ValueError(f"{where}: a list is needed, found {shown(value)}")
    for i, each in enumerate(value):
        _require_object(each, f"{where}.{i}")
        rest = dict(each)
        tag = rest.pop(key, None)
        if not isinstance(tag, str) or tag not in known:
            word = f"found {shown(tag)}" if key in each else "missing"
            raise ValueError(f"{where}.{i}.{key}: one of {', '.join(known)} is needed, {word}")
        yield tag, rest


def _require_object(value: Any, where: str) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: an object is needed, found {shown(value)}")


def _memory(value: Any, where: str) -> Any:
    if value is None:
        return None
    _require_object(value, where)
    if "kind" not in value:
        return _built(memory.Config, value, where)
    rest = dict(value)
    if (kind := rest.pop("kind")) != SHARED:
        raise ValueError(f"{where}.kind: {SHARED!r} or no key is needed, found {shown(kind)}")
    return _built(shared_memory.Config, rest, where)


def _level_block(value: Any, where: str) -> Any:
    return _built(block.Config, value, where)


def _level_block_or_tnt(value: Any, where: str) -> Any:
    _require_object(value, where)
    if "kind" not in value:
        return _level_block(value, where)
    rest = dict(value)
    if (kind := rest.pop("kind")) != TNT:
        raise ValueError(f"{where}.kind: {TNT!r} or no key is needed, found {shown(kind)}")
    return _built(memory_tnt.Config, rest, where)


#: Parts whose kind a key tells, or that hold such parts.
_PARTS: dict[tuple[Any, str], Callable[[Any, str], Any]] = {
    (language_model.Config, "blocks"): _blocks,
    (memory.Config, "levels"): _level_block_or_tnt,
    (memory_tnt.Config, "tnt"): functools.partial(_built, tnt.Config),
    (tnt.Config, "global_memory"): _global,
    (tnt.Config, "local_memories"): functools.partial(_ruled, tnt.Local),
    (shared_memory.Config, "levels"): _level_block,
    (block.Config, "levels"): functools.partial(_ruled, Level),
    **{(kind, "config"): lambda value, where: value for kind in (Level, tnt.Global, tnt.Local)},
    **{(module.Config, "memory"): _memory for module in BLOCKS.values()},
}
