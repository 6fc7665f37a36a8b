"""Nested parameters: dicts, tuples, lists, named tuples and pydantic models as trees of arrays.

A leaf is a floating or complex array, a Python float or complex, or a variable. What is not a leaf and
not a container is a setting (a name, a flag, an integer field of a model): it stays as it is and has no
derivative. Integers and booleans are refused where a derivative is asked for by position (in a dict,
a tuple or as the argument itself), since they are usually a forgotten decimal point.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tape.core import TapeError, Variable

Build = Callable[[list[Any]], Any]


def flatten(tree: Any, where: str = "argument") -> tuple[list[Any], list[str], Build]:
    """Leaves of a tree in order, their paths, and the function that puts new leaves in their places.

    Raises:
        TapeError: a leaf that cannot be differentiated, named by its path.
    """
    leaves: list[Any] = []
    paths: list[str] = []
    build = _walk(tree, where, leaves, paths, strict=True)
    return leaves, paths, build


def _is_model(tree: Any) -> bool:
    return hasattr(type(tree), "model_fields") and hasattr(type(tree), "model_construct")


def _walk(tree: Any, path: str, leaves: list[Any], paths: list[str], strict: bool) -> Build:
    if tree is None or isinstance(tree, str):
        return lambda new: tree
    if _is_model(tree):
        fields = {name: getattr(tree, name) for name in type(tree).model_fields}
        parts = {name: _walk(value, f"{path}.{name}", leaves, paths, strict=False) for name, value in fields.items()}
        return lambda new: type(tree).model_construct(**{name: part(new) for name, part in parts.items()})
    if isinstance(tree, dict):
        inner = {key: _walk(value, f"{path}[{key!r}]", leaves, paths, strict) for key, value in tree.items()}
        return lambda new: {key: part(new) for key, part in inner.items()}
    if isinstance(tree, tuple | list):
        each = [_walk(value, f"{path}[{i}]", leaves, paths, strict) for i, value in enumerate(tree)]
        if hasattr(tree, "_fields"):
            return lambda new: type(tree)(*[part(new) for part in each])
        return lambda new: type(tree)([part(new) for part in each])
    if _is_leaf(tree):
        position = len(leaves)
        leaves.append(tree)
        paths.append(path)
        return lambda new: new[position]
    if strict:
        raise TapeError(f"{path}: {_describe(tree)} has no derivative; write it as a float (1.0, array.astype(float))")
    return lambda new: tree


def _is_leaf(x: Any) -> bool:
    if type(x) is Variable or isinstance(x, float | complex):
        return True
    kind = getattr(x, "dtype", None)
    return kind is not None and hasattr(x, "shape") and not np.issubdtype(kind, np.integer) and kind.kind not in "bOSUM"


def _describe(x: Any) -> str:
    kind = getattr(x, "dtype", None)
    return f"an array of {kind}" if kind is not None else f"{x!r} of type {type(x).__name__}"
