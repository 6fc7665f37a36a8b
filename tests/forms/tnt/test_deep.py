"""Deep memories, global and local, against a loop of the equations with a gradient by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tape
from atlas_ref.forms import tnt
from atlas_ref.rules import deep_memory
from atlas_ref.rules.sequence import Tokens
from tape import check, ops
from tests.support.close import ANALYTIC, assert_close

D, WIDE, T = 3, 6, 13
GLOBAL_SPAN, SPAN, SHARD = 4, 2, 5
RULE = deep_memory.Config(
    d_in=D,
    d_out=D,
    memory={"kind": "mlp", "depth": 2, "expansion": 2.0, "activation": "silu"},
    convention={
        "newton_schulz": "none",
        "gate": "none",
        "rate": "momentum",
        "gradient_scale": 1.0,
    },
)
CONFIG = tnt.Config(
    global_memory=tnt.Global(config=RULE, span=GLOBAL_SPAN),
    local_memories=(tnt.Local(config=RULE, span=SPAN, shard=SHARD),),
)

draw = np.random.default_rng(28)
LEAVES: dict[str, Any] = {
    "k": draw.standard_normal((T, D)) / 2,
    "v": draw.standard_normal((T, D)) / 2,
    "q": draw.standard_normal((T, D)) / 2,
    "step_size": draw.uniform(0.1, 0.5, T),
    "momentum": draw.uniform(0.2, 0.8, T),
    "global": {
        "W_1": 0.5 * draw.standard_normal((WIDE, D)),
        "W_2": 0.5 * draw.standard_normal((D, WIDE)),
    },
    "local": {
        "W_1": 0.5 * draw.standard_normal((WIDE, D)),
        "W_2": 0.5 * draw.standard_normal((D, WIDE)),
    },
}
WEIGHTS = draw.standard_normal((T, D))


def parts(leaves: Any, rows: slice = slice(None)) -> tuple[tnt.Params, Tokens]:
    """Parameters, and the tokens of some rows."""
    tokens = {name: leaves[name][rows] for name in ("k", "v", "q", "step_size", "momentum")}
    first = tuple(tnt.Initial(phi=leaves[name]) for name in ("global", "local"))
    return tnt.Params(memories=first), Tokens(**tokens)


def reads(leaves: Any) -> Any:
    params, tokens = parts(leaves)
    return tnt.run(CONFIG, params, tokens, tnt.start(CONFIG, params))[1]


# -- the loop of the equations ---------------------------------------------------------------------


def answer(W: dict[str, Any], x: Any) -> Any:
    """W_2 silu(W_1 x)."""
    z = W["W_1"] @ x
    return W["W_2"] @ (z / (1.0 + np.exp(-z)))


def gradient(W: dict[str, Any], x: Any, target: Any) -> dict[str, Any]:
    """Of half the squared error, by both weights."""
    z = W["W_1"] @ x
    share = 1.0 / (1.0 + np.exp(-z))
    error = answer(W, x) - target
    inner = (W["W_2"].T @ error) * (share + z * share * (1.0 - share))
    return {"W_1": np.outer(inner, x), "W_2": np.outer(error, z * share)}


def written(W: Any, S: Any, G: Any, momentum: Any, step: Any) -> tuple[Any, Any]:
    S = {name: momentum * S[name] + step * G[name] for name in W}
    return {name: W[name] - S[name] for name in W}, S


def loop(leaves: Any) -> Any:
    """Global memory over chunks of 4; local one over shards of 5 in chunks of 2, of projected queries."""
    k, v, q = leaves["k"], leaves["v"], leaves["q"]
    still = {name: 0.0 * x for name, x in leaves["global"].items()}
    V, SV, found = leaves["global"], still, []
    for t in range(T):
        rates = leaves["momentum"][t], leaves["step_size"][t]
        if t % GLOBAL_SPAN == 0:
            seen = V
        y = answer(seen, q[t])
        V, SV = written(V, SV, gradient(seen, k[t], v[t]), *rates)
        place = t % SHARD
        if place == 0:
            W, SW = leaves["local"], still
        if place % SPAN == 0:
            base, P = W, np.zeros((D, D))
        W, SW = written(W, SW, gradient(base, k[t], v[t]), *rates)
        P = P + np.outer(k[t], k[t]) / np.sum(k[t] * k[t])
        found.append(y + answer(W, P @ q[t]))
    return np.stack(found)


@pytest.mark.clause("TNT-1", "TNT-3", "TNT-5", "TNT-6")
def test_deep_memories_are_the_loop_of_the_equations() -> None:
    assert_close("y", reads(LEAVES), loop(LEAVES), ANALYTIC)


@pytest.mark.clause("TNT-1", "TNT-5")
def test_their_gradients_are_the_complex_step_of_the_loop() -> None:
    got = tape.grad(lambda leaves: ops.sum(WEIGHTS * reads(leaves)))(LEAVES)
    want = check.complex_step(lambda leaves: np.sum(WEIGHTS * loop(leaves)), LEAVES)
    worst = check.compare(got, want)
    assert worst.error < 1e-12, worst


@pytest.mark.clause("TNT-11")
@pytest.mark.parametrize("cut", range(1, T))
def test_no_cut_of_a_call_changes_a_read_of_theirs(cut: int) -> None:
    state, after = tnt.start(CONFIG, parts(LEAVES)[0]), []
    for rows in (slice(0, cut), slice(cut, T)):
        params, tokens = parts(LEAVES, rows)
        state, y = tnt.run(CONFIG, params, tokens, state)
        after.append(y)
    assert_close("y", np.concatenate(after), reads(LEAVES), ANALYTIC)
