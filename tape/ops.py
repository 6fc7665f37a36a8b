"""The ops: NumPy functions that record themselves on a tape.

An op is two statements: the function on plain arrays and `defvjp` with one rule per argument. A rule is
two-stage: its outer stage sees the value and the arguments, decides what to keep and returns the
pullback. Pullbacks use operators and ops, never NumPy, so they can be differentiated again.

Every op takes complex arrays and no rule conjugates: derivatives are those of the holomorphic extension,
which is what makes the complex step exact (TAPE-13). Where an op must choose (maximum, absolute, where),
it chooses by real parts. Functions follow their arrays: NumPy's dispatch hands CuPy arrays to CuPy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tape.core import Array, Pullback, Scatter, TapeError, Variable, defvjp, defvjp_joint, dtype, plain, primitive, shape

SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)


def _identity(g: Array) -> Array:
    return g


def _unbroadcast(g: Array, target: tuple[int, ...]) -> Array:
    """Sum a cotangent over the axes along which an argument of shape `target` was repeated."""
    if shape(g) == target:
        return g
    extra = len(shape(g)) - len(target)
    axes = tuple(range(extra)) + tuple(extra + i for i, n in enumerate(target) if n == 1 and shape(g)[extra + i] != 1)
    return reshape(sum(g, axis=axes), target)


# -- arithmetic ---------------------------------------------------------------------------------------

add = primitive(np.add)
subtract = primitive(np.subtract)
multiply = primitive(np.multiply)
divide = primitive(np.divide)
negative = primitive(np.negative)


def _added(position: int) -> Any:
    def rule(y: Array, a: Array, b: Array) -> Pullback:
        target = shape((a, b)[position])
        return _identity if target == shape(y) else lambda g: _unbroadcast(g, target)

    return rule


def _subtracted(y: Array, a: Array, b: Array) -> Pullback:
    target = shape(b)
    return (lambda g: -g) if target == shape(y) else lambda g: _unbroadcast(-g, target)


def _multiplied(y: Array, factor: Array, target: tuple[int, ...]) -> Pullback:
    return (lambda g: g * factor) if target == shape(y) else lambda g: _unbroadcast(g * factor, target)


defvjp(add, _added(0), _added(1))
defvjp(subtract, _added(0), _subtracted)
defvjp(multiply, lambda y, a, b: _multiplied(y, b, shape(a)), lambda y, a, b: _multiplied(y, a, shape(b)))
defvjp(
    divide,
    lambda y, a, b: lambda g: _unbroadcast(g / b, shape(a)),
    lambda y, a, b: lambda g: _unbroadcast(-g * (a / b) / b, shape(b)),
)
defvjp(negative, lambda y, a: lambda g: -g)


def _base(y: Array, a: Array, p: Array) -> Pullback:
    def pullback(g: Array) -> Array:
        if type(p) is not Variable and np.ndim(p) == 0:
            if p == 0:
                return g * 0.0
            return g * (p * a if p == 2 else p * a ** (p - 1))
        return _unbroadcast(g * (p * a ** (p - 1)), shape(a))

    return pullback


power = primitive(np.power)
defvjp(power, _base, lambda y, a, p: lambda g: _unbroadcast(g * (y * log(a)), shape(p)))

square = primitive(np.square)
defvjp(square, lambda y, a: lambda g: g * (2.0 * a))

sqrt = primitive(np.sqrt)
defvjp(sqrt, lambda y, a: lambda g: g * (0.5 / y))

# -- elementary functions -----------------------------------------------------------------------------

exp = primitive(np.exp)
defvjp(exp, lambda y, a: lambda g: g * y)

log = primitive(np.log)
defvjp(log, lambda y, a: lambda g: g / a)

expm1 = primitive(np.expm1)
defvjp(expm1, lambda y, a: lambda g: g * (y + 1.0))

log1p = primitive(np.log1p)
defvjp(log1p, lambda y, a: lambda g: g / (a + 1.0))

sin = primitive(np.sin)
defvjp(sin, lambda y, a: lambda g: g * cos(a))

cos = primitive(np.cos)
defvjp(cos, lambda y, a: lambda g: -g * sin(a))

tanh = primitive(np.tanh)
defvjp(tanh, lambda y, a: lambda g: g - g * (y * y))


def _sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow and to full relative precision on both sides."""
    positive = np.real(x) >= 0
    e = np.exp(np.where(positive, -x, x))
    return np.where(positive, 1.0, e) / (1.0 + e)


sigmoid = primitive(_sigmoid)
defvjp(sigmoid, lambda y, a: lambda g: g * (y * sigmoid(-a)))


def _softplus(x: Array) -> Array:
    """log(1 + exp(x)) as max(x, 0) + log1p(exp(-|x|)), which neither overflows nor loses small values."""
    positive = np.real(x) >= 0
    return np.where(positive, x, 0.0) + np.log1p(np.exp(np.where(positive, -x, x)))


