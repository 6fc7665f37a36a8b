"""Models of atlas-rnn from their state_dict in a safetensors file, and back.

Specified in specs/language_model.md (MODEL-12).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from pydantic import ValidationError

from atlas_ref import backend
from atlas_ref.layers import rotary
from atlas_ref.messages import first_problem, shown
from atlas_ref.models import atlas_rnn_names, checkpoint, language_model
from atlas_ref.models.atlas_rnn_settings import ALIASES, Told, expressed, told
from atlas_ref.models.import_atlas_rnn import Settings, model_config
from atlas_ref.models.public import names
from atlas_ref.models.public.names import Name, Table
from atlas_ref.models.shapes import params_of
from atlas_ref.storage import files
from atlas_ref.storage.json_text import decoded
from atlas_ref.types import read_only
from tape import plain

Tensors = Mapping[str, Any]

#: Metadata key of the arguments of the public constructor (MODEL-12).
KEY = "config"

#: End of the name of the frequencies of a layer's positions, which are settings of ours.
FREQUENCIES = ".rotary_emb.freqs"

#: Arguments of the constructors of public models: of memories alone, of blocks.
OF_MEMORIES = (
    *("vocab", "dim", "depth", "dim_head", "heads", "omega_window", "use_omega_gate"),
    *("use_momentum", "poly_degree", "poly_mode"),
)
OF_MODELS = (
    *OF_MEMORIES,
    *("block_type", "window_size", "ff_mult", "num_persist_mem_tokens", "qkv_conv_kernel"),
)

#: What a pickle, alone or in a zip archive, begins with.
PICKLES = (b"PK\x03\x04", *(b"\x80" + bytes([version]) for version in range(2, 6)))


class Imported(NamedTuple):
    """A model of public code, and what told its settings."""

    config: language_model.Config
    params: language_model.Params
    told: Told


def model_from(
    tensors: Tensors, settings: Settings, *, memory_only: bool = False
) -> tuple[language_model.Config, language_model.Params]:
    """A model from the tensors of a public state_dict (MODEL-12).

    Args:
        memory_only: blocks of a memory alone.

    Raises:
        ValueError: names tensors that are missing, unknown, misshapen or not finite.
    """
    table = _table(settings, memory_only)
    names.check(table, atlas_rnn_names.sizes(settings), tensors)
    rows = [tensors[name] for name in table if name.endswith(FREQUENCIES)]
    try:
        config = model_config(settings, rows, memory_only=memory_only)
    except ValidationError as error:
        raise ValueError(first_problem(error)) from None
    place = backend.current().from_host
    own = {name: read_only(place(tensors[name])) for name, each in table.items() if each.field}
    return config, names.parameters(params_of(config), table, own)


def state_dict(
    config: language_model.Config, params: language_model.Params, settings: Settings | None = None
) -> dict[str, np.ndarray[Any, Any]]:
    """The tensors of a public state_dict of a model (MODEL-12).

    Args:
        settings: that the model came from; None for those that its own settings say.

    Raises:
        ValueError: names the first setting that the public code does not have.
    """
    checkpoint.tensors_of(config, params)
    own = expressed(config, settings)
    table, sizes = _table(own.settings, own.memory_only), atlas_rnn_names.sizes(own.settings)
    named = names.tensors_of(params, table, sizes)
    tensors = {name: np.asarray(backend.host(plain(each))) for name, each in named.items()}
    dtype = tensors["embed.weight"].dtype
    for name, each in table.items():
        if name.endswith(FREQUENCIES):
            block = config.blocks[int(name.split(".")[1])]
            tensors[name] = rotary.frequencies(block.attention.rotary).astype(dtype)
        elif not each.field:
            tensors[name] = np.zeros(names.shape(each.axes, sizes), dtype)
    return tensors


def _table(s: Settings, memory_only: bool) -> Table:
    """Every tensor that a state_dict may have, the flag of each memory's device among them."""
    flags = {
        f"layers.{i}.{'' if memory_only else 'memory.'}_dummy": Name("1", unread=True)
        for i in range(s.depth or 1)
    }
    return atlas_rnn_names.model(s, memory_only=memory_only) | flags


# -- files -----------------------------------------------------------------------------------------


def read(path: str | os.PathLike[str], given: Mapping[str, Any] | None = None) -> Imported:
    """A model from a safetensors file of a public state_dict (MODEL-12).

    Args:
        given: arguments of the public constructor, beside those of the file's metadata.

    Raises:
        ValueError: names the file, and what is wrong with it.
    """
    name = os.fspath(path)
    try:
        metadata, tensors = _tensors(path)
        if checkpoint.KEY in metadata:
            raise ValueError("is a model of atlas-ref already")
        known = told(tensors, _given(metadata, given or {}))
        return Imported(*model_from(tensors, known.settings, memory_only=known.memory_only), known)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _tensors(path: str | os.PathLike[str]) -> tuple[dict[str, str], dict[str, Any]]:
    try:
        return files.read(path, "is a folder, a file of tensors is needed")
    except ValueError:
        if _is_pickle(path):
            raise ValueError(
                "is a pickle, as torch.save writes it, and reading one may run its code; convert it "
                "with safetensors.torch.save_file(torch.load(FILE, weights_only=True), NEW)"
            ) from None
        raise


def _is_pickle(path: str | os.PathLike[str]) -> bool:
    try:
        start = files.read_bytes(path, read=lambda stream: stream.read(9))
    except ValueError:
        return False
    return start.startswith(PICKLES) and start[8:] != b"{"


def _given(metadata: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of the metadata, and others that do not contradict them."""
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


def save(path: str | os.PathLike[str], model: checkpoint.Checkpoint) -> Told:
    """Write a model as a public state_dict, with its settings in the metadata (MODEL-12).

    Raises:
        ValueError: names the file, or the first setting that the public code does not have.
    """
    own = expressed(model.config, _hint(model.source))
    tensors = state_dict(model.config, model.params, own.settings)
    text = json.dumps(arguments(own))
    try:
        files.write(path, {KEY: text}, tensors)
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)}: {error}") from None
    return own


def source(own: Told) -> dict[str, Any]:
    """Where an imported model came from, as its checkpoint says it (MODEL-11)."""
    return {"from": "atlas-rnn", "settings": own.settings.model_dump(mode="json")}


def arguments(own: Told) -> dict[str, Any]:
    """Arguments of the public constructor; a setting that it does not take only where it differs
    from what the public code has (MODEL-12).
    """
    taken = OF_MEMORIES if own.memory_only else OF_MODELS
    defaults = {name: field.default for name, field in Settings.model_fields.items()}
    public = {ours: theirs for theirs, ours in ALIASES.items()}
    return {
        public.get(name, name): value
        for name, value in own.settings.model_dump(mode="json").items()
        if name in taken or (value != defaults[name] and name != "block_type")
    }


def _hint(source: Mapping[str, Any]) -> Settings | None:
    if source.get("from") != "atlas-rnn":
        return None
    try:
        return Settings.model_validate(source.get("settings"))
    except ValidationError as error:
        raise ValueError(f"source.settings: {first_problem(error)}") from None
