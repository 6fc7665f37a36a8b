"""Models of atlas-rnn from their state_dict in a safetensors file, and back.

Specified in specs/language_model.md (MODEL-12).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import ValidationError

from atlas_ref import backend
from atlas_ref.layers import rotary
from atlas_ref.messages import first_problem
from atlas_ref.models import atlas_rnn_names, checkpoint, language_model
from atlas_ref.models.atlas_rnn_settings import ALIASES, Told, expressed, told
from atlas_ref.models.import_atlas_rnn import Settings, model_config
from atlas_ref.models.public import formats, names
from atlas_ref.models.public.formats import Format, Imported, Setting
from atlas_ref.models.public.names import Name, Table
from atlas_ref.models.shapes import params_of
from atlas_ref.storage import files
from atlas_ref.types import read_only
from tape import plain

Tensors = Mapping[str, Any]

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
        metadata, tensors = formats.tensors_of(path)
        known = told(tensors, formats.arguments_of(metadata, given or {}))
        return Imported(*model_from(tensors, known.settings, memory_only=known.memory_only), known)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def save(path: str | os.PathLike[str], model: checkpoint.Checkpoint) -> dict[str, Any]:
    """Write a model as a public state_dict, with its arguments in the metadata (MODEL-12).

    Returns:
        the arguments of the public constructor.

    Raises:
        ValueError: names the file, or the first setting that the public code does not have.
    """
    own = expressed(model.config, _hint(model.source))
    tensors, its = state_dict(model.config, model.params, own.settings), arguments(own)
    try:
        files.write(path, {formats.KEY: json.dumps(its)}, tensors)
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)}: {error}") from None
    return its


def source(own: Told) -> dict[str, Any]:
    """Where an imported model came from, as its checkpoint says it (MODEL-11)."""
    return {"from": "atlas-rnn", "settings": own.settings.model_dump(mode="json")}


def settings(own: Told) -> dict[str, Setting]:
    """Settings that have an effect, with what told each (MODEL-13)."""
    values = own.settings.model_dump(mode="json")
    return {name: Setting(values[name], by) for name, by in own.by.items()}


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


#: Files of atlas-rnn, read and written.
FORMAT = Format(read=read, write=save, settings=settings, source=source)
