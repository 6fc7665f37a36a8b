"""Case files for tests, written byte by byte, so that they may break every rule of a library."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.new import Request, new

PEERS = Path(__file__).parents[1] / "data" / "peers"

#: A case whose rule has a name and no loop, as a recording had that came before its module.
RESERVED = PEERS.parent / "reserved.safetensors"

NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "bool": "BOOL",
    "uint8": "U8",
}
NAMES |= {"int64": "I64", "int32": "I32", "int8": "I8", "complex64": "C64"}

#: Keep, change or drop: a value that stands for no value.
GONE = object()


def raw(path: Path, tensors: Mapping[str, Any], metadata: Any) -> Path:
    """Write a safetensors file. A tensor is an array, or (dtype name, shape, bytes); metadata goes
    in as it is.
    """
    entries: list[tuple[str, Any]] = [] if metadata is GONE else [("__metadata__", metadata)]
    body = b""
    for name, tensor in tensors.items():
        kind, shape, data = (
            tensor
            if isinstance(tensor, tuple)
            else (NAMES[tensor.dtype.name], tensor.shape, tensor.tobytes())
        )
        entries.append(
            (
                name,
                {
                    "dtype": kind,
                    "shape": list(shape),
                    "data_offsets": [len(body), len(body) + len(data)],
                },
            )
        )
        body += data
    head = (
        "{" + ",".join(f"{json.dumps(name)}:{json.dumps(entry)}" for name, entry in entries) + "}"
    ).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + body)
    return path


def written(path: Path, header: Mapping[str, Any] | str, tensors: Mapping[str, Any]) -> Path:
    """Write a case from a header, or from a text in its place."""
    text = header if isinstance(header, str) else json.dumps(header)
    return raw(path, tensors, {"atlas_ref": text})


def parts(case: Case) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and inputs of a case, as mappings to change."""
    return case.header.plain(), dict(case.inputs)


def changed(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping with some values changed, added or, where GONE, dropped."""
    return {key: value for key, value in {**base, **changes}.items() if value is not GONE}


def some(rule: str = "omega", **request: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and inputs of a small valid case."""
    sizes = {"tokens": 5, "d_in": 4, "d_out": 3, "heads": 2, "cotangent": True}
    return parts(new(Request(rule=rule, draw=1, **(sizes | request))))


def bfloat16(values: Any) -> np.ndarray:
    return np.asarray(values, dtype=np.float64).astype(ml_dtypes.bfloat16)


def last_entry(value: float) -> Any:
    """The change of a tensor to one with another last entry."""

    def change(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        x = x.copy()
        x[(-1,) * x.ndim] = value
        return x

    return change


def changed_each(tensors: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors after changes, of which one may be a function of the old value."""
    own = {key: value(tensors[key]) if callable(value) else value for key, value in changes.items()}
    return changed(dict(tensors), own)
