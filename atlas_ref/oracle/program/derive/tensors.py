"""Tensors of a program: legality, shapes, draws (PROG-6)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from atlas_ref.oracle.cases.values import check_log, check_values, refuse_unknown
from atlas_ref.oracle.drawing import events
from atlas_ref.oracle.program.context import TRANSPOSED
from atlas_ref.oracle.program.program import Program
from atlas_ref.types import Array


def check_inputs(program: Program, settings: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs in order; refuse a missing, misnamed or misshapen one.

    Raises:
        ValueError: names the tensor, what was found and what is needed.
    """
    known, title = program.tensors, f"member {program.name}"
    refuse_unknown(inputs, known, {}, f"{title}; it has {', '.join(known)}")
    for name, tensor in known.items():
        if tensor.need == "yes" and name not in inputs:
            raise ValueError(f"{name}: missing, axes ({tensor.axes}) are needed for {title}")
    _check_shapes(program, settings, inputs)
    for name, value in inputs.items():
        if name.startswith("in/log_"):
            check_log(name, value)
        else:
            check_values(name, value, known[name])
    program.check(inputs, settings)
    return {name: inputs[name] for name in known if name in inputs}


def _check_shapes(program: Program, settings: Any, inputs: Mapping[str, Any]) -> None:
    for name, tensor in program.tensors.items():
        if tensor.need == "yes":
            shape = tuple(inputs[name].shape)
            words = tensor.axes.split()
            least = len(words[words.index("T") :]) if "T" in words else 1
            if len(shape) < least or 0 in shape:
                raise ValueError(f"{name}: shape {shape}, axes ({tensor.axes}) above 0 are needed")
    needed = shapes(program, settings, inputs)
    for name, value in inputs.items():
        if tuple(value.shape) != needed[name]:
            raise ValueError(f"{name}: shape {tuple(value.shape)}, expected {needed[name]}")


def shapes(
    program: Program, settings: Any, inputs: Mapping[str, Any]
) -> dict[str, tuple[int, ...]]:
    """The shape of each input in the layout of the case, from those that every case has."""
    found = dict[str, tuple[int, ...]]()
    transposed = getattr(settings, "state_layout", "") == TRANSPOSED
    for name, shape in program.shapes(inputs, settings).items():
        if name in program.states:
            turned = transposed and name in program.matrices
            shape = (*shape[:-2], shape[-1], shape[-2]) if turned else shape
            found |= {f"in/{name}0": shape, f"in/{name}_bar": shape}
        else:
            found["in/y_bar" if name == "y" else f"in/{name}"] = shape
    T = found["in/y_bar"][-2]
    return {**found, "in/active": (T,), "in/reset": (T,)}


def numbers(program: Program, settings: Any, inputs: Mapping[str, Any]) -> int:
    """Numbers of the largest array: the state or the tokens (CASE-2)."""
    return max(math.prod(shape) for shape in shapes(program, settings, inputs).values())


def draw(
    program: Program, settings: Any, request: Any, generator: Any
) -> tuple[dict[str, Array], tuple[int, ...]]:
    """Random inputs where nothing grows, and the shape of the cotangent."""
    assert program.draw is not None
    tensors = program.draw(request, settings, generator)
    if not request.state:
        firsts = {f"in/{name}0" for name in program.states}
        tensors = {name: x for name, x in tensors.items() if name not in firsts}
    tensors |= events(request)
    return tensors, shapes(program, settings, tensors)["in/y_bar"]


def states(
    program: Program, settings: Any, inputs: Mapping[str, Array], generator: Any
) -> dict[str, Array]:
    """First states that the program can have come to, and cotangents of the last."""
    needed, found = shapes(program, settings, inputs), dict[str, Array]()
    for name in program.states:
        shape = needed[f"in/{name}0"]
        first = program.first(name, 0.3 * generator.standard_normal(shape), settings)
        found[f"in/{name}_bar"] = generator.standard_normal(shape)
        if first is not None:
            found[f"in/{name}0"] = first
    return found
