"""Bytes of files that come out the same on every machine: safetensors and JSON with sorted keys
(VEC-9).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.files import KEY
from atlas_ref.storage.files import NAMES

#: The header of a safetensors file is padded with blanks to whole words of this many bytes.
WORD = 8


def tensor_bytes(header: Mapping[str, Any], tensors: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    """A safetensors file with the widest numbers first, then by name; its JSON has sorted keys and
    no blanks.
    """
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    table: dict[str, Any] = {
        "__metadata__": {KEY: json.dumps(header, sort_keys=True, allow_nan=False)}
    }
    blocks, place = [], 0
    for name in order:
        value = np.ascontiguousarray(tensors[name])
        block = value.astype(value.dtype.newbyteorder("<")).tobytes()
        table[name] = {
            "dtype": NAMES[value.dtype.name],
            "shape": list(tensors[name].shape),
            "data_offsets": [place, place + len(block)],
        }
        place += len(block)
        blocks.append(block)
    text = json.dumps(table, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-len(text) % WORD)
    return b"".join([len(text).to_bytes(8, "little"), text, *blocks])


def json_bytes(value: Any) -> bytes:
    """JSON for people and programs: sorted keys, one key a line, short lists of numbers and words
    on one line.
    """
    return (_text(value, 0) + "\n").encode()


def _text(value: Any, depth: int) -> str:
    inside, outside = "  " * (depth + 1), "  " * depth
    if isinstance(value, Mapping) and value:
        rows = [
            f"{inside}{json.dumps(key)}: {_text(value[key], depth + 1)}" for key in sorted(value)
        ]
        return "{\n" + ",\n".join(rows) + f"\n{outside}}}"
    if isinstance(value, list | tuple) and any(
        isinstance(each, Mapping | list | tuple) for each in value
    ):
        rows = [inside + _text(each, depth + 1) for each in value]
        return "[\n" + ",\n".join(rows) + f"\n{outside}]"
    return json.dumps(value, sort_keys=True, allow_nan=False)
