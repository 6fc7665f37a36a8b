"""Moneta, Yaad and Memora of a matrix memory as MIRAS prints them, one token at a time.

    moneta  A_t = alpha_t A_(t-1) - eta_t p [Sign(e) |e|^(p-1)] k^T,   W_t = A_t / |A_t|_q^(q-2)
    yaad    W_t = alpha_t W_(t-1) - eta_t e k^T                        where |e| <= 1
            W_t = alpha_t W_(t-1) - eta_t Sign(e) k^T                  elsewhere
    memora  W_t = Softmax(alpha_t log W_(t-1) - eta_t 2 e k^T)

with e = W k_t - v_t at the weights of the last span, Sign(x) = tanh(10 x), |x| = sqrt(x^2 + 1e-6),
p = 3 and q = 4. A token reads behind its write. Nothing here is shared with the package under test.
"""

from __future__ import annotations

import numpy as np

Array = np.ndarray


def moneta(A: Array, W: Array, k: Array, v: Array, alpha: float, eta: float) -> Array:
    e = W @ k - v
    return alpha * A - eta * 3.0 * np.outer(np.tanh(10.0 * e) * (e * e + 1e-6), k)


def yaad(A: Array, W: Array, k: Array, v: Array, alpha: float, eta: float) -> Array:
    e = W @ k - v
    if np.sqrt(np.sum(e * e)) <= 1.0:
        return alpha * A - eta * np.outer(e, k)
    return alpha * A - eta * np.outer(np.tanh(10.0 * e), k)


def memora(A: Array, W: Array, k: Array, v: Array, alpha: float, eta: float) -> Array:
    powers = np.exp(alpha * np.log(A) - eta * 2.0 * np.outer(W @ k - v, k))
    return powers / powers.sum()


WRITES = {"moneta": moneta, "yaad": yaad, "memora": memora}


def run(
    name: str,
    first: Array,
    k: Array,
    v: Array,
    q: Array,
    alpha: Array,
    eta: Array,
    *,
    span: int,
) -> tuple[Array, Array]:
    """Reads (T, d), and A or W after the last token."""

    def seen(A: Array) -> Array:
        return A / np.sqrt(np.sum(A**4)) if name == "moneta" else A  # |A|_4^2

    A, frozen, reads = first, first, []
    for t in range(len(k)):
        frozen = A if t % span == 0 else frozen
        A = WRITES[name](A, seen(frozen), k[t], v[t], alpha[t], eta[t])
        reads.append(seen(A) @ q[t])
    return np.array(reads), A
