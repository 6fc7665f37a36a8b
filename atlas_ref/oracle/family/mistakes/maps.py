"""Mistakes of a TensorSketch, and of a feature map whose tensors are frozen.

Source: VEC-25.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.tensor_spec import frozen_tensors
from atlas_ref.oracle.family.mistake import Mistake, Results, Seen
from atlas_ref.oracle.family.state import Inputs
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.parts import feature_maps
from atlas_ref.parts.feature_maps.tensor_sketch import TensorSketch
from atlas_ref.types import Array
from tape import ops

HASHES, COEFFICIENTS, PROJECTION = "in/phi/H", "in/phi/c", "in/proj"

#: Two sketches (..., m) -> what a kernel has in the place of their convolution.
Product = Callable[[Array, Array], Array]


def _always(at: Seen) -> bool:
    return True


def _each(name: str, change: Callable[[Array], Array]) -> Callable[[Results], Results]:
    return lambda tensors: tensors | {name: change(tensors[name])}


def _first_for_all(H: Array) -> Array:
    return ops.concatenate([H[:1]] * H.shape[0], axis=0)


def _move_second(H: Array) -> Array:
    """The second hash, one bucket further."""
    second = ops.concatenate([H[1:2, -1:], H[1:2, :-1]], axis=1)
    return ops.concatenate([H[:1], second, H[2:]], axis=0)


def _second_for_third(H: Array) -> Array:
    return ops.concatenate([H[:2], H[1:2]], axis=0)


def _last_first(H: Array) -> Array:
    return ops.flip(H, 0)


def _first_left_out(c: Array) -> Array:
    return ops.concatenate([ops.zeros_like(c[:1]), c[1:]], axis=0)


def _factorials(c: Array) -> Array:
    return np.array([1.0 / math.factorial(n) for n in range(c.shape[0])], c.dtype)


#: name -> mistake in words, tensors that a kernel has instead, least degree, whether it is of the
#: backward pass.
TENSORS: dict[str, tuple[str, Callable[[Results], Results], int, bool]] = {
    "signs of the sketch ignored": (
        "every entry of a hash is 1",
        _each(HASHES, ops.absolute),
        2,
        False,
    ),
    "first hash for all": (
        "every level has the first hash",
        _each(HASHES, _first_for_all),
        2,
        False,
    ),
    "second hash one bucket off": (
        "buckets of the second hash are counted from 1",
        _each(HASHES, _move_second),
        2,
        False,
    ),
    "second hash for the third": (
        "the third level convolves with the second hash",
        _each(HASHES, _second_for_third),
        3,
        False,
    ),
    "hashes from the last": (
        "the second level is that of the last hashes",
        _each(HASHES, _last_first),
        3,
        False,
    ),
    "constant left out": (
        "the sketch has no constant",
        _each(COEFFICIENTS, _first_left_out),
        2,
        False,
    ),
    "coefficients ignored": (
        "coefficients are 1/n!, with which they start",
        _each(COEFFICIENTS, _factorials),
        2,
        False,
    ),
    "hashes held fixed": (
        "hashes have no gradient",
        _each(HASHES, ops.stop_gradient),
        2,
        True,
    ),
    "coefficients held fixed": (
        "coefficients have no gradient",
        _each(COEFFICIENTS, ops.stop_gradient),
        2,
        True,
    ),
    "projection held fixed": (
        "the projection has no gradient",
        _each(PROJECTION, ops.stop_gradient),
        2,
        True,
    ),
}


def _times(a: Array, b: Array) -> Array:
    return a * b


def _plus(a: Array, b: Array) -> Array:
    return a + b


def _shift(a: Array, b: Array, step: int) -> Array:
    """The sum over s of a_s b_(r + step s), circular."""
    m = b.shape[-1]
    places = (np.arange(m)[:, None] + step * np.arange(m)) % m
    return ops.sum(ops.index(b, (..., places)) * ops.expand_dims(a, -2), axis=-1)


def _correlate(a: Array, b: Array) -> Array:
    return _shift(a, b, 1)


def _cut_off(a: Array, b: Array) -> Array:
    """The first m numbers of the convolution that does not go round."""
    m = b.shape[-1]
    terms = [a[..., s : s + 1] * b[..., : m - s] for s in range(m)]
    padded = [
        ops.concatenate([ops.zeros_like(b[..., :s]), term], axis=-1) if s else term
        for s, term in enumerate(terms)
    ]
    return sum(padded[1:], padded[0])


#: name -> mistake in words, and what is in the place of the convolution.
PRODUCTS: dict[str, tuple[str, Product]] = {
    "products of entries for the convolution": ("sketches are multiplied entry by entry", _times),
    "sums for the convolution": ("sketches are added", _plus),
    "correlation for the convolution": ("one sketch is read backwards", _correlate),
    "convolution cut off": ("the convolution does not go round", _cut_off),
}

NOTHING = "frozen map that passes nothing"
LEARNED = "gradient of a frozen map"

#: Mistakes of a frozen map, in words.
FROZEN = {
    NOTHING: "keys and queries get nothing through a map whose tensors are frozen",
    LEARNED: "tensors of a frozen map have gradients",
}


def words_by_name() -> dict[str, str]:
    """Mistakes in words, by name."""
    tensors = {name: words for name, (words, *_) in TENSORS.items()}
    return tensors | {name: words for name, (words, _) in PRODUCTS.items()} | FROZEN


def mistakes(case: Case) -> list[Mistake]:
    """Mistakes of the map of a case; those of a TensorSketch where the rule is the map alone."""
    settings, listed = case.header.feature_map, list[Mistake]()
    frozen, alone = frozen_tensors(case.header), not SUBJECTS[case.header.rule].has_tokens
    if isinstance(settings, TensorSketch) and alone:
        listed += [
            Mistake(name, words, _always, grad, tensors=change)
            for name, (words, change, least, grad) in TENSORS.items()
            if settings.degree >= least and not (grad and frozen)
        ]
        listed += [
            Mistake(name, words, _always, mapped=_with(product))
            for name, (words, product) in PRODUCTS.items()
        ]
    if frozen:
        passed: dict[str, Any] = {"mapped": _nothing} if alone else {"inputs": _hold_features}
        listed.append(Mistake(NOTHING, FROZEN[NOTHING], _always, True, **passed))
        listed.append(Mistake(LEARNED, FROZEN[LEARNED], _always, True, learned=tuple(frozen)))
    return listed


def _with(product: Product) -> Callable[[Any, Mapping[str, Array], Array], Array]:
    """A TensorSketch with another product of sketches."""

    def map_features(settings: Any, p: Mapping[str, Array], x: Array) -> Array:
        sketches = [x @ ops.transpose(p["H"][n]) for n in range(settings.degree)]
        blocks, last = [ops.ones_like(x[..., :1]), x], sketches[0]
        for sketch in sketches[1:]:
            last = product(last, sketch)
            blocks.append(last)
        weighted = [p["c"][n] * block for n, block in enumerate(blocks)]
        return ops.concatenate(weighted, axis=-1) @ p["proj"]

    return map_features


def _nothing(settings: Any, p: Mapping[str, Array], x: Array) -> Array:
    return feature_maps.apply(settings, p, ops.stop_gradient(x))


def _hold_features(inputs: Inputs) -> Inputs:
    held = {
        name: ops.stop_gradient(getattr(inputs, name))
        for name in ("keys", "queries", "window_keys")
        if getattr(inputs, name) is not None
    }
    return inputs._replace(**held)
