"""The axis of gates with an entry for each of several dimensions: output dimensions or key channels.

Where the memory is square a shape does not tell them apart, so that a case says it. Specified in
specs/gates.md (GATES-15).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from atlas_ref.parts import feature_maps
from atlas_ref.rules.checks import KEY_CHANNEL

#: Gates that may have an entry for each dimension.
GATES = ("retain", "log_retain", "momentum", "log_momentum", "step_size", "step_size_memory")

#: The property of a vector in the manifest of its set by which such gates are of d_out (VEC-5).
PROPERTY = "gates per output dimension"


def wide(inputs: Mapping[str, Any]) -> list[str]:
    """Names of the given gates that have an axis of dimensions behind that of tokens."""
    if "in/k" not in inputs:
        return []
    names = [f"in/{gate}" for gate in GATES]
    return [name for name in names if name in inputs and inputs[name].ndim == inputs["in/k"].ndim]


def gate_axes(key: str, inputs: Mapping[str, Any]) -> str:
    """Axes of a gate: one per token, or one per output dimension (CASE-6).

    Raises:
        ValueError: a gate per key channel, which kernels have and no case does.
    """
    shape, k, v = (tuple(inputs[name].shape) for name in (key, "in/k", "in/v"))
    if shape == k and k[-1] != v[-1]:
        raise ValueError(
            f"{key}: shape {shape} is {KEY_CHANNEL}; a case has one gate per token, {k[:-1]}, or "
            f"one per output dimension, {v}"
        )
    return "... T d_out" if len(shape) == len(k) else "... T"


def check_gate_axis(header: Any, inputs: Mapping[str, Any]) -> None:
    """Refuse gates whose axis has two readings and is not stated, and gates per key channel (GATES-15).

    Raises:
        ValueError: names the gate, and both readings or the one that the rule does not have.
    """
    if header.level == "token":
        return
    names = wide(inputs)
    if header.gate_axis == "d_in":
        about = names[0] if names else "gate_axis"
        raise ValueError(
            f"{about}: gate_axis d_in is {KEY_CHANNEL}; the rule {header.rule} has gates per token "
            "or per output dimension alone"
        )
    if not names or header.gate_axis is not None:
        return
    rows, columns = _memory(header, inputs)
    if rows == columns > 1:
        raise ValueError(
            f"{names[0]}: shape {tuple(inputs[names[0]].shape)} has two readings where M is "
            f"{rows} by {columns}: one gate per output dimension, which scales rows of M, or "
            f"{KEY_CHANNEL}; the key gate_axis has to say d_out or d_in"
        )


def axis_from_manifest(
    path: str, fields: dict[str, Any], inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """The JSON object of a case, with the axis that the manifest of its set states (GATES-15).

    Args:
        path: of the file; a set has it in `cases`, beside its manifest (VEC-1).
        fields: of a file that may state no axis.
    """
    if "gate_axis" in fields or not wide(inputs):
        return fields
    listed = properties_from_manifest(path)
    return fields if listed is None or PROPERTY not in listed else {**fields, "gate_axis": "d_out"}


def properties_from_manifest(path: str) -> list[Any] | None:
    """The properties that a manifest lists for a file; None where no set lists it."""
    file = Path(path).absolute()
    try:
        manifest = file.parent.parent / "manifest.json"
        if file.parent.name != "cases" or not manifest.is_file():
            return None
        vectors = json.loads(manifest.read_bytes())["vectors"]
        own = next(each for each in vectors if each["file"] == f"cases/{file.name}")
        return list(own["properties"])
    except (OSError, ValueError, LookupError, TypeError, StopIteration, RecursionError):
        return None  # no manifest of a set, and then it states nothing


def _memory(header: Any, inputs: Mapping[str, Any]) -> tuple[int, int]:
    """(d_out, d_phi) of a case at level projected."""
    phi = {
        name.rsplit("/", 1)[1]: np.asarray(value)
        for name, value in inputs.items()
        if name.startswith("in/phi/") or name == "in/proj"
    }
    columns = feature_maps.d_phi(header.feature_map, inputs["in/k"].shape[-1], phi)
    return int(inputs["in/v"].shape[-1]), int(columns)
