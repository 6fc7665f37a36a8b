"""What TNT guarantees: reach of values, shards apart, limits, causality, prefixes, documents."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from atlas_ref import forms
from atlas_ref.forms import tnt
from atlas_ref.forms.tnt import pieces
from atlas_ref.forms.tnt.config import form_of
from atlas_ref.rules import deep_memory, delta
from atlas_ref.rules.sequence import Tokens
from tape.nested import flatten
from tests.support.close import EXACT, assert_close, assert_differs, reordered
from tests.support.tnt import D_IN, D_OUT, Setup, T, cut, rule_config, setup
from tests.truth import tnt_loops as loops

LOOPS = reordered(T, amplification=4)


def with_token(setting: Setup, name: str, t: int, value: float = 1.0) -> Any:
    """The inputs with one token's key, value or query moved."""
    named = dict(setting.leaves["tokens"][0])
    named[name] = named[name].copy()
    named[name][t] += value
    return {**setting.leaves, "tokens": [named]}


def permuted(setting: Setup, rows: Any) -> Any:
    named = {name: x[rows] for name, x in setting.leaves["tokens"][0].items()}
    return {**setting.leaves, "tokens": [named]}


# -- which value reaches which read ----------------------------------------------------------------


def holes(tokens: int, span: int, shards: tuple[int, ...]) -> set[tuple[int, int]]:
    """Pairs (t, s) by the formula of TNT-15."""
    return {
        (t, s)
        for t in range(tokens)
        for s in range(t + 1)
        if s >= t - t % span and all(s < t - t % S for S in shards)
    }


def unseen(setting: Setup, name: str) -> set[tuple[int, int]]:
    """Pairs (t, s), s <= t, where moving the value or key of s moves nothing that t reads."""
    y = setting.run()[1]
    found = set()
    for s in range(len(y)):
        moved = setting.run(with_token(setting, name, s))[1]
        same = np.all(moved == y, axis=-1)
        found |= {(t, s) for t in range(s, len(y)) if same[t]}
    return found


@pytest.mark.clause("TNT-15")
@pytest.mark.parametrize(
    ("span", "shards", "count"),
    [(4, (6,), 4), (8, (4,), 32), (4, (8,), 0), (6, (2, 6), 0), (6, (2, 4), 16)],
)
def test_a_value_is_seen_unless_chunk_and_shards_hide_it(
    span: int, shards: tuple[int, ...], count: int
) -> None:
    setting = setup("delta", len(shards), tokens=16, span=span, spans=(2, 2), shards=shards, seed=7)
    hidden = unseen(setting, "v")
    assert hidden == holes(16, span, shards)
    assert len(hidden) == count


@pytest.mark.clause("TNT-15")
@pytest.mark.parametrize(("reach", "count"), [("chunk", 32), ("shard", 32), ("sequence", 0)])
def test_keys_are_hidden_likewise_unless_the_projection_carries_them(
    reach: Any, count: int
) -> None:
    of_local = {"projection": tnt.Projection(range=reach)}
    setting = setup(
        "delta", 1, tokens=16, span=8, spans=(2,), shards=(4,), of_local=of_local, seed=7
    )
    assert len(unseen(setting, "k")) == count
    assert len(unseen(setting, "v")) == 32


# -- shards ----------------------------------------------------------------------------------------


def of_shards(**of_local: Any) -> Setup:
    return setup(
        "titans_lmm", 1, tokens=24, has_global=False, spans=(3,), shards=(8,), of_local=of_local
    )


PERMUTED = np.r_[8:16, 0:8, 16:24]


@pytest.mark.clause("TNT-16")
@pytest.mark.parametrize("axes", [{}, {"range": "shard"}, {"kind": "none"}])
def test_shards_permute_and_stand_alone_bit_for_bit(axes: dict[str, Any]) -> None:
    setting = of_shards(projection=tnt.Projection(**axes))
    y = setting.run()[1]
    assert_close("permuted", setting.run(permuted(setting, PERMUTED))[1], y[PERMUTED], EXACT)
    alone = [setting.run(cut(setting.leaves, at, at + 8))[1] for at in (0, 8, 16)]
    assert_close("alone", np.concatenate(alone), y, EXACT)


