"""Nested parameters: dicts, tuples, lists, named tuples and pydantic models as trees of arrays.

A leaf is a floating or complex array, a Python float or complex, or a variable. What is not a leaf
and not a container is a setting (a name, a flag, an integer field of a model): it stays as it is
and has no derivative. Integers and booleans are refused where a derivative is asked for by position
(in a dict, a tuple or as the argument itself), since they are usually a forgotten decimal point
(TAPE-17).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tape.variable import TapeError, Variable

Build = Callable[[list[Any]], Any]


def flatten(tree: Any, where: str = "argument") -> tuple[list[Any], list[str], Build]:
    """Leaves of a tree in order, their paths, and the function that puts new leaves in their
    places.

    Raises:
        TapeError: a leaf that cannot be differentiated, named by its path below `where`.
    """
    leaves: list[Any] = []
    paths: list[str] = []
    build = _walk(tree, "", where, leaves, paths, strict=True)
    return leaves, paths, build


def matched(tree: Any, paths: Sequence[str], where: str) -> list[Any]:
    """Leaves of a tree in the order of `paths`, which must be exactly its own.

    Raises:
        TapeError: a leaf that is missing or too many, named by its path.
    """
    leaves, own_paths, _ = flatten(tree, where)
    by_path = dict(zip(own_paths, leaves, strict=True))
    for path in paths:
        if path not in by_path:
            raise TapeError(
                f"{where}{path} is missing; give an array for every leaf, zeros where there "
                "is nothing"
            )
    for path in by_path.keys() - set(paths):
        raise TapeError(f"{where}{path} belongs to nothing; leave it out")
    return [by_path[path] for path in paths]


def is_leaf(x: Any) -> bool:
    """Whether x is a leaf with a derivative: a variable, a floating or complex array or number."""
    if type(x) is np.ndarray and x.dtype.kind in "fc":
        return True
    if type(x) is Variable or isinstance(x, float | complex):
        return True
    dtype: Any = getattr(x, "dtype", None)
    kind = getattr(dtype, "kind", None)
    # NumPy knows bfloat16 only as a void
    return kind in ("f", "c") or (kind == "V" and "float" in dtype.name)


@functools.cache
def _fields(kind: Any) -> tuple[str, ...] | None:
    """Names of the fields of a model's class; None for a class of another kind."""
    fields: Any = getattr(kind, "model_fields", None)
    return None if fields is None or not hasattr(kind, "model_construct") else tuple(fields)


def _walk(
    tree: Any, path: str, where: str, leaves: list[Any], paths: list[str], strict: bool
) -> Build:
    if is_leaf(tree):
        position = len(leaves)
        leaves.append(tree)
        paths.append(path)
        return lambda new: new[position]
    if tree is None or isinstance(tree, str):
        return lambda new: tree

    def part(value: Any, step: str, strict: bool = strict) -> Build:
        return _walk(value, path + step, where, leaves, paths, strict)

    kind: Any = type(tree)
    names = _fields(kind)
    if names is not None:
        names = (*names, *(tree.model_extra or ()))
        fields = {name: part(getattr(tree, name), f".{name}", strict=False) for name in names}
        return lambda new: kind.model_construct(**{name: of(new) for name, of in fields.items()})
    if isinstance(tree, dict):
        inner = {key: part(value, f"[{key!r}]") for key, value in tree.items()}
        return lambda new: {key: build(new) for key, build in inner.items()}
    if isinstance(tree, tuple | list):
        each = [part(value, f"[{i}]") for i, value in enumerate(tree)]
        make = (lambda parts: kind(*parts)) if hasattr(tree, "_fields") else kind
        return lambda new: make([build(new) for build in each])
    # an array of integers is never a setting
    if strict or (getattr(tree, "ndim", 0) > 0 and tree.dtype.kind in "iu"):
        dtype = getattr(tree, "dtype", None)
        found = f"{tree!r} of type {kind.__name__}" if dtype is None else f"an array of {dtype}"
        raise TapeError(
            f"{where}{path}: {found} has no derivative; write it as a float (1.0, "
            "array.astype(float))"
        )
    return lambda new: tree
