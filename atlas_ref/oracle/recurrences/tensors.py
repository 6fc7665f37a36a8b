"""Tensors of a case of rule recurrence: names, shapes and ranges (RECUR-6)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from atlas_ref.messages import meant
from atlas_ref.oracle.cases.tensor_spec import Tensor
from atlas_ref.oracle.cases.values import check_log, check_values
from atlas_ref.oracle.drawing import starts
from atlas_ref.oracle.recurrences.member import SHARED
from atlas_ref.oracle.recurrences.members import MEMBERS
from atlas_ref.oracle.recurrences.parameters import Parameters, parsed
from atlas_ref.types import Array


def table(member: str) -> dict[str, Tensor]:
    """Every input that a case of a member may have, in order (RECUR-6)."""
    return {**MEMBERS[member].tensors, **SHARED}


def checked(header: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs in order; refuse a missing, misnamed or misshapen one (RECUR-6).

    Raises:
        ValueError: names the tensor, what was found and what is needed.
    """
    own = parsed(header)
    known = table(own.member)
    for name in inputs:
        if name not in known:
            words = f"{name}: unknown tensor for member {own.member}; it has {', '.join(known)}"
            raise ValueError(words + meant(name, known))
    for name, tensor in known.items():
        if tensor.need == "yes" and name not in inputs:
            raise ValueError(
                f"{name}: missing, axes ({tensor.axes}) are needed for member {own.member}"
            )
    _check_shapes(own, inputs)
    for name, value in inputs.items():
        if name.startswith("in/log_"):
            check_log(name, value)
        else:
            check_values(name, value, known[name])
    own.of.check(inputs, own.settings)
    return {name: inputs[name] for name in known if name in inputs}


def _check_shapes(own: Parameters, inputs: Mapping[str, Any]) -> None:
    for name, tensor in own.of.tensors.items():
        if tensor.need == "yes":
            shape = tuple(inputs[name].shape)
            least = 2 if "T" in tensor.axes.split() else 1
            if len(shape) < least or 0 in shape:
                raise ValueError(f"{name}: shape {shape}, axes ({tensor.axes}) above 0 are needed")
    needed = shapes(own, inputs)
    for name, value in inputs.items():
        if tuple(value.shape) != needed[name]:
            raise ValueError(f"{name}: shape {tuple(value.shape)}, expected {needed[name]}")


def shapes(own: Parameters, inputs: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shape of each input, from those that every case of the member has (RECUR-6)."""
    member, found = own.of, dict[str, tuple[int, ...]]()
    for name, shape in member.shapes(inputs, own.settings).items():
        turned = own.settings.turned and name in member.matrices
        shape = (*shape[:-2], shape[-1], shape[-2]) if turned else shape
        if name in member.states:
            found |= {f"in/{name}0": shape, f"in/{name}_bar": shape}
        else:
            found["in/y_bar" if name == "y" else f"in/{name}"] = shape
    T = found["in/y_bar"][-2]
    return {**found, "in/active": (T,), "in/reset": (T,)}


def numbers(header: Any, inputs: Mapping[str, Any]) -> int:
    """Numbers of the largest array: the state or the tokens (CASE-2)."""
    return max(math.prod(shape) for shape in shapes(parsed(header), inputs).values())


def draw(
    request: Any, header: Any, generator: Any, d_phi: int
) -> tuple[dict[str, Array], tuple[int, ...]]:
    """Random inputs where nothing grows, and the shape of the cotangent (RECUR-8)."""
    own = parsed(header)
    tensors = own.of.draw(request, own.settings, generator)
    if not request.state:
        firsts = {f"in/{name}0" for name in own.of.states}
        tensors = {name: x for name, x in tensors.items() if name not in firsts}
    steps = np.arange(request.tokens)
    if request.pulse > 1:
        tensors["in/active"] = ((steps + 1) % request.pulse == 0).astype(np.uint8)
    if (first := starts(request)) is not None:
        tensors["in/reset"] = first
    return tensors, shapes(own, tensors)["in/y_bar"]


def states(
    request: Any, header: Any, inputs: Mapping[str, Array], generator: Any
) -> dict[str, Array]:
    """First states that the member's recurrence can have come to, and cotangents of the last."""
    own = parsed(header)
    needed, found = shapes(own, inputs), dict[str, Array]()
    for name in own.of.states:
        shape = needed[f"in/{name}0"]
        first = own.of.first(name, 0.3 * generator.standard_normal(shape), own.settings)
        found[f"in/{name}_bar"] = generator.standard_normal(shape)
        if first is not None:
            found[f"in/{name}0"] = first
    return found
