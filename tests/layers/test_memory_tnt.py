"""Memory layers around a TNT: against loops with the layer's projections, limits, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from atlas_ref import backend
from atlas_ref.forms import tnt
from atlas_ref.layers import memory, memory_tnt
from atlas_ref.levels.level import Level
from atlas_ref.rules import delta, titans_lmm
from tape import ops
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs
from tests.support.directions import check_directions
from tests.support.layers import Layer
from tests.support.memories import SIZES, layer, levels, projection, rule, tnt_of
from tests.truth import memory_layer_loops as around
from tests.truth import tnt_loops as loops

H, SPANS, SHARDS = 2, (3, 1), (6, 4)

RETAIN = {"gate": "retain"}

#: Settings of the layer, and the same in words of the loops.
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "titans": (layer(tnt_of("titans_lmm", convention=RETAIN)), {}),
    "titans per memory": (layer(tnt_of("titans_lmm", convention=RETAIN, params="per_memory")), {}),
    "delta": (layer(tnt_of("delta", convention=RETAIN), kernel=None), {}),
    "learned": (
        layer(
            tnt_of(
                "titans_lmm",
                convention=RETAIN,
                of_local={"reset_momentum": "learned", **projection(kind="learned")},
                shards=(6, 3),
            )
        ),
        {},
    ),
    "key and value": (
        layer(
            tnt_of("delta", convention=RETAIN, of_local=projection(range="shard")),
            gate_input="key_value",
        ),
        {"range": "shard"},
    ),
}
READING = around.Reading(H, norm_eps=1e-6)


def named(config: Any, params: Any, i: int) -> dict[str, Any]:
    """Parameters of one set of projections, by the names of public code."""
    branch, own = params.levels[i], params.levels[i].projection
    found = {"pre_norm.weight": params.norm.weight}
    for name, W in (("q", own.W_Q), ("k", own.W_K), ("v", own.W_V)):
        found[f"to_{name}.weight"] = W.reshape(-1, W.shape[-1])
        filters = getattr(branch, f"{name}_conv")
        if filters is not None:
            found[f"{name}_conv.weight"] = filters.weight[:, None, :]
    for name, weight in (("q", branch.q_norm), ("k", branch.k_norm)):
        found[f"{name}_norm.gamma"] = weight.weight[:, None, :]
    words = {"retain": "decay", "momentum": "momentum", "step_size": "lr"}
    for name, public in words.items():
        gate = getattr(own.gates, name)
        if gate is not None:
            found[f"to_{public}.0.weight"] = gate.W[:, 0]
            found[f"to_{public}.0.bias"] = gate.b[:, 0]
    return found


def inputs(tokens: list[around.Token], h: int) -> loops.Inputs:
    """What a memory of one head is given."""
    gates = {
        name: np.array([each.gates[public][h] for each in tokens])
        for name, public in (("retain", "decay"), ("momentum", "momentum"), ("step_size", "lr"))
        if public in tokens[0].gates
    }
    k, v, q = (np.array([getattr(each, name)[h] for each in tokens]) for name in "kvq")
    return loops.Inputs(k=k, v=v, q=q, **gates)


def memories(config: Any, params: Any, x: Any, h: int) -> list[loops.Memory]:
    """The memories of one head over one document x (T, D)."""
    reading = READING._replace(
        gate_input="normed_x" if config.gate_input == "normed" else "keys_values"
    )
    sets = [
        around.of_tokens(x, named(config, params, i), reading)[0] for i in range(len(params.levels))
    ]
    found = []
    for i, (own, initial) in enumerate(
        zip(config.levels.tnt.memories, params.initial, strict=True)
    ):
        tokens = sets[i if len(sets) > 1 else 0]
        shard = own.shard if isinstance(own, tnt.Local) else None
        S = None if initial.S is None else initial.S[h]
        found.append(loops.Memory(inputs(tokens, h), initial.M[h], own.span, shard, S))
    return found


def document(config: Any, params: Any, x: Any, of_loops: dict[str, Any]) -> Any:
    """The layer's results (T, D) on one document x (T, D)."""
    heads = []
    for h in range(H):
        total = 0.0
        for own, initial in zip(memories(config, params, x, h), params.initial, strict=True):
            W = None if initial.W_QK is None else initial.W_QK[h]
            total = total + loops.paper([own], loops.Reading(W_QK=W, **of_loops)).y
        heads.append(total)
    W_out = params.W_out.reshape(params.W_out.shape[0], -1)
    return np.concatenate(heads, axis=1) @ W_out.T


