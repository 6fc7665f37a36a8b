"""Legal ways to round: orders of a sum, transposed products, fused multiply-add, wide accumulators.

Each is an `Arithmetic`; a plain evaluation under several of them shows how far correct programs
differ from each other at one precision (TOL-3). Everything here takes arrays and tape variables.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from atlas_ref.types import Array
from tape import opaque, ops

#: Terms of a sum that are added one by one; a longer sum is cut into blocks, whose sums are added.
TERMS, BLOCKS = 16, 8

Order = Literal["library", "forward", "reverse", "pairwise", "lanes", "wide"]


class Arithmetic(NamedTuple):
    """One legal way to round (TOL-3).

    Attributes:
        order: of the terms of a product: as the library has it, first to last, last to first, as a
            tree, in four interleaved partial sums, or in a wider format that is rounded once.
        fused: a * b + c is rounded once.
        transposed: A B is computed as (B^T A^T)^T, and Newton-Schulz works on the other side.
        early: factors multiply the short vectors before an outer product instead of the matrix
            after it.
        printed: factors, norms and steps of Newton-Schulz in the order in which their clauses print
            them. A trace records ops in it, and a replay computes them again; the members that
            tolerances come from do not.
        expanded: in a replay, a step of Newton-Schulz adds X X^T X and X X^T X X^T X as they are
            printed, instead of one product with their sum (REPLAY-13); no member of TOL-3 does.
    """

    name: str
    order: Order = "library"
    fused: bool = False
    transposed: bool = False
    early: bool = False
    printed: bool = False
    expanded: bool = False

    def matmul(self, A: Array, B: Array) -> Array:
        """A B, in this arithmetic forwards and backwards."""
        if self.order == "library" and not self.transposed:
            return A @ B
        return _product(self)(A, B)

    def scaled_sum(self, factor: Array, x: Array, y: Array) -> Array:
        """factor * x + y; a factor of None is 1."""
        if factor is None:
            return x + y
        return _fused_function()(factor, x, y) if self.fused else factor * x + y

    def total(self, x: Array) -> Array:
        """Sum over the last two axes, which stay."""
        flat = ops.reshape(x, (*x.shape[:-2], 1, x.shape[-2] * x.shape[-1]))
        return self.matmul(flat, ops.ones_like(flat, shape=(flat.shape[-1], 1)))


PLAIN = Arithmetic("as the library sums")

#: The ensemble of the tolerance rule.
MEMBERS: tuple[Arithmetic, ...] = (
    PLAIN,
    Arithmetic("first to last", "forward"),
    Arithmetic("last to first", "reverse", early=True),
    Arithmetic("as a tree", "pairwise"),
    Arithmetic("four partial sums", "lanes", early=True),
    Arithmetic("transposed", "forward", transposed=True),
    Arithmetic("transposed, last to first", "reverse", transposed=True, early=True),
    Arithmetic("fused multiply-add", "forward", fused=True),
    Arithmetic("fused multiply-add, last to first", "reverse", fused=True, early=True),
    Arithmetic("wide accumulator", "wide", fused=True),
)


@functools.lru_cache(maxsize=64)
def _product(way: Arithmetic) -> Callable[[Array, Array], Array]:
    def plain(A: Array, B: Array) -> Array:
        return A @ B

    def forward(A: Array, B: Array) -> tuple[Array, Any]:
        return _multiply(way, A, B), (A, B)

    def backward(factors: Any, g: Array) -> tuple[Array, Array]:
        A, B = factors
        return (
            unbroadcast(_multiply(way, g, np.swapaxes(B, -1, -2)), A.shape),
            unbroadcast(_multiply(way, np.swapaxes(A, -1, -2), g), B.shape),
        )

    plain.__name__ = "product"
    return opaque(plain, forward, backward)


def _multiply(way: Arithmetic, A: Array, B: Array) -> Array:
    if way.transposed:
        return np.swapaxes(
            _multiply(
                way._replace(transposed=False), np.swapaxes(B, -1, -2), np.swapaxes(A, -1, -2)
            ),
            -1,
            -2,
        )
    if way.order in ("library", "wide"):
        wide = np.promote_types(A.dtype, np.float64 if A.dtype.itemsize < 8 else A.dtype)
        return (A.astype(wide) @ B.astype(wide)).astype(A.dtype) if way.order == "wide" else A @ B
    size = A.shape[-1]
    step = 1 if size <= TERMS else -(-size // BLOCKS)
    blocks = [(A[..., i : i + step], B[..., i : i + step, :]) for i in range(0, size, step)]
    blocks = blocks[::-1] if way.order == "reverse" else blocks
    if way.fused and step == 1:
        return functools.reduce(
            lambda acc, pair: fuse(pair[0], pair[1], acc), blocks[1:], blocks[0][0] * blocks[0][1]
        )
    return _sum(way.order, [a * b if step == 1 else a @ b for a, b in blocks])


def _sum(order: Order, terms: list[Array]) -> Array:
    if order == "pairwise":
        while len(terms) > 1:
            odd = terms[-1:] if len(terms) % 2 else []
            terms = [a + b for a, b in zip(terms[::2], terms[1::2], strict=False)] + odd
        return terms[0]
    if order == "lanes":
        lanes = [functools.reduce(np.add, terms[i::4]) for i in range(min(4, len(terms)))]
        return functools.reduce(np.add, lanes[::-1])
    return functools.reduce(np.add, terms)


def fuse(a: Array, b: Array, c: Array) -> Array:
    """a * b + c rounded once (TOL-3).

    Narrower formats compute in float64, float64 by error-free transformations.
    """
    kind = np.result_type(a, b, c)
    if kind.itemsize < 8:
        return (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(kind)
    product = a * b
    low = _product_error(a, b, product)
    total = product + c
    from_c = total - product
    error = (product - (total - from_c)) + (c - from_c)
    return total + (error + low)


def _product_error(a: Array, b: Array, product: Array) -> Array:
    """The rounding error of a * b, by Dekker's splitting."""
    a1, b1 = _high(a), _high(b)
    a2, b2 = a - a1, b - b1
    return a2 * b2 - (((product - a1 * b1) - a2 * b1) - a1 * b2)


def _high(x: Array) -> Array:
    scaled = 134217729.0 * x  # 2^27 + 1
    return scaled - (scaled - x)


@functools.lru_cache(maxsize=1)
def _fused_function() -> Callable[[Array, Array, Array], Array]:
    def plain(a: Array, x: Array, y: Array) -> Array:
        return a * x + y

    def forward(a: Array, x: Array, y: Array) -> tuple[Array, Any]:
        return fuse(a, x, y), (a, x, y.shape)

    def backward(factors: Any, g: Array) -> tuple[Array, Array, Array]:
        a, x, shape = factors
        return unbroadcast(g * x, a.shape), unbroadcast(g * a, x.shape), unbroadcast(g, shape)

    plain.__name__ = "fused"
    return opaque(plain, forward, backward)


def unbroadcast(g: Array, shape: tuple[int, ...]) -> Array:
    """The sum of a cotangent over the axes that broadcasting added."""
    extra = g.ndim - len(shape)
    axes = tuple(range(extra)) + tuple(
        i + extra for i, size in enumerate(shape) if size == 1 and g.shape[i + extra] != 1
    )
    return np.sum(g, axis=axes, keepdims=True).reshape(shape) if axes else g.reshape(shape)
