"""Safetensors files with a JSON object in their metadata.

Specified in specs/case.md.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from atlas_ref.storage import files
from atlas_ref.storage.files import Arrays

#: Metadata key of the JSON object (CASE-1).
KEY = "atlas_ref"


def read(path: str | os.PathLike[str]) -> tuple[str, dict[str, np.ndarray[Any, Any]]]:
    """The text of the JSON object and every tensor.

    Raises:
        ValueError: what is wrong with the file, without its name.
    """
    metadata, tensors = files.read(
        path, "is a folder; a case file, or for check a folder with .safetensors files, is needed"
    )
    if KEY not in metadata:
        raise ValueError(f"metadata key {KEY!r}: missing, a case needs its JSON object there")
    return metadata[KEY], tensors


def write(path: str | os.PathLike[str], text: str, tensors: Arrays) -> None:
    """Write under a temporary name and rename, so that no reader ever sees half a file (CASE-19).

    Raises:
        ValueError: what is wrong with the place or the tensors, without the file's name.
    """
    files.write(path, {KEY: text}, tensors)


__all__ = ["KEY", "Arrays", "read", "write"]
