"""Retention: what a write keeps of a matrix of weights, and what the memory computes with.

    l2           W = r W - b U
    elastic_net  W = soft(r W - b U)             soft(x) = sign(x) max(|x| - threshold, 0)
    kl           W = size softmax(r log W - b U)
    sphere       W = size A / |A|,  A = r W - b U
    ftrl         A = r A - b U,  the function has soft(A)
    lq           A = r A - b U,  the function has A / |A|_q^(q - 2)

Specified in specs/deep_memory.md (DEEP-30 to DEEP-33). Source: MIRAS (2504.13173) Eqs 21, 24 to 27.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from atlas_ref.parts.kinds import check_read
from atlas_ref.types import Array, Frozen
from tape import ops

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]

#: Settings that some kinds read; under another kind they must have their defaults.
READ_BY: dict[str, tuple[str, ...]] = {
    "threshold": ("elastic_net", "ftrl"),
    "over": ("kl", "sphere"),
    "size": ("kl", "sphere"),
    "lag": ("kl",),
    "power": ("lq",),
    "link": ("lq",),
}

#: Axes of a matrix (out, in) that are normalised together.
AXES: dict[str, tuple[int, ...]] = {"matrix": (-2, -1), "row": (-1,), "column": (-2,)}


class Retention(Frozen):
    """What a write keeps of each fast matrix (DEEP-30).

    Attributes:
        kind: l2, elastic_net, kl, sphere, ftrl or lq.
        threshold: of elastic_net and ftrl, below which an entry is 0.
        over: entries that kl and sphere normalise together: the matrix, each row or each column.
        size: their sum under kl, their norm under sphere.
        power: q of lq, above 1.
        link: from A to the weights under lq: printed, A / |A|_q^(q - 2); dual, the same with
            p = q / (q - 1); mirror, sign(A) |A|^(p - 1) / |A|_p^(p - 2).
        lag: of kl, whether only the first write of a span has logarithms (DEEP-39).
    """

    kind: Literal["l2", "elastic_net", "kl", "sphere", "ftrl", "lq"] = "l2"
    threshold: Positive = 1e-3
    over: Literal["matrix", "row", "column"] = "matrix"
    size: Positive = 1.0
    power: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 4.0
    link: Literal["printed", "dual", "mirror"] = "printed"
    lag: bool = False

    @model_validator(mode="after")
    def _read(self) -> Self:
        check_read(self, READ_BY)
        return self

    @property
    def positive(self) -> bool:
        """Whether first weights have logarithms, so that none is below 0."""
        return self.kind == "kl"

    @property
    def stays_positive(self) -> bool:
        """Whether no write leaves a weight below 0."""
        return self.positive and not self.lag

    @property
    def maps(self) -> bool:
        """Whether the function computes with other weights than those that writes carry on."""
        return self.kind in ("ftrl", "lq")


def first(retention: Retention, W: Array) -> Array:
    """A first matrix from a drawn one: under kl its softmax, which has logarithms (DEEP-32)."""
    return _on_simplex(retention, np.ones(W.shape, bool), W) if retention.positive else W


def decaying(retention: Retention, W: Array) -> Array:
    """What the retain gate multiplies and the step moves: W, or log W under kl (DEEP-32)."""
    if retention.kind != "kl":
        return W
    return ops.log(ops.where(ops.greater(W, 0.0), W, 1.0))


def kept(retention: Retention, W: Array, moved: Array) -> Array:
    """W after a write, from W before it and what the step has moved (DEEP-31, DEEP-32)."""
    if retention.kind == "elastic_net":
        return _soft(moved, retention.threshold)
    if retention.kind == "kl":
        return _on_simplex(retention, ops.greater(W, 0.0), moved)
    if retention.kind == "sphere":
        axes = AXES[retention.over]
        x = moved / _largest(moved, axes)
        total = ops.sum(x * x, axis=axes, keepdims=True)
        return retention.size * (x / ops.sqrt(_or_one(total)))
    return moved


def mapped(retention: Retention, A: Array) -> Array:
    """The weights that the memory function has, of those that writes carry on (DEEP-33)."""
    if retention.kind == "ftrl":
        return _soft(A, retention.threshold)
    if retention.kind != "lq":
        return A
    q, axes = retention.power, AXES["matrix"]
    p = q if retention.link == "printed" else q / (q - 1.0)
    largest = _largest(A, axes)
    x = A / largest
    size = _or_one(ops.sum(_power(x, p), axis=axes, keepdims=True)) ** ((2.0 - p) / p)
    if retention.link != "mirror":
        return (x * size) * largest ** (3.0 - p)
    sign = ops.where(ops.less(x, 0.0), -1.0 * ops.ones_like(x), ops.ones_like(x))
    return ((sign * _power(x, p - 1.0)) * size) * largest


def _soft(x: Array, threshold: float) -> Array:
    above, below = ops.greater(x, threshold), ops.less(x, -threshold)
    return ops.where(above, x - threshold, ops.where(below, x + threshold, 0.0 * x))


def _on_simplex(retention: Retention, positive: Any, x: Array) -> Array:
    """size softmax(x) over the entries whose weight was above 0; the others stay 0."""
    axes = AXES[retention.over]
    real = np.where(positive, np.real(ops.stop_gradient(x)), -np.inf)
    top = np.max(real, axis=axes, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0).astype(top.dtype)
    e = ops.where(positive, ops.exp(ops.where(positive, x - top, 0.0)), 0.0)
    return retention.size * (e / _or_one(ops.sum(e, axis=axes, keepdims=True)))


def _largest(x: Array, axes: tuple[int, ...]) -> Array:
    """The largest modulus as a constant, 1 of zeros: results do not depend on it, but for range."""
    largest = np.max(np.abs(np.real(ops.stop_gradient(x))), axis=axes, keepdims=True)
    return np.where(largest > 0.0, largest, 1.0).astype(largest.dtype)


def _or_one(x: Array) -> Array:
    return ops.where(ops.equal(x, 0.0), 1.0, x)


def _power(x: Array, p: float) -> Array:
    """|x|^p, with a slope of 0 at 0, also where p is below 1."""
    zero = ops.equal(x, 0.0)
    return ops.where(zero, 0.0, ops.absolute(ops.where(zero, 1.0, x)) ** p)
