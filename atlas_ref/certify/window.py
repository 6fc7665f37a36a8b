"""Omega's window on balls: its tokens, their weights, and its gradient.

Source: WINDOW-1 to WINDOW-14, OMEGA-5.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from flint import arb

from atlas_ref.certify.functions import inverse
from atlas_ref.certify.matrix import Matrix, number, scaled, total
from atlas_ref.certify.tokens import Token


class Held(NamedTuple):
    """A token in the window: raw key and value, features, gate, residual on arrival, learned one."""

    k: Matrix
    v: Matrix
    phi: Matrix
    gate: Matrix | None
    residual: Matrix | None
    learned: Matrix | None = None


def residual(
    convention: Any,
    reference: Matrix,
    retain: Matrix | None,
    phi: Matrix,
    v: Matrix,
    learned: Matrix | None = None,
) -> Matrix:
    """R phi - v, with R = retain M_ref under before_error, and + v under value_sign plus (OMEGA-4,
    CONV-5, CONV-10).

    Args:
        retain: the multiplier of M, None for 1.
        learned: what stands in its place under reference surrogate (SURROGATE-3).
    """
    if learned is not None:
        return learned
    R = (
        scaled(retain, reference)
        if convention.decay == "before_error" and retain is not None
        else reference
    )
    return R @ phi + v if convention.value_sign == "plus" else R @ phi - v


def weight(token: Token, held: list[Held], lag: int) -> Matrix | None:
    """w[t, lag] before any edge; None for a missing token where tokens bring weights.

    Source: WINDOW-2, WINDOW-6.
    """
    if token.gate is None:
        return token.weights[lag]
    gate = held[-1 - lag].gate if lag < len(held) else None
    return None if gate is None else scaled(gate, token.weights[lag])


def edge(convention: Any, token: Token, held: list[Held]) -> Matrix:
    """The factor of WINDOW-9: all weights over those that exist; 1 under truncate, or for a divisor
    of 0.

    Where tokens bring their weights, that of a missing token is 0, so that the two sums are equal.
    """
    c = len(token.weights)
    if convention.window_edge == "truncate" or token.gate is not None or len(held) >= c:
        return number(arb(1))
    present = total(token.weights[: len(held)], 1, 1)
    if present.value[0, 0].is_zero():
        return number(arb(1))
    return total(token.weights, 1, 1) @ inverse(present)


def window_gradient(
    convention: Any,
    token: Token,
    held: list[Held],
    reference: Matrix,
    retain: Matrix | None,
    position: int | None,
) -> Matrix:
    """sum_j w[t, j] e[t, j] phi[t-j]^T, without the scale s (OMEGA-5).

    Args:
        position: p(t) where the reference is frozen: a token of a larger lag belongs to an older
            span (WINDOW-10); None where no token does.
    """
    factor = edge(convention, token, held)
    terms = []
    for lag, each in enumerate(reversed(held)):
        older = position is not None and lag > position
        if older and convention.window_at_boundary == "cut":
            continue
        w = weight(token, held, lag)
        if w is None:
            continue
        if older and convention.window_at_boundary == "carry":
            error = each.residual
            # an effective carry keeps one for every token, and a case gives those of its window
            assert error is not None
        else:
            error = residual(convention, reference, retain, each.phi, each.v, each.learned)
        terms.append(scaled(factor @ w, error) @ each.phi.T)
    return total(terms, reference.rows, reference.columns)