@pytest.mark.clause("TNT-16")
@pytest.mark.parametrize(
    ("of_local", "least"),
    [
        ({"projection": tnt.Projection(range="sequence")}, 0.2),
        ({"reset_momentum": "carry"}, 0.02),
        ({"chunk_origin": "document"}, 0.1),
        ({"shard": 24}, 0.1),
    ],
)
def test_what_crosses_a_reset_ends_the_independence(of_local: Any, least: float) -> None:
    setting = of_shards(**{key: x for key, x in of_local.items() if key != "shard"})
    if "shard" in of_local:
        local = setting.config.local_memories[0].replaced(shard=24)
        setting = setting._replace(config=setting.config.replaced(local_memories=(local,)))
    y = setting.run()[1]
    assert_differs("permuted", setting.run(permuted(setting, PERMUTED))[1], y[PERMUTED], least)


# -- limits ----------------------------------------------------------------------------------------


@pytest.mark.clause("TNT-17", "TNT-3")
def test_a_chunk_that_holds_all_reads_the_first_memory() -> None:
    setting = setup(locals_=0, span=T)
    q, V = setting.leaves["tokens"][0]["q"], setting.leaves["first"][0]
    assert_close("y", setting.run()[1], q @ V.T, reordered(D_IN))
    other = setting.run(with_token(setting, "v", 3))[1]
    assert_close("whatever is written", other, setting.run()[1], EXACT)


@pytest.mark.clause("TNT-17")
@pytest.mark.parametrize("rule", ["titans_lmm", "delta"])
def test_chunks_of_one_token_in_an_endless_shard_are_the_token_loop(rule: str) -> None:
    none = {"projection": tnt.Projection(kind="none"), "form": "sequential"}
    setting = setup(rule, 1, has_global=False, spans=(1,), shards=(T,), of_local=none, seed=1)
    config = rule_config(rule)
    module = setting.config.local_memories[0].rule
    start = module.start(config, (), M=setting.leaves["first"][0])
    _, y = forms.run(module, config, setting.tokens(), start)
    assert_close("y", setting.run()[1], y, LOOPS)


@pytest.mark.clause("TNT-17", "TNT-1")
def test_reads_are_those_of_the_parts_added() -> None:
    setting = setup("titans_lmm", 2, seed=8)
    parts = (
        setting.config.replaced(local_memories=()),
        setting.config.replaced(global_memory=None),
    )
    first = (setting.leaves["first"][:1], setting.leaves["first"][1:])
    reads = [
        Setup(config, {**setting.leaves, "first": own}).run()[1]
        for config, own in zip(parts, first, strict=True)
    ]
    assert_close("y", setting.run()[1], reads[0] + reads[1], reordered(4))


@pytest.mark.clause("TNT-17", "TNT-7")
@pytest.mark.parametrize("kind", ["sum_outer", "orthogonal"])
def test_orthonormal_keys_are_projected_onto(kind: Any) -> None:
    of_local = {"projection": tnt.Projection(kind=kind, range="shard")}
    moved, bare = (
        setup("delta", 1, has_global=False, tokens=D_IN, spans=(2,), shards=(D_IN,), of_local=each)
        for each in (of_local, {"projection": tnt.Projection(kind="none")})
    )
    keys = np.linalg.qr(np.random.default_rng(0).standard_normal((D_IN, D_IN)))[0]
    for each in (moved, bare):
        each.leaves["tokens"][0]["k"] = keys
    assert_close("the last token", moved.run()[1][-1], bare.run()[1][-1], reordered(D_IN))


# -- causality, prefixes, tails --------------------------------------------------------------------