def whole(config: Any, params: Any, x: Any, reset: Any, of_loops: dict[str, Any]) -> Any:
    """Results (B, T, D) of rows of packed documents."""
    starts = np.flatnonzero(reset)
    return np.array(
        [
            np.concatenate(
                [document(config, params, part, of_loops) for part in np.split(row, starts)]
            )
            for row in x
        ]
    )


@pytest.mark.sample(2)
@pytest.mark.clause("MEMORY-13", "MEMORY-14", "MEMORY-15")
@pytest.mark.host("loops over numbers")
@pytest.mark.parametrize("name", CASES)
def test_a_layer_with_tnt_is_its_loop_values_and_gradients(name: str) -> None:
    config, of_loops = CASES[name]
    own = Layer(memory, config)
    at = {"params": own.drawn(3), "x": own.tokens(17)}
    reset = np.arange(17) == 13
    cotangent = np.random.default_rng(5).standard_normal(at["x"].shape)
    _, y = own.run(at["params"], at["x"], (5, 9), reset)
    want = whole(config, at["params"], at["x"], reset, of_loops)
    assert_close("y", y, want, ANALYTIC)

    def loss(at: Any) -> Any:
        state = memory.start(config, 2)
        state, first = memory.apply(config, at["params"], state, at["x"][:, :9], reset=reset[:9])
        _, last = memory.apply(config, at["params"], state, at["x"][:, 9:], reset=reset[9:])
        return ops.sum(first * cotangent[:, :9]) + ops.sum(last * cotangent[:, 9:])

    def literal(at: Any) -> Any:
        return np.sum(whole(config, at["params"], at["x"], reset, of_loops) * cotangent)

    check_directions(loss, at, loops=literal, tolerance=1e-11)


@pytest.mark.clause("MEMORY-13")
def test_every_memory_of_the_layer_matters() -> None:
    config = CASES["titans"][0]
    own = Layer(memory, config)
    params, x = own.drawn(3), own.tokens(17)
    y = own.run(params, x)[1]
    for i in range(3):
        initial = list(params.initial)
        initial[i] = tnt.Initial(M=initial[i].M + 0.5)
        moved = own.run(params.replaced(initial=tuple(initial)), x)[1]
        assert_differs(f"start of memory {i}", moved, y, 1e-2)


@pytest.mark.clause("TNT-23", "MEMORY-15")
@pytest.mark.host("loops over numbers")
@pytest.mark.parametrize("name", ["titans", "titans per memory", "learned", "key and value"])
@pytest.mark.parametrize("T", [8, 12])
def test_retrieve_reads_the_memories_as_they_are(name: str, T: int) -> None:
    config, of_loops = CASES[name]
    own = Layer(memory, config)
    params, x = own.drawn(3), own.tokens(T + 2)
    state, _ = own.run(params, x[:, :T])
    after, y = memory.retrieve(config, params, state, x[:, T:])
    want = np.zeros_like(y)
    for b in range(2):
        for t in range(2):
            reads = [_recalled(config, params, x[b], T, t, h, of_loops) for h in range(H)]
            W_out = params.W_out.reshape(params.W_out.shape[0], -1)
            want[b, t] = W_out @ np.concatenate(reads)
    assert_close("y", y, want, ANALYTIC)
    for before, later in zip(state.levels.places, after.levels.places, strict=True):
        assert_close("M", later.memory.M, before.memory.M, EXACT)
    assert after.levels.position == T
    _, first = memory.retrieve(config, params, state, x[:, T:], reset=np.array([True, False]))
    fresh = memory.restarted(config, state)
    assert_close("from a start", first, memory.retrieve(config, params, fresh, x[:, T:])[1], EXACT)


