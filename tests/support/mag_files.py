"""Recorded models of Atlas-MAG as their state_dicts, and files of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from tests.support.layers import recorded

FOLDER = "peers_atlas_mag"
Tensors = dict[str, Any]


def public(name: str) -> tuple[Tensors, Tensors]:
    """Arguments and tensors of a recorded model, with the powers of the decay."""
    file = recorded(f"mag_skeleton_{name}", FOLDER)
    own = {key: x for key, x in file.settings.items() if key != "calls"}
    tensors = file.named("in/param/") | file.named("in/buffer/")
    return own, tensors | powers(own) if not own["disable_memory"] else tensors


def powers(own: Tensors) -> Tensors:
    values = [own["omega_decay_base"] ** i for i in range(own["omega_context_window"])]
    table = np.array(values, np.float32).astype(np.float64)
    return {f"blocks.{i}.qk_memory.decay_weights": table for i in range(own["n_layers"])}


def written(path: Path, tensors: Tensors, settings: Tensors | None = None) -> Path:
    arrays = {name: np.array(each, order="C") for name, each in tensors.items()}
    metadata = None if settings is None else {"config": json.dumps(settings)}
    safetensors.numpy.save_file(arrays, path, metadata=metadata)
    return path