@pytest.mark.clause("TNT-18")
@pytest.mark.parametrize(
    "of_local",
    [
        {},
        {"base": "running"},
        {"chunk_origin": "document", "reset_momentum": "carry"},
        {"projection": tnt.Projection(range="sequence", norm="sum_of_norms")},
        {"projection": tnt.Projection(kind="orthogonal")},
        {"projection": tnt.Projection(range="window", window=5)},
    ],
    ids=["paper", "running", "crossing", "sequence", "orthogonal", "window"],
)
def test_no_token_moves_a_bit_of_an_earlier_read(of_local: Any) -> None:
    setting = setup("titans_lmm", 3, of_local=of_local)
    y = setting.run()[1]
    for t in (0, 4, 5, 9, 14, 20):
        for name in ("k", "v", "q", "step_size"):
            moved = setting.run(with_token(setting, name, t, 0.25))[1]
            assert_close(f"{name} of {t}", moved[:t], y[:t], EXACT)
            assert name == "step_size" or not np.array_equal(moved[t], y[t])


@pytest.mark.clause("TNT-18")
def test_every_prefix_reads_what_the_whole_reads() -> None:
    setting = setup("omega", 3)
    y = setting.run()[1]
    for t in range(1, T):
        assert_close(f"{t} tokens", setting.run(cut(setting.leaves, 0, t))[1], y[:t], LOOPS)


@pytest.mark.clause("TNT-18")
@pytest.mark.parametrize("tokens", [23, 20])
def test_the_last_global_chunk_is_written_and_never_read(tokens: int) -> None:
    setting = setup("titans_lmm", 0, tokens=tokens)
    state, y = setting.run()
    last = tokens - 1 - (tokens - 1) % 5
    for t in (last - 1, last):
        moved_state, moved = setting.run(with_token(setting, "v", t))
        assert np.array_equal(moved, y) == (t == last)
        assert not np.array_equal(moved_state.places[0].memory.M, state.places[0].memory.M)


# -- calls -----------------------------------------------------------------------------------------


@pytest.mark.clause("TNT-13")
def test_a_document_begins_anew() -> None:
    setting = setup("titans_lmm", 3)
    marked = setting.tokens().replaced(reset=np.isin(np.arange(T), [9, 15]))
    params = setting.params()
    start = tnt.start(setting.config, params)
    state, y = tnt.run(setting.config, params, marked, start)
    parts = [setting.run(cut(setting.leaves, a, b)) for a, b in ((0, 9), (9, 15), (15, T))]
    assert_close("y", y, np.concatenate([part[1] for part in parts]), LOOPS)
    assert state.position == T - 15
    assert_close("V", state.places[0].memory.M, parts[2][0].places[0].memory.M, LOOPS)


@pytest.mark.clause("TNT-11")
@pytest.mark.parametrize("kind", [np.float32, np.float64, np.complex128])
def test_a_state_is_read_only_of_one_precision_and_keeps_no_sequence_alive(kind: Any) -> None:
    of_local = {"projection": tnt.Projection(norm="sum_of_norms")}
    setting = setup("omega", 2, shards=(7, 23), of_local=of_local)
    arrays, _, build = flatten(setting.leaves)
    state, y = setting.run(build([x.astype(kind) for x in arrays]))
    assert y.dtype == kind
    found: list[Any] = []

    def collect(x: Any) -> Any:
        found.append(x)
        return x

    pieces.mapped(state, collect)
    assert len(found) == 3 * 5 + 2 * 2
    for x in found:
        assert (x.dtype, x.flags.writeable, x.base) == (kind, False, None)


