"""The backward recursion of a deep memory by hand, and what it costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref.parts import memory_functions
from atlas_ref.rules import deep_memory, sequence
from atlas_ref.rules.deep_memory.config import Config
from atlas_ref.rules.deep_memory.write import Rows, gradient
from atlas_ref.rules.sequence import Tokens
from tape import grad, ops
from tests.support.close import assert_close, reordered

D, C, N = 3, 2, 4
STEP = 1e-40
MEMORY = {"kind": "mlp", "activation": "gelu_tanh", "expansion": 2.0}
CLOSE = reordered(64, amplification=100.0)


def settings() -> Config:
    return deep_memory.Config(
        d_in=D, d_out=D, memory=MEMORY, chunk=C, convention={"newton_schulz": "none"}
    )


def drawn() -> tuple[Any, Any]:
    """Tokens (T, D) with gates, and tensors of the memory."""
    rng = np.random.default_rng(1)
    T = C * N
    rows = dict(zip("kvq", rng.standard_normal((3, T, D)), strict=True))
    rows |= {"retain": rng.uniform(0.9, 1.0, T), "momentum": rng.uniform(0.3, 0.9, T)}
    rows |= {"step_size": rng.uniform(0.02, 0.1, T), "window_gate": rng.uniform(0.5, 1.0, T)}
    shapes = memory_functions.tensors(settings().memory, D, D)
    return rows, {name: 0.6 * rng.standard_normal(shape) for name, shape in shapes.items()}


def by_hand(config: Config, rows: Any, W0: Any, bar: Any) -> dict[str, Any]:
    """Gradients of the contraction of all reads with `bar`, by DEEP-25."""
    W, S, kept = dict(W0), {name: 0.0 * x for name, x in W0.items()}, []
    for n in range(N):
        of = slice(n * C, (n + 1) * C)
        e = of.stop - 1
        seen = Rows(rows["k"][of], rows["v"][of], rows["window_gate"][of], {})
        g = gradient(config, W, seen)[2]
        after = {name: rows["momentum"][e] * S[name] + g[name] for name in W}
        kept.append((W, S, after, seen, e))
        W = {name: rows["retain"][e] * W[name] - rows["step_size"][e] * after[name] for name in W}
        S = after

    def reads(n: int, weights: Any) -> tuple[Any, Any]:
        """Cotangents of the weights and of the queries that read W_n."""
        at = [t for t in range(C * N) if (t + 1) // C == n]
        if not at:
            return {name: 0.0 * x for name, x in weights.items()}, (at, None)
        q = rows["q"][at]
        bars, q_bar = memory_functions.gradient(config.memory, weights, q, bar[at])
        return bars, (at, q_bar)

    found = {name: np.zeros_like(x) for name, x in rows.items()}
    W_bar, (at, q_bar) = reads(N, W)
    found["q"][at] = q_bar
    S_bar = {name: 0.0 * x for name, x in W.items()}
    for n in reversed(range(N)):
        W, S, after, seen, e = kept[n]
        found["step_size"][e] = -sum(np.sum(W_bar[name] * after[name]) for name in W)
        found["retain"][e] = sum(np.sum(W_bar[name] * W[name]) for name in W)
        S_bar = {name: S_bar[name] - rows["step_size"][e] * W_bar[name] for name in W}
        found["momentum"][e] = sum(np.sum(S_bar[name] * S[name]) for name in W)
        along = {name: W[name] + 1j * STEP * S_bar[name] for name in W}
        predicted, residual, g = gradient(config, along, seen)
        gy = 2.0 * seen.weights[:, None] * residual
        k_bar = memory_functions.gradient(config.memory, along, seen.keys, gy, names=())[1]
        of = slice(n * C, (n + 1) * C)
        found["k"][of] = np.imag(k_bar) / STEP
        found["v"][of] = -2.0 * seen.weights[:, None] * np.imag(predicted) / STEP
        found["window_gate"][of] = np.imag(np.sum(residual * residual, -1)) / STEP
        below, (at, q_bar) = reads(n, W)
        found["q"][at] = 0.0 if q_bar is None else q_bar
        retain, momentum = rows["retain"][e], rows["momentum"][e]
        W_bar = {x: retain * W_bar[x] + np.imag(g[x]) / STEP + below[x] for x in W}
        S_bar = {name: momentum * S_bar[name] for name in W}
    return found | W_bar


@pytest.mark.host("complex steps of plain arrays")
@pytest.mark.clause("DEEP-25")
def test_the_recursion_by_hand_is_the_tapes_gradient() -> None:
    config, (rows, W0) = settings(), drawn()
    bar = np.random.default_rng(2).standard_normal((C * N, D))

    def loss(at: Any) -> Any:
        tokens = Tokens.trusted(**dict.fromkeys(Tokens.model_fields) | at["rows"])
        start = deep_memory.start(config, ())
        return ops.sum(bar * sequence.run(deep_memory.RULE, config, tokens, start, phi=at["W0"])[1])

    got, want = grad(loss)({"rows": rows, "W0": W0}), by_hand(config, rows, W0, bar)
    for name, x in (got["rows"] | got["W0"]).items():
        assert_close(name, x, want[name], CLOSE)


@pytest.mark.clause("DEEP-25")
def test_recorded_entries_are_linear_in_the_writes() -> None:
    config, (rows, W0) = settings(), drawn()
    counts = []
    for repeats in (2, 4, 6):
        longer = {name: np.concatenate([x] * repeats) for name, x in rows.items()}

        def loss(weights: Any, longer: Any = longer) -> Any:
            start = deep_memory.start(config, ())
            y = sequence.run(deep_memory.RULE, config, Tokens(**longer), start, phi=weights)[1]
            counts.append(len(y.tape.entries))
            return ops.sum(y)

        grad(loss)(W0)
    assert counts[2] - counts[1] == counts[1] - counts[0]
