"""Mistakes of delta momentum, whose factor a large gradient makes smaller.

Source: VEC-25.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from atlas_ref.oracle.family.mistake import Hooks, Mistake, Seen
from atlas_ref.oracle.family.state import Inputs
from atlas_ref.parts.momentum import MARGIN, faded
from atlas_ref.parts.straight import straight
from atlas_ref.types import Array
from tape import ops


class Token(NamedTuple):
    """What a factor may depend on.

    Attributes:
        momentum (..., 1 or d_out, 1): the gate.
        gradient, before (..., d_out, d_phi): of the token, and of the token before or 0.
        step (..., 1 or d_out, 1): of the gradient; None for 1.
    """

    momentum: Array
    gradient: Array
    before: Array
    step: Array


class Kind(NamedTuple):
    """A factor in the place of the right one."""

    name: str
    words: str
    factor: Callable[[Token], Array]
    grad: bool = False


def _clamp(x: Array) -> Array:
    return ops.minimum(1.0 - MARGIN, ops.maximum(MARGIN, x))


def _square(g: Array, axes: tuple[int, ...] = (-2, -1)) -> Array:
    return ops.sum(g * g, axis=axes, keepdims=True)


def _by_norm(token: Token) -> Array:
    square = _square(token.gradient)
    zero = ops.equal(square, 0.0)
    return _clamp(token.momentum - ops.sqrt(ops.where(zero, 1.0, square)) * (1.0 - zero))


def _after_the_step(token: Token) -> Array:
    g = token.gradient if token.step is None else token.step * token.gradient
    return faded(token.momentum, g)


def _straight(token: Token) -> Array:
    inner = token.momentum - _square(token.gradient)
    return straight(inner, _clamp(ops.stop_gradient(inner)))


KINDS = (
    Kind("fading by the norm", "the norm of the gradient is not squared", _by_norm),
    Kind(
        "fading by rows",
        "every row fades by its own part of the gradient",
        lambda token: _clamp(token.momentum - _square(token.gradient, (-1,))),
    ),
    Kind(
        "fading by the mean",
        "the mean of the squares is in the place of their sum",
        lambda token: _clamp(
            token.momentum
            - _square(token.gradient) / (token.gradient.shape[-1] * token.gradient.shape[-2])
        ),
    ),
    Kind(
        "fading without a clamp",
        "the factor may be negative",
        lambda token: token.momentum - _square(token.gradient),
    ),
    Kind(
        "fading by a factor",
        "the momentum is multiplied by one minus the square",
        lambda token: _clamp(token.momentum * (1.0 - _square(token.gradient))),
    ),
    Kind("fading after the step size", "the gradient is multiplied by its step", _after_the_step),
    Kind(
        "fading one token late",
        "the factor is that of the gradient before",
        lambda token: faded(token.momentum, token.before),
    ),
    Kind(
        "square of the gradient held fixed",
        "the gradient gets nothing from the factor",
        lambda token: faded(token.momentum, ops.stop_gradient(token.gradient)),
        True,
    ),
    Kind(
        "clamp of the fading passed straight through",
        "a factor at a bound passes its cotangent",
        _straight,
        True,
    ),
    Kind(
        "fading momentum held fixed",
        "the momentum gets nothing from the factor",
        lambda token: faded(ops.stop_gradient(token.momentum), token.gradient),
        True,
    ),
)


def words_by_name() -> dict[str, str]:
    """Mistakes in words, by name."""
    return {each.name: each.words for each in KINDS}


def mistakes(at: Seen) -> list[Mistake]:
    """Mistakes of the factor of a case."""
    if not at.structure.fades or not at.momentum:
        return []
    plain = {"momentum_kind": "sum"}
    return [
        Mistake(
            each.name,
            each.words,
            lambda _: True,
            each.grad,
            hooks=_plant(each.factor),
            convention=plain,
        )
        for each in KINDS
        if each.factor is not _after_the_step or at.inputs.a is not None
    ]


def _plant(factor: Callable[[Token], Array]) -> Callable[[], Hooks]:
    """The changes of a run whose momentum is 1, and whose S is made smaller behind each sum."""

    def hooks() -> Hooks:
        held: dict[str, Array] = {}

        def inputs(loop: Inputs) -> Inputs:
            held["momentum"], held["a"] = loop.momentum, loop.a
            return loop._replace(momentum=ops.ones_like(loop.momentum))

        def carry(S: Array) -> Array:
            held["S"] = S
            return S

        def values(op: str, t: int, x: Array) -> Array:
            if op == "gradient":
                held["before"] = held.get("gradient", ops.zeros_like(x))
                held["gradient"] = x
            if op != "S":
                return x
            a = held["a"]
            step = None if a is None else a[..., t, :, :]
            momentum = held["momentum"][..., t, :, :]
            token = Token(momentum, held["gradient"], held["before"], step)
            return x + (factor(token) - 1.0) * held["S"]

        return Hooks(inputs, {"carried S": carry}, values)

    return hooks
