"""Small tests for mutants of TNT, one feature at a time, against tests/truth/tnt_loops.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tape
from atlas_ref.forms import tnt
from atlas_ref.forms.tnt import clone, pieces
from atlas_ref.forms.tnt.projection import projected
from atlas_ref.forms.tnt.state import Keys
from atlas_ref.rules.sequence import Tokens
from tape import ops
from tests.support.close import assert_close, reordered
from tests.support.tnt import D_IN, D_OUT, Setup, cut, drawn_tokens, rule_config, setup
from tests.truth import tnt_loops as loops

LOOPS = reordered(100)
FORM = {"form": "sequential"}


def keys(**axes: Any) -> dict[str, Any]:
    return {"of_local": {"projection": tnt.Projection(**axes)}}


#: Settings, and the same in words of the loops.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "paper": ({}, {}),
    "learned": ({"of_local": {"reset_momentum": "learned"}}, {}),
    "carry": ({"of_local": {"reset_momentum": "carry"}}, {"carry": True}),
    "document": ({"of_local": {"chunk_origin": "document"}}, {"absolute": True}),
    "origin": ({"origin": 1}, {"origin": 1}),
    "lost": ({"of_local": {"reset": "instead_of_write"}}, {"lost": True}),
    "lost_running": (
        {"of_local": {"reset": "instead_of_write", "base": "running"}},
        {"lost": True, "running": True},
    ),
    "shard": (keys(range="shard"), {"range": "shard"}),
    "sequence": (keys(range="sequence"), {"range": "sequence"}),
    "window": (keys(range="window", window=4), {"range": 4}),
    "window_strict": (
        keys(range="window", window=4, own="exclusive"),
        {"range": 4, "own": False},
    ),
    "strict": (keys(own="exclusive"), {"own": False}),
    "sizes": (
        keys(norm="sum_of_norms", range="sequence"),
        {"norm": "sum", "range": "sequence"},
    ),
    "span": (keys(kind="orthogonal", range="shard"), {"span": True, "range": "shard"}),
}


def made(name: str, tokens: int, **changes: Any) -> tuple[Setup, loops.Reading]:
    settings, words = CASES[name]
    sizes = {"tokens": tokens, "spans": (3, 1), "shards": (7, 6), **settings, **changes}
    setting = setup("titans_lmm", 2, **sizes)
    if name == "learned":
        S = list(np.random.default_rng(3).standard_normal((2, D_OUT, D_IN)))
        setting = setting._replace(leaves={**setting.leaves, "S": S})
    return setting, loops.Reading(**words)


def same(setting: Setup, reading: loops.Reading) -> None:
    state, y = setting.run()
    want = loops.paper(setting.memories(), reading)
    assert_close("y", y, want.y, LOOPS)
    for i, place in enumerate(state.places):
        assert_close(f"M of memory {i}", place.memory.M, want.M[i], LOOPS)
        assert_close(f"S of memory {i}", place.memory.S, want.S[i], LOOPS)


@pytest.mark.parametrize("name", CASES)
def test_axis(name: str) -> None:
    same(*made(name, 15))


#: Reads of local memories that wait.
LATE = {"chunk_end": "chunk", "call_end": "call"}


@pytest.mark.parametrize("read", LATE)
def test_late(read: Any) -> None:
    sizes = {"tokens": 15, "spans": (3, 1), "shards": (7, 6)}
    setting = setup("titans_lmm", 2, of_local={"read": read}, **sizes)
    same(setting, loops.Reading(local_read=LATE[read]))


def test_late_cut() -> None:
    """A call that begins inside a chunk, and a shard."""
    sizes = {"tokens": 15, "spans": (3, 1), "shards": (7, 6)}
    setting = setup("titans_lmm", 2, of_local={"read": "chunk_end"}, **sizes)
    want = loops.paper(setting.memories(), loops.Reading(local_read="chunk")).y
    state = setting.run(cut(setting.leaves, 0, 8))[0]
    rest = setting.tokens(cut(setting.leaves, 8, 15))
    y = tnt.run(setting.config, setting.params(), rest, state)[1]
    assert_close("y", y, want[8:], LOOPS)


def test_global_queries() -> None:
    of_global = {"projection": tnt.Projection()}
    setting = setup("titans_lmm", 1, tokens=15, of_global=of_global)
    same(setting, loops.Reading(of_global=loops.Reading()))


def test_gates() -> None:
    setting = setup("titans_lmm", 1, tokens=9, combine="gated", **keys(gate="given"))
    query, read = np.random.default_rng(1).uniform(0, 1, (2, 9))
    leaves = {**setting.leaves, "gates": [{"query": query, "read": read}]}
    same(setting._replace(leaves=leaves), loops.Reading())


def test_whole_shards() -> None:
    """A call that ends with a shard, whose state is that of the last shard."""
    same(*made("paper", 14))


@pytest.mark.parametrize("name", ["sequence", "shard", "sizes"])
def test_long(name: str) -> None:
    """Ranges that cross blocks of 64 tokens."""
    same(*made(name, 200, spans=(30, 50), shards=(90, 110)))


@pytest.mark.parametrize("name", CASES)
def test_cut(name: str) -> None:
    setting, reading = made(name, 15)
    want = loops.paper(setting.memories(), reading)
    for at in (4, 8):
        state, first = setting.run(cut(setting.leaves, 0, at))
        rest = setting.tokens(cut(setting.leaves, at, 15))
        _, second = tnt.run(setting.config, setting.params(), rest, state)
        assert_close(f"y cut at {at}", np.concatenate([first, second]), want.y, LOOPS)


@pytest.mark.parametrize("name", ["sequence", "sizes"])
def test_cut_twice(name: str) -> None:
    """A range that began two calls ago."""
    setting, reading = made(name, 15)
    reads, state = [], None
    for first, last in ((0, 4), (4, 8), (8, 15)):
        part = cut(setting.leaves, first, last)
        if state is None:
            state, y = setting.run(part)
        else:
            state, y = tnt.run(setting.config, setting.params(), setting.tokens(part), state)
        reads.append(y)
    want = loops.paper(setting.memories(), reading)
    assert_close("y", np.concatenate(reads), want.y, LOOPS)


def literal(spans: Any, shards: Any, tokens: int) -> Setup:
    setting = setup(
        "titans_lmm", len(spans), tokens=tokens, gated=False, spans=spans, shards=shards
    )
    config = rule_config("titans_lmm", gate="none")
    made = tnt.preset("paper-literal", config, span=5, spans=spans, shards=shards)
    return setting._replace(config=made)


def test_printed() -> None:
    setting = literal((3, 1), (6, 4), 16)
    want = loops.printed(setting.memories()).y
    assert_close("y", setting.run()[1], want, LOOPS)
    state, first = setting.run(cut(setting.leaves, 0, 8))
    rest = setting.tokens(cut(setting.leaves, 8, 16))
    _, second = tnt.run(setting.config, setting.params(), rest, state)
    assert_close("y in two calls", np.concatenate([first, second]), want, LOOPS)


def test_printed_shards() -> None:
    """Shards by themselves, of which no chunk is a divisor."""
    setting = literal((3,), (8,), 16)
    alone = setting._replace(
        config=setting.config.replaced(global_memory=None),
        leaves={**setting.leaves, "first": setting.leaves["first"][1:]},
    )
    parts = [loops.printed(alone.memories(cut(alone.leaves, a, a + 8))).y for a in (0, 8)]
    assert_close("y", alone.run()[1], np.concatenate(parts), LOOPS)


def test_document() -> None:
    setting, reading = made("shard", 15)
    tokens = setting.tokens().replaced(reset=np.arange(15) == 9)
    params = setting.params()
    _, y = tnt.run(setting.config, params, tokens, tnt.start(setting.config, params))
    want = loops.paper(setting.memories(cut(setting.leaves, 9, 15)), reading).y
    assert_close("second document", y[9:], want, LOOPS)


def test_learned_matrix() -> None:
    setting = setup("delta", 1, has_global=False, tokens=8, **keys(kind="learned"))
    W = np.random.default_rng(1).standard_normal((D_IN, D_IN))
    setting = setting._replace(leaves={**setting.leaves, "W_QK": [W]})
    want = loops.paper(setting.memories(), loops.Reading(W_QK=W)).y
    assert_close("y", setting.run()[1], want, LOOPS)


@pytest.mark.parametrize("norm", ["per_key", "sum_of_norms"])
def test_zero_key(norm: Any) -> None:
    setting = setup("delta", 1, has_global=False, tokens=8, **keys(norm=norm))
    k = setting.leaves["tokens"][0]["k"]
    k[[0, 4]] = 0.0
    word = {"per_key": "each", "sum_of_norms": "sum"}[norm]
    want = loops.paper(setting.memories(), loops.Reading(norm=word)).y
    assert_close("y", setting.run()[1], want, LOOPS)


def test_size_of_keys() -> None:
    k, q = np.random.default_rng(2).standard_normal((2, 3, 4))
    local = setup("delta", 1, has_global=False).config.local_memories[0]
    none = Keys(total=np.zeros((4, 4)))
    want = projected(local, tnt.Initial(), k, q, none, 0)[1]
    for size in (1e-200, 1e200):
        with np.errstate(all="ignore"):
            got = projected(local, tnt.Initial(), size * k, q, none, 0)[1]
        assert_close(f"q' of keys {size}", got, want, reordered(8))


# -- clones ----------------------------------------------------------------------------------------


def clones(summary: Any, **changes: Any) -> tuple[clone.Config, dict[str, Any]]:
    random = np.random.default_rng(4)
    config = clone.Config(
        config=rule_config("titans_lmm", d_in=D_OUT), shard=9, span=4, summary=summary, **changes
    )
    leaves = {
        "tokens": drawn_tokens("titans_lmm", random, tokens=20, d_in=D_OUT),
        "V": 0.5 * random.standard_normal((D_OUT, D_OUT)),
        "W": random.standard_normal((D_OUT, D_OUT)),
    }
    return config, leaves


def run_clones(config: Any, leaves: Any, cuts: Any = ()) -> tuple[clone.State, Any]:
    W = leaves["W"] if config.summary == "attention" else None
    params, tokens = clone.Params(V=leaves["V"], W_summary=W), Tokens(**leaves["tokens"])
    state, reads = clone.start(config, params), []
    for first, last in zip((0, *cuts), (*cuts, 20), strict=True):
        state, y = clone.run(config, params, pieces.cut(tokens, first, last), state)
        reads.append(y)
    return state, ops.concatenate(reads, axis=0)


@pytest.mark.parametrize("cuts", [(), (2, 6, 11)], ids=["whole", "cut"])
@pytest.mark.parametrize("summary", ["mean", "attention", "last_state"])
def test_clones(summary: str, cuts: Any) -> None:
    config, leaves = clones(summary)
    state, y = run_clones(config, leaves, cuts)
    want, states = loops.clones(
        loops.Inputs(**leaves["tokens"]),
        leaves["V"],
        shard=9,
        chunk=4,
        summary={"last_state": "last"}.get(summary, summary),
        W_summary=leaves["W"],
    )
    assert_close("y", y, want, LOOPS)
    assert_close("V", state.V, states[2], LOOPS)


def test_clones_stop_gradients() -> None:
    for kind in ("full", "stop"):
        config, leaves = clones("mean", clone_gradient=kind)
        found = tape.grad(lambda V, c=config, x=leaves: ops.sum(run_clones(c, {**x, "V": V})[1]))(
            leaves["V"]
        )
        assert np.any(found) == (kind == "full")
