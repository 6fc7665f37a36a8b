"""Multiply-adds of a computation: arrays that count the products with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np

_count = [0]
_matmul = np.matmul


class Counted(np.ndarray):
    """An array that adds the multiply-adds of matrix products and outer products to a counter;
    scalings are free.
    """

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **settings: Any) -> Any:
        plain = [np.asarray(x) for x in inputs]
        settings = {
            key: tuple(np.asarray(x) for x in value) if key == "out" else value
            for key, value in settings.items()
        }
        value = getattr(ufunc, method)(*plain, **settings)
        if ufunc is _matmul:
            _count[0] += int(np.size(value)) * plain[0].shape[-1]
        elif (
            ufunc is np.multiply
            and all(x.size < np.size(value) for x in plain)
            and min(x.size for x in plain) > 1
        ):
            _count[0] += int(np.size(value))  # both grew: an outer product
        return value.view(Counted) if isinstance(value, np.ndarray) else value


def counted(x: Any) -> Any:
    """The same array, or a state with the same arrays, with a counter."""
    if isinstance(x, np.ndarray):
        return x.view(Counted)
    return type(x).trusted(
        **{
            name: value.view(Counted) if isinstance(value, np.ndarray) else value
            for name, value in x.__dict__.items()
        }
    )


def multiply_adds(work: Callable[[], Any]) -> int:
    """Count the multiply-adds of `work` on counted arrays, and in calls of `np.matmul` on any.

    The second count is needed because work space does not count itself.
    """

    def counting(*arrays: Any, **settings: Any) -> Any:
        before = _count[0]
        value = _matmul(*arrays, **settings)
        if _count[0] == before:
            _count[0] += int(np.size(value)) * np.shape(arrays[0])[-1]
        return value

    _count[0] = 0
    with patch.object(np, "matmul", counting):
        work()
    return _count[0]
