"""Reads of TNT that wait for the end of a chunk or of a call: loops, gradients, calls, causality."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from atlas_ref.forms import tnt
from atlas_ref.rules import deep_memory
from tape import ops
from tests.support.close import EXACT, assert_close, assert_differs, reordered
from tests.support.directions import check_directions
from tests.support.tnt import D_IN, D_OUT, MODULES, Setup, T, cut, rule_config, setup
from tests.truth import tnt_loops as loops

LOOPS = reordered(T, amplification=4)
COTANGENT = np.random.default_rng(9).standard_normal((T, D_OUT))

#: Settings, and the same in words of the loops.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "local chunk_end": ({"of_local": {"read": "chunk_end"}}, {"local_read": "chunk"}),
    "local call_end": ({"of_local": {"read": "call_end"}}, {"local_read": "call"}),
    "global call_end": ({"of_global": {"read": "call_end"}}, {"global_read": "call"}),
    "both call_end": (
        {"of_local": {"read": "call_end"}, "of_global": {"read": "call_end"}},
        {"local_read": "call", "global_read": "call"},
    ),
    "chunk_end, running, origin 1": (
        {"of_local": {"read": "chunk_end", "base": "running"}, "origin": 1},
        {"local_read": "chunk", "running": True, "origin": 1},
    ),
    "call_end, chunks of the document": (
        {"of_local": {"read": "call_end", "chunk_origin": "document"}},
        {"local_read": "call", "absolute": True},
    ),
    "chunk_end, momentum carried": (
        {"of_local": {"read": "chunk_end", "reset_momentum": "carry"}},
        {"local_read": "chunk", "carry": True},
    ),
    "chunk_end, nothing written": (
        {"of_local": {"read": "chunk_end", "writes": False}},
        {"local_read": "chunk", "still": True},
    ),
}


def want_of(setting: Setup, reading: dict[str, Any], leaves: Any = None) -> loops.Result:
    return loops.paper(setting.memories(leaves), loops.Reading(**reading))


@pytest.mark.clause("TNT-25")
@pytest.mark.parametrize("rule", MODULES)
@pytest.mark.parametrize("name", CASES)
def test_late_reads_are_their_loop_and_move_no_memory(name: str, rule: str) -> None:
    given, reading = CASES[name]
    if rule in ("delta", "hebbian") and "carry" in str(given):
        return  # momentum is what this case is about
    setting = setup(rule, 3, seed=3, **given)
    state, y = setting.run()
    want = want_of(setting, reading)
    assert_close("y", y, want.y, LOOPS)
    for i, place in enumerate(state.places):
        assert_close(f"M of memory {i}", place.memory.M, want.M[i], LOOPS)
    assert_differs("the default", y, setup(rule, 3, seed=3).run()[1], 0.05)


@pytest.mark.clause("TNT-25")
@pytest.mark.parametrize("name", CASES)
def test_late_reads_have_the_gradients_of_their_loop(name: str) -> None:
    given, reading = CASES[name]
    setting = setup(seed=3, **given)
    check_directions(
        lambda leaves: ops.sum(setting.run(leaves)[1] * COTANGENT),
        setting.leaves,
        loops=lambda leaves: np.sum(want_of(setting, reading, leaves).y * COTANGENT),
        tolerance=1e-11,
    )


@pytest.mark.clause("TNT-25")
@pytest.mark.parametrize("name", CASES)
def test_a_cut_moves_late_reads_and_no_memory(name: str) -> None:
    given, _ = CASES[name]
    setting = setup(seed=3, **given)
    whole, y = setting.run()
    state, first = setting.run(cut(setting.leaves, 0, 11))
    rest = setting.tokens(cut(setting.leaves, 11, T))
    after, second = tnt.run(setting.config, setting.params(), rest, state)
    for i, place in enumerate(after.places):
        assert_close(f"M of {i}", place.memory.M, whole.places[i].memory.M, LOOPS)
    assert_close("the second call", second, y[11:], LOOPS)
    if "nothing written" not in name:
        assert_differs("the first call", first, y[:11], 0.01)
    if "chunk_end" in name:  # 11 stands in a chunk; those before it are whole
        assert_close("whole chunks", first[:6], y[:6], LOOPS)


@pytest.mark.clause("TNT-25")
@pytest.mark.parametrize(("at", "spans"), [(4, (2, 4, 1)), (8, (4, 2, 1)), (12, (3, 6, 4))])
def test_calls_that_end_with_chunks_read_at_a_chunks_end_what_one_call_reads(
    at: int, spans: tuple[int, ...]
) -> None:
    of_local = {"read": "chunk_end"}
    setting = setup(seed=4, spans=spans, shards=(12, 12, 12), of_local=of_local)
    y = setting.run()[1]
    state, first = setting.run(cut(setting.leaves, 0, at))
    rest = setting.tokens(cut(setting.leaves, at, T))
    second = tnt.run(setting.config, setting.params(), rest, state)[1]
    assert_close("y", np.concatenate([first, second]), y, LOOPS)


def moved_by(setting: Setup, t: int) -> Any:
    """Tokens whose reads the value of token t moves."""
    named = dict(setting.leaves["tokens"][0])
    named["v"] = named["v"].copy()
    named["v"][t] += 1.0
    moved = setting.run({**setting.leaves, "tokens": [named]})[1]
    return np.flatnonzero(np.any(moved != setting.run()[1], axis=-1))


@pytest.mark.clause("TNT-18", "TNT-25")
@pytest.mark.parametrize("name", CASES)
def test_late_reads_are_not_causal_and_say_so(name: str) -> None:
    """The negative twins of causality: a later token moves an earlier read."""
    setting = setup(seed=3, **CASES[name][0])
    assert not setting.config.is_causal
    assert setup(seed=3).config.is_causal
    last = (20, 21, 22)
    earlier = [t for t in last if np.any(moved_by(setting, t) < t)]
    assert bool(earlier) == ("nothing written" not in name)
    causal = setup(seed=3)
    assert not any(np.any(moved_by(causal, t) < t) for t in last)


@pytest.mark.clause("TNT-25")
def test_how_far_back_a_value_reaches() -> None:
    alone: dict[str, Any] = {"has_global": False, "spans": (4,), "shards": (8,), "tokens": 22}
    chunk = setup("delta", 1, of_local={"read": "chunk_end"}, **alone)
    assert moved_by(chunk, 6).tolist() == [4, 5, 6, 7]  # its chunk, to the end of its shard
    assert moved_by(chunk, 9).tolist() == list(range(8, 16))
    assert moved_by(chunk, 21).tolist() == [20, 21]
    call = setup("delta", 1, of_local={"read": "call_end"}, **alone)
    assert moved_by(call, 15).tolist() == []  # a reset follows
    assert moved_by(call, 17).tolist() == list(range(22))
    whole = setup("delta", 0, tokens=12, of_global={"read": "call_end"})
    assert moved_by(whole, 3).tolist() == list(range(12))


@pytest.mark.clause("TNT-25")
def test_a_call_of_two_documents_ends_in_each() -> None:
    both = {"of_local": {"read": "call_end"}, "of_global": {"read": "call_end"}}
    setting = setup("titans_lmm", 2, **both)
    marked = setting.tokens().replaced(reset=np.arange(T) == 9)
    params = setting.params()
    y = tnt.run(setting.config, params, marked, tnt.start(setting.config, params))[1]
    parts = [setting.run(cut(setting.leaves, *rows))[1] for rows in ((0, 9), (9, T))]
    assert_close("y", y, np.concatenate(parts), LOOPS)


@pytest.mark.clause("TNT-18")
def test_padding_a_tail_changes_no_read_and_with_momentum_the_last_memory() -> None:
    """Why a tail is carried: the reads are the same, the state of a padded run is another."""
    for rule, same in (("titans_lmm", False), ("delta", True)):
        setting = setup(rule, 2, seed=5)
        ends = {"k": 0.0, "v": 0.0, "q": 0.0, "step_size": 0.0, "retain": 1.0, "momentum": 0.5}
        padded = {
            name: np.concatenate([x, np.full((2, *x.shape[1:]), ends[name])])
            for name, x in setting.leaves["tokens"][0].items()
        }
        state, y = setting.run()
        after, more = setting.run({**setting.leaves, "tokens": [padded]})
        assert_close("y", more[:T], y, LOOPS)
        V, W = (each.places[0].memory.M for each in (state, after))
        if same:
            assert_close("V", W, V, LOOPS)
        else:
            assert_differs("V", W, V, 0.01)


@pytest.mark.clause("TNT-25", "TNT-23")
@pytest.mark.parametrize("read", ["chunk_end", "call_end"])
def test_a_late_read_of_the_last_token_is_its_read_after_the_write(read: Any) -> None:
    late = setup("omega", 3, of_local={"read": read})
    state, y = late.run()
    assert_close("y", y[-1], setup("omega", 3).run()[1][-1], LOOPS)
    settings = late.config.replaced(global_memory=None)
    params = tnt.Params(memories=late.params().memories[1:])
    own = state.replaced(places=state.places[1:])
    asked = late.tokens(cut(late.leaves, T - 1, T))
    alone = Setup(settings, {**late.leaves, "first": late.leaves["first"][1:]}).run()[1]
    assert_close("retrieve", tnt.retrieve(settings, params, asked, own)[0], alone[-1], LOOPS)


@pytest.mark.clause("TNT-25")
@pytest.mark.parametrize("read", ["chunk_end", "call_end"])
def test_shards_side_by_side_are_shards_one_by_one(read: Any) -> None:
    of_local = {"read": read}
    setting = setup("titans_lmm", 1, of_local=of_local, has_global=False, spans=(3,), shards=(5,))
    heads = {name: np.stack([x, x[::-1]]) for name, x in setting.leaves["tokens"][0].items()}
    y = setting.run({**setting.leaves, "tokens": [heads]})[1]
    assert_close("row 0", y[0], want_of(setting, {"local_read": read[:-4]}).y, LOOPS)
    assert_close("alone", y[0], setting.run()[1], EXACT)


@pytest.mark.clause("TNT-25")
@pytest.mark.parametrize("read", ["chunk_end", "call_end"])
def test_a_linear_deep_memory_reads_late_as_the_delta_rule(read: Any) -> None:
    setting = setup("delta", 2, seed=3, of_local={"read": read}, of_global={"read": "call_end"})
    rule = deep_memory.Config(
        d_in=D_IN,
        d_out=D_OUT,
        memory={"kind": "linear"},
        convention={"newton_schulz": "none", "gradient_scale": 1.0},
    )
    config = tnt.Config(
        global_memory=tnt.Global(config=rule, span=5, read="call_end"),
        local_memories=tuple(
            tnt.Local(config=rule, span=C, shard=S, read=read) for C, S in ((3, 7), (4, 10))
        ),
    )
    first = [tnt.Initial(phi={"W": M}) for M in setting.leaves["first"]]
    params = tnt.Params(memories=tuple(first))
    _, y = tnt.run(config, params, setting.tokens(), tnt.start(config, params))
    assert_close("y", y, setting.run()[1], LOOPS)


@pytest.mark.clause("TNT-25")
@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ({"read": "chunk_end", "reset": "instead_of_write"}, "reset: instead_of_write is not"),
        ({"read": "call_end", "reset": "instead_of_write"}, "reset: instead_of_write is not"),
        ({"read": "chunk_end", "chunk_origin": "document"}, "read: chunk_end is not defined"),
    ],
)
def test_late_reads_that_mean_nothing_are_refused(axes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        tnt.Local(config=rule_config("titans_lmm"), span=2, shard=4, **axes)
    with pytest.raises(ValidationError, match="sum: inclusive is defined"):
        tnt.Global(
            config=rule_config("delta", gate="none"), span=2, sum="inclusive", read="call_end"
        )
