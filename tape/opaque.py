"""Opaque blocks: a function with a hand-written backward, one entry on the list."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tape.core import Array, Pullback, TapeError, Variable, defvjp_joint, primitive, shape
from tape.transforms import vjp


def opaque(
    plain: Callable[..., Array],
    forward: Callable[..., tuple[Array, Any]],
    backward: Callable[[Any, Array], Sequence[Array | None]],
) -> Callable[..., Array]:
    """A function recorded as one entry, with a backward written by hand (TAPE-9).

    On raw arrays it is `forward(*arrays)[0]`. In a first derivative the sweep calls `backward`. Wherever a
    second derivative needs to see inside - an argument of two levels, or a cotangent that is a variable -
    `plain` is recorded op by op instead, so no derivative is cut.

    Args:
        plain: the same function written in tape ops: the truth that a test ties `backward` to.
        forward: raw arrays -> (value, residuals).
        backward: (residuals, cotangent of the value, read-only) -> one cotangent per argument, None for a constant.

    Raises:
        TapeError: in the sweep, `backward` gave another number of cotangents than arguments, or another shape.
    """
    name = plain.__name__
    handed = threading.local()  # residuals on their way from `run` to `rule`, which follows it in the same thread

    def run(*arrays: Array) -> Array:
        value, handed.residuals = forward(*arrays)
        return value

    def rule(value: Array, *arrays: Array) -> Pullback:
        residuals = handed.residuals
        del handed.residuals
        shapes = [shape(a) for a in arrays]

        def pullback(g: Array) -> Any:
            if type(g) is Variable:
                return vjp(plain, *arrays)[1](g)
            cotangents = tuple(backward(residuals, _read_only(g)))
            if len(cotangents) != len(shapes) or any(c is not None and shape(c) != s for c, s in zip(cotangents, shapes, strict=True)):
                found = [None if c is None else shape(c) for c in cotangents]
                raise TapeError(f"{name}: backward gave cotangents of shapes {found}; give one per argument, of shapes {shapes}")
            return cotangents

        return pullback

    op = primitive(run, name)
    defvjp_joint(op, rule)

    def block(*arrays: Array) -> Array:
        levels = {a.tape.level for a in arrays if type(a) is Variable}
        if not levels:
            return forward(*arrays)[0]
        if len(levels) > 1 or any(type(a) is Variable and type(a.value) is Variable for a in arrays):
            return plain(*arrays)
        return op(*arrays)

    block.__name__ = name
    block.__doc__ = plain.__doc__
    return block


def _read_only(g: Array) -> Array:
    """A view that refuses writing, since the cotangent may belong to other entries or to the caller."""
    if isinstance(g, np.ndarray):
        g = g.view()
        g.flags.writeable = False
    return g
