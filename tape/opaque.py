"""Opaque blocks: a function with a hand-written backward, one entry on the list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tape.core import Array, Pullback, Variable, defvjp_joint, primitive
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
        backward: (residuals, cotangent of the value) -> one cotangent per argument, None for a constant.
    """
    kept: list[Any] = []

    def run(*arrays: Array) -> Array:
        value, residuals = forward(*arrays)
        kept[:] = [residuals]
        return value

    def rule(value: Array, *arrays: Array) -> Pullback:
        residuals = kept.pop()

        def pullback(g: Array) -> Any:
            if type(g) is Variable:
                return vjp(plain, *arrays)[1](g)
            return tuple(backward(residuals, g))

        return pullback

    run.__name__ = plain.__name__
    op = primitive(run)
    defvjp_joint(op, rule)

    def block(*arrays: Array) -> Array:
        levels = {a.tape.level for a in arrays if type(a) is Variable}
        if not levels:
            return forward(*arrays)[0]
        if len(levels) > 1 or any(type(a) is Variable and type(a.value) is Variable for a in arrays):
            return plain(*arrays)
        return op(*arrays)

    block.__name__ = plain.__name__
    block.__doc__ = plain.__doc__
    return block
