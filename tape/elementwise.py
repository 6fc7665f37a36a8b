"""Ops on each entry: arithmetic, elementary functions, and choices by real part."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

import numpy as np

from tape.constants import beside
from tape.core import Binary, Op, Pullback, Unary, defvjp, primitive
from tape.shapes import astype, unbroadcast, zeros_like
from tape.variable import Array, dtype, plain, shape

__all__ = ["add", "subtract", "multiply", "divide", "negative", "power"]
__all__ += ["square", "sqrt", "exp", "log", "expm1", "log1p", "sin", "cos", "tanh"]
__all__ += ["sigmoid", "softplus", "erf", "silu", "gelu", "elu"]
__all__ += ["less", "greater", "equal", "where", "maximum", "minimum", "absolute", "stop_gradient"]

SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)
TWO_OVER_SQRT_PI = 2.0 / math.sqrt(math.pi)

# Python's operators and not NumPy's functions, since an op records what the expression would
# compute: of two Python numbers a Python number, which keeps the dtype of the arrays it meets.
add = primitive(operator.add, kind=Binary)
subtract = primitive(operator.sub, "subtract", kind=Binary)
multiply = primitive(operator.mul, "multiply", kind=Binary)
divide = primitive(operator.truediv, "divide", kind=Binary)
negative = primitive(operator.neg, "negative", kind=Unary)
power = primitive(operator.pow, "power", kind=Binary)


def _identity(g: Array) -> Array:
    return g


def _spread(y: Array, x: Array, pullback: Pullback) -> Pullback:
    """The pullback of an entry of y, followed by `unbroadcast` only where x was repeated."""
    target = shape(x)
    return pullback if target == shape(y) else lambda g: unbroadcast(pullback(g), target)


defvjp(add, lambda y, a, b: _spread(y, a, _identity), lambda y, a, b: _spread(y, b, _identity))
defvjp(
    subtract,
    lambda y, a, b: _spread(y, a, _identity),
    lambda y, a, b: _spread(y, b, operator.neg),
)
defvjp(
    multiply,
    lambda y, a, b: _spread(y, a, lambda g: g * b),
    lambda y, a, b: _spread(y, b, lambda g: g * a),
)
defvjp(
    divide,
    lambda y, a, b: _spread(y, a, lambda g: g / b),
    lambda y, a, b: _spread(y, b, lambda g: -(g * y) / b),
)
defvjp(negative, lambda y, a: lambda g: -g)


def _base(y: Array, a: Array, p: Array) -> Pullback:
    """p a^(p - 1), which is 0 where p is 0, also at a = 0."""

    def pullback(g: Array) -> Array:
        if isinstance(p, int | float):
            if p == 0:
                return zeros_like(g)
            return g * (p * a if p == 2 else p * a ** (p - 1))
        both = equal(a, 0.0) & equal(p, 0.0)
        return unbroadcast(g * (p * a ** where(both, 1.0, p - 1)), shape(a))

    return pullback


def _exponent(y: Array, a: Array, p: Array) -> Pullback:
    """a^p log(a), which is 0 where a is 0; the logarithm in the precision of the value."""

    def pullback(g: Array) -> Array:
        base = a if dtype(a) == dtype(y) else astype(a, dtype(y))
        return unbroadcast(g * (y * log(where(equal(a, 0.0), 1.0, base))), shape(p))

    return pullback


defvjp(power, _base, _exponent)

square: Op = primitive(np.square, kind=Unary)
sqrt: Op = primitive(np.sqrt, kind=Unary)
exp: Op = primitive(np.exp, kind=Unary)
log: Op = primitive(np.log, kind=Unary)
expm1: Op = primitive(np.expm1, kind=Unary)
log1p: Op = primitive(np.log1p, kind=Unary)
sin: Op = primitive(np.sin, kind=Unary)
cos: Op = primitive(np.cos, kind=Unary)
tanh: Op = primitive(np.tanh, kind=Unary)

defvjp(square, lambda y, a: lambda g: g * (2.0 * a))
defvjp(sqrt, lambda y, a: lambda g: g * (0.5 / y))
defvjp(exp, lambda y, a: lambda g: g * y)
defvjp(log, lambda y, a: lambda g: g / a)
# not y + 1, which rounds to 0 where exp(a) is small
defvjp(expm1, lambda y, a: lambda g: g * exp(a))
defvjp(log1p, lambda y, a: lambda g: g / (a + 1.0))
defvjp(sin, lambda y, a: lambda g: g * cos(a))
defvjp(cos, lambda y, a: lambda g: -g * sin(a))
defvjp(tanh, lambda y, a: lambda g: g - g * (y * y))


@primitive
def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow and to full relative precision on both sides."""
    positive = np.real(x) >= 0
    e = np.exp(np.where(positive, -x, x))
    return np.where(positive, 1.0, e) / (1.0 + e)


