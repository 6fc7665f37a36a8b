"""The neural memory: against plain loops and recorded files, its special cases, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tape
from atlas_ref import backend
from atlas_ref.layers import neural_memory, norm
from atlas_ref.layers.norm import Params as NormParams
from atlas_ref.models import atlas_rnn
from atlas_ref.models.public import titans_pytorch
from atlas_ref.rules import deep_memory, sequence, titans_lmm
from atlas_ref.rules.sequence import Tokens
from tape import ops
from tests.support import neural_memories as neural
from tests.support.close import (
    ANALYTIC,
    EXACT,
    Tolerance,
    assert_close,
    assert_differs,
    relative_error,
    reordered,
)

DRAWN = range(24)
#: Relative change of all tokens that shows how a memory amplifies a rounding.
NUDGE = 1e-8


def amplified(settings: Any, at: Any, x: Any) -> Tolerance:
    """The bound of a sum in another order, times the amplification of a nudge by the loops."""
    noise = 1.0 + NUDGE * np.random.default_rng(9).standard_normal(x.shape)
    found = [neural.of_loops(settings, at, tokens) for tokens in (x, x * noise)]
    parts = [[y, *W.values(), *(a for S in m for a in S.values())] for y, W, _, m in found]
    worst = max(relative_error(a, b) for a, b in zip(*parts, strict=True)) / NUDGE
    return reordered(64, amplification=max(10.0, worst))


def cut(x: Any, calls: Any) -> list[Any]:
    return np.split(x, np.cumsum(calls)[:-1], axis=1)


@pytest.mark.host("plain loops of the tests")
@pytest.mark.clause(
    "NEURAL-2", "NEURAL-3", "NEURAL-4", "NEURAL-5", "NEURAL-6", "NEURAL-7", "NEURAL-8", "NEURAL-10"
)
@pytest.mark.parametrize("number", DRAWN)
def test_the_layer_is_the_plain_loops_in_calls_of_any_length(number: int) -> None:
    settings = neural.drawn(number)
    at, x = neural.state_dict(settings), np.random.default_rng(number).standard_normal((2, 13, 4))
    calls = [(13,), (4, 1, 8), (1,) * 13, (7, 6)][number % 4]
    got, want = neural.ours(settings, at, x, calls), neural.of_loops(settings, at, x)
    within = amplified(settings, at, x)
    assert_close("y", np.concatenate(got.y, axis=1), want.y, within)
    for kind in ("weights", "reference"):
        for name, array in getattr(want, kind).items():
            assert_close(f"{kind} {name}", getattr(got, kind)[name], array, within)
    assert len(got.momentum) == settings.orders
    for order, tensors in enumerate(got.momentum):
        for name, array in tensors.items():
            assert_close(f"S {order} {name}", array, want.momentum[order][name], within)


@pytest.mark.host("a complex step of plain loops")
@pytest.mark.clause("NEURAL-2", "NEURAL-6", "NEURAL-10")
@pytest.mark.parametrize("number", range(12))
def test_every_gradient_is_the_complex_step_of_the_loops(number: int) -> None:
    """Along one drawn direction of each parameter and of the tokens."""
    settings = neural.drawn(number, depth=1 + number % 2)
    rng = np.random.default_rng(number)
    at, x = neural.state_dict(settings), rng.standard_normal((2, 8, 4))
    bar = rng.standard_normal(x.shape)

    def loss(given: Any) -> Any:
        reads = neural.ours(settings, given["at"], given["x"], (5, 3)).y
        return sum(ops.sum(y * b) for y, b in zip(reads, cut(bar, (5, 3)), strict=True))

    got = tape.grad(loss)({"at": at, "x": x})
    for name, value in [*at.items(), ("x", x)]:
        along = rng.standard_normal(value.shape)
        moved = {**at, "x": x, name: value + 1e-30j * along}
        tokens = moved.pop("x")
        want = np.imag(np.sum(neural.of_loops(settings, moved, tokens).y * bar)) / 1e-30
        own = got["x"] if name == "x" else got["at"][name]
        error = abs(np.sum(own * along) - want) / (np.linalg.norm(own) or 1.0)
        assert error < 5e-12, f"{name}: {error:.1e}"


@pytest.mark.clause("NEURAL-4")
def test_a_token_of_weight_zero_writes_nothing_but_moves_gates() -> None:
    config = neural_memory.configured(4, chunk=2, depth=1)
    params = neural_memory.init(config, 1)
    gates = params.gates
    step = gates.step_size.replaced(b=gates.step_size.b - 800.0)
    shut = params.replaced(gates=gates.replaced(step_size=step, momentum=gates.momentum))
    x = np.random.default_rng(0).standard_normal((1, 6, 4))
    after, _ = neural_memory.apply(config, shut, neural_memory.start(config), x)
    kept = 1.0
    for chunk in np.split(norm.normed(config.norm, params.store_norm, x)[0], 3):
        z = np.mean(chunk, axis=0) @ gates.retain.W[0, 0] + gates.retain.b[0, 0]
        kept *= 1.0 - 1.0 / (1.0 + np.exp(-z))
    for name, first in params.memory.items():
        assert_close(name, after.memory.weights[name][0], kept * first, ANALYTIC)


@pytest.mark.clause("NEURAL-5")
@pytest.mark.parametrize("name", ["clip", "newton_schulz", "plain"])
def test_tokens_of_a_chunk_may_come_in_any_order(name: str) -> None:
    """The memory after a chunk: gates are of the mean, and the write is a sum."""
    own: dict[str, Any] = {
        "clip": {"clip": 0.5},
        "newton_schulz": {"newton_schulz": True},
        "plain": {},
    }[name]
    config = neural_memory.configured(4, chunk=4, refresh=8, **own)
    params, x = neural_memory.init(config, 2), np.random.default_rng(1).standard_normal((2, 12, 4))
    other = x[:, [2, 0, 3, 1, 5, 4, 7, 6, 8, 10, 11, 9]]
    states = [
        neural_memory.apply(config, params, neural_memory.start(config, 2), each)[0]
        for each in (x, other)
    ]
    for kind in ("weights", "momentum"):
        one, two = (getattr(state.memory, kind) for state in states)
        for key in one:
            assert_close(f"{kind} {key}", two[key], one[key], reordered(64, amplification=100.0))


@pytest.mark.clause("NEURAL-5", "NEURAL-8")
def test_the_tokens_that_wait_are_those_of_the_unfinished_chunk_alone() -> None:
    config = neural_memory.configured(4, chunk=5)
    params, x = neural_memory.init(config), np.random.default_rng(3).standard_normal((2, 12, 4))
    s = norm.normed(config.norm, params.store_norm, x)
    state = neural_memory.start(config, 2)
    for t in range(12):
        state, _ = neural_memory.apply(config, params, state, x[:, t : t + 1])
        assert_close(str(t), state.tokens, s[:, t + 1 - (t + 1) % 5 : t + 1], EXACT)
    reset = np.arange(12) == 9
    after, _ = neural_memory.apply(config, params, neural_memory.start(config, 2), x, reset=reset)
    assert_close("after a document's start", after.tokens, s[:, 9:], EXACT)
    assert not np.shares_memory(after.tokens, x)


@pytest.mark.clause("NEURAL-1", "NEURAL-8")
def test_a_call_whose_memory_starts_anew_drops_the_tokens_that_wait() -> None:
    config = neural_memory.configured(4, chunk=3)
    config = config.replaced(
        rule=config.rule.replaced(memory_reset="batch", momentum_reset="batch")
    )
    params, x = neural_memory.init(config), np.random.default_rng(4).standard_normal((2, 10, 4))
    state, _ = neural_memory.apply(config, params, neural_memory.start(config, 2), x[:, :5])
    state, y = neural_memory.apply(config, params, state, x[:, 5:])
    alone, want = neural_memory.apply(config, params, neural_memory.start(config, 2), x[:, 5:])
    assert_close("y", y, want, EXACT)
    assert state == alone


@pytest.mark.clause("NEURAL-6", "NEURAL-10")
def test_a_linear_memory_with_a_write_a_token_is_titans_linear_memory() -> None:
    """Against the rule titans_lmm, which is written out on its own: h = 2 w / d_out."""
    config = neural_memory.configured(5, refresh=1, depth=1, residual_norm=False)
    params, x = neural_memory.init(config, 5), np.random.default_rng(5).standard_normal((2, 9, 5))
    state, y = neural_memory.apply(config, params, neural_memory.start(config, 2), x)
    s, r = (norm.normed(config.norm, own, x) for own in (params.store_norm, params.retrieve_norm))

    def gate(name: str) -> Any:
        own = getattr(params.gates, name)
        return 1.0 / (1.0 + np.exp(-(s @ own.W[0, 0] + own.b[0, 0])))

    rule = titans_lmm.Config(
        d_in=5, d_out=5, convention={"gate": "forget", "momentum_sign": "minus"}
    )
    tokens = Tokens(
        k=s @ params.W_K[0].T,
        v=s @ params.W_V[0].T,
        q=r @ params.W_Q[0].T,
        retain=gate("retain"),
        momentum=gate("momentum"),
        step_size=2.0 / 5.0 * gate("step_size"),
    )
    first = np.broadcast_to(params.memory["W_1"], (2, 5, 5))
    start = titans_lmm.start(rule, (2,), M=first)
    want, reads = sequence.run(titans_lmm.RULE, rule, tokens, start)
    assert_close("y", y, reads, ANALYTIC)
    assert_close("M", state.memory.weights["W_1"][:, 0], want.M, ANALYTIC)
    assert_close("S", state.memory.momentum["W_1"][:, 0], want.S, ANALYTIC)


@pytest.mark.clause("NEURAL-6", "DEEP-11", "DEEP-5")
@pytest.mark.parametrize("order", [2, 3])
def test_momentum_of_several_orders_carries_the_order_before_it(order: int) -> None:
    """A linear memory of the rule, beside its loop."""
    rule = deep_memory.Config(
        d_in=3, d_out=2, memory={"kind": "linear"}, momentum_order=order, chunk=2, span=2,
        convention={"reference": "chunk_start", "newton_schulz": "none"},
    )  # fmt: skip
    rng = np.random.default_rng(6)
    k, v, W0 = rng.standard_normal((8, 3)), rng.standard_normal((8, 2)), rng.standard_normal((2, 3))
    m, h, keep = rng.uniform(0.1, 0.9, (8, order)), rng.uniform(0.1, 0.3, 8), rng.uniform(0.8, 1, 8)
    tokens = Tokens(k=k, v=v, q=k, momentum=m, step_size=h, retain=keep)
    state, y = sequence.run(deep_memory.RULE, rule, tokens, deep_memory.start(rule), phi={"W": W0})
    W, S = W0, [np.zeros((2, 3)) for _ in range(order)]
    for e in range(1, 8, 2):
        carried = sum(2.0 * np.outer(W @ k[i] - v[i], k[i]) for i in (e - 1, e))
        for j in range(order):
            S[j] = carried = m[e, j] * S[j] + carried
        W = keep[e] * W - h[e] * carried
    assert_close("W", state.weights["W"], W, ANALYTIC)
    assert_close("S", state.momentum["W"], np.array(S), ANALYTIC)
    assert_close("y", y[-1], W @ k[-1], ANALYTIC)
    halves, reads = deep_memory.start(rule), []
    for part in (slice(0, 3), slice(3, 8)):
        own = {name: getattr(tokens, name)[part] for name in ("k", "v", "q", "momentum", "retain")}
        halves, each = sequence.run(
            deep_memory.RULE, rule, Tokens(**own, step_size=h[part]), halves, phi={"W": W0}
        )
        reads.append(each)
    assert_close("y in two calls", np.concatenate(reads), y, ANALYTIC)


@pytest.mark.clause("NEURAL-7")
def test_reads_of_one_head_are_the_results() -> None:
    config = neural_memory.configured(4, chunk=2)
    params = neural_memory.init(config)
    assert params.W_out is None
    assert params.W_gate is None
    several = neural_memory.configured(4, chunk=2, heads=2, d_head=4)
    both = neural_memory.init(several, 3)
    shut = both.replaced(W_gate=0.0 * both.W_gate)
    x = np.random.default_rng(8).standard_normal((1, 5, 4))
    rows = [
        neural_memory.apply(several, each, neural_memory.start(several), x)[1]
        for each in (shut, shut.replaced(W_out=2.0 * shut.W_out), both)
    ]
    assert_close("twice", rows[1], 2.0 * rows[0], EXACT)
    assert_differs("gated", rows[2], rows[0], 1e-2)


@pytest.mark.clause("NEURAL-11")
def test_parameters_start_within_their_bounds_and_differ_by_seed() -> None:
    config = neural_memory.configured(9, heads=3, d_head=2, momentum_order=2)
    one, other = neural_memory.init(config, 1), neural_memory.init(config, 2)
    assert one == neural_memory.init(config, 1)
    assert one != other
    bounds = {"W_K": 3, "W_V": 3, "W_Q": 3, "W_gate": 3, "W_out": np.sqrt(6)}
    for name, root in bounds.items():
        values = np.abs(backend.host(getattr(one, name)))
        assert 0.5 / root < values.max() <= 1 / root
    shapes = {"retain": (3, 1, 9), "momentum": (3, 2, 9), "step_size": (3, 1, 9)}
    for name, shape in shapes.items():
        gate = getattr(one.gates, name)
        assert (gate.W.shape, gate.b.shape) == (shape, shape[:2])
        assert np.abs(backend.host(gate.b)).max() <= 1 / 3
    assert set(one.memory) == {"W_1", "W_2", "norm/gain"}
    assert one.memory["W_1"].shape == (3, 8, 2)
    assert_differs("heads", one.memory["W_1"][0], one.memory["W_1"][1], 0.1)
    assert isinstance(one.store_norm, NormParams)


@pytest.mark.clause("NEURAL-9")
def test_a_read_at_the_end_of_a_call_is_not_causal() -> None:
    config = neural_memory.configured(4)
    assert config.causal
    rule = config.rule
    late = rule.replaced(convention=rule.convention.replaced(read="call_end"))
    assert not config.replaced(rule=late).causal


def settings_of(**changes: Any) -> Any:
    rule = neural_memory.configured(4).rule
    convention = rule.convention.model_dump() | changes.pop("convention", {})
    own = {name: getattr(rule, name) for name in ("d_in", "d_out", "d_model", "memory", "chunk")}
    return deep_memory.Config(**own | {"convention": convention} | changes)


@pytest.mark.clause("NEURAL-1")
@pytest.mark.parametrize(
    ("changes", "layer", "words"),
    [
        ({"d_model": None}, {}, "rule: d_model is missing"),
        ({"convention": {"rate": "memory"}}, {}, "rule: rate memory, expected none"),
        ({"window_weights": {"kind": "softmax"}}, {}, "rule: window_weights learns window_logits"),
        ({"unfinished": "flush"}, {}, "rule: unfinished flush; gates are those of whole chunks"),
        ({"d_model": 5}, {"norm": norm.configured("rms", 5, 1e-6)}, "rule: d_out 4, expected d_mo"),
        ({}, {"norm": norm.configured("rms", 5, 1e-6)}, "norm: d 5, expected a norm of tokens"),
        ({"momentum_order": 2}, {"momentum": False}, "momentum: none, but the rule has 2 orders"),
        ({}, {"max_step": 0.0}, "max_step"),
    ],
)
def test_settings_that_do_not_agree_are_refused(changes: Any, layer: Any, words: str) -> None:
    of_tokens = norm.configured("rms", 4, 1e-6)
    with pytest.raises(ValueError, match=words):
        neural_memory.Config(**{"rule": settings_of(**changes), "norm": of_tokens} | layer)
    neural_memory.Config(rule=settings_of(), norm=of_tokens)


@pytest.mark.clause("NEURAL-1", "DEEP-11")
def test_a_look_ahead_along_several_momenta_is_refused() -> None:
    ahead = {"newton_schulz": {"argument": "nesterov"}}
    settings_of(convention=ahead)
    with pytest.raises(
        ValueError, match=r"momentum_order: 2, but newton_schulz\.argument nesterov"
    ):
        settings_of(convention=ahead, momentum_order=2)


def wrong_parts() -> dict[str, Any]:
    """Changes of parameters and of the state, with what is said of them."""
    config = neural_memory.configured(4, heads=2, d_head=2, chunk=3)
    params = neural_memory.init(config)
    gates, zeros = params.gates, np.zeros

    def memory(**own: Any) -> Any:
        return params.replaced(memory=params.memory | own)

    def changed(**own: Any) -> Any:
        return params.replaced(gates=gates.replaced(**own))

    return {
        "projection": (params.replaced(W_K=zeros((2, 3, 4))), r"params.W_K: shape \(2, 3, 4\)"),
        "no gate of reads": (params.replaced(W_gate=None), "params.W_gate: missing"),
        "output": (params.replaced(W_out=zeros((4, 2, 3))), r"params.W_out: shape \(4, 2, 3\)"),
        "gate missing": (changed(retain=None), "params.gates.retain: missing"),
        "gate shape": (
            changed(momentum=gates.momentum.replaced(b=zeros((2, 2)))),
            r"params.gates.momentum.b: shape \(2, 2\), expected \(2, 1\)",
        ),
        "memory shape": (memory(W_1=zeros((2, 7, 2))), r"params.memory.W_1: shape \(2, 7, 2\)"),
        "memory name": (memory(W_3=zeros((2, 2, 2))), "params.memory: W_1, W_2, norm/gain, W_3"),
        "norm": (
            params.replaced(store_norm=NormParams()),
            r"params.store_norm.weight: missing",
        ),
        "precision": (
            memory(W_1=params.memory["W_1"].astype(np.float32)),
            "params.memory.W_1: float32, but x is float64",
        ),
    }


@pytest.mark.clause("NEURAL-8", "NEURAL-11")
@pytest.mark.parametrize("name", [*wrong_parts(), "state"])
def test_parameters_and_states_that_contradict_the_settings_are_refused(name: str) -> None:
    config = neural_memory.configured(4, heads=2, d_head=2, chunk=3)
    params, state = neural_memory.init(config), neural_memory.start(config)
    x = np.random.default_rng(0).standard_normal((1, 4, 4))
    if name == "state":
        after, _ = neural_memory.apply(config, params, state, x)
        broken = after.replaced(tokens=after.tokens[:, :0])
        with pytest.raises(ValueError, match=r"state.tokens: shape \(1, 0, 4\), expected \(1, 1,"):
            neural_memory.apply(config, params, broken, x)
        with pytest.raises(ValueError, match="state"):
            neural_memory.apply(config, params, after, np.concatenate([x, x]))
        return
    changed, words = wrong_parts()[name]
    with pytest.raises(ValueError, match=words):
        neural_memory.apply(config, changed, state, x)


@pytest.mark.clause("NEURAL-10")
@pytest.mark.parametrize("number", range(6))
def test_a_state_dict_becomes_parameters_and_comes_back(number: int) -> None:
    settings = neural.drawn(number)
    at = neural.state_dict(settings, seed=number)
    config = titans_pytorch.config(settings, neural.EPS, {})
    params = atlas_rnn.parameters(titans_pytorch.MODULE, settings, config, at)
    assert (params.memory["W_1"] == np.swapaxes(_first(settings, at), 1, 2)).all()
    back = atlas_rnn.state_dict(titans_pytorch.MODULE, settings, params)
    assert set(back) == set(at)
    for name, value in at.items():
        assert_close(name, back[name], value, EXACT)


def _first(settings: Any, at: Any) -> Any:
    """The first matrix (heads, in, out) of a memory."""
    i = next(i for i, n in enumerate(titans_pytorch.memory_names(settings)) if n.endswith("s.0"))
    return at[f"memory_model_parameters.{i}"]
