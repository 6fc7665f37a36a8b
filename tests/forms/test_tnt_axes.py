"""Every value of every axis of TNT against the loops: values, gradients, cuts at every token."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tape
from atlas_ref.forms import tnt
from atlas_ref.forms.tnt import projection
from atlas_ref.forms.tnt.projection import projected
from atlas_ref.forms.tnt.state import Keys
from atlas_ref.oracle.subjects import tnt as subject
from tape import ops
from tape.nested import flatten
from tests.support.close import assert_close, assert_differs, reordered
from tests.support.directions import check_directions
from tests.support.tnt import D_IN, D_OUT, Setup, T, cut, setup
from tests.truth import tnt_loops as loops

LOOPS = reordered(T, amplification=4)
COTANGENT = np.random.default_rng(9).standard_normal((T, D_OUT))
W_QK = [np.random.default_rng(31 + i).standard_normal((D_IN, D_IN)) for i in range(3)]
GATES = [
    {"query": np.random.default_rng(51 + i).uniform(0, 1, T)} for i in range(4)
]  # of each memory
READ_GATES = [{"read": np.random.default_rng(61 + i).uniform(0.2, 1.5, T)} for i in range(4)]
S_INIT = [np.random.default_rng(41 + i).standard_normal((D_OUT, D_IN)) for i in range(3)]


class Case(NamedTuple):
    """Settings, and the same in words of the loops."""

    setting: dict[str, Any]
    reading: dict[str, Any]
    least: float = 0.01  # distance of its reads from those of the default
    leaves: dict[str, Any] = {}


def of(**axes: Any) -> dict[str, Any]:
    return {"of_local": axes}


def keys(**axes: Any) -> dict[str, Any]:
    return of(projection=tnt.Projection(**axes))


def of_global(**axes: Any) -> dict[str, Any]:
    return {"of_global": {"projection": tnt.Projection(**axes)}}


def moved(**reading: Any) -> dict[str, Any]:
    """How queries of the global memory are moved, in words of the loops."""
    return {"of_global": loops.Reading(**reading)}


CASES = {
    "global read after": Case({"of_global": {"read": "after"}}, {"global_read": "after"}, 0.1),
    "global read before": Case({"of_global": {"read": "before"}}, {"global_read": "before"}, 0.1),
    "global read none": Case({"of_global": {"read": "none"}}, {"global_read": "none"}, 0.1),
    "local read before": Case(of(read="before"), {"local_read": "before"}, 0.1),
    "local read chunk_start": Case(of(read="chunk_start"), {"local_read": "start"}, 0.1),
    "base running": Case(of(base="running"), {"running": True}),
    "reset instead of write": Case(of(reset="instead_of_write"), {"lost": True}, 0.05),
    "the same, running": Case(
        of(reset="instead_of_write", base="running"), {"lost": True, "running": True}, 0.05
    ),
    "momentum carried": Case(of(reset_momentum="carry"), {"carry": True}),
    "momentum learned": Case(of(reset_momentum="learned"), {}, leaves={"S": S_INIT}),
    "chunks of the document": Case(of(chunk_origin="document"), {"absolute": True}),
    "origin 1": Case({"origin": 1}, {"origin": 1}),
    "origin 1, of the document": Case(
        {"origin": 1, **of(chunk_origin="document")}, {"origin": 1, "absolute": True}
    ),
    "range shard": Case(keys(range="shard"), {"range": "shard"}, 0.1),
    "range sequence": Case(keys(range="sequence"), {"range": "sequence"}, 0.1),
    "range window": Case(keys(range="window", window=4), {"range": 4}, 0.1),
    "window, own key out": Case(
        keys(range="window", window=4, own="exclusive"), {"range": 4, "own": False}, 0.1
    ),
    "window, sum of norms": Case(
        keys(range="window", window=4, norm="sum_of_norms"), {"range": 4, "norm": "sum"}, 0.1
    ),
    "own key out": Case(keys(own="exclusive"), {"own": False}, 0.1),
    "no norm": Case(
        keys(norm="unit_keys_assumed", range="shard"), {"norm": "none", "range": "shard"}
    ),
    "sum of norms": Case(
        keys(norm="sum_of_norms", range="shard"), {"norm": "sum", "range": "shard"}, 0.1
    ),
    "sum of norms, own key out": Case(
        keys(norm="sum_of_norms", own="exclusive"), {"norm": "sum", "own": False}, 0.1
    ),
    "orthogonal": Case(keys(kind="orthogonal"), {"span": True}),
    "orthogonal, sequence": Case(
        keys(kind="orthogonal", range="sequence"), {"span": True, "range": "sequence"}
    ),
    "none": Case(keys(kind="none"), {"project": False}, 0.1),
    "global queries moved": Case(of_global(), moved(), 0.1),
    "the same after the write": Case(
        {"of_global": {"projection": tnt.Projection(), "read": "after"}},
        {**moved(), "global_read": "after"},
        0.1,
    ),
    "global range sequence": Case(
        of_global(range="sequence", norm="sum_of_norms", own="exclusive"),
        moved(range="sequence", norm="sum", own=False),
        0.1,
    ),
    "global range window": Case(of_global(range="window", window=4), moved(range=4), 0.1),
    "global orthogonal": Case(of_global(kind="orthogonal"), moved(span=True), 0.1),
    "global learned": Case(of_global(kind="learned"), {}, 0.1, {"global_W_QK": W_QK[0]}),
    "global queries moved, origin 1": Case({**of_global(), "origin": 1}, {**moved(), "origin": 1}),
    "queries moved by a gate": Case(keys(gate="given"), {}, 0.05, {"gates": [{}, *GATES[1:]]}),
    "all queries moved by one gate": Case(
        {**of_global(gate="given"), **keys(gate="given", range="shard")},
        {**moved(), "range": "shard"},
        0.05,
        {"gates": GATES[:1]},
    ),
    "reads times gates": Case({"combine": "gated"}, {}, 0.05, {"gates": READ_GATES}),
    "reads times one gate": Case(
        {"combine": "gated", **keys(gate="given")},
        {},
        0.05,
        {"gates": [{**GATES[1], **READ_GATES[2]}]},
    ),
    "locals write nothing": Case(of(writes=False), {"still": True}, 0.1),
    "nothing is written": Case(
        {"of_global": {"writes": False}, **of(writes=False, base="running")},
        {"still": True, "global_still": True},
        0.1,
    ),
    "nothing is written, in place of which a reset stands": Case(
        of(writes=False, base="running", reset="instead_of_write"), {"still": True}, 0.1
    ),
}


def empty(d: int) -> Keys:
    """No key yet."""
    return Keys(total=np.zeros((d, d)))


def made(case: Case) -> Setup:
    setting = setup(seed=3, **case.setting)
    return setting._replace(leaves={**setting.leaves, **case.leaves})


def want_of(case: Case, setting: Setup, leaves: Any = None) -> loops.Result:
    reading = loops.Reading(**case.reading)
    given = setting.leaves if leaves is None else leaves
    if "global_W_QK" in given:
        reading = reading._replace(of_global=loops.Reading(W_QK=given["global_W_QK"]))
    return loops.paper(setting.memories(leaves), reading)


@pytest.mark.clause("TNT-3", "TNT-4", "TNT-5", "TNT-6", "TNT-7", "TNT-8", "TNT-9", "TNT-13")
@pytest.mark.parametrize("name", CASES)
def test_every_value_of_an_axis_is_its_loop(name: str) -> None:
    case = CASES[name]
    setting = made(case)
    state, y = setting.run()
    want = want_of(case, setting)
    assert_close("y", y, want.y, LOOPS)
    for i, place in enumerate(state.places):
        assert_close(f"M of memory {i}", place.memory.M, want.M[i], LOOPS)
        assert_close(f"S of memory {i}", place.memory.S, want.S[i], LOOPS)
    assert_differs(name, y, setup(seed=3).run()[1], case.least)


@pytest.mark.clause("TNT-14")
@pytest.mark.parametrize("name", CASES)
def test_every_value_of_an_axis_has_the_gradients_of_its_loop(name: str) -> None:
    case = CASES[name]
    setting = made(case)
    check_directions(
        lambda leaves: ops.sum(setting.run(leaves)[1] * COTANGENT),
        setting.leaves,
        loops=lambda leaves: np.sum(want_of(case, setting, leaves).y * COTANGENT),
        tolerance=1e-11,
    )


@pytest.mark.clause("TNT-11")
@pytest.mark.parametrize("name", ["default", *CASES])
def test_a_cut_changes_nothing(name: str) -> None:
    case = CASES.get(name, Case({}, {}))
    setting = made(case)
    whole, y = setting.run()
    # starts of chunks and shards, and tokens beside them
    for at in range(1, T) if name == "default" else (1, 6, 7, 13, 20):
        parts = (cut(setting.leaves, 0, at), cut(setting.leaves, at, T))
        state, first = setting.run(parts[0])
        rest, gates = setting.tokens(parts[1]), setting.gates(parts[1])
        state, second = tnt.run(setting.config, setting.params(), rest, state, gates)
        assert_close(f"y cut at {at}", np.concatenate([first, second]), y, LOOPS)
        assert state.position == whole.position
        for got, want in zip(state.places, whole.places, strict=True):
            assert_close(f"M cut at {at}", got.memory.M, want.memory.M, LOOPS)
            assert_close(f"S cut at {at}", got.memory.S, want.memory.S, LOOPS)
            for field in ("total", "size", "rows"):
                if getattr(want.keys, field) is not None:
                    a, b = getattr(got.keys, field), getattr(want.keys, field)
                    assert_close(f"{field} cut at {at}", a, b, LOOPS)


READS = {"after": "after", "before": "before", "chunk_start": "start"}
NORMS = {"per_key": "each", "unit_keys_assumed": "none", "sum_of_norms": "sum"}


@st.composite
def mixed(draw: st.DrawFn) -> tuple[Setup, loops.Reading, int]:
    """A TNT with a value of every axis at once, its reading, and a place to cut it."""
    tokens = draw(st.integers(2, 20))
    read_global = draw(st.sampled_from([*READS, "none"]))
    read_local, norm = draw(st.sampled_from(list(READS))), draw(st.sampled_from(list(NORMS)))
    reach = draw(st.sampled_from(["chunk", "shard", "sequence", "window"]))
    window = draw(st.integers(1, 6)) if reach == "window" else None
    own, running, lost, carry, through = (draw(st.booleans()) for _ in range(5))
    origin = draw(st.sampled_from([0, 1]))
    of_local = {
        "base": "running" if running else "chunk_start",
        "read": read_local,
        "reset": "instead_of_write" if lost else "before_write",
        "reset_momentum": "carry" if carry else "zero",
        "chunk_origin": "document" if through else "shard",
        "projection": tnt.Projection(
            range=reach,
            window=window,
            own="inclusive" if own else "exclusive",
            norm=norm,
        ),
    }
    setting = setup(
        draw(st.sampled_from(["titans_lmm", "omega"])),
        draw(st.integers(1, 2)),
        seed=draw(st.integers(0, 9)),
        tokens=tokens,
        span=draw(st.integers(1, 6)),
        spans=(draw(st.integers(1, 6)), draw(st.integers(1, 6))),
        shards=(draw(st.integers(1, 9)), draw(st.integers(1, 9))),
        of_global={"read": read_global},
        of_local=of_local,
        origin=origin,
    )
    reading = loops.Reading(
        range=window or reach,
        own=own,
        norm=NORMS[norm],
        origin=origin,
        absolute=through,
        carry=carry,
        running=running,
        lost=lost,
        global_read={**READS, "none": "none"}[read_global],
        local_read=READS[read_local],
    )
    return setting, reading, draw(st.integers(1, tokens - 1))


@pytest.mark.clause("TNT-5", "TNT-11", "TNT-13")
@settings(max_examples=25, deadline=None)
@given(case=mixed())
def test_all_axes_at_once_are_their_loop(case: tuple[Setup, loops.Reading, int]) -> None:
    setting, reading, at = case
    want = loops.paper(setting.memories(), reading)
    state, y = setting.run()
    assert_close("y", y, want.y, LOOPS)
    for i, place in enumerate(state.places):
        assert_close(f"M of memory {i}", place.memory.M, want.M[i], LOOPS)
        assert_close(f"S of memory {i}", place.memory.S, want.S[i], LOOPS)
    tokens = len(y)
    state, first = setting.run(cut(setting.leaves, 0, at))
    rest = setting.tokens(cut(setting.leaves, at, tokens))
    _, second = tnt.run(setting.config, setting.params(), rest, state)
    assert_close("y in two calls", np.concatenate([first, second]), want.y, LOOPS)


@pytest.mark.clause("TNT-7")
def test_a_learned_projection_is_one_matrix_a_memory() -> None:
    setting = setup(seed=3, **keys(kind="learned"))
    setting = setting._replace(leaves={**setting.leaves, "W_QK": W_QK})

    def want(leaves: Any = None) -> Any:
        memories = setting.memories(leaves)
        given = (leaves or setting.leaves)["W_QK"]
        alone = [
            loops.paper([m], loops.Reading(W_QK=w)).y
            for m, w in zip(memories[1:], given, strict=True)
        ]
        return loops.paper(memories[:1]).y + sum(alone)

    assert_close("y", setting.run()[1], want(), LOOPS)
    check_directions(
        lambda leaves: ops.sum(setting.run(leaves)[1] * COTANGENT),
        setting.leaves,
        loops=lambda leaves: np.sum(want(leaves) * COTANGENT),
        tolerance=1e-11,
    )


@pytest.mark.clause("TNT-9")
@pytest.mark.parametrize("norm", ["per_key", "sum_of_norms", "unit_keys_assumed"])
@pytest.mark.parametrize("axes", [{}, {"range": "window", "window": 3}, {"kind": "orthogonal"}])
def test_a_zero_key_contributes_nothing(axes: dict[str, Any], norm: Any) -> None:
    setting = setup(seed=3, **keys(norm=norm, **axes))
    k = setting.leaves["tokens"][0]["k"].copy()
    k[[0, 4, 7, 8, 9]] = 0.0
    setting.leaves["tokens"][0]["k"] = k
    words = {"per_key": "each", "sum_of_norms": "sum", "unit_keys_assumed": "none"}
    reading = loops.Reading(
        norm=words[norm], range=axes.get("window", "chunk"), span="kind" in axes
    )
    assert_close("y", setting.run()[1], loops.paper(setting.memories(), reading).y, LOOPS)


@pytest.mark.clause("TNT-9")
@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_the_size_of_a_key_never_shows_in_a_norm_per_key(size: float) -> None:
    k, q = np.random.default_rng(2).standard_normal((2, 1, 4))
    local = setup(locals_=1, has_global=False).config.local_memories[0]
    found = [projected(local, tnt.Initial(), each, q, empty(4), 0)[1] for each in (k, size * k)]
    assert_close("q'", found[1], found[0], reordered(8))


@pytest.mark.clause("TNT-9")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_keys_at_the_ends_of_a_format_are_brought_to_length_one(dtype: Any) -> None:
    """Subnormal keys too, whose inverse the format does not hold: powers of two change no bit."""
    limits = np.finfo(dtype)
    k = np.random.default_rng(5).integers(-50, 51, (40, 4)).astype(dtype)
    want = k / np.sqrt(np.sum(k * k, axis=-1, keepdims=True))
    for exponent in (limits.minexp - limits.nmant, limits.minexp, limits.maxexp - 7):
        sized = np.ldexp(k, exponent)
        for own in (projection.unit, subject.projection.unit):
            np.testing.assert_array_equal(own(sized), want)


@pytest.mark.clause("TNT-10")
def test_keys_that_no_query_meets_never_reach_it() -> None:
    """A later chunk, however large its keys, moves no bit of an earlier one, and the reverse."""
    setting = setup(seed=3, locals_=1, has_global=False, tokens=200, **keys(norm="per_key"))
    local = setting.config.local_memories[0]
    named = setting.leaves["tokens"][0]
    q = projected(local, tnt.Initial(), named["k"], named["q"], empty(D_IN), 0)[1]
    large = named["k"].copy()
    large[70] = 1e150
    moved = projected(local, tnt.Initial(), large, named["q"], empty(D_IN), 0)[1]
    same = np.all(q == moved, axis=-1)
    assert np.flatnonzero(~same).tolist() == [70, 71, 72]  # its chunk: 70 opens a shard of 7


@pytest.mark.clause("TNT-10")
@pytest.mark.parametrize(
    "name", ["default", *(name for name in CASES if "projection" in str(CASES[name]))]
)
def test_pieces_in_which_queries_are_moved_change_nothing(name, monkeypatch) -> None:
    setting = made(CASES.get(name, Case({}, {})))

    def reads(leaves: Any) -> Any:
        return setting.run(leaves)[1]

    def gradient() -> Any:
        return flatten(tape.grad(lambda x: ops.sum(reads(x) * COTANGENT))(setting.leaves), "g")[0]

    state, y = setting.run()
    whole = gradient()
    monkeypatch.setattr(projection, "PIECE", 4)
    monkeypatch.setattr(projection, "BLOCK", 3)
    after, again = setting.run()
    assert_close("y", again, y, LOOPS)
    leaves, paths, _ = flatten(after, "state")
    for path, got, want in zip(paths, leaves, flatten(state, "state")[0], strict=True):
        assert_close(path, got, want, LOOPS)
    for got, want in zip(gradient(), whole, strict=True):
        assert_close("gradient", got, want, LOOPS)