softplus = primitive(_softplus)
defvjp(softplus, lambda y, a: lambda g: g * sigmoid(a))


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


# -- choices, by real parts ---------------------------------------------------------------------------


def less(a: Array, b: Array) -> Array:
    """Plain booleans: real part of a below real part of b."""
    return np.real(plain(a)) < np.real(plain(b))


def greater(a: Array, b: Array) -> Array:
    """Plain booleans: real part of a above real part of b."""
    return np.real(plain(a)) > np.real(plain(b))


def equal(a: Array, b: Array) -> Array:
    """Plain booleans: real parts equal."""
    return np.real(plain(a)) == np.real(plain(b))


_where = primitive(np.where)
defvjp(
    _where,
    None,
    lambda y, c, a, b: lambda g: _unbroadcast(where(c, g, 0.0), shape(a)),
    lambda y, c, a, b: lambda g: _unbroadcast(where(c, 0.0, g), shape(b)),
)


def where(condition: Array, a: Array, b: Array) -> Array:
    """a where the plain boolean `condition` holds, else b."""
    return _where(condition, a, b)


def maximum(a: Array, b: Array) -> Array:
    """The one with the larger real part; a where they are equal."""
    return where(~less(a, b), a, b)


def minimum(a: Array, b: Array) -> Array:
    """The one with the smaller real part; a where they are equal."""
    return where(~greater(a, b), a, b)


def absolute(x: Array) -> Array:
    """x or -x, whichever has a non-negative real part (not the complex modulus)."""
    return where(less(x, 0.0), -x, x)


def stop_gradient(x: Array) -> Array:
    """The plain array under x: no cotangent passes."""
    return plain(x)


# -- sums ---------------------------------------------------------------------------------------------


