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

    Its value is an array or a tuple of arrays. In a first derivative the sweep calls `backward`.
    Where a second derivative needs the inside - for an argument of two levels, or a cotangent that
    is a variable - `plain` is recorded op by op instead, so no derivative is cut.

    Args:
        plain: the same function written in tape ops: the truth that a test ties `backward` to.
        forward: raw arrays -> (value, residuals).
        backward: (residuals, cotangent of the value, read-only) -> one cotangent per argument, None
            for a constant. For a tuple the cotangent is a tuple, with None where nothing depends on
            that array.
        value: the value of `forward` alone on raw arrays, where `forward` keeps more for the
            backward than the value needs.
        fresh: whether every cotangent of `backward` is a writable array of its own, which nothing
            else holds or reads. Then it may become a gradient as it is. Others are copied.

    Raises:
        TapeError: in the sweep, `backward` gave another number of cotangents than arguments, or
            another shape.
    """
    name = plain.__name__
    alone = value or (lambda *arrays: forward(*arrays)[0])
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
                g = tuple(g.get(place) for place in range(count))
            if any(type(each) is Variable for each in (g if count is not None else (g,))):
                values, pulled = vjp(plain, *arrays)
                return pulled(g if count is None else tuple(map(_or_zeros, g, values)))
            g = _each(_read_only, g)
            split = not complex_value and _is_complex(g)
            found = _by_parts(backward, residuals, g) if split else backward(residuals, g)
            cotangents = Fresh(found) if fresh else tuple(found)
            fits = [c is None or shape(c) == s for c, s in zip(cotangents, shapes, strict=False)]
            if len(cotangents) != len(shapes) or not all(fits):
                sizes = [None if c is None else shape(c) for c in cotangents]
                raise TapeError(
                    f"{name}: backward gave cotangents of shapes {sizes}; give one per argument, "
                    f"of shapes {shapes}"
                )
            return cotangents

        return pullback

    op = primitive(run, name)
    defvjp_joint(op, rule)

    def block(*arrays: Array) -> Any:
        variables = [a for a in arrays if type(a) is Variable]
        if not variables:
            return alone(*arrays)
        level = variables[0].tape.level
        if any(a.tape.level != level or type(a.value) is Variable for a in variables):
            return plain(*arrays)
        result = op(*arrays)
        if type(result.value) is not tuple:
            return result
        return tuple(_pick(result, place=place) for place in range(len(result.value)))

    block.__name__ = name
    block.__doc__ = plain.__doc__
    return block


class _Parts(dict[int, Array]):
    """Cotangents of some arrays of a tuple by their places, while the sweep adds them up."""

    def __add__(self, other: _Parts) -> _Parts:
        sums = {at: self[at] + g if at in self else g for at, g in other.items()}
        return _Parts(self | sums)


_pick = primitive(lambda values, place: values[place], "opaque")
defvjp(_pick, lambda y, values, place: lambda g: _Parts({place: g}))


def _is_complex(values: Any) -> bool:
    """Whether an array, or one of a tuple, is complex."""
    if type(values) is tuple:
        return any(map(_is_complex, values))
    return bool(getattr(getattr(values, "dtype", None), "kind", "") == "c")


def _each(function: Callable[[Array], Array], values: Any) -> Any:
    """The function of an array, or of each array of a tuple that has one at that place."""
    if type(values) is tuple:
        return tuple(None if a is None else function(a) for a in values)
    return function(values)


def _by_parts(
    backward: Callable[[Any, Any], Sequence[Array | None]], residuals: Any, g: Any
) -> Sequence[Array | None]:
    """Cotangents from a complex cotangent of real values, by its real and imaginary parts
    (TAPE-13).

    This holds since `backward` is linear. It may write into real arrays of its own.
    """
    real, imaginary = (backward(residuals, _each(part, g)) for part in (np.real, np.imag))
    return [
        None if x is None or y is None else x + 1j * y for x, y in zip(real, imaginary, strict=True)
    ]


def _or_zeros(g: Array | None, value: Array) -> Array:
    return zeros_like(value) if g is None else g


def _read_only(g: Array) -> Array:
    """A view that refuses writing: other entries or the caller may own the cotangent."""
    if isinstance(g, np.ndarray):
        g = g.view()
        g.flags.writeable = False
    return g
