"""Ops that move entries: shapes, indexing and joining, and the sums that undo a broadcast."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from tape.constants import beside
from tape.core import Op, Pullback, defvjp, defvjp_joint, primitive
from tape.scatter import Scatter, add_at
from tape.variable import Array, TapeError, Variable, dtype, plain
from tape.variable import shape as shape_of

__all__ = ["reshape", "broadcast_to", "swapaxes", "moveaxis", "expand_dims", "squeeze", "flip"]
__all__ += ["tril", "triu", "transpose", "astype", "zeros_like", "ones_like", "sum", "cumsum"]
__all__ += ["index", "concatenate", "stack", "slide"]

Axes = int | tuple[int, ...] | None


@primitive
def reshape(x: Array, shape: int | tuple[int, ...]) -> Array:
    """The entries of x in row-major order, in another shape."""
    return np.reshape(x, shape)


@primitive
def broadcast_to(x: Array, shape: int | tuple[int, ...]) -> Array:
    """x repeated along axes of length 1 and new leading axes."""
    return np.broadcast_to(x, shape)


def _reshaped(x: Array) -> Pullback:
    target = shape_of(x)
    return lambda g: reshape(g, target)


swapaxes: Op = primitive(np.swapaxes)
moveaxis: Op = primitive(np.moveaxis)
expand_dims: Op = primitive(np.expand_dims)
squeeze: Op = primitive(np.squeeze)
flip: Op = primitive(np.flip)
tril: Op = primitive(np.tril)
triu: Op = primitive(np.triu)

defvjp(reshape, lambda y, x, shape: _reshaped(x))
defvjp(broadcast_to, lambda y, x, shape: fitted(x, lambda g: g))
defvjp(swapaxes, lambda y, x, axis1, axis2: lambda g: swapaxes(g, axis1, axis2))
defvjp(moveaxis, lambda y, x, source, destination: lambda g: moveaxis(g, destination, source))
defvjp(expand_dims, lambda y, x, axis: _reshaped(x))
defvjp(squeeze, lambda y, x, axis=None: _reshaped(x))
defvjp(flip, lambda y, x, axis=None: lambda g: flip(g, axis))
defvjp(tril, lambda y, x, k=0: fitted(x, lambda g: tril(g, k)))
defvjp(triu, lambda y, x, k=0: fitted(x, lambda g: triu(g, k)))


def transpose(x: Array) -> Array:
    """Swap the last two axes."""
    return swapaxes(x, -1, -2)


@primitive
def astype(x: Array, kind: Any) -> Array:
    """A copy of x in the floating dtype `kind`; complex x stays complex, in its precision."""
    target = np.result_type(kind, np.complex64) if np.iscomplexobj(x) else kind
    return x.astype(target) if hasattr(x, "astype") else np.asarray(x, target)


def _cast(y: Array, x: Array, kind: Any) -> Pullback:
    if np.dtype(kind).kind in "biu":
        raise TapeError(
            f"ops.astype: a variable in {np.dtype(kind)} has no derivative; convert "
            "ops.stop_gradient of it"
        )
    before = dtype(x)
    return lambda g: astype(g, before)


defvjp(astype, _cast)


def zeros_like(x: Array, shape: tuple[int, ...] | None = None) -> Array:
    """Plain zeros of the backend and dtype of x."""
    return _like(np.zeros_like, plain(x), shape)


def ones_like(x: Array, shape: tuple[int, ...] | None = None) -> Array:
    """Plain ones of the backend and dtype of x."""
    return _like(np.ones_like, plain(x), shape)


def _like(make: Any, x: Array, shape: tuple[int, ...] | None, **settings: Any) -> Array:
    """An array of the backend of x, and of its dtype unless stated.

    For the shape () it is made with one entry, since CuPy takes an empty shape for none and keeps
    that of x.
    """
    if shape == ():
        return make(x, shape=(1,), **settings).reshape(())
    return make(x, shape=shape, **settings)


@primitive
def sum(x: Array, axis: Axes = None, keepdims: bool = False) -> Array:
    """Sum over `axis`, or over all entries."""
    return np.sum(x, axis=axis, keepdims=keepdims)


def _summed(y: Array, x: Array, axis: Axes = None, keepdims: bool = False) -> Pullback:
    full = shape_of(x)
    axes = range(len(full)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    reduced = {i % len(full) for i in axes} if full else set()
    thin = tuple(1 if i in reduced else n for i, n in enumerate(full))
    return lambda g: broadcast_to(g if shape_of(g) == thin else reshape(g, thin), full)


defvjp(sum, _summed)


def unbroadcast(g: Array, target: tuple[int, ...]) -> Array:
    """Sum a cotangent over the axes along which an argument of shape `target` was repeated."""
    full = shape_of(g)
    if full == target:
        return g
    extra = len(full) - len(target)
    axes = tuple(range(extra)) + tuple(
        extra + i for i, n in enumerate(target) if n == 1 and full[extra + i] != 1
    )
    return reshape(sum(g, axis=axes), target)


def fitted(x: Array, pullback: Pullback) -> Pullback:
    """The pullback followed by `unbroadcast` to the shape of x; keeps the shape and not x."""
    target = shape_of(x)
    return lambda g: unbroadcast(pullback(g), target)


@primitive
def cumsum(x: Array, axis: int = -1) -> Array:
    """Running sum along `axis`."""
    return np.cumsum(x, axis=axis)


defvjp(cumsum, lambda y, x, axis=-1: lambda g: flip(cumsum(flip(g, axis), axis), axis))


_index = primitive(operator.getitem, "index")


@primitive
def _scatter(have: Array | None, *parts: Array, keys: tuple[Any, ...], like: Scatter) -> Array:
    """The sum of `have` and of zeros with each part added at its key; the transpose of indexing."""
    terms = parts if have is None else (have, *parts)
    total = _like(np.zeros_like, parts[0], like.shape, dtype=np.result_type(like.dtype, *terms))
    if have is not None:
        total += have
    for key, part in zip(keys, parts, strict=True):
        total = add_at(total, key, part)
    return total


def _scattered(
    y: Array, have: Array | None, *parts: Array, keys: tuple[Any, ...], **_: Any
) -> Pullback:
    alone = have is None
    return lambda g: (None if alone else g, *[index(g, key) for key in keys])


defvjp(_index, lambda y, x, key: Scatter(shape_of(x), dtype(x), key, _scatter))
defvjp_joint(_scatter, _scattered)


def index(x: Array, key: Any) -> Array:
    """x[key] for a plain basic or advanced index.

    Index arrays on the host are moved to the device of x.
    """
    parts = key if type(key) is tuple else (key,)
    for part in parts:
        if type(part) is Variable:
            raise TapeError(
                "ops.index: an index must be plain, not a tape variable; compute indices from "
                "plain arrays"
            )
        if type(part) is np.ndarray:
            key = tuple([beside(each, x) for each in parts])
    return _index(x, key)


_concatenate = primitive(lambda *arrays, axis: np.concatenate(arrays, axis=axis), "concatenate")


def _concatenated(y: Array, *arrays: Array, axis: int) -> Pullback:
    lead = (slice(None),) * (axis % len(shape_of(y)))
    keys, end = [], 0
    for a in arrays:
        start, end = end, end + shape_of(a)[axis]
        keys.append((*lead, slice(start, end)))
    return lambda g: tuple([g[key] for key in keys])


defvjp_joint(_concatenate, _concatenated)


def concatenate(arrays: Sequence[Array], axis: int = 0) -> Array:
    """Join along an existing axis."""
    return _concatenate(*arrays, axis=axis)


_stack = primitive(lambda *arrays, axis: np.stack(arrays, axis=axis), "stack")


def _stacked(y: Array, *arrays: Array, axis: int) -> Pullback:
    lead, n = (slice(None),) * (axis % len(shape_of(y))), len(arrays)
    return lambda g: tuple([g[(*lead, i)] for i in range(n)])


defvjp_joint(_stack, _stacked)


def stack(arrays: Sequence[Array], axis: int = 0) -> Array:
    """Join along a new axis."""
    return _stack(*arrays, axis=axis)


@primitive
def slide(window: Array, row: Array) -> Array:
    """Drop the first row of window (..., c, d) and append row (..., d)."""
    moved = np.empty_like(window, dtype=np.result_type(window, row))
    moved[..., :-1, :] = window[..., 1:, :]
    moved[..., -1, :] = row
    return moved


def _slid(y: Array, window: Array, row: Array) -> Pullback:
    target = shape_of(row)

    def pullback(g: Array) -> tuple[Array, Array]:
        dropped = zeros_like(g, shape=(*shape_of(g)[:-2], 1, shape_of(g)[-1]))
        return concatenate([dropped, g[..., :-1, :]], axis=-2), unbroadcast(g[..., -1, :], target)

    return pullback


defvjp_joint(slide, _slid)