@primitive
def softplus(x: Array) -> Array:
    """log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|)): no overflow, small values stay."""
    positive = np.real(x) >= 0
    return np.where(positive, x, 0.0) + np.log1p(np.exp(np.where(positive, -x, x)))


defvjp(sigmoid, lambda y, a: lambda g: g * (y * sigmoid(-a)))
defvjp(softplus, lambda y, a: lambda g: g * sigmoid(a))


@primitive
def erf(x: Array) -> Array:
    """The error function 2/sqrt(pi) int_0^x exp(-t^2) dt, on the host of complex arrays too.

    A ufunc of SciPy, which hands CuPy arrays to CuPy; two bytes are computed in four.
    """
    from scipy import special  # at its first use, since it takes a second to load

    y = special.erf(x)
    kind = dtype(x)
    return y.astype(kind) if kind.itemsize == 2 and kind.kind not in "biu" else y


defvjp(erf, lambda y, a: lambda g: g * (TWO_OVER_SQRT_PI * exp(-(a * a))))


def silu(x: Array) -> Array:
    """x sigmoid(x)."""
    return x * sigmoid(x)


def gelu(x: Array) -> Array:
    """The tanh form, x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2, which is analytic."""
    return 0.5 * x * (1.0 + tanh(SQRT_2_OVER_PI * (x + 0.044715 * (x * x * x))))


def elu(x: Array) -> Array:
    """x where x > 0, else exp(x) - 1."""
    positive = greater(x, 0.0)
    return where(positive, x, expm1(where(positive, 0.0, x)))


def _real(x: Array) -> Array:
    return np.real(plain(x))


def less(a: Array, b: Array) -> Array:
    """Plain booleans: real part of a below real part of b."""
    return _real(a) < _real(b)


def greater(a: Array, b: Array) -> Array:
    """Plain booleans: real part of a above real part of b."""
    return _real(a) > _real(b)


def equal(a: Array, b: Array) -> Array:
    """Plain booleans: real parts equal."""
    return _real(a) == _real(b)


@primitive
def where(condition: Array, a: Array, b: Array) -> Array:
    """a where the plain boolean `condition` holds, else b.

    A condition on the host is moved to the device of a and b.
    """
    return np.where(beside(condition, a, b), a, b)


defvjp(
    where,
    None,
    lambda y, condition, a, b: _spread(y, a, lambda g: where(condition, g, 0.0)),
    lambda y, condition, a, b: _spread(y, b, lambda g: where(condition, 0.0, g)),
)


def maximum(a: Array, b: Array) -> Array:
    """The one with the larger real part; a where they are equal; nan where one is nan."""
    return where(_first(greater, a, b), a, b)


def minimum(a: Array, b: Array) -> Array:
    """The one with the smaller real part; a where they are equal; nan where one is nan."""
    return where(_first(less, a, b), a, b)


def _first(beyond: Callable[[Array, Array], Array], a: Array, b: Array) -> Array:
    return beyond(a, b) | equal(a, b) | np.isnan(_real(a))


def absolute(x: Array) -> Array:
    """x or -x, the one with a non-negative real part (not the complex modulus)."""
    return where(less(x, 0.0), -x, x)


def stop_gradient(x: Array) -> Array:
    """The plain array under x: no cotangent passes."""
    return plain(x)