@pytest.mark.clause("TNT-2")
def test_a_resumed_run_returns_to_the_first_memory_and_not_to_the_carried_one() -> None:
    setting = setup("titans_lmm", 1, has_global=False, spans=(2,), shards=(8,), tokens=24)
    y = setting.run()[1]
    for at in (6, 8, 12):
        state = setting.run(cut(setting.leaves, 0, at))[0]
        rest = setting.tokens(cut(setting.leaves, at, 24))
        assert_close(
            f"cut at {at}", tnt.run(setting.config, setting.params(), rest, state)[1], y[at:], LOOPS
        )
        # an ordinary run resets to what it was handed
        local = setting.config.local_memories[0]
        marked = rest.replaced(reset=np.arange(at, 24) % 8 == 0)
        wrong = forms.run(local.rule, local.run_config, marked, state.places[0].memory)[1]
        assert_differs(f"by a mask, cut at {at}", wrong, y[at:], 0.1)


@pytest.mark.clause("TNT-1", "TNT-4")
def test_rows_of_a_batch_are_apart() -> None:
    settings = [setup("omega", 3, seed=seed) for seed in (0, 1)]
    named = [each.leaves["tokens"][0] for each in settings]
    both = {name: np.stack([x[name] for x in named])[:, None] for name in named[0]}
    setting = settings[0]
    y = setting.run({**setting.leaves, "tokens": [both]})[1]
    for row in range(2):
        alone = setting.run({**setting.leaves, "tokens": [named[row]]})[1]
        assert_close(f"row {row}", y[row, 0], alone, LOOPS)


@pytest.mark.clause("TNT-2", "TNT-4")
def test_each_head_has_a_first_memory_of_its_own() -> None:
    """Leading axes (2, 3) of tokens; memories (3, d_out, d_in), and shared ones."""
    setting = setup("titans_lmm", 2)
    draw = np.random.default_rng(6)
    named = {
        name: np.broadcast_to(x, (2, 3, *x.shape)).copy()
        for name, x in setting.leaves["tokens"][0].items()
    }
    named["v"] = draw.standard_normal(named["v"].shape)
    first = [0.5 * draw.standard_normal((3, D_OUT, D_IN)) for _ in range(2)]
    first.append(setting.leaves["first"][2])
    _, y = setting.run({"tokens": [named], "first": first})
    for row, head in np.ndindex(2, 3):
        alone = {
            "tokens": [{name: x[row, head] for name, x in named.items()}],
            "first": [first[0][head], first[1][head], first[2]],
        }
        want = loops.paper(setting.memories(alone)).y
        assert_close(f"row {row}, head {head}", y[row, head], want, LOOPS)
    for wrong in (np.ones((2, D_OUT, D_IN)), np.ones((D_IN, D_OUT))):
        params = tnt.Params(memories=(tnt.Initial(M=wrong), tnt.Initial(), tnt.Initial()))
        with pytest.raises(ValueError, match=r"M: shape .*, expected \(4, 5\), after leading"):
            tnt.start(setting.config, params, (2, 3))


@pytest.mark.clause("TNT-13")
@pytest.mark.parametrize("form", ["sequential", "atlas_parallel", "kernel"])
def test_the_form_of_a_run_changes_nothing(form: str) -> None:
    setting = setup("omega", 3)
    axes = {"form": form, "chunk": 3}
    other = setup("omega", 3, of_global=axes, of_local=axes)
    assert {form_of(memory) for memory in other.config.memories} == {form}
    assert form_of(setting.config.memories[0]) == "chunkwise"
    assert_close("y", other.run()[1], setting.run()[1], LOOPS)


@pytest.mark.clause("TNT-1", "TNT-5")
def test_a_linear_deep_memory_is_the_delta_rule() -> None:
    """The same mathematics by another rule: a function whose weights are one matrix."""
    setting = setup("delta", 2, seed=3)
    rule = deep_memory.Config(
        d_in=D_IN,
        d_out=D_OUT,
        memory={"kind": "linear"},
        convention={"newton_schulz": "none", "gradient_scale": 1.0},
    )
    config = tnt.Config(
        global_memory=tnt.Global(config=rule, span=5),
        local_memories=tuple(tnt.Local(config=rule, span=C, shard=S) for C, S in ((3, 7), (4, 10))),
    )
    first = [tnt.Initial(phi={"W": M}) for M in setting.leaves["first"]]
    params = tnt.Params(memories=tuple(first))
    tokens = setting.tokens()
    _, y = tnt.run(config, params, tokens, tnt.start(config, params))
    assert_close("y", y, setting.run()[1], LOOPS)
    state, part = tnt.start(config, params), []
    for rows in ((0, 8), (8, T)):
        state, one = tnt.run(config, params, pieces.cut(tokens, *rows), state)
        part.append(one)
    assert_close("y in two calls", np.concatenate(part), y, LOOPS)


