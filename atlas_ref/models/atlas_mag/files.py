"""Models of Atlas-MAG from their state_dict in a safetensors file, and back.

Specified in specs/atlas_mag.md (MAG-6, MAG-7).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import ValidationError

from atlas_ref import backend
from atlas_ref.messages import first_problem
from atlas_ref.models import checkpoint, language_model
from atlas_ref.models.atlas_mag import configs
from atlas_ref.models.atlas_mag import names as own_names
from atlas_ref.models.atlas_mag.settings import Settings
from atlas_ref.models.atlas_mag.told import Told, expressed, told
from atlas_ref.models.initial import Initial
from atlas_ref.models.public import formats, names
from atlas_ref.models.public.formats import Format, Imported, Setting
from atlas_ref.storage import files
from atlas_ref.types import read_only
from tape import plain

Tensors = Mapping[str, Any]

#: Settings of ours that are no arguments of the public constructor.
CONSTANTS = ("persistent_factor", "persistent_size")


def model_from(
    tensors: Tensors, settings: Settings
) -> tuple[language_model.Config, language_model.Params, Initial]:
    """A model from the tensors of a public state_dict (MAG-6).

    Raises:
        ValueError: names tensors that are missing, unknown, misshapen or not finite.
    """
    names.check(own_names.state_dict(settings), own_names.sizes(settings), tensors)
    try:
        config = configs.model(settings, frequencies="float32")
    except ValidationError as error:
        raise ValueError(first_problem(error)) from None
    place = backend.current().from_host
    own = {name: read_only(place(each)) for name, each in tensors.items()}
    params = configs.parameters(settings, own)
    momenta = [
        configs.momenta(settings, own, f"blocks.{i}.memory.") for i in range(settings.n_layers)
    ]
    if settings.disable_memory or not any(_any(each) for each in momenta):
        return config, params, ()
    return config, params, tuple({"momentum": each} for each in momenta)


def _any(momenta: Tensors) -> bool:
    """Whether a momentum is not the zero that a memory starts from, bit by bit."""
    return any(np.asarray(backend.host(each)).tobytes().strip(b"\0") for each in momenta.values())


def state_dict(
    config: language_model.Config,
    params: language_model.Params,
    initial: Initial = (),
    settings: Settings | None = None,
) -> dict[str, np.ndarray[Any, Any]]:
    """The tensors of a public state_dict of a model (MAG-6).

    Args:
        initial: memories that it starts from: momenta, and weights in place of the parameters.
        settings: that it came from; None for those that its own settings say.

    Raises:
        ValueError: names the first setting that the public code does not have.
    """
    checkpoint.tensors_of(config, params, initial)
    s = expressed(config, settings)
    named = configs.state_dict(s, params)
    dtype = plain(params.embedding).dtype
    for name, each in own_names.state_dict(s).items():
        if name not in named and not each.copy_of:
            named[name] = np.zeros(names.shape(each.axes, own_names.sizes(s)), dtype)
    for i in range(s.n_layers if s.has_memory else 0):
        named |= _constants(s, f"blocks.{i}.qk_memory.", dtype)
    for i, memories in enumerate(initial):
        for name, ours in own_names.MEMORY_NAMES.items():
            for kind, own in (memories or {}).items():
                key = name if kind == "weights" else own_names.momentum_of(name)
                if ours in own:
                    named[f"blocks.{i}.memory.{key}"] = own[ours][0, 0]
    tensors = {name: np.asarray(backend.host(plain(each))) for name, each in named.items()}
    return tensors | {"lm_head.weight": tensors["tok_emb.weight"]}


def _constants(s: Settings, place: str, dtype: Any) -> dict[str, Any]:
    """Buffers of the projection: P, n_0, and powers of the decay, which are of float32."""
    powers = s.omega_decay_base ** np.arange(s.omega_context_window)
    return {
        f"{place}decay_weights": powers.astype(np.float32).astype(dtype),
        f"{place}m_persistent": (s.persistent_factor * np.eye(s.dim)).astype(dtype),
        f"{place}norm_persistent": np.asarray(s.persistent_size * s.dim).astype(dtype),
    }


# -- files -----------------------------------------------------------------------------------------


def read(path: str | os.PathLike[str], given: Mapping[str, Any] | None = None) -> Imported:
    """A model from a safetensors file of a public state_dict (MAG-6).

    Args:
        given: arguments of the public constructor, beside those of the file's metadata.

    Raises:
        ValueError: names the file, and what is wrong with it.
    """
    try:
        metadata, tensors = formats.tensors_of(path)
        known = told(tensors, formats.arguments_of(metadata, given or {}))
        config, params, initial = model_from(tensors, known.settings)
        return Imported(config, params, known, initial)
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)}: {error}") from None


def save(path: str | os.PathLike[str], model: checkpoint.Checkpoint) -> dict[str, Any]:
    """Write a model as a public state_dict, with its arguments in the metadata (MAG-6).

    Returns:
        the arguments of the public constructor.

    Raises:
        ValueError: names the file, or the first setting that the public code does not have.
    """
    settings = expressed(model.config, _hint(model.source))
    tensors = state_dict(model.config, model.params, model.initial, settings)
    its = arguments(settings)
    try:
        files.write(path, {formats.KEY: json.dumps(its)}, tensors)
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)}: {error}") from None
    return its


def arguments(settings: Settings) -> dict[str, Any]:
    """Arguments of the public constructor; a constant of its code only where it differs (MAG-7)."""
    defaults = {name: field.default for name, field in Settings.model_fields.items()}
    taken: tuple[str, ...] = ("vocab_size", "dim", "n_layers", "n_heads", "memory_expansion")
    taken += ("disable_memory", "poly_degree", "poly_rank")
    return {
        name: value
        for name, value in settings.model_dump(mode="json").items()
        if name not in CONSTANTS
        and (name in taken or name.startswith("ttl_") or value != defaults[name])
    }


def source(own: Told) -> dict[str, Any]:
    """Where an imported model came from, as its checkpoint says it (MODEL-11)."""
    return {"from": "atlas-mag", "settings": own.settings.model_dump(mode="json")}


def settings(own: Told) -> dict[str, Setting]:
    """Settings that have an effect, with what told each (MODEL-13)."""
    values = own.settings.model_dump(mode="json")
    return {name: Setting(values[name], by) for name, by in own.by.items()}


def _hint(source: Mapping[str, Any]) -> Settings | None:
    if source.get("from") != "atlas-mag":
        return None
    try:
        return Settings.model_validate(source.get("settings"))
    except ValidationError as error:
        raise ValueError(f"source.settings: {first_problem(error)}") from None


#: Files of atlas-mag, read and written.
FORMAT = Format(read=read, write=save, settings=settings, source=source)
