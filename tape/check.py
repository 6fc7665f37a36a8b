"""Proofs of gradients: the complex step, central differences, and linearity of pullbacks.

A check that fails raises `AssertionError`, which names the worst leaf or the argument and gives the
relative distance, and for a leaf both derivatives.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tape.nested import flatten, matched
from tape.transforms import grad, hvp, vjp
from tape.variable import Array, shape

STEP = 1e-30


class Difference(NamedTuple):
    """The worst leaf of a comparison: its path, the two gradients and their relative distance."""

    path: str
    got: Array
    want: Array
    error: float


def complex_step(function: Callable[[Any], Array], x: Any) -> Any:
    """Gradient of an analytic scalar function, one entry at a time, without a difference.

        df/dx_j = Im f(x + i h e_j) / h,    h = 1e-30

    There is no subtraction, so the only error is that of evaluating f: about 1e-16. It requires
    that nothing in f conjugates, takes a modulus or compares imaginary parts (TAPE-14).
    """
    return _entrywise(function, x, lambda at, unit: np.imag(at(1j * STEP * unit)) / STEP)


def central_difference(function: Callable[[Any], Array], x: Any, *, step: float = 1e-6) -> Any:
    """Gradient by central differences, for functions that are not analytic (TAPE-15).

    df/dx_j = (f(x + h e_j) - f(x - h e_j)) / 2h,    to about 1e-9
    """
    return _entrywise(
        function,
        x,
        lambda at, unit: (float(at(step * unit)) - float(at(-step * unit))) / (2 * step),
    )


def _entrywise(function: Callable[[Any], Array], x: Any, derivative: Callable[..., Array]) -> Any:
    """Gradient by derivative(at, unit) of each entry; at(d) is the function with d added there."""
    leaves, _, build = flatten(x)
    gradients = [np.zeros(shape(leaf)) for leaf in leaves]
    for i, gradient in enumerate(gradients):

        def at(d: Array, i: int = i) -> Array:
            return function(build([*leaves[:i], np.asarray(leaves[i]) + d, *leaves[i + 1 :]]))

        for j in np.ndindex(*gradient.shape):
            unit = np.zeros(gradient.shape)
            unit[j] = 1.0
            gradient[j] = derivative(at, unit)
    return build(gradients)


def compare(got: Any, want: Any) -> Difference:
    """The leaf where two gradients differ most, by ||got - want|| / ||want||.

    The distance is absolute where want is 0, and infinite where shapes differ.
    """
    gots, paths, _ = flatten(got, "gradient")
    wants = matched(want, paths, "want")
    differences = [
        Difference(f"gradient{path}", a, b, _distance(a, b))
        for path, a, b in zip(paths, gots, wants, strict=True)
    ]
    if not differences:
        raise ValueError("compare: nothing to compare")
    return max(differences, key=lambda each: math.inf if math.isnan(each.error) else each.error)


def _distance(got: Array, want: Array) -> float:
    if shape(got) != shape(want):
        return math.inf
    # divided out first: squares of small numbers underflow
    scale = float(np.max(np.abs(want), initial=0.0)) or 1.0
    size = float(np.linalg.norm(np.asarray(want) / scale)) or 1.0
    return float(np.linalg.norm((np.asarray(got) - want) / scale)) / size


def check_gradient(
    function: Callable[[Any], Array], x: Any, *, tolerance: float = 1e-12
) -> Difference:
    """Assert that the taped gradient of a scalar function equals its complex step."""
    return _assert_close("gradient", grad(function)(x), complex_step(function, x), tolerance)


def check_second(
    function: Callable[[Any], Array], x: Any, direction: Any, *, tolerance: float = 1e-11
) -> Difference:
    """Assert that d/dx <grad f, v> on the tape equals the complex step of the taped gradient along
    v.
    """
    leaves, paths, build = flatten(x)
    along = zip(leaves, matched(direction, paths, "direction"), strict=True)
    moved = grad(function)(build([np.asarray(leaf) + 1j * STEP * v for leaf, v in along]))
    want = build([np.imag(g) / STEP for g in flatten(moved)[0]])
    return _assert_close("second derivative", hvp(function)(x, direction), want, tolerance)


def _assert_close(name: str, got: Any, want: Any, tolerance: float) -> Difference:
    difference = compare(got, want)
    if not difference.error <= tolerance:
        path = difference.path.removeprefix("gradient")
        raise AssertionError(
            f"{name}{path}: relative error {difference.error:.2e} > {tolerance:.0e}\ngot  "
            f"{difference.got}\nwant {difference.want}"
        )
    return difference


def check_linear(
    function: Callable[..., Array], *args: Array, seed: int = 0, tolerance: float = 1e-13
) -> None:
    """Assert that the pullback of `function` at `args` is linear (TAPE-16).

    P(a u + b w) = a P(u) + b P(w),    P(0) = 0
    """
    value, pullback = vjp(function, *args)
    draw = np.random.default_rng(seed)
    u, w = draw.standard_normal(shape(value)), draw.standard_normal(shape(value))
    cotangents = (0.3 * u - 1.7 * w, u, w, 0.0 * u)
    for i, (b, f, s, z) in enumerate(zip(*map(pullback, cotangents), strict=True)):
        size = float(np.max(np.abs([f, s]), initial=0.0)) or 1.0
        error = float(np.max(np.abs(b - (0.3 * f - 1.7 * s)), initial=0.0)) / size
        if not error <= tolerance:
            raise AssertionError(
                f"argument {i}: the pullback is not linear, relative distance {error:.2e}"
            )
        if np.any(z != 0):
            raise AssertionError(f"argument {i}: the pullback of zero is not zero")
