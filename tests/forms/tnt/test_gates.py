"""Gates of queries and of reads, and queries of the global memory: limits, calls, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from atlas_ref.forms import tnt
from tests.support.close import EXACT, assert_close, assert_differs, reordered
from tests.support.tnt import T, cut, rule_config, setup

LOOPS = reordered(T, amplification=4)
GIVEN = {"projection": tnt.Projection(gate="given")}
GATED: dict[str, Any] = {"of_local": GIVEN, "combine": "gated", "seed": 2}


def gates(query: Any, read: Any) -> list[dict[str, Any]]:
    """Gates of all memories."""
    return [{"query": np.broadcast_to(query, (T,)), "read": np.broadcast_to(read, (T,))}]


@pytest.mark.clause("TNT-24")
def test_gates_of_zero_and_one_are_the_ends() -> None:
    setting = setup(**GATED)
    plain = setup(seed=2).run()[1]
    none = setup(seed=2, of_local={"projection": tnt.Projection(kind="none")}).run()[1]

    def reads(query: Any, read: Any) -> Any:
        return setting.run({**setting.leaves, "gates": gates(query, read)})[1]

    assert_close("moved", reads(1.0, 1.0), plain, EXACT)
    assert_close("raw", reads(0.0, 1.0), none, LOOPS)
    assert_close("half", reads(0.5, 2.0), plain + none, LOOPS)  # a linear memory
    assert not np.any(reads(0.3, 0.0))


@pytest.mark.clause("TNT-24")
def test_a_gate_of_reads_never_reaches_a_memory() -> None:
    setting = setup(**GATED)
    draw = np.random.default_rng(0)
    found = [
        setting.run({**setting.leaves, "gates": gates(0.5, draw.uniform(0, 1, T))})[0]
        for _ in range(2)
    ]
    for one, other in zip(found[0].places, found[1].places, strict=True):
        assert_close("M", one.memory.M, other.memory.M, EXACT)


@pytest.mark.clause("TNT-24", "TNT-23", "TNT-26")
def test_retrieve_asks_and_weighs_as_a_run_does() -> None:
    """A token whose chunk holds it alone reads after its write what a retrieve then reads."""
    of_all = {"read": "after", "projection": tnt.Projection(range="sequence", gate="given")}
    setting = setup(of_global=of_all, of_local=of_all, combine="gated", seed=6)
    draw = np.random.default_rng(3)
    leaves = {
        **setting.leaves,
        "gates": [{"query": draw.uniform(0, 1, T), "read": draw.uniform(0, 2, T)}] * 4,
    }
    state, y = setting.run(leaves)
    last = cut(leaves, T - 1, T)
    asked = (setting.config, setting.params(), setting.tokens(last), state)
    assert_close("y", tnt.retrieve(*asked, setting.gates(last))[0], y[-1], LOOPS)
    other = tnt.retrieve(*asked, tnt.Gates(query=np.ones(1), read=np.ones(1)))
    assert_differs("other gates", other[0], y[-1], 0.05)
    with pytest.raises(ValueError, match=r"gates\[0\].query: missing"):
        tnt.retrieve(*asked)


@pytest.mark.clause("TNT-24", "TNT-13")
def test_gates_of_documents_are_those_of_their_tokens() -> None:
    setting = setup(**GATED)
    draw = np.random.default_rng(3)
    leaves = {**setting.leaves, "gates": gates(draw.uniform(0, 1, T), draw.uniform(0, 2, T))}
    marked = setting.tokens().replaced(reset=np.arange(T) == 9)
    params = setting.params()
    start = tnt.start(setting.config, params)
    y = tnt.run(setting.config, params, marked, start, setting.gates(leaves))[1]
    parts = [setting.run(cut(leaves, *rows))[1] for rows in ((0, 9), (9, T))]
    assert_close("y", y, np.concatenate(parts), LOOPS)


@pytest.mark.clause("TNT-26", "TNT-18")
@pytest.mark.parametrize("reach", ["chunk", "sequence"])
def test_a_moved_query_of_the_global_memory_sees_keys_and_no_later_ones(reach: Any) -> None:
    of_global = {"projection": tnt.Projection(range=reach)}
    setting = setup("delta", 0, tokens=12, of_global=of_global, seed=4)
    y = setting.run()[1]
    named = dict(setting.leaves["tokens"][0])
    named["k"] = named["k"].copy()
    named["k"][6] += 1.0
    moved = setting.run({**setting.leaves, "tokens": [named]})[1]
    assert np.flatnonzero(np.any(moved != y, axis=-1)).tolist() == list(range(6, 12))
    raw = setup("delta", 0, tokens=12, seed=4)
    changed = raw.run({**raw.leaves, "tokens": [named]})[1]
    same = np.all(changed == raw.run()[1], axis=-1)
    assert np.flatnonzero(~same).tolist() == [10, 11]  # a later chunk, which reads the write


@pytest.mark.clause("TNT-26")
def test_eq_5_as_printed_asks_moved_queries_once_each() -> None:
    """Tokens that are written twice count once among the keys."""
    axes = {"sum": "inclusive", "projection": tnt.Projection(norm="unit_keys_assumed")}
    setting = setup("delta", 0, gated=False, of_global=axes, seed=4)
    bare = setup("delta", 0, gated=False, of_global={"sum": "inclusive"}, seed=4)
    named = bare.leaves["tokens"][0]
    k, q = named["k"], named["q"]
    moved = [sum(k[j] * (k[j] @ q[t]) for j in range(t - t % 5, t + 1)) for t in range(T)]
    want = bare.run({**bare.leaves, "tokens": [{**named, "q": np.array(moved)}]})[1]
    assert_close("y", setting.run()[1], want, LOOPS)


DELTA = rule_config("delta")


@pytest.mark.clause("TNT-24", "TNT-26")
def test_settings_and_gates_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ValidationError, match="gate: given, but kind none moves no query"):
        tnt.Projection(kind="none", gate="given")
    with pytest.raises(ValidationError, match="range shard, but the global memory has no shards"):
        tnt.Global(config=DELTA, span=2, projection=tnt.Projection(range="shard"))
    learned = setup("delta", 0, of_global={"projection": tnt.Projection(kind="learned")})
    with pytest.raises(ValueError, match=r"memories\[0\].W_QK: missing, but the global delta"):
        learned.run()
    one = np.ones(T)
    both = tnt.Gates(query=one, read=one)
    wrong: list[tuple[dict[str, Any], Any, str]] = [
        ({}, tnt.Gates(query=one), r"gates\[0\].query: given, but the settings ask for none"),
        ({"of_local": GIVEN}, None, r"gates\[1\].query: missing, but the settings ask for it"),
        ({"of_local": GIVEN}, both, r"gates\[0\].read: given, but the settings ask for none"),
        (GATED, tnt.Gates(query=one), r"gates\[0\].read: missing"),
        (GATED, (both, both), "gates: 2, expected one of each of 4 memories"),
        (GATED, (both,) * 4, r"gates\[0\].query: given"),
        (
            GATED,
            tnt.Gates(query=one[1:], read=one[1:]),
            r"\.query: shape \(22,\), expected \(23,\)",
        ),
    ]
    for axes, given, words in wrong:
        setting = setup(**axes)
        params = setting.params()
        start = tnt.start(setting.config, params)
        with pytest.raises(ValueError, match=words):
            tnt.run(setting.config, params, setting.tokens(), start, given)