def _recalled(
    config: Any, params: Any, x: Any, T: int, t: int, h: int, of_loops: dict[str, Any]
) -> Any:
    """What the memories of one head, written by T tokens, answer to the query of token T + t."""
    total = 0.0
    for before, after, initial in zip(
        memories(config, params, x[:T], h),
        memories(config, params, x, h),
        params.initial,
        strict=True,
    ):
        reading = loops.Reading(**of_loops)
        M, q = loops.paper([before], reading).M[0], after.inputs.q[T + t]
        if initial.W_QK is not None:
            q = initial.W_QK[h] @ q
        elif before.shard is not None:
            rows = [before.inputs.k[j] for j in loops.met(before, T - 1, reading)]
            q = sum(k * (k @ q) / (k @ k) for k in rows)
        total = total + M @ q
    return total


@pytest.mark.clause("MEMORY-13")
@pytest.mark.parametrize(
    ("of_global", "span", "axes"),
    [
        ({}, 4, {"reference": "chunk_start", "read": "chunk_start"}),
        ({"read": "after"}, 4, {"reference": "chunk_start", "read": "after"}),
        ({"read": "after"}, 1, {"reference": "running", "read": "after"}),
    ],
)
@pytest.mark.parametrize("name", ["titans_lmm", "delta"])
def test_without_locals_it_is_an_ordinary_layer(
    name: str, of_global: Any, span: int, axes: Any
) -> None:
    mine = layer(tnt_of(name, span=span, of_global=of_global, spans=(), shards=()))
    spanned = {} if axes["reference"] == "running" else {"span": span}
    other = layer(levels(Level(config=rule(name, convention=axes, **spanned))))
    own, plain = Layer(memory, mine), Layer(memory, other)
    params, x = own.drawn(), own.tokens(15)
    M = params.initial[0].M
    state = memory.start(other, 2, initial=[{"M": np.broadcast_to(M, (2, *M.shape))}])
    same = params.replaced(initial=())
    reset = np.arange(15) == 9
    want = plain.run(same, x, (6,), reset, state)[1]
    assert_close("y", own.run(params, x, (6,), reset)[1], want, ANALYTIC)


@pytest.mark.clause("MEMORY-14")
def test_memories_start_at_zero_and_learned_projections_at_the_unit_matrix() -> None:
    config = CASES["learned"][0]
    params = memory.init(config, 0)
    assert params.logits is None
    for i, own in enumerate(params.initial):
        assert_close("M", own.M, np.zeros((2, 3, 3)), EXACT)
        assert (own.S is None) == (i == 0)
        if i:
            assert_close("S", own.S, np.zeros((2, 3, 3)), EXACT)
            assert_close("W_QK", own.W_QK, np.stack([np.eye(3)] * 2), EXACT)
    shared = memory.init(layer(tnt_of("titans_lmm")), 0)
    each = memory.init(layer(tnt_of("titans_lmm", params="per_memory")), 0)
    assert (len(shared.levels), len(each.levels)) == (1, 3)
    assert_close("first", each.levels[0].projection.W_Q, shared.levels[0].projection.W_Q, EXACT)
    plain = memory.init(layer(rule("titans_lmm")), 0)
    assert backend.changed(plain, lambda x: x) == shared.replaced(initial=())


WRONG: list[tuple[Any, str]] = [
    (
        lambda: tnt_of("deep_memory", spans=(2,), shards=(6,), span=4),
        "params: shared would share the first weights of each deep_memory",
    ),
    (
        lambda: memory_tnt.Config(
            tnt=tnt.Config(
                global_memory=tnt.Global(config=rule("delta"), span=4),
                local_memories=(tnt.Local(config=rule("hebbian"), span=2, shard=4),),
            )
        ),
        "params: shared needs one rule with the same settings in all memories",
    ),
    (
        lambda: memory_tnt.Config(
            tnt=tnt.Config(global_memory=tnt.Global(config=delta.Config(d_in=3, d_out=3), span=4))
        ),
        "config: a level projects its tokens, so d_model is needed",
    ),
    (
        lambda: memory_tnt.Config(
            tnt=tnt.Config(
                global_memory=tnt.Global(config=titans_lmm.Config(**SIZES), span=4),
                local_memories=(
                    tnt.Local(config=titans_lmm.Config(**SIZES | {"heads": 3}), span=2, shard=4),
                ),
            ),
            params="per_memory",
        ),
        "tnt: heads must be the same in all memories, found 2, 3",
    ),
    (
        lambda: layer(tnt_of("delta"), reference_at_call="renewed"),
        "reference_at_call: renewed, but a TNT has none",
    ),
    (
        lambda: tnt_of("delta", of_local=projection(gate="given")),
        "tnt: a layer makes no gates of queries and reads",
    ),
    (lambda: layer(tnt_of("delta"), state_clamp=1.0), "state_clamp: 1.0, but a TNT has none"),
    (
        lambda: layer(
            tnt_of("titans_lmm", of_local={"base": "previous"}, convention={"gate": "none"})
        ),
        "momentum: base previous and sum inclusive are defined without a gate",
    ),
]


