"""Opaque blocks: a function with a hand-written backward, one entry on the list."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tape.core import Fresh, Pullback, defvjp, defvjp_joint, primitive
from tape.shapes import zeros_like
from tape.transforms import vjp
from tape.variable import Array, TapeError, Variable, shape


def opaque(
    plain: Callable[..., Any],
    forward: Callable[..., tuple[Any, Any]],
    backward: Callable[[Any, Any], Sequence[Array | None]],
    *,
    value: Callable[..., Any] | None = None,
    fresh: bool = False,
) -> Callable[..., Any]:
    """A function recorded as one entry, with a backward written by hand (TAPE-9).

    On raw arrays it is `value(*arrays)`, or without one `forward(*arrays)[0]`. In a first
    derivative the sweep calls `backward`. Where a second derivative needs the inside - for an
    argument of two levels, or a cotangent that is a variable - `plain` is recorded op by op
    instead, so no derivative is cut.

    The value is an array or a tuple of arrays.

    Args:
        plain: the same function written in tape ops: the truth that a test ties `backward` to.
        forward: raw arrays -> (value, residuals).
        backward: (residuals, cotangent of the value, read-only) -> one cotangent per argument, None
            for a constant. For a tuple the cotangent is a tuple, with None where nothing depends on
            that array.
        value: the value of `forward` alone, where `forward` keeps more for the backward than the
            value needs.
        fresh: whether every cotangent of `backward` is a writable array of its own, which nothing
            else holds or reads. Then it may become a gradient as it is. Others are copied.

    Raises:
        TapeError: in the sweep, `backward` gave another number of cotangents than arguments, or
            another shape.
    """
    name = plain.__name__
    # residuals on their way from `run` to `rule`, which follows it in the same thread
    handed = threading.local()

    def run(*arrays: Array) -> Any:
        value, handed.residuals = forward(*arrays)
        return value

    def rule(value: Any, *arrays: Array) -> Pullback:
        residuals = handed.residuals
        del handed.residuals
        shapes = [shape(a) for a in arrays]
        count = len(value) if type(value) is tuple else None
        complex_value = _is_complex(value)

        def pullback(g: Any) -> Any:
            if count is not None:
                g = tuple(g.parts.get(place) for place in range(count))
            if any(type(each) is Variable for each in (g if count is not None else (g,))):
                values, pulled = vjp(plain, *arrays)
                return pulled(g if count is None else tuple(map(_or_zeros, g, values)))
            g = _read_only(g)
            cotangents = tuple(
                _by_parts(backward, residuals, g)
                if _is_complex(g) and not complex_value
                else backward(residuals, g)
            )
            if len(cotangents) != len(shapes) or any(
                c is not None and shape(c) != s for c, s in zip(cotangents, shapes, strict=True)
            ):
                result_shapes = [None if c is None else shape(c) for c in cotangents]
                raise TapeError(
                    f"{name}: backward gave cotangents of shapes {result_shapes}; give one "
                    f"per argument, of shapes {shapes}"
                )
            return Fresh(cotangents) if fresh else cotangents

        return pullback

    op = primitive(run, name)
    defvjp_joint(op, rule)

    def block(*arrays: Array) -> Any:
        levels = {a.tape.level for a in arrays if type(a) is Variable}
        if not levels:
            return forward(*arrays)[0] if value is None else value(*arrays)
        if len(levels) > 1 or any(
            type(a) is Variable and type(a.value) is Variable for a in arrays
        ):
            return plain(*arrays)
        result = op(*arrays)
        return (
            tuple(_pick(result, place=place) for place in range(len(result.value)))
            if type(result.value) is tuple
            else result
        )

    block.__name__ = name
    block.__doc__ = plain.__doc__
    return block


class _Parts:
    """Cotangents of some arrays of a tuple, while the sweep adds them up."""

    __slots__ = ("parts",)

    def __init__(self, parts: dict[int, Array]) -> None:
        self.parts = parts

    def __add__(self, other: _Parts) -> _Parts:
        both = dict(self.parts)
        for place, g in other.parts.items():
            both[place] = both[place] + g if place in both else g
        return _Parts(both)


_pick = primitive(lambda values, place: values[place], "opaque")
defvjp(_pick, lambda y, values, place: lambda g: _Parts({place: g}))


def _is_complex(values: Any) -> bool:
    """Whether an array, or one of a tuple, is complex."""
    if type(values) is tuple:
        return any(_is_complex(each) for each in values)
    return bool(getattr(getattr(values, "dtype", None), "kind", "") == "c")


def _by_parts(
    backward: Callable[[Any, Any], Sequence[Array | None]], residuals: Any, g: Any
) -> Sequence[Array | None]:
    """Cotangents from a complex cotangent of real values, by its real and imaginary parts
    (TAPE-13).

    This holds since `backward` is linear. It may write into real arrays of its own.
    """

    def part(of: Callable[[Any], Any]) -> Sequence[Array | None]:
        return backward(
            residuals,
            tuple(None if each is None else of(each) for each in g) if type(g) is tuple else of(g),
        )

    return [
        None if x is None or y is None else x + 1j * y
        for x, y in zip(part(np.real), part(np.imag), strict=True)
    ]


def _or_zeros(g: Array | None, value: Array) -> Array:
    return zeros_like(value) if g is None else g


def _read_only(g: Any) -> Any:
    """A view that refuses writing: other entries or the caller may own the cotangent."""
    if type(g) is tuple:
        return tuple(_read_only(each) for each in g)
    if isinstance(g, np.ndarray):
        g = g.view()
        g.flags.writeable = False
    return g
