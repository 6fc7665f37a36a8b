"""One write of each rule on balls, each written out.

OMEGA-2 to OMEGA-13, TITANS-2 to TITANS-5, DELTA-2, DELTA-3, HEBBIAN-2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from flint import arb

from atlas_ref.certify.functions import bounded
from atlas_ref.certify.matrix import Matrix, each, filled, hadamard, number, scaled, total
from atlas_ref.certify.newton_schulz import newton_schulz
from atlas_ref.certify.tokens import Token
from atlas_ref.certify.window import Held, residual, weight, window_gradient


class Write(NamedTuple):
    """Arguments of a write.

    Attributes:
        M, S: memory and momentum before the token, S in the case's momentum_sign.
        reference: M_ref of the token.
        held: the window, oldest first, the token itself last.
        momenta: earlier Z, oldest first (OMEGA-11).
        position: p(t) where tokens of older spans are told apart, else None.
    """

    convention: Any
    token: Token
    M: Matrix
    S: Matrix
    reference: Matrix
    held: list[Held]
    momenta: Sequence[Matrix]
    position: int | None


def multiplier(convention: Any, token: Token) -> Matrix | None:
    """The factor of M (CONV-4); None for 1."""
    if convention.gate == "none":
        return None
    u = bounded(token.gates["retain"], convention.retain_bounds)
    return u if convention.gate == "retain" else (-u).plus(arb(1))


def _times(factor: Matrix | None, matrix: Matrix) -> Matrix:
    return matrix if factor is None else scaled(factor, matrix)


def _rates(w: Write) -> tuple[Matrix | None, Matrix | None]:
    """(a_t, b_t) of CONV-7; None for 1."""
    h, second = w.token.gates.get("step_size"), w.token.gates.get("step_size_memory")
    h = None if h is None else bounded(h, w.convention.step_bounds)
    return {
        "momentum": (h, None),
        "memory": (None, h),
        "both": (h, h),
        "split": (h, second),
        "none": (None, None),
    }[w.convention.rate]


def _scale(w: Write) -> arb:
    """s (CONV-6)."""
    scale = w.convention.gradient_scale
    return arb(2) / w.M.rows if scale == "2/d_out" else arb(scale)


def _single(w: Write) -> Matrix:
    """s e_t phi_t^T of the newest token alone."""
    newest = w.held[-1]
    retain = multiplier(w.convention, w.token)
    error = residual(w.convention, w.reference, retain, newest.phi, newest.v, newest.learned)
    return (error @ newest.phi.T).times(_scale(w))


def _momentum(w: Write, a: Matrix | None, g: Matrix) -> Matrix:
    """momentum S + a g, or - a g under momentum_sign minus (OMEGA-6), CONV-64, CONV-70.

    Without a momentum gate it is a g alone (GATES-4).
    """
    entering = _times(a, g if w.convention.momentum_sign == "plus" else -g)
    m = w.token.gates.get("momentum")
    if m is None:
        return entering
    if w.convention.momentum_kind == "average":
        entering = scaled((-m).plus(arb(1)), entering)
    return (
        scaled(_faded(m, g) if w.convention.momentum_kind == "delta_momentum" else m, w.S)
        + entering
    )


#: CONV-70: how near the factor of delta momentum comes to 0 and to 1.
MARGIN = 1e-6


def _faded(m: Matrix, g: Matrix) -> Matrix:
    """clamp(momentum - |g|^2, 1e-6, 1 - 1e-6), of a slope in [0, 1] where balls cannot compare.

    Source: CONV-70.
    """
    low, high = arb(MARGIN), arb(1.0 - MARGIN)

    def slope(x: arb) -> arb:
        if x < low or x > high:
            return arb(0)
        return arb(1) if x >= low and x <= high else arb(0.5, 0.5)

    square = _ones(1, g.rows) @ hadamard(g, g) @ _ones(g.columns, 1)
    return each(m - _ones(m.rows, 1) @ square, lambda x: x.max(low).min(high), slope)


def _ones(rows: int, columns: int) -> Matrix:
    return Matrix(filled(rows, columns, [arb(1)] * (rows * columns)))


def _memory(w: Write, b: Matrix | None, U: Matrix) -> Matrix:
    """retain M - b U, or + b U under momentum_sign minus; ascent turns the sign round.

    Source: OMEGA-10.
    """
    down = (w.convention.momentum_sign == "plus") == (w.convention.direction == "descent")
    memory, step = _times(multiplier(w.convention, w.token), w.M), _times(b, U)
    return memory - step if down else memory + step


def hebbian(w: Write) -> tuple[Matrix, Matrix]:
    """M <- retain M + v k^T."""
    newest = w.held[-1]
    return _times(multiplier(w.convention, w.token), w.M) + newest.v @ newest.phi.T, w.S


def delta(w: Write) -> tuple[Matrix, Matrix]:
    """M <- retain M - a b g."""
    a, b = _rates(w)
    step = _times(a, _times(b, _single(w)))
    memory = _times(multiplier(w.convention, w.token), w.M)
    return (memory - step if w.convention.direction == "descent" else memory + step), w.S


def titans_lmm(w: Write) -> tuple[Matrix, Matrix]:
    """S <- momentum S + a g; M <- retain M - b S."""
    a, b = _rates(w)
    S = _momentum(w, a, _single(w))
    return _memory(w, b, S), S


def omega(w: Write) -> tuple[Matrix, Matrix]:
    """S <- momentum S + a g over the window, then M <- retain M - b NS(S).

    Under momentum_then_window the window is over momenta (OMEGA-11).
    """
    a, b = _rates(w)
    windowed = w.convention.order == "window_then_momentum"
    g = _window_gradient(w) if windowed else _single(w)
    S = _momentum(w, a, g)
    summed = S if windowed else _windowed(w, S)
    settings = w.convention.newton_schulz
    if settings == "none" or settings.argument == "accumulated":
        return _memory(w, b, summed), S
    argument = summed
    if settings.argument == "nesterov":
        m = w.token.gates.get("momentum")
        argument = g if w.convention.momentum_sign == "plus" else -g
        argument = argument if m is None else argument + scaled(m, summed)
    U = newton_schulz(argument, settings)
    return _memory(w, b, U), U if settings.argument == "written_back" else S


def _window_gradient(w: Write) -> Matrix:
    retain = multiplier(w.convention, w.token)
    return window_gradient(w.convention, w.token, w.held, w.reference, retain, w.position).times(
        _scale(w)
    )


def _windowed(w: Write, Z: Matrix) -> Matrix:
    """P_t = sum_j w[t, j] Z_{t-j}; a missing momentum counts nothing."""
    terms = []
    for lag, momentum in enumerate([Z, *reversed(w.momenta)]):
        factor = weight(w.token, w.held, lag)
        if factor is not None:
            terms.append(scaled(factor, momentum))
    return total(terms, Z.rows, Z.columns)


WRITES: dict[str, Callable[[Write], tuple[Matrix, Matrix]]] = {
    "omega": omega,
    "titans_lmm": titans_lmm,
    "delta": delta,
    "hebbian": hebbian,
}


def read(convention: Any, memory: Matrix, query: Matrix, d_in: int) -> Matrix:
    """y = M phi(q) times the query's scale, through NS(M) under argument accumulated.

    Source: OMEGA-9, OMEGA-12, CONV-23.
    """
    settings = convention.newton_schulz
    if settings != "none" and settings.argument == "accumulated":
        memory = newton_schulz(memory, settings)
    scale = (
        arb(1) / arb(d_in).sqrt()
        if convention.query_scale == "1/sqrt(d_in)"
        else arb(convention.query_scale)
    )
    return scaled(number(scale), memory @ query)
