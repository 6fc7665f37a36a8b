"""The decorator that lets a kernel compute a plain function, its plain twin (CUDA-14)."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, ParamSpec, TypeVar

from atlas_ref.engine import cuda
from atlas_ref.engine.cuda.launch import DoesNotFit
from atlas_ref.types import Array

P = ParamSpec("P")
R = TypeVar("R")


class Step(NamedTuple):
    """A call that a kernel can take: its name, both ways to compute it, and its arguments."""

    name: str
    fused: Callable[..., Any]
    plain: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


_choices: list[Callable[[Step], bool]] = []


@contextlib.contextmanager
def choosing(choice: Callable[[Step], bool]) -> Iterator[None]:
    """Ask a function, until the end of the block, whether a kernel takes a call (CUDA-14).

    So a benchmark holds each kernel against its plain twin.
    """
    _choices.append(choice)
    try:
        yield
    finally:
        _choices.pop()


def kernel(fused: Callable[..., Any]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a kernel compute a function where it can take its arrays and sizes (CUDA-14).

    Elsewhere the function computes itself.

    Args:
        fused: the same function by a kernel; it raises DoesNotFit for sizes beyond it, before it
            changes anything.
    """

    def decorate(plain: Callable[P, R]) -> Callable[P, R]:
        name = plain.__name__.lstrip("_")

        @functools.wraps(plain)
        def hooked(*args: P.args, **kwargs: P.kwargs) -> R:
            if cuda.available_for(*_arrays((*args, *kwargs.values()))) and (
                not _choices or _choices[-1](Step(name, fused, plain, args, kwargs))
            ):
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