@pytest.mark.clause("MEMORY-13")
@pytest.mark.parametrize(("make", "says"), WRONG)
def test_settings_that_mean_nothing_are_refused(make: Any, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        make()


@pytest.mark.clause("MEMORY-10", "TNT-25")
@pytest.mark.parametrize(
    "late", [{"of_local": {"read": "chunk_end"}}, {"of_global": {"read": "call_end"}}]
)
def test_a_layer_whose_memories_read_late_is_not_causal(late: Any) -> None:
    assert layer(tnt_of("delta")).causal
    config = layer(tnt_of("delta", **late))
    assert not config.causal
    own = Layer(memory, config)
    params, x = own.drawn(), own.tokens(4)
    moved = x.copy()
    moved[:, 2] += 1.0
    y, other = (own.run(params, each)[1] for each in (x, moved))
    assert np.any(y[:, :2] != other[:, :2])


@pytest.mark.clause("MEMORY-14", "TNT-26")
def test_a_learned_projection_of_the_global_memory_is_one_of_the_layers_starts() -> None:
    config = layer(tnt_of("delta", of_global=projection(kind="learned"), spans=(), shards=()))
    params = memory.init(config, 0)
    assert_close("W_QK", params.initial[0].W_QK, np.broadcast_to(np.eye(3), (2, 3, 3)), EXACT)
    plain = layer(tnt_of("delta", spans=(), shards=()))
    own = Layer(memory, plain)
    drawn, x = own.drawn(), own.tokens(8)
    raw = own.run(drawn, x)[1]
    given = drawn.replaced(initial=(drawn.initial[0].replaced(W_QK=params.initial[0].W_QK),))
    moved = Layer(memory, config).run(given, x)[1]
    assert_close("by the unit matrix", moved, raw, ANALYTIC)


@pytest.mark.clause("MEMORY-14", "MEMORY-15")
def test_starts_and_states_of_another_layer_are_refused() -> None:
    config, other = layer(tnt_of("titans_lmm")), layer(rule("titans_lmm"))
    own, plain = Layer(memory, config), Layer(memory, other)
    params, x, state = own.drawn(), own.tokens(4), memory.start(config, 2)
    first, *rest = params.initial
    narrow = (first.replaced(M=first.M[:1]), *rest)
    phi = (first.replaced(phi={"w": first.M}), *rest)
    without = (first.replaced(M=None), *rest)
    short = state.levels.replaced(places=state.levels.places[:2])
    wrong: list[tuple[tuple[Any, ...], str]] = [
        ((config, params.replaced(initial=()), state, x), "params.initial: 0, expected 3"),
        ((config, params.replaced(initial=narrow), state, x), r"initial\[0\].M: shape \(1, 3, 3\)"),
        ((config, params.replaced(initial=phi), state, x), r"initial\[0\].phi: present"),
        ((config, params.replaced(initial=without), state, x), r"initial\[0\].M: missing"),
        ((config, params, memory.start(other, 2), x), "state: of levels, but the layer has none"),
        ((other, plain.drawn(), state, x), "state: of a TNT, but the layer has none"),
        (
            (config, params, state.replaced(levels=short), x),
            "state: 2 memories and tails of 1 levels, expected 3",
        ),
        ((other, params, memory.start(other, 2), x), "params.initial: 3, expected 0"),
    ]
    for arguments, says in wrong:
        with pytest.raises(ValueError, match=says):
            memory.apply(*arguments)
    with pytest.raises(ValueError, match="initial: given, but a TNT starts from its parameters"):
        memory.start(config, 2, initial=[{"M": np.zeros((2, 2, 3, 3))}])
