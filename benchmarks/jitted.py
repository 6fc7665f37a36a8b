"""The exact rules in JAX, jitted: chunks through a triangular system, differentiated by JAX.

Runs in a process of its own, like PyTorch (`benchmarks.process`). What a chunk needs of the gates
and keys is computed for all chunks at once, and a scan carries the state from chunk to chunk: the
form that a JAX user would write (EXACT-1 to EXACT-6).

    S_t = m_t S_{t-1} + a_t e_t k_t^T,   M_t = r_t M_{t-1} - b_t S_t,   e_t = M_{t-1} k_t - v_t
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]


class Compiled(NamedTuple):
    """Jitted reads and gradients of one memory on given inputs, as `benchmarks.process` asks."""

    leaves: dict[str, Any]
    bar: Any
    of_reads: Callable[[dict[str, Any]], Any]
    of_both: Callable[[dict[str, Any], Any], Any]

    def forward(self) -> Any:
        """Reads."""
        return self.of_reads(self.leaves).block_until_ready()

    def both(self) -> tuple[Any, dict[str, Any]]:
        """Reads, and the gradient of their product with `bar` by every leaf."""
        y, gradients = self.of_both(self.leaves, self.bar)
        for each in gradients.values():
            each.block_until_ready()
        return y, gradients

    def plain(self, y: Array) -> Array:
        """Reads in our layout, which is this one."""
        return y

    def gradients(self, by_leaf: Arrays) -> Arrays:
        """Gradients in our layout, which is this one."""
        return by_leaf


def call(arrays: Arrays, bar: Array, *, chunk: int, before_error: bool = False) -> Compiled:
    """The rule that the gates among the arrays make; queries are scaled by 1 / sqrt(d)."""
    import jax

    def reads(x: dict[str, Any]) -> Any:
        return _reads(x, chunk, before_error)

    def both(x: dict[str, Any], bar: Any) -> Any:
        y, pullback = jax.vjp(reads, x)
        return y, pullback(bar)[0]

    leaves = {name: jax.numpy.asarray(array) for name, array in arrays.items()}
    return Compiled(leaves, jax.numpy.asarray(bar), jax.jit(reads), jax.jit(both))


def _reads(x: dict[str, Any], C: int, before_error: bool) -> Any:
    """Reads (heads, T, d) of a memory that starts at zero."""
    import jax
    from jax import numpy as jnp

    heads, T, d = x["k"].shape
    q, k, v = (x[name].reshape(heads, T // C, C, d) for name in ("q", "k", "v"))
    q = q * d**-0.5
    one = jnp.ones((heads, T // C, C), k.dtype)
    r, a = (x[n].reshape(one.shape) if n in x else one for n in ("retain", "step_size"))
    m = x["momentum"].reshape(one.shape) if "momentum" in x else 0 * one
    b = x["step_size_memory"].reshape(one.shape) if "step_size_memory" in x else one
    kept, D, X = _coefficients(r, m, a, b)
    before = jnp.concatenate([jnp.zeros_like(D[..., :1, :]), D[..., :-1, :]], axis=-2)
    ahead = jnp.concatenate([jnp.ones_like(kept[..., :1]), kept[..., :-1]], axis=-1)
    decay = r if before_error else one
    N = decay[..., None] * before[..., 1:] * (k @ k.swapaxes(-1, -2))
    eye = jnp.broadcast_to(jnp.eye(C, dtype=k.dtype), N.shape)
    inverse = jax.scipy.linalg.solve_triangular(eye + N, eye, lower=True, unit_diagonal=True)
    asks = ((decay * ahead)[..., None] * k, -(decay * before[..., 0])[..., None] * k)
    answers = kept[..., None] * q, -D[..., 0, None] * q
    scores = D[..., 1:] * (q @ k.swapaxes(-1, -2))
    ends = D[..., -1, 1:, None] * k, X[..., -1, 1:, None] * k
    passed = kept[..., -1], D[..., -1, 0], X[..., -1, 0]

    def step(state: Any, each: Any) -> Any:
        M, S = state
        (ask_M, ask_S), (read_M, read_S), (end_M, end_S), (c, f, n), A, L, V = each
        E = L @ (ask_M @ M + ask_S @ S - V)
        y = read_M @ M + read_S @ S - A @ E
        grown = (
            c[:, None, None] * M - f[:, None, None] * S - end_M.swapaxes(-1, -2) @ E,
            n[:, None, None] * S + end_S.swapaxes(-1, -2) @ E,
        )
        return grown, y

    by_chunk = jax.tree.map(
        lambda each: each.swapaxes(0, 1), (asks, answers, ends, passed, scores, inverse, v)
    )
    zero = jnp.zeros((heads, d, d), k.dtype)
    _, y = jax.lax.scan(step, (zero, zero), by_chunk)
    return y.swapaxes(0, 1).reshape(heads, T, d)


def _coefficients(r: Any, m: Any, a: Any, b: Any) -> Any:
    """Factors of M_0 (.., C), and rows D, X (.., C, 1 + C) of S_0 and errors, by token."""
    import jax
    from jax import numpy as jnp

    C = r.shape[-1]
    gates = [jnp.moveaxis(each, -1, 0) for each in (r, m, a, b)]
    lead = r.shape[:-1]
    first = (
        jnp.ones(lead, r.dtype),
        jnp.zeros((*lead, 1 + C), r.dtype),
        jnp.zeros((*lead, 1 + C), r.dtype).at[..., 0].set(1.0),
    )

    def step(rows: Any, each: Any) -> Any:
        c, D, X = rows
        (r, m, a, b), t = each
        X = m[..., None] * X + a[..., None] * jax.nn.one_hot(t + 1, 1 + C, dtype=r.dtype)
        D = r[..., None] * D + b[..., None] * X
        return (r * c, D, X), (r * c, D, X)

    _, rows = jax.lax.scan(step, first, (gates, jnp.arange(C)))
    c, D, X = rows
    return jnp.moveaxis(c, 0, -1), jnp.moveaxis(D, 0, -2), jnp.moveaxis(X, 0, -2)