DELTA = rule_config("delta")
WRONG: list[tuple[Any, str]] = [
    (lambda: tnt.Config(global_memory=None), "none, and no global memory"),
    (
        lambda: tnt.Config(
            global_memory=tnt.Global(config=DELTA, span=2),
            local_memories=(tnt.Local(config=rule_config("delta", d_in=2), span=1, shard=2),),
        ),
        "d_in must be the same in all memories, found 5, 2",
    ),
    (
        lambda: tnt.Global(config=rule_config("delta").replaced(span=3), span=2),
        "span 3, but the span of the memory is TNT's: 2",
    ),
    (lambda: tnt.Global(config=DELTA, span=2, form="exact"), "the reference is not running"),
    (lambda: tnt.Global(config=DELTA, span=2, sum="inclusive"), "sum: inclusive is defined"),
    (
        lambda: tnt.Local(config=DELTA, span=2, shard=4, base="previous"),
        "previous is a momentum of one",
    ),
    (
        lambda: tnt.Local(config=DELTA, span=2, shard=4, reset_momentum="carry"),
        "reset_momentum: carry, but delta has no momentum",
    ),
    (lambda: tnt.Local(config=DELTA, span=0, shard=4), "span"),
    (lambda: tnt.Projection(range="window"), "window: None, but range window needs one"),
    (lambda: tnt.Projection(window=3), "window: 3, but range chunk has none"),
    (
        lambda: tnt.Projection(kind="orthogonal", range="window", window=2),
        "not defined for kind orthogonal",
    ),
    (lambda: tnt.Projection(kind="orthogonal", dependent=1.0), "dependent"),
    (
        lambda: tnt.Config(global_memory=tnt.Global(config=DELTA, span=2), origin=True),
        "must be 0 or 1, found true",
    ),
]


