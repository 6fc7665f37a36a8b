"""The steps of one write of a deep memory, in any legal arithmetic.

Written from DEEP-7 to DEEP-13, one function each. Factors are None for 1 and have the axes of a
memory, tensors those and their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atlas_ref.conventions import Convention
from atlas_ref.oracle.deep import biases
from atlas_ref.oracle.deep.biases import Part
from atlas_ref.oracle.deep.settings import Settings, rank
from atlas_ref.oracle.family import steps
from atlas_ref.oracle.family.arithmetic import Arithmetic
from atlas_ref.types import Array
from tape import ops

#: Guard of the norm in a hard clip, and in S / (|S| + 1e-8) (DEEP-9, DEEP-12).
GUARD = 1e-8

Values = dict[str, Array]


def factor(x: Any, axes: int) -> Any:
    """A number of each memory beside tensors with `axes` axes of their own."""
    return None if x is None else ops.reshape(x, (*x.shape, *(1,) * axes))


def residual(s: Settings, touch: Any, part: Part, predicted: Array, values: Array) -> Array:
    """e = M(k) - v (DEEP-7, CONV-10)."""
    plus = s.c.value_sign == "plus"
    return biases.residual(s.bias, plus, touch, predicted, values, part)


def cotangent(
    s: Settings, touch: Any, part: Part, e: Array, weights: Array, thresholds: Any = None
) -> Array:
    """s w slope(e) of each prediction, over the number of tokens and rows for a mean (DEEP-7)."""
    scale = s.c.gradient_scale
    number = 2.0 / e.shape[-1] if isinstance(scale, str) else float(scale)
    if s.reduction == "mean":
        rows = e.shape[0] if s.shares_memory and len(e.shape) > 2 else 1
        number = number / (e.shape[-2] * rows)
    slope = biases.slope(s.bias, touch, e, thresholds, part)
    return (number * ops.expand_dims(weights, -1)) * slope


def over_rows(way: Arithmetic, g: Array) -> Array:
    """Sum over the first axis, which stays (DEEP-13)."""
    flat = ops.reshape(g, (g.shape[0], -1))
    total = way.matmul(ops.ones_like(flat, shape=(1, flat.shape[0])), flat)
    return ops.reshape(total, (1, *g.shape[1:]))


def square(way: Arithmetic, x: Array, axes: int) -> Array:
    """Sum of the squares of the last axes."""
    if not axes:
        return x * x
    flat = ops.reshape(x, (*x.shape[: len(x.shape) - axes], -1, 1))
    return way.matmul(flat.swapaxes(-1, -2), flat)[..., 0, 0]


def scale(way: Arithmetic, f: Array, x: Array, axes: int) -> Array:
    """f x for one number of each memory, whose cotangent <g, x> is a sum in this arithmetic."""
    if not axes:
        return f * x
    flat = ops.reshape(x, (*x.shape[: len(x.shape) - axes], -1, 1))
    product = way.matmul(flat, factor(f, 2))
    return ops.reshape(product, (*product.shape[:-2], *x.shape[len(x.shape) - axes :]))


def root(x: Array) -> Array:
    """sqrt, with a derivative of 0 at 0."""
    zero = ops.equal(x, 0.0)
    return ops.where(zero, 0.0, ops.sqrt(ops.where(zero, 1.0, x)))


def norm(way: Arithmetic, g: Mapping[str, Array]) -> Array:
    """|g| over all fast tensors of a memory (DEEP-9, DEEP-10)."""
    squares = [square(way, each, rank(name)) for name, each in g.items()]
    total = squares[0]
    for each in squares[1:]:
        total = total + each
    return root(total)


def hard(bound: float, size: Array) -> Array:
    """min(1, bound / (|g| + 1e-8)) (DEEP-9)."""
    return ops.minimum(1.0, bound / (size + GUARD))


def soft(way: Arithmetic, bound: float, g: Array, axes: int) -> Array:
    """A tensor with the length (bound / 2) (1 + tanh(2 |g| / bound)), zero as it is (DEEP-9)."""
    size = root(square(way, g, axes))
    none = ops.equal(size, 0.0)
    length = (0.5 * bound) * (1.0 + ops.tanh(size * (2.0 / bound)))
    return scale(way, length / ops.where(none, 1.0, size), g, axes)


def rates(c: Convention, h: Any, second: Any) -> tuple[Any, Any]:
    """(a, b), the factors of g in S and of U in W (DEEP-11, CONV-7)."""
    return {
        "momentum": (h, None),
        "memory": (None, h),
        "both": (h, h),
        "split": (h, second),
        "none": (None, None),
    }[c.rate]


def momentum(way: Arithmetic, m: Any, S: Any, a: Any, g: Array, axes: int) -> Array:
    """m S + a g, with S None for zero (DEEP-11)."""
    if S is None or m is None:
        return steps.times(factor(a, axes), g)
    return steps.momentum(way, factor(m, axes), S, factor(a, axes), g)


def direction(
    s: Settings, way: Arithmetic, S: Array, axes: int, orthogonalise: Any, touch: Any
) -> Array:
    """U: Newton-Schulz of a matrix, S of a vector or its direction (DEEP-12)."""
    if axes == 2:
        return orthogonalise(S) if s.c.has_newton_schulz else S
    if s.vectors == "unit":
        return scale(way, touch(1.0 / (root(square(way, S, axes)) + GUARD)), S, axes)
    return S


def weights(way: Arithmetic, c: Convention, r: Any, W: Array, b: Any, U: Array, axes: int) -> Array:
    """r W - b U, or + where S has the other sign (DEEP-13)."""
    adds = (c.momentum_sign == "minus") != (c.direction == "ascent")
    return steps.memory(way, factor(r, axes), W, factor(b, axes), -U if adds else U)


def share_of_weights(c: Convention, gate: Any) -> Any:
    """The share of W that is kept (CONV-4)."""
    if c.gate == "none":
        return None
    return 1.0 - gate if gate is not None and c.gate == "forget" else gate


def normalise(x: Array, kind: str, c: Any, touch: Any) -> Array:
    """A key or query by the norm of CONV-24."""
    if kind == "none":
        return x
    squares = ops.sum(x * x, axis=-1, keepdims=True)
    squares = squares if kind == "l2" else squares * (1.0 / x.shape[-1])
    if c.norm_guard == "root":
        return x * touch(1.0 / ops.sqrt(squares + c.norm_eps))
    some = ops.greater(squares, 0.0)
    n = ops.where(some, ops.sqrt(ops.where(some, squares, 1.0)), 0.0)
    return x * touch(
        1.0 / (n + c.norm_eps if c.norm_guard == "add" else ops.maximum(n, c.norm_eps))
    )
