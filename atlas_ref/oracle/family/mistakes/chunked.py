"""The exact chunk form by hand for rules of one window token, with the mistakes that chunks invite
(VEC-16).

    c_t = r_t c_(t-1)   n_t = m_t n_(t-1)   f_t = r_t f_(t-1) - b_t n_t
    N[t,j] = m_t N[t-1,j] (+ a_t at j = t)   G[t,j] = r_t G[t-1,j] + b_t N[t,j]
    (I + tril(shift(G) * K K^T, -1)) E = shift(c) K M_0^T + shift(f) K S_0^T - V

over a sequence padded to whole chunks, where r = m = 1 and a = b = 0.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.family.mistake import Mistake, Results, Seen, see
from atlas_ref.oracle.family.state import Inputs, Outputs
from atlas_ref.oracle.subjects import memory

Array = np.ndarray[Any, Any]

#: Tokens of a chunk: enough that terms of second order count, and no multiple of most topics.
CHUNK = 5

#: name -> the mistake in words.
MISTAKES = {
    "gates copied onto padding": "the padding of the last chunk has the gates of the last token",
    "chunk gates not shifted": "residuals are taken under the memory after the token's own write",
    "chunk decay not shifted": "the chunk's first memory is decayed once too often in the residual",
    "chunk diagonal kept": "the triangular matrix has its diagonal twice",
    "chunk inverse of first order": "I - A stands for the inverse of I + A",
    "chunk decay by division": "decays inside a chunk are quotients of cumulative products",
    "chunk momentum dropped": "every chunk starts with a momentum of zero",
    "chunk memory not decayed": "the chunk's last memory keeps its first one undecayed",
}


def mistakes(at: Seen) -> list[Mistake]:
    """Mistakes of the chunk form that can be made in a case."""
    return [
        Mistake(
            name, words, lambda _: True, program=partial(results, at.case, wrong=name), whole=True
        )
        for name, words in MISTAKES.items()
        if made_in(at, name)
    ]


def results(case: Case, arithmetic: str, *, wrong: str | None = None) -> Results:
    """Results of the chunk form in a format of arithmetic, perhaps with a mistake."""
    at = see(case, arithmetic)
    assert at is not None
    with np.errstate(all="ignore"):
        return memory.name_results(case, run(at.inputs, at.structure.reference, wrong))


def made_in(at: Seen, name: str) -> bool:
    """Whether the form computes a case, and the mistake can be made there."""
    inputs, s = at.inputs, at.structure
    gates = [x for x in (inputs.retain, inputs.momentum, inputs.a, inputs.b) if x is not None]
    plain = (
        at.case.header.level == "projected"
        and s.window == 1
        and s.reference in ("running", "zero")
        and s.read == "after"
        and inputs.decay is None
        and inputs.ceiling is None
        and not s.fades
    )
    plain = (
        plain
        and all(x.shape[-2] == 1 for x in gates)
        and inputs.active.all()
        and not inputs.reset.any()
    )
    if name == "gates copied onto padding":
        return plain and at.tokens % CHUNK != 0
    if name == "chunk momentum dropped":
        return plain and at.momentum and at.tokens > CHUNK
    if name in (
        "chunk gates not shifted",
        "chunk decay not shifted",
        "chunk diagonal kept",
        "chunk inverse of first order",
    ):
        return plain and s.reference == "running"
    if name == "chunk decay by division":
        return plain and inputs.momentum is None and inputs.retain is not None
    return plain


def run(inputs: Inputs, reference: str, wrong: str | None = None) -> Outputs:
    """Results of the family, chunk by chunk; with a mistake by its name."""
    T = inputs.keys.shape[-2]
    rows = -(-T // CHUNK) * CHUNK
    k, v, q = (_rows(x, rows) for x in (inputs.keys, inputs.targets, inputs.queries))
    copied = wrong == "gates copied onto padding"
    r, b, a = (
        _gate(x, T, k, fill, copied)
        for x, fill in ((inputs.retain, 1.0), (inputs.b, 0.0), (inputs.a, 0.0))
    )
    m = _gate(
        np.zeros_like(k[..., :T, :1, None]) if inputs.momentum is None else inputs.momentum,
        T,
        k,
        1.0,
        copied,
    )
    a = a * _gate(inputs.weights, T, k, 1.0, copied=False)
    M = np.broadcast_to(inputs.M0, (*k.shape[:-2], *inputs.M0.shape[-2:]))
    S = np.zeros_like(M) if inputs.S0 is None else np.broadcast_to(inputs.S0, M.shape)
    reads = []
    for first in range(0, rows, CHUNK):
        at = slice(first, first + CHUNK)
        S = np.zeros_like(S) if wrong == "chunk momentum dropped" else S
        part = (
            k[..., at, :],
            v[..., at, :],
            q[..., at, :],
            r[..., at],
            np.broadcast_to(m[..., at], r[..., at].shape),
            a[..., at],
            b[..., at],
        )
        y, M, S = _chunk(*part, M, S, reference, wrong)
        reads.append(y)
    return Outputs(
        np.concatenate(reads, axis=-2)[..., :T, :],
        M,
        None if inputs.S0 is None else S,
        None,
        None,
        None,
    )


def _rows(x: Array, rows: int) -> Array:
    return np.concatenate(
        [x, np.zeros((*x.shape[:-2], rows - x.shape[-2], x.shape[-1]), x.dtype)], axis=-2
    )


def _gate(x: Any, tokens: int, k: Array, fill: float, copied: bool) -> Array:
    """(..., rows) with `fill` on padding, or the last token's gate; a gate that the rule has not is
    1.
    """
    lead, rows = k.shape[:-2], k.shape[-2]
    values = (
        np.ones((*lead, tokens), k.dtype)
        if x is None
        else np.broadcast_to(x[..., 0, 0], (*lead, tokens))
    )
    last = values[..., -1:] if copied else np.full((*lead, 1), fill, k.dtype)
    return np.concatenate([values, np.repeat(last, rows - tokens, axis=-1)], axis=-1)


def _chunk(
    k: Array,
    v: Array,
    q: Array,
    r: Array,
    m: Array,
    a: Array,
    b: Array,
    M: Array,
    S: Array,
    reference: str,
    wrong: str | None,
) -> tuple[Array, Array, Array]:
    C = k.shape[-2]
    c, f, n, G, N = _coefficients(r, m, a, b, wrong)
    before = np.concatenate([np.zeros_like(G[..., :1, :]), G[..., :-1, :]], axis=-2)
    A = np.tril(
        (G if wrong == "chunk gates not shifted" else before) * (k @ np.swapaxes(k, -1, -2)), -1
    )
    if wrong == "chunk diagonal kept":
        A = np.tril(G * (k @ np.swapaxes(k, -1, -2)), 0)
    earlier = c[..., 1:] if wrong == "chunk decay not shifted" else c[..., :-1]
    base = (
        earlier[..., None] * (k @ np.swapaxes(M, -1, -2))
        + f[..., :-1, None] * (k @ np.swapaxes(S, -1, -2))
        - v
    )
    if reference == "zero":
        E = -v
    elif wrong == "chunk inverse of first order":
        E = base - A @ base
    else:
        E = np.zeros_like(base)
        for t in range(C):
            E[..., t, :] = (base[..., t, :] - (A[..., t : t + 1, :] @ E)[..., 0, :]) / (
                1.0 + A[..., t, t, None]
            )
    y = c[..., 1:, None] * (q @ np.swapaxes(M, -1, -2)) + f[..., 1:, None] * (
        q @ np.swapaxes(S, -1, -2)
    )
    y = y - (G * (q @ np.swapaxes(k, -1, -2))) @ E
    decay = np.ones_like(c[..., -1]) if wrong == "chunk memory not decayed" else c[..., -1]
    Et = np.swapaxes(E, -1, -2)
    M_end = decay[..., None, None] * M + f[..., -1, None, None] * S - (Et * G[..., -1:, :]) @ k
    return y, M_end, n[..., -1, None, None] * S + (Et * N[..., -1:, :]) @ k


def _coefficients(
    r: Array, m: Array, a: Array, b: Array, wrong: str | None
) -> tuple[Array, Array, Array, Array, Array]:
    """c, f, n (..., C + 1) from the chunk's start, G and N (..., C, C)."""
    C = r.shape[-1]
    c, f, n = (np.zeros((*r.shape[:-1], C + 1), r.dtype) for _ in range(3))
    G, N = (np.zeros((*r.shape, C), r.dtype) for _ in range(2))
    c[..., 0] = n[..., 0] = 1.0
    for t in range(C):
        c[..., t + 1] = r[..., t] * c[..., t]
        n[..., t + 1] = m[..., t] * n[..., t]
        f[..., t + 1] = r[..., t] * f[..., t] - b[..., t] * n[..., t + 1]
        if t:
            N[..., t, :] = m[..., t, None] * N[..., t - 1, :]
            G[..., t, :] = r[..., t, None] * G[..., t - 1, :]
        N[..., t, t] = a[..., t]
        G[..., t, :] += b[..., t, None] * N[..., t, :]
    if wrong == "chunk decay by division":
        G = np.tril(c[..., 1:, None] / c[..., None, 1:] * (b * a)[..., None, :])
    return c, f, n, G, N
