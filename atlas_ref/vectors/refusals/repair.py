"""Steps that make a case of a file which must be refused, and the other way round (VEC-12).

{"op": "set", "key": "window", "value": 1}          a key of the JSON object
{"op": "unset", "key": "window"}
{"op": "put", "tensor": "in/v", "dtype": "F32", "shape": [2], "values": [0.5, 1.0]}
{"op": "drop", "tensor": "in/v"}
{"op": "entry", "tensor": "in/retain", "at": [0, 3], "value": 0.5}
{"op": "append", "hex": "00ff"}                     bytes at the end of the file
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import safetensors.numpy
from pydantic import Field, ValidationError, model_validator

from atlas_ref.messages import first_problem
from atlas_ref.oracle.cases.case import Case, CaseError, make
from atlas_ref.oracle.cases.files import KEY
from atlas_ref.oracle.cases.json_text import decode
from atlas_ref.storage.files import DTYPES, NAMES
from atlas_ref.types import Frozen

Step = dict[str, Any]
Tensors = dict[str, np.ndarray[Any, Any]]

Place = Annotated[int, Field(ge=0)]
Hex = Annotated[str, Field(pattern=r"^([0-9a-f]{2})*$")]


class _Step(Frozen):
    op: str


class Set(_Step):
    """A key gets a value."""

    key: str
    value: Any


class Unset(_Step):
    """A key goes."""

    key: str


class Put(_Step):
    """A tensor is put in."""

    tensor: str
    dtype: Annotated[str, Field(pattern=f"^({'|'.join(DTYPES)})$")]
    shape: list[Place]
    values: list[float | bool]

    @model_validator(mode="after")
    def _whole(self) -> Put:
        if math.prod(self.shape) != len(self.values):
            raise ValueError(f"{len(self.values)} values for the shape {self.shape}")
        return self


class Drop(_Step):
    """A tensor goes."""

    tensor: str


class Entry(_Step):
    """One entry of a tensor changes."""

    tensor: str
    at: list[Place]
    value: float


class Append(_Step):
    """Bytes at the end of the file."""

    hex: Hex


class Bytes(_Step):
    """Bytes in place of those at an offset."""

    at: Place
    hex: Hex


#: The steps by their `op` (VEC-12).
STEPS: dict[str, type[_Step]] = {
    "set": Set,
    "unset": Unset,
    "put": Put,
    "drop": Drop,
    "entry": Entry,
    "append": Append,
    "bytes": Bytes,
}


def put(name: str, value: np.ndarray[Any, Any]) -> Step:
    """The step that puts a tensor in."""
    return {
        "op": "put",
        "tensor": name,
        "dtype": NAMES[value.dtype.name],
        "shape": list(value.shape),
        "values": value.ravel().tolist(),
    }


def repaired(data: bytes, steps: Sequence[Mapping[str, Any]], name: str) -> Case:
    """The case that a refused file becomes.

    Raises:
        CaseError: a step does not exist, or the repaired file is no case either.
    """
    for step in steps:
        model = STEPS.get(str(step.get("op")))
        if model is None or set(step) != model.model_fields.keys():
            raise CaseError(f"{name}: repair: no such step: {json.dumps(dict(step))[:80]}")
        try:
            model.model_validate(dict(step))
        except ValidationError as error:
            problem = first_problem(error)[:120]
            raise CaseError(f"{name}: repair: a step cannot be taken: {problem}") from None
    try:
        header, tensors = _read(_mended(data, steps), name)
        mended = changed(header, tensors, steps)
    except (ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
        if isinstance(error, CaseError):
            raise
        raise CaseError(
            f"{name}: repair: a step cannot be taken: {' '.join(str(error).split())[:120]}"
        ) from None
    return make(*mended, name=name)


def _mended(data: bytes, steps: Sequence[Mapping[str, Any]]) -> bytes:
    """The file after the steps that are about bytes."""
    content = bytearray(data)
    for step in steps:
        if step["op"] == "append":
            content += bytes.fromhex(step["hex"])
        elif step["op"] == "bytes":
            new = bytes.fromhex(step["hex"])
            content[step["at"] : step["at"] + len(new)] = new
    return bytes(content)


def changed(
    header: Mapping[str, Any], tensors: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Any], Tensors]:
    """Header and tensors after steps, without those about bytes."""
    keys, values = dict(header), dict(tensors)
    for step in steps:
        if step["op"] == "set":
            keys[step["key"]] = step["value"]
        elif step["op"] == "unset":
            keys.pop(step["key"], None)
        elif step["op"] == "put":
            values[step["tensor"]] = np.array(step["values"], DTYPES[step["dtype"]]).reshape(
                step["shape"]
            )
        elif step["op"] == "drop":
            values.pop(step["tensor"], None)
        elif step["op"] == "entry":
            value = values[step["tensor"]].copy()
            value[tuple(step["at"])] = step["value"]
            values[step["tensor"]] = value
    return keys, values


def _read(data: bytes, name: str) -> tuple[dict[str, Any], Tensors]:
    try:
        tensors = safetensors.numpy.load(data)
        length = int.from_bytes(data[:8], "little")
        header = decode(decode(data[8 : 8 + length])["__metadata__"][KEY])
        return dict(header), tensors
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CaseError(f"{name}: repair: the file cannot be read after it: {error}") from None
