"""Deep memories with networks in the place of their momenta, against a loop of the equations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tape
from atlas_ref.forms import tnt
from atlas_ref.rules import deep_memory
from tape import check, ops
from tests.forms.tnt.test_deep import (
    GLOBAL_SPAN,
    LEAVES,
    RULE,
    SHARD,
    SPAN,
    WEIGHTS,
    D,
    T,
    answer,
    gradient,
    parts,
)
from tests.support.close import ANALYTIC, assert_close
from tests.truth.deep_memory_write import deep_momentum

ENTRIES, HIDDEN = 36, 4
NETWORK = {"kind": "mlp", "activation": "silu"}
OWN = deep_memory.Config(
    **RULE.model_dump(mode="json")
    | {"deep_momentum": {"function": NETWORK | {"expansion": HIDDEN / ENTRIES}}}
)
CONFIG = tnt.Config(
    global_memory=tnt.Global(config=OWN, span=GLOBAL_SPAN),
    local_memories=(tnt.Local(config=OWN, span=SPAN, shard=SHARD),),
)


def networked() -> dict[str, Any]:
    """The leaves, with the first tensors of a network for each memory."""
    rng, leaves = np.random.default_rng(3), dict(LEAVES)
    for name in ("global", "local"):
        network = {
            "momentum/W_1": 0.2 * rng.standard_normal((HIDDEN, ENTRIES)),
            "momentum/W_2": 0.2 * rng.standard_normal((ENTRIES, HIDDEN)),
        }
        leaves[name] = {**leaves[name], **network}
    return leaves


def reads(leaves: Any) -> Any:
    params, tokens = parts(leaves)
    return tnt.run(CONFIG, params, tokens, tnt.start(CONFIG, params))[1]


def split(first: Any) -> tuple[Any, Any]:
    """W_0 and V_0."""
    network = {n.removeprefix("momentum/"): x for n, x in first.items() if "momentum/" in n}
    return {n: x for n, x in first.items() if "momentum/" not in n}, network


def written(W: Any, V: Any, G: Any, momentum: Any, step: Any) -> tuple[Any, Any]:
    V, s = deep_momentum(V, G, momentum, step, NETWORK, "l2", "plus")
    return {name: W[name] - s[name] for name in W}, V


def loop(leaves: Any) -> Any:
    """The global memory carries its network on; the local one begins again with each shard."""
    k, v, q = leaves["k"], leaves["v"], leaves["q"]
    (Y, N), found = split(leaves["global"]), []
    for t in range(T):
        rates = leaves["momentum"][t], leaves["step_size"][t]
        if t % GLOBAL_SPAN == 0:
            seen = Y
        y = answer(seen, q[t])
        Y, N = written(Y, N, gradient(seen, k[t], v[t]), *rates)
        if t % SHARD == 0:
            W, V = split(leaves["local"])
        if t % SHARD % SPAN == 0:
            base, P = W, np.zeros((D, D))
        W, V = written(W, V, gradient(base, k[t], v[t]), *rates)
        P = P + np.outer(k[t], k[t]) / np.sum(k[t] * k[t])
        found.append(y + answer(W, P @ q[t]))
    return np.stack(found)


@pytest.mark.clause("DEEP-37", "TNT-1", "TNT-5")
def test_networks_of_momenta_are_the_loop_of_the_equations() -> None:
    assert_close("y", reads(networked()), loop(networked()), ANALYTIC)


@pytest.mark.clause("DEEP-37", "TNT-1")
def test_their_gradients_are_the_complex_step_of_the_loop() -> None:
    got = tape.grad(lambda leaves: ops.sum(WEIGHTS * reads(leaves)))(networked())
    want = check.complex_step(lambda leaves: np.sum(WEIGHTS * loop(leaves)), networked())
    worst = check.compare(got, want)
    assert worst.error < 1e-12, worst


@pytest.mark.clause("DEEP-37", "TNT-11")
@pytest.mark.parametrize("cut", [1, 4, 5, 8, 11])
def test_no_cut_of_a_call_changes_a_read_of_theirs(cut: int) -> None:
    leaves = networked()
    state, after = tnt.start(CONFIG, parts(leaves)[0]), []
    for rows in (slice(0, cut), slice(cut, T)):
        params, tokens = parts(leaves, rows)
        state, y = tnt.run(CONFIG, params, tokens, state)
        after.append(y)
    assert_close("y", np.concatenate(after), reads(leaves), ANALYTIC)
