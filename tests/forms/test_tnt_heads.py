"""TNT with leading axes: heads that start apart, and memories read as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref.forms import tnt
from atlas_ref.rules.sequence import Tokens
from tests.support.close import ANALYTIC, EXACT, assert_close
from tests.support.tnt import D_IN, D_OUT, drawn_tokens, rule_config
from tests.truth import tnt_loops as loops

B, H, TOKENS = 2, 2, 12


def heads(rule: str, of_local: Any = None, seed: int = 0) -> tuple[tnt.Config, tnt.Params, Any]:
    """A TNT of H heads that start apart, each with gates of its own; the same number of rows, heads
    and shards, so that no axis can be taken for another unseen.
    """
    random = np.random.default_rng(seed)
    own = rule_config(rule)
    config = tnt.Config(
        global_memory=tnt.Global(config=own, span=5),
        local_memories=(tnt.Local(config=own, span=2, shard=4, **(of_local or {})),),
    )
    starts = [{"M": random.standard_normal((H, D_OUT, D_IN))} for _ in config.memories]
    if config.local_memories[0].reset_momentum == "learned":
        starts[1]["S"] = random.standard_normal((H, D_OUT, D_IN))
    params = tnt.Params(memories=tuple(tnt.Initial(**each) for each in starts))
    rows = [[drawn_tokens(rule, random, tokens=TOKENS) for _ in range(H)] for _ in range(B)]
    stacked = {
        name: np.array([[each[name] for each in row] for row in rows]) for name in rows[0][0]
    }
    return config, params, stacked


def memories(config: tnt.Config, params: tnt.Params, named: Any, b: int, h: int) -> Any:
    """One row and head for the loops."""
    inputs = {name: value[b, h] for name, value in named.items()}
    inputs["weights"] = inputs.pop("window_weights", None)
    return [
        loops.Memory(
            loops.Inputs(**inputs),
            initial.M[h],
            memory.span,
            getattr(memory, "shard", None),
            None if initial.S is None else initial.S[h],
        )
        for memory, initial in zip(config.memories, params.memories, strict=True)
    ]


@pytest.mark.clause("TNT-2")
@pytest.mark.parametrize(
    ("rule", "of_local"),
    [("titans_lmm", {"reset_momentum": "learned"}), ("delta", {}), ("omega", {})],
)
def test_heads_that_start_apart_are_heads_alone(rule: str, of_local: Any) -> None:
    config, params, named = heads(rule, of_local)
    state, y = tnt.run(config, params, Tokens(**named), tnt.start(config, params, (B, H)))
    for b in range(B):
        for h in range(H):
            want = loops.paper(memories(config, params, named, b, h))
            assert_close(f"y of row {b}, head {h}", y[b, h], want.y, ANALYTIC)
            for i, place in enumerate(state.places):
                assert_close(f"M of {i}", place.memory.M[b, h], want.M[i], ANALYTIC)


#: Axes of the projection, keys of P after 12 tokens (the last of a chunk of 2 and a shard of 4),
#: and whether their sum is divided by the sum of their squared norms.
HELD: dict[str, tuple[dict[str, Any], int, str]] = {
    "chunk": ({}, 2, "each"),
    "shard": ({"range": "shard"}, 4, "each"),
    "sequence": ({"range": "sequence", "norm": "unit_keys_assumed"}, 12, "none"),
    "sum of norms": ({"norm": "sum_of_norms"}, 2, "sum"),
    "window": ({"range": "window", "window": 4, "own": "exclusive"}, 4, "each"),
    "window, own": ({"range": "window", "window": 4}, 3, "each"),
    "window, sum": ({"range": "window", "window": 3, "norm": "sum_of_norms"}, 2, "sum"),
    "orthogonal": ({"kind": "orthogonal", "range": "shard"}, 4, "span"),
    "none": ({"kind": "none"}, 0, "unit"),
}


def held(k: Any, norm: str) -> Any:
    """P of keys (n, d)."""
    if norm == "unit":
        return np.eye(D_IN)
    if norm == "span":
        return sum(np.outer(u, u) for u in loops.basis(list(k)))
    P = sum(np.outer(each, each) / (each @ each if norm == "each" else 1.0) for each in k)
    return P / np.sum(k * k) if norm == "sum" else P


@pytest.mark.clause("TNT-23")
@pytest.mark.parametrize("name", HELD)
@pytest.mark.parametrize("own", ["after", "chunk_start"])
def test_retrieve_reads_memories_and_keys_as_they_are(name: str, own: str) -> None:
    axes, count, norm = HELD[name]
    of_local = {"projection": tnt.Projection(**axes), "read": own}
    config, params, named = heads("titans_lmm", of_local)
    state, _ = tnt.run(config, params, Tokens(**named), tnt.start(config, params, (B, H)))
    y = tnt.retrieve(config, params, Tokens(**named), state)
    for b in range(B):
        for h in range(H):
            V, W = loops.paper(memories(config, params, named, b, h)).M
            q, k = named["q"][b, h], named["k"][b, h]
            P = held(k[TOKENS - count :], norm)
            assert_close(f"y of row {b}, head {h}", y[b, h], q @ V.T + q @ P.T @ W.T, ANALYTIC)


@pytest.mark.clause("TNT-23")
def test_before_the_first_token_memories_are_read_as_they_start() -> None:
    config, params, named = heads("delta")
    y = tnt.retrieve(config, params, Tokens(**named), tnt.start(config, params, (B, H)))
    want = np.einsum("hod,bhtd->bhto", params.memories[0].M, named["q"])
    assert_close("y", y, want, ANALYTIC)  # P of no key is 0
    silent = config.replaced(global_memory=config.global_memory.replaced(read="none"))
    y = tnt.retrieve(silent, params, Tokens(**named), tnt.start(silent, params, (B, H)))
    assert_close("local alone", y, np.zeros_like(y), EXACT)
    alone = silent.replaced(local_memories=())
    first = tnt.Params(memories=params.memories[:1])
    y = tnt.retrieve(alone, first, Tokens(**named), tnt.start(alone, first, (B, H)))
    assert_close("nothing that is read", y, np.zeros_like(named["v"]), EXACT)


@pytest.mark.clause("TNT-23")
def test_a_document_cannot_start_within_what_is_retrieved() -> None:
    config, params, named = heads("delta")
    tokens = Tokens(**named, reset=np.arange(TOKENS) == 3)
    with pytest.raises(ValueError, match="reset: a document that starts has nothing to be read"):
        tnt.retrieve(config, params, tokens, tnt.start(config, params, (B, H)))
