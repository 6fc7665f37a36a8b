"""Legal ways to round: variants that no verdict may depend on.

A `Rounding` computes products of float32 matrices in an order of its own. Nothing here is shared
with atlas_ref.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray
Product = Callable[[Array, Array], Array]


def library(A: Array, B: Array) -> Array:
    """A product in NumPy's order of sums."""
    return A @ B


def last_first(A: Array, B: Array) -> Array:
    """A product term by term in float32, from the last to the first."""
    total = np.zeros((A.shape[0], B.shape[1]), A.dtype)
    for i in reversed(range(A.shape[1])):
        total = total + A[:, i : i + 1] * B[i : i + 1]
    return total


def narrow(A: Array, B: Array) -> Array:
    """A product term by term in float32, from the first to the last.

    Every product and every sum is rounded.
    """
    total = np.zeros((A.shape[0], B.shape[1]), A.dtype)
    for i in range(A.shape[1]):
        total = total + A[:, i : i + 1] * B[i : i + 1]
    return total


def fused(A: Array, B: Array) -> Array:
    """A product by fused multiply-add: each term enters the sum unrounded."""
    total = np.zeros((A.shape[0], B.shape[1]), A.dtype)
    for i in range(A.shape[1]):
        exact = A[:, i : i + 1].astype(np.float64) * B[i : i + 1].astype(np.float64) + total.astype(
            np.float64
        )
        total = exact.astype(A.dtype)
    return total


def wide(A: Array, B: Array) -> Array:
    """A product summed in float64 and rounded once."""
    return (A.astype(np.float64) @ B.astype(np.float64)).astype(A.dtype)


def turned(A: Array, B: Array) -> Array:
    """The product as (B^T A^T)^T."""
    return np.ascontiguousarray((np.ascontiguousarray(B.T) @ np.ascontiguousarray(A.T)).T)


@dataclass(frozen=True)
class Rounding:
    """One legal variant.

    Attributes:
        product: of two matrices.
        other_side: Newton-Schulz on the transpose.
        associated: its step as a X + A (b X + c (A X)) instead of a X + (b A + c A^2) X.
        oldest_first: the window is summed from its oldest token.
        stored: format that every quantity is rounded to on the way, state and iterates too; None
            for the end alone.
    """

    name: str
    product: Product = library
    other_side: bool = False
    associated: bool = False
    oldest_first: bool = False
    stored: Any = None


PLAIN = Rounding("as written")

LEGAL = (
    Rounding("Newton-Schulz on the transpose", other_side=True),
    Rounding("Newton-Schulz associated otherwise", associated=True),
    Rounding("sums from the last term", product=last_first, oldest_first=True),
    Rounding("fused multiply-add", product=fused),
    Rounding("float32 accumulation, term by term", product=narrow),
    Rounding("float64 accumulation", product=wide),
    Rounding("products transposed", product=turned, other_side=True),
)
