"""Mistakes of a learned residual: its pair, its silu, its place, and its derivatives.

Each is the rule under `reference: zero` with minus a wrong vector in the place of the value,
at level projected.

Source: VEC-25.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from atlas_ref.oracle.family.mistake import Mistake, Results, Seen
from atlas_ref.parts.straight import straight
from atlas_ref.types import Array
from tape import ops

WEIGHTS = "in/param/W_surrogate"

#: Weights, key and value of a token -> its residual.
Vector = Callable[[Array, Array, Array], Array]


class Kind(NamedTuple):
    """A vector in the place of the learned residual.

    Attributes:
        reference: that of the kernel.
    """

    name: str
    words: str
    vector: Vector
    grad: bool = False
    reference: str = "zero"


def _silu(z: Array) -> Array:
    return z * ops.sigmoid(z)


def _pair(k: Array, v: Array) -> Array:
    return ops.concatenate([k, v], axis=-1)


def _times(W: Array, z: Array) -> Array:
    return z @ ops.transpose(W)


def _right(W: Array, k: Array, v: Array) -> Array:
    return _times(W, _silu(_pair(k, v)))


def _by_gelu(z: Array) -> Array:
    """The quick form of gelu, another gate of the same number."""
    return z * ops.sigmoid(1.702 * z)


def _without_slope(z: Array) -> Array:
    """silu, whose sigmoid is a constant on the way back."""
    return straight(z * ops.sigmoid(ops.stop_gradient(z)), _silu(ops.stop_gradient(z)))


KINDS = (
    Kind(
        "surrogate of [v; k]",
        "the value stands before the key",
        lambda W, k, v: _times(W, _silu(_pair(v, k))),
    ),
    Kind(
        "surrogate without silu",
        "the weights multiply [k; v] itself",
        lambda W, k, v: _times(W, _pair(k, v)),
    ),
    Kind(
        "surrogate by a sigmoid",
        "sigmoid is in the place of silu",
        lambda W, k, v: _times(W, ops.sigmoid(_pair(k, v))),
    ),
    Kind(
        "surrogate by quick gelu",
        "z sigmoid(1.702 z) is in the place of silu",
        lambda W, k, v: _times(W, _by_gelu(_pair(k, v))),
    ),
    Kind(
        "surrogate through silu at the end",
        "silu is applied to the product with the weights",
        lambda W, k, v: _silu(_times(W, _pair(k, v))),
    ),
    Kind(
        "surrogate of the key alone",
        "the value is taken for zero",
        lambda W, k, v: _right(W, k, ops.zeros_like(v)),
    ),
    Kind(
        "surrogate of the value alone",
        "the key is taken for zero",
        lambda W, k, v: _right(W, ops.zeros_like(k), v),
    ),
    Kind(
        "surrogate as a value",
        "the vector is a value, which a residual subtracts",
        lambda W, k, v: -_right(W, k, v),
    ),
    Kind(
        "surrogate less the value",
        "the value is subtracted from the vector",
        lambda W, k, v: _right(W, k, v) - v,
    ),
    Kind(
        "surrogate beside the memory's answer",
        "what the memory answers is added to the vector",
        _right,
        reference="running",
    ),
    Kind(
        "weights of the surrogate held fixed",
        "the weights have no gradient",
        lambda W, k, v: _right(ops.stop_gradient(W), k, v),
        True,
    ),
    Kind(
        "surrogate's key held fixed",
        "the key gets nothing from the vector",
        lambda W, k, v: _right(W, ops.stop_gradient(k), v),
        True,
    ),
    Kind(
        "surrogate's value held fixed",
        "the value gets nothing from the vector",
        lambda W, k, v: _right(W, k, ops.stop_gradient(v)),
        True,
    ),
    Kind(
        "slope of the surrogate's sigmoid left out",
        "the derivative of silu is its sigmoid",
        lambda W, k, v: _times(W, _without_slope(_pair(k, v))),
        True,
    ),
)

#: Pairs of tensors from which a vector is made.
PAIRS = (("in/k", "in/v"), ("in/window_k", "in/window_v"))

FIRST = "surrogate of the call's tokens alone"


def words_by_name() -> dict[str, str]:
    """Mistakes in words, by name."""
    own = "initial window tokens are written with the residual of their values"
    return {each.name: each.words for each in KINDS} | {FIRST: own}


def mistakes(at: Seen) -> list[Mistake]:
    """Mistakes of the learned residual of a case."""
    case = at.case
    if case.convention.reference != "surrogate" or WEIGHTS not in case.inputs:
        return []
    if case.header.level != "projected":
        return []
    listed = [
        Mistake(
            each.name,
            each.words,
            lambda _: True,
            each.grad,
            tensors=_plant(each.vector),
            convention={"reference": each.reference},
        )
        for each in KINDS
    ]
    if "in/window_k" in case.inputs and at.structure.order == "window_then_momentum":
        tensors, off = _plant(_right, PAIRS[:1]), {"reference": "zero"}
        listed.append(
            Mistake(FIRST, words_by_name()[FIRST], lambda _: True, tensors=tensors, convention=off)
        )
    return listed


def _plant(
    vector: Vector, pairs: tuple[tuple[str, str], ...] = PAIRS
) -> Callable[[Results], Results]:
    """Tensors whose values are minus a vector, which the residual then is."""

    def change(tensors: Results) -> Results:
        made = {
            v: -vector(tensors[WEIGHTS], tensors[k], tensors[v]) for k, v in pairs if v in tensors
        }
        return {**tensors, **made}

    return change
