"""The four readings of outer gradients, of the plain loops of the deep memory rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.close import ANALYTIC, EXACT, FINITE_DIFFERENCE, assert_close
from tests.truth import deep_memory_functions as functions
from tests.truth import deep_memory_loops as loops
from tests.truth.test_deep_memory_functions import FUNCTIONS
from tests.truth.test_deep_memory_properties import WAYS, B, inputs, tensors

pytestmark = pytest.mark.host("plain loops of the tests")

Tensors = dict[str, Any]
SMALL = {"memory": FUNCTIONS["mlp2_norm"], "chunk": 2, "window": 3, "newton_schulz": 5}
T = 6


def given(way: Tensors, tokens: int = T) -> tuple[Any, ...]:
    """k, v, q, gates of the first tokens, and tensors with an S_0."""
    draw, p = np.random.default_rng(0), tensors(way)
    k, v, q, gates = inputs()
    gates = {n: a[:, :tokens] for n, a in gates.items()}
    rows = [a[:, :tokens] for a in (k, v, q)]
    fast = loops.run(way, p, *rows, gates)[1]
    names = [n for n in fast if n.startswith("momentum/")]
    own = {n: 0.1 * draw.standard_normal(fast[n].shape[1:]) for n in names}
    return *rows, gates, p | own


def cotangents(way: Tensors, k: Any, v: Any, q: Any, gates: Tensors, p: Tensors) -> Tensors:
    draw = np.random.default_rng(7)
    y, state = loops.run(way, p, k, v, q, gates)
    kinds = ("memory/", "momentum/")
    bars = {n: draw.standard_normal(a.shape) for n, a in state.items() if n.startswith(kinds)}
    return bars | {"y": draw.standard_normal(y.shape)}


@pytest.mark.parametrize("name", WAYS)
def test_the_full_gradient_is_that_of_finite_differences(name: str) -> None:
    way = WAYS[name]
    k, v, q, gates, p = given(way, 12)
    bars, draw, h = cotangents(way, k, v, q, gates, p), np.random.default_rng(8), 1e-5
    every = {"k": k, "v": v, "q": q} | gates | p
    ways = {n: draw.standard_normal(np.shape(a)) for n, a in every.items()}
    got = loops.along(way, p, k, v, q, gates, bars, ways)

    def total(step: float) -> float:
        at = {n: a + step * ways[n] for n, a in every.items()}
        tokens = [at[n] for n in ("k", "v", "q")]
        own = {n: at[n] for n in p}
        y, state = loops.run(way, own, *tokens, {n: at[n] for n in gates})
        results = state | {"y": y}
        return float(sum(np.sum(results[n] * bar) for n, bar in bars.items()))

    def central(step: float) -> float:
        return (total(step) - total(-step)) / (2.0 * step)

    want = (4.0 * central(h / 2.0) - central(h)) / 3.0
    assert_close("gradient", got, want, FINITE_DIFFERENCE)


def test_the_first_order_gradient_holds_updates_constant() -> None:
    """Of W_0 the products of retain, of retain and the step their direct terms, else nothing."""
    way = SMALL | {"outer_gradient": "first_order", "adaptive": True}
    k, v, q, gates, p = given(way)
    bar = np.random.default_rng(9).standard_normal(q.shape)
    got = loops.outer(way, p, k, v, q, gates, {"y": bar})
    driver = loops.driven(way, p, k, v, q, gates)
    f, names = driver.f, list(driver.groups[0].first)
    want = {n: np.zeros(np.shape(a)) for n, a in {"q": q, **gates, **p}.items()}
    writes = T // way["chunk"]
    for b in range(B):
        log = driver.log[b * writes : (b + 1) * writes]
        adjoint = {n: np.zeros(p[n].shape) for n in names}
        for t in reversed(range(T)):
            g, want["q"][b, t] = functions.gradient(driver.reading[b, t], q[b, t], bar[b, t], f)
            for n, a in g.items():
                if n in names:
                    adjoint[n] = adjoint[n] + a
                else:
                    want[n] += a
            if (t + 1) % way["chunk"] == 0:
                U, divisor, _ = log[t // way["chunk"]]
                before = driver.reading[b, t - 1]
                want["retain"][b, t] = sum(np.sum(adjoint[n] * before[n]) for n in names)
                along = sum(np.sum(adjoint[n] * U[n]) for n in names)
                want["step_size"][b, t] = -along / divisor
                adjoint = {n: gates["retain"][b, t] * a for n, a in adjoint.items()}
        for n in names:
            want[n] += adjoint[n]
    for n, a in want.items():
        assert_close(n, got[n], a, ANALYTIC)
    assert not np.any(got["k"])
    assert not np.any(got["v"])


@pytest.mark.parametrize("fast", ["matrices", "all"])
def test_straight_through_takes_the_written_memory_for_the_one_before(fast: str) -> None:
    """As the public code measures: learning on equals off at the memory after the write."""
    way = SMALL | {"fast": fast, "chunk": T, "window": T, "read": "call_end"}
    k, v, q, gates, p = given(way)
    bar = np.random.default_rng(9).standard_normal(q.shape)
    got = loops.outer(way | {"outer_gradient": "straight_through"}, p, k, v, q, gates, {"y": bar})
    _, state = loops.run(way, p, k, v, q, gates)
    after = {n: state.get(f"memory/{n}", np.broadcast_to(a, (B, *a.shape))) for n, a in p.items()}
    after = {n: a for n, a in after.items() if "/" not in n or n == "norm/gain"}
    off = loops.outer(way | {"phase": "off"}, after, k, v, q, {}, {"y": bar})
    assert_close("q", got["q"], off["q"], ANALYTIC)
    for n in after:
        assert_close(n, got[n], np.sum(off[n], axis=0), ANALYTIC)
    for n in {"k", "v", *gates, *p} - set(after):
        assert not np.any(got[n])
    without = loops.outer(way | {"outer_gradient": "none"}, p, k, v, q, gates, {"y": bar})
    for n, a in without.items():
        written = f"memory/{n}" in state
        assert_close(n, a, np.zeros(a.shape) if written else got[n], EXACT)


def test_the_readings_are_different_functions() -> None:
    way = SMALL | {"chunk": 1, "window": 3}
    k, v, q, gates, p = given(way)
    bar = {"y": np.random.default_rng(9).standard_normal(q.shape)}
    gates = gates | {"step_size": np.full((B, T), 0.2)}
    kinds = ("full", "first_order", "straight_through")
    g = {}
    for kind in kinds:
        own = way | {"outer_gradient": kind}
        g[kind] = loops.outer(own, p, k, v, q, gates, bar, names=("W_1",))["W_1"].ravel()
    for one, other in (kinds[:2], kinds[1:], kinds[::2]):
        cosine = g[one] @ g[other] / np.linalg.norm(g[one]) / np.linalg.norm(g[other])
        assert cosine < 0.99, (one, other, cosine)


def test_a_reading_without_a_name_is_refused() -> None:
    k, v, q, gates, p = given(SMALL)
    with pytest.raises(ValueError, match="outer_gradient"):
        loops.outer(SMALL | {"outer_gradient": "second"}, p, k, v, q, gates, {"y": q})
