"""Names of tensors in files, from their places in a nest of data."""

from __future__ import annotations

import re


def name_of(path: str) -> str:
    """The name of a tensor by its path (MODEL-11, OPTIM-2): `.blocks[0]['W']` gives blocks.0.W."""
    return re.sub(r"\['([^']*)'\]|\[(\w+)\]", r".\1\2", path).removeprefix(".")