def _sum(x: Array, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Array:
    return np.sum(x, axis=axis, keepdims=keepdims)


def _summed(y: Array, x: Array, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Pullback:
    full = shape(x)
    axes = range(len(full)) if axis is None else (axis,) if isinstance(axis, int) else axis
    kept = {i % len(full) for i in axes} if full else set()
    thin = tuple(1 if i in kept else n for i, n in enumerate(full))
    return lambda g: broadcast_to(g if shape(g) == thin else reshape(g, thin), full)


sum = primitive(_sum)
defvjp(sum, _summed)


def mean(x: Array, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Array:
    """Arithmetic mean over `axis`."""
    total = sum(x, axis=axis, keepdims=keepdims)
    return total * (np.size(plain(total)) / max(1, np.size(plain(x))))


def vdot(a: Array, b: Array) -> Array:
    """Sum of a * b over all entries; unlike np.vdot it does not conjugate."""
    return sum(a * b)


def norm(x: Array, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Array:
    """sqrt(sum x^2), with derivative 0 where x is 0 (the derivative there does not exist)."""
    squares = sum(x * x, axis=axis, keepdims=keepdims)
    zero = equal(squares, 0.0)
    return where(zero, 0.0, sqrt(where(zero, 1.0, squares)))


def cumsum(x: Array, axis: int = -1) -> Array:
    """Running sum along `axis`."""
    return _cumsum(x, axis=axis)


_cumsum = primitive(lambda x, axis: np.cumsum(x, axis=axis))
_cumsum.__name__ = "cumsum"
defvjp(_cumsum, lambda y, x, axis: lambda g: flip(cumsum(flip(g, axis), axis), axis))


def logsumexp(x: Array, axis: int = -1, keepdims: bool = False) -> Array:
    """log(sum(exp(x))) with the largest real part taken out first."""
    top = np.max(np.real(plain(x)), axis=axis, keepdims=True)
    y = log(sum(exp(x - top), axis=axis, keepdims=True)) + top
    return y if keepdims else squeeze(y, axis)


def softmax(x: Array, axis: int = -1) -> Array:
    """exp(x) / sum(exp(x)) along `axis`."""
    e = exp(x - np.max(np.real(plain(x)), axis=axis, keepdims=True))
    return e / sum(e, axis=axis, keepdims=True)


# -- products -----------------------------------------------------------------------------------------

matmul = primitive(np.matmul)


def _mT(x: Array) -> Array:
    return x.swapaxes(-1, -2)  # the method, of arrays and variables alike, costs a third of the function


def _matmul_left(y: Array, a: Array, b: Array) -> Pullback:
    if a.ndim >= 2 and b.ndim >= 2:
        right = _mT(b)
        return lambda g: _unbroadcast(g @ right, shape(a))
    if b.ndim == 1:  # a (..., n, k) or (k,), b (k,)
        return lambda g: _unbroadcast(expand_dims(g, -1) * b, shape(a))
    return lambda g: _unbroadcast(squeeze(expand_dims(g, -2) @ _mT(b), -2), shape(a))  # a (k,), b (..., k, m)


def _matmul_right(y: Array, a: Array, b: Array) -> Pullback:
    if a.ndim >= 2 and b.ndim >= 2:
        left = _mT(a)
        return lambda g: _unbroadcast(left @ g, shape(b))
    if a.ndim == 1 and b.ndim == 1:
        return lambda g: g * a
    if a.ndim == 1:  # a (k,), b (..., k, m)
        return lambda g: _unbroadcast(expand_dims(a, -1) * expand_dims(g, -2), shape(b))
    return lambda g: _unbroadcast(squeeze(_mT(a) @ expand_dims(g, -1), -1), shape(b))  # a (..., n, k), b (k,)


defvjp(matmul, _matmul_left, _matmul_right)


def outer(a: Array, b: Array) -> Array:
    """a_i b_j over the last axes: (..., m), (..., n) -> (..., m, n)."""
    return expand_dims(a, -1) * expand_dims(b, -2)


def _solve_triangular(a: Array, b: Array, lower: bool = True, unit: bool = False) -> Array:
    n = a.shape[-1]
    x = np.array(np.broadcast_to(b, (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *b.shape[-2:])), dtype=np.result_type(a, b))
    for i in range(n) if lower else range(n - 1, -1, -1):
        done = slice(0, i) if lower else slice(i + 1, n)
        x[..., i, :] -= np.matmul(a[..., i, None, done], x[..., done, :])[..., 0, :]
        if not unit:
            x[..., i, :] /= a[..., i, i, None]
    return x


_triangular = primitive(_solve_triangular)


def _triangular_matrix(y: Array, a: Array, b: Array, lower: bool, unit: bool) -> Pullback:
    def pullback(g: Array) -> Array:
        back = solve_triangular(_mT(a), g, lower=not lower, unit=unit)
        part = -(back @ _mT(y))
        part = tril(part, -1 if unit else 0) if lower else triu(part, 1 if unit else 0)
        return _unbroadcast(part, shape(a))

    return pullback


defvjp(
    _triangular,
    _triangular_matrix,
    lambda y, a, b, lower, unit: lambda g: _unbroadcast(solve_triangular(_mT(a), g, lower=not lower, unit=unit), shape(b)),
)


def solve_triangular(a: Array, b: Array, lower: bool = True, unit: bool = False) -> Array:
    """Solve a x = b by substitution over rows, batched.

    Args:
        a (..., n, n): triangular; the other triangle, and the diagonal when `unit`, is not read.
        b (..., n, m): right-hand sides.
    """
    if shape(a)[-1] != shape(a)[-2] or shape(a)[-1] != shape(b)[-2]:
        raise TapeError(f"ops.solve_triangular: a {shape(a)} must be square and match the rows of b {shape(b)}")
    return _triangular(a, b, lower=lower, unit=unit)


# -- shapes -------------------------------------------------------------------------------------------

reshape = primitive(lambda x, shape: np.reshape(x, shape))
reshape.__name__ = "reshape"
defvjp(reshape, lambda y, x, target: lambda g: reshape(g, shape(x)))

broadcast_to = primitive(lambda x, shape: np.broadcast_to(x, shape))
broadcast_to.__name__ = "broadcast_to"
defvjp(broadcast_to, lambda y, x, target: lambda g: _unbroadcast(g, shape(x)))

swapaxes = primitive(np.swapaxes)
defvjp(swapaxes, lambda y, x, i, j: lambda g: swapaxes(g, i, j))

moveaxis = primitive(np.moveaxis)
defvjp(moveaxis, lambda y, x, i, j: lambda g: moveaxis(g, j, i))

expand_dims = primitive(np.expand_dims)
defvjp(expand_dims, lambda y, x, axis: lambda g: squeeze(g, axis))

squeeze = primitive(np.squeeze)
defvjp(squeeze, lambda y, x, axis=None: lambda g: reshape(g, shape(x)))

flip = primitive(np.flip)
defvjp(flip, lambda y, x, axis=None: lambda g: flip(g, axis))

tril = primitive(np.tril)
defvjp(tril, lambda y, x, k=0: lambda g: tril(g, k))

triu = primitive(np.triu)
defvjp(triu, lambda y, x, k=0: lambda g: triu(g, k))

astype = primitive(lambda x, kind: np.asarray(x).astype(kind))
astype.__name__ = "astype"
defvjp(astype, lambda y, x, kind: lambda g: astype(g, dtype(x)))


def transpose(x: Array) -> Array:
    """Swap the last two axes."""
    return swapaxes(x, -1, -2)


def zeros_like(x: Array, shape: tuple[int, ...] | None = None) -> Array:
    """Plain zeros of the backend and dtype of x."""
    return np.zeros_like(plain(x), shape=shape)


def ones_like(x: Array, shape: tuple[int, ...] | None = None) -> Array:
    """Plain ones of the backend and dtype of x."""
    return np.ones_like(plain(x), shape=shape)


# -- indexing and joining -----------------------------------------------------------------------------


def _is_basic(key: Any) -> bool:
    parts = key if isinstance(key, tuple) else (key,)
    return all(part is None or part is Ellipsis or isinstance(part, int | np.integer | slice) for part in parts)


def _indexed(y: Array, x: Array, key: Any) -> Scatter:
    full, kind, basic = shape(x), dtype(x), _is_basic(key)
    return Scatter(full, kind, key, basic, lambda g: _place(g, key, full, basic))


index = primitive(lambda x, key: x[key])
index.__name__ = "index"
defvjp(index, _indexed)


def _place_plain(g: Array, key: Any, full: tuple[int, ...], basic: bool) -> Array:
    buffer = np.zeros_like(g, shape=full)
    if basic:
        buffer[key] = g
    else:
        np.add.at(buffer, key, g)
    return buffer


_place = primitive(_place_plain)
defvjp(_place, lambda y, g, key, full, basic: lambda h: index(h, key))


def _refuse_variable_key(x: Array, key: Any) -> Array:
    for part in key if isinstance(key, tuple) else (key,):
        if type(part) is Variable:
            raise TapeError("indexing: an index must be plain, not a tape variable")
    return index(x, key)


_concatenate = primitive(lambda *arrays, axis: np.concatenate(arrays, axis=axis))
_concatenate.__name__ = "concatenate"


def _concatenated(y: Array, *arrays: Array, axis: int) -> Pullback:
    ends = np.cumsum([shape(a)[axis] for a in arrays])
    lead = (slice(None),) * (axis % len(shape(y)))
    keys = [(*lead, slice(int(end) - shape(a)[axis], int(end))) for a, end in zip(arrays, ends, strict=True)]
    return lambda g: tuple([g[key] for key in keys])


defvjp_joint(_concatenate, _concatenated)


def concatenate(arrays: Sequence[Array], axis: int = 0) -> Array:
    """Join along an existing axis."""
    return _concatenate(*arrays, axis=axis)


_stack = primitive(lambda *arrays, axis: np.stack(arrays, axis=axis))
_stack.__name__ = "stack"


def _stacked(y: Array, *arrays: Array, axis: int) -> Pullback:
    lead = (slice(None),) * (axis % len(shape(y)))
    return lambda g: tuple([g[(*lead, i)] for i in range(len(arrays))])


defvjp_joint(_stack, _stacked)


def stack(arrays: Sequence[Array], axis: int = 0) -> Array:
    """Join along a new axis."""
    return _stack(*arrays, axis=axis)


def _slide(window: Array, row: Array) -> Array:
    moved = np.empty_like(window, dtype=np.result_type(window, row))
    moved[..., :-1, :] = window[..., 1:, :]
    moved[..., -1, :] = row
    return moved


slide = primitive(_slide)
slide.__doc__ = "Drop the first row of window (..., c, d) and append row (..., d)."


def _slid(y: Array, window: Array, row: Array) -> Pullback:
    return lambda g: (concatenate([zeros_like(g, shape=(*shape(g)[:-2], 1, shape(g)[-1])), g[..., :-1, :]], axis=-2), g[..., -1, :])


defvjp_joint(slide, _slid)

# -- operators of a variable --------------------------------------------------------------------------

Variable.__add__ = lambda a, b: add(a, b)
Variable.__radd__ = lambda a, b: add(b, a)
Variable.__sub__ = lambda a, b: subtract(a, b)
Variable.__rsub__ = lambda a, b: subtract(b, a)
Variable.__mul__ = lambda a, b: multiply(a, b)
Variable.__rmul__ = lambda a, b: multiply(b, a)
Variable.__truediv__ = lambda a, b: divide(a, b)
Variable.__rtruediv__ = lambda a, b: divide(b, a)
Variable.__pow__ = lambda a, b: power(a, b)
Variable.__rpow__ = lambda a, b: power(b, a)
Variable.__neg__ = lambda a: negative(a)
Variable.__matmul__ = lambda a, b: matmul(a, b)
Variable.__rmatmul__ = lambda a, b: matmul(b, a)
Variable.swapaxes = lambda a, i, j: swapaxes(a, i, j)
Variable.__getitem__ = _refuse_variable_key
Variable.T = property(lambda a: transpose(a) if a.ndim == 2 else _refuse_T(a))


def _refuse_T(a: Array) -> Array:
    raise TapeError(f".T of a variable with {a.ndim} axes: use ops.swapaxes or ops.moveaxis")