@pytest.mark.clause("TNT-1", "TNT-3", "TNT-5", "TNT-8", "TNT-13")
@pytest.mark.parametrize(("wrong", "words"), WRONG)
def test_settings_that_mean_nothing_are_refused(wrong: Any, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        wrong()


@pytest.mark.clause("TNT-11")
@pytest.mark.parametrize(
    ("held", "words"),
    [
        ({"range": "window", "window": 3}, "total: missing, but projection sum_outer"),
        ({"kind": "none"}, "total: missing, but projection sum_outer"),
        ({"norm": "sum_of_norms"}, "size: given, but projection sum_outer"),
    ],
)
def test_a_state_of_another_projection_is_refused(held: dict[str, Any], words: str) -> None:
    """In the middle of a chunk, where such keys would be missed or take no part."""
    asked, other = (
        tnt.Config(
            global_memory=None,
            local_memories=(
                tnt.Local(config=DELTA, span=4, shard=8, projection=tnt.Projection(**own)),
            ),
        )
        for own in ({}, held)
    )
    params = tnt.Params(memories=(tnt.Initial(),))
    tokens = setup(rule="delta", locals_=1, has_global=False).tokens()
    tokens = tokens[0] if isinstance(tokens, tuple) else tokens
    start = tnt.start(other, params)
    state, _ = tnt.run(other, params, pieces.cut(tokens, 0, 3), start)
    for of in (tnt.run, tnt.retrieve):
        with pytest.raises(ValueError, match=rf"state.places\[0\].keys.{words}"):
            of(asked, params, pieces.cut(tokens, 3, 6), state)


@pytest.mark.clause("TNT-1", "TNT-2", "TNT-13")
def test_calls_that_contradict_the_settings_are_refused() -> None:
    setting = setup("titans_lmm", 2)
    params, tokens = setting.params(), setting.tokens()
    state = tnt.start(setting.config, params)
    M = setting.leaves["first"][0]

    def parameters(place: int, **changed: Any) -> tnt.Params:
        memories = list(params.memories)
        memories[place] = tnt.Initial(**changed)
        return tnt.Params(memories=tuple(memories))

    short = Tokens(**cut(setting.leaves, 0, 5)["tokens"][0])
    calls: list[tuple[tuple[Any, ...], str]] = [
        ((tnt.Params(memories=params.memories[:2]), tokens, state), "params: 2, expected one"),
        ((parameters(1, M=M, S=M), tokens, state), r"params.memories\[1\].S: given"),
        ((parameters(2, W_QK=np.eye(D_IN)), tokens, state), r"params.memories\[2\].W_QK: given"),
        ((params, (tokens, tokens), state), "tokens: 2, expected one of each of 3"),
        ((params, (tokens, tokens, short), state), "tokens: keys of one shape"),
        ((params, tokens.replaced(active=np.arange(T) > 2), state), "active: every token"),
        ((params, tokens, state.replaced(places=state.places[:1])), "state: 1, expected one"),
        ((params, tokens, None), "state: NoneType, expected one"),
    ]
    for arguments, words in calls:
        with pytest.raises(ValueError, match=words):
            tnt.run(setting.config, *arguments)
    learned = setup("titans_lmm", 1, of_local={"reset_momentum": "learned"})
    with pytest.raises(ValueError, match=r"params.memories\[1\].S: missing"):
        learned.run()


# -- cost ------------------------------------------------------------------------------------------


def peak(tokens: int, d: int) -> int:
    """Peak bytes of a second call of a local memory whose range of keys crosses every block.

    The first one compiles and makes work space, which stay; followed by tracemalloc, it would take
    twenty seconds.
    """
    config = tnt.Config(
        global_memory=None,
        local_memories=(
            tnt.Local(
                config=delta.Config(d_in=d, d_out=D_OUT, convention={"gate": "none"}),
                span=64,
                shard=tokens,
                projection=tnt.Projection(range="sequence"),
            ),
        ),
    )
    draw = np.random.default_rng(0)
    k, q = draw.standard_normal((2, tokens, d)) / d
    given = Tokens(k=k, v=draw.standard_normal((tokens, D_OUT)), q=q, step_size=np.ones(tokens))
    params = tnt.Params(memories=(tnt.Initial(),))
    state = tnt.start(config, params)
    tnt.run(config, params, given, state)
    tracemalloc.start()
    tnt.run(config, params, given, state)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most


@pytest.mark.slow
@pytest.mark.clause("TNT-10", "TNT-19")
def test_a_call_takes_memory_linear_in_tokens_and_no_matrix_for_each() -> None:
    d = 64
    short, long = peak(1024, d), peak(4096, d)
    assert long < 4.5 * short
    assert long < 4096 * d * d * 8 / 4


@pytest.mark.clause("TNT-5", "TNT-16")
def test_shards_of_the_literal_reading_stand_alone_where_chunks_do_not_divide_them() -> None:
    of_local = {"base": "previous", "reset": "instead_of_write"}
    setting = setup(
        "titans_lmm",
        1,
        tokens=24,
        has_global=False,
        spans=(3,),
        shards=(8,),
        of_local=of_local,
        gated=False,
    )
    alone = [setting.run(cut(setting.leaves, at, at + 8))[1] for at in (0, 8, 16)]
    want = [loops.printed(setting.memories(cut(setting.leaves, a, a + 8))).y for a in (0, 8, 16)]
    assert_close("alone", setting.run()[1], np.concatenate(alone), LOOPS)
    assert_close("printed", setting.run()[1], np.concatenate(want), LOOPS)
