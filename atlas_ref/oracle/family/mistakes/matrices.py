"""Mistakes in Newton-Schulz: coefficients, norms, and what is lost on the way back (VEC-16)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from atlas_ref.oracle.family import steps
from atlas_ref.oracle.family.arithmetic import Arithmetic
from atlas_ref.oracle.family.mistake import Mistake, Seen
from atlas_ref.parts.newton_schulz import NewtonSchulz, coefficient_table
from atlas_ref.types import Array
from tape import ops

Orthogonalise = Callable[[Arithmetic, Array, NewtonSchulz], Array]


def _with_table(change: Callable[[list[Any]], list[Any]]) -> Orthogonalise:
    def apply(way: Arithmetic, S: Array, settings: NewtonSchulz) -> Array:
        rows = tuple(
            tuple(row) for row in change([list(row) for row in coefficient_table(settings)])
        )
        return steps.newton_schulz(way, S, settings.replaced(coefficients=rows, steps=len(rows)))

    return apply


def _scale(place: int, factor: float) -> Orthogonalise:
    return _with_table(
        lambda rows: [[x * factor if i == place else x for i, x in enumerate(row)] for row in rows]
    )


def _with_norm(norm: Callable[[Array], Array]) -> Orthogonalise:
    """Newton-Schulz after a division by another norm."""

    def apply(way: Arithmetic, S: Array, settings: NewtonSchulz) -> Array:
        size = norm(S) + settings.eps
        X = S / ops.where(ops.equal(size, 0.0), 1.0, size)
        X = steps.iterates(way, X, coefficient_table(settings))
        return X if settings.scale == "1" else steps.newton_schulz(way, S, settings, X=X)

    return apply


def _columns(S: Array) -> Array:
    return ops.sqrt(ops.sum(S * S, axis=-2, keepdims=True))


def _rows(S: Array) -> Array:
    return ops.sqrt(ops.sum(S * S, axis=-1, keepdims=True))


def _all(S: Array) -> Array:
    return ops.sqrt(ops.sum(S * S, keepdims=True))


def _eps_inside(way: Arithmetic, S: Array, settings: NewtonSchulz) -> Array:
    size = ops.sqrt(ops.sum(S * S, axis=(-2, -1), keepdims=True) + settings.eps)
    return steps.newton_schulz(
        way, S, settings, X=steps.iterates(way, S / size, coefficient_table(settings))
    )


def _always(at: Seen | None) -> bool:
    return True


def _without_last_term(step: int) -> Orthogonalise:
    return _with_table(
        lambda rows: [[*row[:2], 0.0] if i == step else row for i, row in enumerate(rows)]
    )


def _hold_norm(way: Arithmetic, S: Array, settings: NewtonSchulz) -> Array:
    X = steps.normalise(way, ops.stop_gradient(S), settings)
    size = steps.frobenius(way, ops.stop_gradient(S)) * settings.norm_factor + settings.eps
    X = X + (S - ops.stop_gradient(S)) / size
    return steps.newton_schulz(
        way, S, settings, X=steps.iterates(way, X, coefficient_table(settings))
    )


def _straight_through(way: Arithmetic, S: Array, settings: NewtonSchulz) -> Array:
    return steps.newton_schulz(way, ops.stop_gradient(S), settings) + (S - ops.stop_gradient(S))


def _hold(way: Arithmetic, S: Array, settings: NewtonSchulz) -> Array:
    return steps.newton_schulz(way, ops.stop_gradient(S), settings) + 0.0 * S


COEFFICIENT = {0: "a", 1: "b", 2: "c"}

NEWTON_SCHULZ: tuple[Mistake, ...] = (
    *(
        Mistake(
            f"{COEFFICIENT[i]} {percent:+d} %",
            (
                f"the coefficient {COEFFICIENT[i]} is {abs(percent)} % too "
                f"{'large' if percent > 0 else 'small'}"
            ),
            _always,
            newton_schulz=_scale(i, 1 + percent / 100),
        )
        for i in COEFFICIENT
        for percent in (-3, -1, 1, 3)
    ),
    *(
        Mistake(
            f"no A^2 at step {i + 1}",
            f"step {i + 1} leaves the last term out",
            _always,
            newton_schulz=_without_last_term(i),
        )
        for i in range(5)
    ),
    Mistake(
        "no norm",
        "the argument is not divided by its norm",
        _always,
        newton_schulz=_with_norm(lambda S: ops.ones_like(S, shape=(1, 1))),
    ),
    Mistake(
        "norm by columns",
        "every column is divided by its own norm",
        _always,
        newton_schulz=_with_norm(_columns),
    ),
    Mistake(
        "norm by rows",
        "every row is divided by its own norm",
        _always,
        newton_schulz=_with_norm(_rows),
    ),
    Mistake(
        "norm over heads",
        "all heads are divided by one norm",
        lambda at: at is None or at.heads > 1,
        newton_schulz=_with_norm(_all),
    ),
    Mistake(
        "eps under the root", "the norm is sqrt(sum S^2 + eps)", _always, newton_schulz=_eps_inside
    ),
    Mistake(
        "norm held fixed",
        "the backward pass takes the norm for a constant",
        _always,
        grad=True,
        newton_schulz=_hold_norm,
    ),
    Mistake(
        "straight through",
        "the backward pass leaves Newton-Schulz out",
        _always,
        grad=True,
        newton_schulz=_straight_through,
    ),
    Mistake(
        "Newton-Schulz held fixed",
        "no gradient passes Newton-Schulz",
        _always,
        grad=True,
        newton_schulz=_hold,
    ),
)
