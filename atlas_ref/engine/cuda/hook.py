"""The decorator that lets a kernel compute a plain function, its plain twin (CUDA-14)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

from atlas_ref.engine import cuda
from atlas_ref.engine.cuda.launch import DoesNotFit
from atlas_ref.types import Array

P = ParamSpec("P")
R = TypeVar("R")


def kernel(fused: Callable[..., Any]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a kernel compute a function where it can take its arrays and sizes (CUDA-14).

    Elsewhere the function computes itself.

    Args:
        fused: the same function by a kernel; it raises DoesNotFit for sizes beyond it, before it
            changes anything.
    """

    def decorate(plain: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(plain)
        def hooked(*args: P.args, **kwargs: P.kwargs) -> R:
            if cuda.available_for(*_arrays((*args, *kwargs.values()))):
                try:
                    found: R = fused(*args, **kwargs)
                    return found
                except DoesNotFit:
                    pass
            return plain(*args, **kwargs)

        return hooked

    return decorate


def _arrays(nest: tuple[Any, ...]) -> Iterator[Array]:
    """The arrays among arguments, including those inside tuples."""
    for each in nest:
        if isinstance(each, tuple):
            yield from _arrays(each)
        elif hasattr(each, "dtype"):
            yield each
