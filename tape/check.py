"""Proofs of gradients: the complex step, central differences, and linearity of pullbacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tape import ops
from tape.core import Array, shape
from tape.nested import flatten
from tape.transforms import grad, vjp

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

    There is no subtraction, so the only error is that of evaluating f: about 1e-16. It requires that
    nothing in f conjugates, takes a modulus or compares imaginary parts.
    """
    return _entrywise(function, x, lambda leaf, unit: leaf + 1j * STEP * unit, lambda f: np.imag(f) / STEP)


def central_difference(function: Callable[[Any], Array], x: Any, *, step: float = 1e-6) -> Any:
    """Gradient by (f(x + h e_j) - f(x - h e_j)) / 2h: the substitute where f is not analytic, to about 1e-9."""
    plus = _entrywise(function, x, lambda leaf, unit: leaf + step * unit, lambda f: f)
    minus = _entrywise(function, x, lambda leaf, unit: leaf - step * unit, lambda f: f)
    leaves, _, build = flatten((plus, minus))
    half = len(leaves) // 2
    return build([(a - b) / (2 * step) for a, b in zip(leaves[:half], leaves[half:], strict=True)] * 2)[0]


def _entrywise(function: Callable[[Any], Array], x: Any, move: Any, read: Any) -> Any:
    leaves, _, build = flatten(x)
    gradients = []
    for i, leaf in enumerate(leaves):
        gradient = np.zeros(shape(leaf))
        for j in np.ndindex(*shape(leaf)):
            unit = np.zeros(shape(leaf))
            unit[j] = 1.0
            gradient[j] = read(function(build([*leaves[:i], move(np.asarray(leaf), unit), *leaves[i + 1 :]])))
        gradients.append(gradient)
    return build(gradients)


def compare(got: Any, want: Any) -> Difference:
    """The worst leaf of two gradients by ||got - want|| / ||want|| (absolute where want is 0)."""
    gots, paths, _ = flatten(got, "gradient")
    wants, _, _ = flatten(want, "gradient")
    worst: Difference | None = None
    for path, a, b in zip(paths, gots, wants, strict=True):
        scale = float(np.linalg.norm(b))
        error = float(np.linalg.norm(np.asarray(a) - b)) / (scale if scale > 0 else 1.0)
        if worst is None or not error <= worst.error:
            worst = Difference(path, a, b, error)
    if worst is None:
        raise ValueError("compare: nothing to compare")
    return worst


def check_gradient(function: Callable[[Any], Array], x: Any, *, tolerance: float = 1e-12) -> Difference:
    """Assert that the taped gradient of a scalar function equals its complex step.

    Raises:
        AssertionError: with the worst leaf, both gradients and their relative distance.
    """
    found = compare(grad(function)(x), complex_step(function, x))
    if not found.error <= tolerance:
        raise AssertionError(f"{found.path}: relative error {found.error:.2e} > {tolerance:.0e}\ngot  {found.got}\nwant {found.want}")
    return found


def check_second(function: Callable[[Any], Array], x: Array, direction: Array, *, tolerance: float = 1e-11) -> float:
    """Assert that d/dx <grad f, v> on the tape equals the complex step of the taped gradient along v."""
    from_tape = grad(lambda y: ops.vdot(grad(function)(y), direction))(x)
    want = np.imag(grad(function)(np.asarray(x) + 1j * STEP * direction)) / STEP
    found = compare(from_tape, want)
    if not found.error <= tolerance:
        raise AssertionError(f"second derivative: relative error {found.error:.2e} > {tolerance:.0e}\ngot  {found.got}\nwant {found.want}")
    return found.error


def check_linear(function: Callable[..., Array], *args: Array, seed: int = 0, tolerance: float = 1e-13) -> None:
    """Assert that the pullback of `function` at `args` is linear: P(a u + b w) = a P(u) + b P(w), P(0) = 0.

    Raises:
        AssertionError: names the argument and the relative distance.
    """
    value, pullback = vjp(function, *args)
    draw = np.random.default_rng(seed)
    u, w = draw.standard_normal(shape(value)), draw.standard_normal(shape(value))
    both, first, second = pullback(0.3 * u - 1.7 * w), pullback(u), pullback(w)
    for i, (b, f, s) in enumerate(zip(both, first, second, strict=True)):
        want = 0.3 * f - 1.7 * s
        error = float(np.linalg.norm(b - want)) / max(1e-300, float(np.linalg.norm(want)))
        if not (error <= tolerance or np.linalg.norm(b - want) <= tolerance):
            raise AssertionError(f"argument {i}: the pullback is not linear, relative distance {error:.2e}")
    for i, z in enumerate(pullback(0.0 * u)):
        if np.any(z != 0):
            raise AssertionError(f"argument {i}: the pullback of zero is not zero")
