"""Blocks as formulas of their parts, their starts, and refusals of what does not fit."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from atlas_ref import blocks
from atlas_ref.blocks import lmm, mac, mag, mal, mix
from atlas_ref.layers import attention, feed_forward, memory
from atlas_ref.levels.level import Level
from tape.nested import flatten
from tests.support.close import ANALYTIC, EXACT, assert_close
from tests.support.layer_blocks import BLOCKS, block
from tests.support.layers import Layer
from tests.support.memories import layer, levels, rule


def parts(config: Any, params: Any, x: Any) -> tuple[Any, Any]:
    """What attention and memory of a block return for tokens at the start of a document."""
    B = x.shape[0]
    _, a = attention.apply(
        config.attention, params.attention, attention.start(config.attention, B), x
    )
    _, m = memory.apply(config.memory, params.memory, memory.start(config.memory, B), x)
    return a, m


def fed(config: Any, params: Any, x: Any) -> Any:
    return x + feed_forward.apply(config, params, feed_forward.State(), x)[1]


@pytest.mark.clause("BLOCKS-3", "BLOCKS-4")
@pytest.mark.parametrize("kind", ["attention_times_gate", "gate_mix", "product", "sum"])
def test_mag_is_the_formula_of_its_branches(kind: str) -> None:
    system = Layer(mag, block(mag, mag=kind))
    params, x = system.drawn(), system.tokens(7)
    a, m = parts(system.config, params, x)

    def sigmoid(z: Any) -> Any:
        return 1.0 / (1.0 + np.exp(-z))

    def rms(z: Any, weight: Any) -> Any:
        return z / np.sqrt(np.mean(z * z, axis=-1, keepdims=True) + 1e-6) * weight

    own = params.mix
    if kind == "attention_times_gate":
        both = a * sigmoid(m)
    elif kind == "product":
        both = rms(a, own.attention_norm.weight) * rms(m, own.memory_norm.weight)
    else:
        g = sigmoid(x @ own.W.T + own.b)
        both = a + g * m if kind == "sum" else g * a + (1.0 - g) * m
    want = fed(system.config.feed_forward, params.feed_forward, x + both)
    assert_close("x", system.run(params, x)[1], want, ANALYTIC)


@pytest.mark.clause("BLOCKS-1", "BLOCKS-4", "BLOCKS-5", "BLOCKS-6")
def test_a_block_without_memory_is_its_other_parts() -> None:
    for name, module in (("mag without memory", mag), ("mal without memory", mal)):
        system = BLOCKS[name]
        params, x = system.drawn(), system.tokens(7)
        start = attention.start(system.config.attention, 2)
        y = x
        if module is mal:
            y = fed(system.config.ff_pre, params.ff_pre, y)
        y = y + attention.apply(system.config.attention, params.attention, start, y)[1]
        ff = ("ff_post", "ff_post") if module is mal else ("feed_forward", "feed_forward")
        want = fed(getattr(system.config, ff[0]), getattr(params, ff[1]), y)
        assert_close(name, system.run(params, x)[1], want, ANALYTIC)
    system = BLOCKS["lmm without memory"]
    params, x = system.drawn(), system.tokens(7)
    want = fed(system.config.feed_forward, params.feed_forward, x)
    assert_close("lmm", system.run(params, x)[1], want, ANALYTIC)


@pytest.mark.clause("BLOCKS-7", "ATTENTION-15", "MEMORY-12")
def test_the_mean_of_a_call_stands_before_the_keys_as_equal_rows() -> None:
    system = BLOCKS["mac mean of call"]
    config, params, x = system.config, system.drawn(), system.tokens(7)
    _, m = memory.apply(config.memory, params.memory, memory.start(config.memory, 2), x)
    mean = np.mean(m, axis=1, keepdims=True)
    pooled = (
        mean / np.sqrt(np.mean(mean**2, axis=-1, keepdims=True) + 1e-6) * params.pool_norm.weight
    )
    rows = np.repeat(pooled @ params.W_pool.T, 2, axis=1)
    start = attention.start(config.attention, 2)
    _, a = attention.apply(config.attention, params.attention, start, x, context=rows)
    want = fed(config.feed_forward, params.feed_forward, x + a)
    assert_close("x", system.run(params, x)[1], want, ANALYTIC)
    causal = BLOCKS["mag sum"].config.attention
    of_causal = attention.init(causal)
    with pytest.raises(ValueError, match="context: attention_window causal has no rows"):
        attention.apply(causal, of_causal, attention.start(causal, 2), x, context=rows)
    with pytest.raises(ValueError, match="context: shape"):
        attention.apply(config.attention, params.attention, start, x, context=rows[..., :4])


@pytest.mark.clause("MEMORY-12")
def test_what_is_retrieved_is_read_from_the_memory_as_it_is() -> None:
    config = layer(rule("titans_lmm"))
    system = Layer(memory, config)
    params, x = system.drawn(), system.tokens(9)
    state, _ = memory.apply(config, params, memory.start(config, 2), x)
    after, y = memory.retrieve(config, params, state, x)
    assert after.levels == state.levels
    assert not np.array_equal(after.tails[0][0].tail, np.zeros_like(after.tails[0][0].tail))
    alone = [memory.retrieve(config, params, state, x[:, :1])[1]]
    for t in range(1, 9):  # queries of a token see the convolution's own past alone
        before, _ = memory.retrieve(config, params, state, x[:, :t])
        alone.append(memory.retrieve(config, params, before, x[:, t : t + 1])[1])
    assert_close("y", np.concatenate(alone, axis=1), y, ANALYTIC)


@pytest.mark.clause("BLOCKS-7")
@pytest.mark.host("bits of states")
def test_a_committed_memory_is_kept_at_multiples_of_the_segment_alone() -> None:
    config = BLOCKS["mac mean of call"].config.replaced(state="committed")
    system = Layer(mac, config)
    params, x = system.drawn(), system.tokens(9)
    state = mac.start(config, 2)
    for first, last, kept in ((0, 3, False), (3, 4, True), (4, 6, False), (6, 8, True)):
        after, _ = mac.apply(config, params, state, x[:, first:last])
        assert (after.memory != state.memory) is kept
        state = after
    fresh = mac.forgotten(config, mac.start(config, 2), state)
    assert (fresh.memory, fresh.tokens) == (state.memory, 8)
    assert fresh.attention == mac.start(config, 2).attention
    explicit = config.replaced(state="explicit")
    assert mac.forgotten(explicit, mac.start(config, 2), state) == mac.start(config, 2)


@pytest.mark.clause("BLOCKS-8", "MEMORY-11")
@pytest.mark.host("values of a start")
def test_parts_start_as_their_specs_say() -> None:
    config = block(mag, own=layer(rule("omega"), window_gate=True), mag="gate_mix")
    params = mag.init(config, 3)
    own = params.memory.levels[0]
    gates = own.projection.gates
    for gate, bias in ((gates.retain, 4.0), (gates.momentum, 2.0), (gates.step_size, -4.0)):
        assert_close("b", gate.b, np.full((2, 1), bias), EXACT)
        assert_close("W", gate.W, np.zeros((2, 1, 6)), EXACT)
    assert_close("u", own.window_gate.b, np.zeros((2, 1)), EXACT)
    for array, terms in ((own.projection.W_Q, 6), (params.memory.W_out, 6), (params.mix.W, 6)):
        bound = 1.0 / np.sqrt(terms)
        assert bound * 0.7 < np.max(np.abs(array)) <= bound
    assert params.memory.logits is None
    assert mag.init(config, 3) == params
    assert mag.init(config, 4) != params
    forget = mag.init(block(mag, own=layer(rule("titans_lmm", convention={"gate": "forget"}))), 0)
    assert_close(
        "b", forget.memory.levels[0].projection.gates.retain.b, np.full((2, 1), -4.0), EXACT
    )
    several = memory.init(BLOCKS["memory levels"].config, 0)
    assert_close("logits", several.logits, np.zeros(3), EXACT)
    slow = several.levels[2].projection.gates
    assert_close("slow", slow.retain.b, np.full((2, 1), 4.5), EXACT)


@pytest.mark.clause("BLOCKS-1", "MEMORY-1")
def test_settings_that_contradict_each_other_are_refused_in_one_line() -> None:
    own, c = layer(rule("delta")), block(mag)
    wide = layer(rule("delta", d_model=8))
    build: list[tuple[Any, str]] = [
        (
            lambda: block(mac, own=layer(levels(Level(config=rule("delta")), per="call"))),
            "memory: levels with steps per call",
        ),
        (lambda: mag.Config(**c.__dict__ | {"memory": wide}), "memory: d_model 8, expected 6"),
        (
            lambda: lmm.Config(memory=None, feed_forward=None),
            "a block needs memory or feed_forward",
        ),
        (lambda: block(mac, mac_context="mean_of_call"), "attention_window causal does not fit"),
        (lambda: layer(rule("delta"), window_gate=True), "window_gate: a rule without a window"),
        (lambda: layer(rule("delta"), scan_chunk=3), "scan_chunk: needs state_clamp"),
        (
            lambda: memory.Config(**own.__dict__ | {"conv": wide.conv}),
            "conv: d_model 8, expected 6",
        ),
        (lambda: blocks.module_of(own), "Config is no block's, blocks are mag, mal, mac, lmm"),
    ]
    for make, says in build:
        with pytest.raises(ValueError, match=says):
            make()


def leaves_of(value: Any, change: Any) -> Any:
    """Copies of a value, one for each of its arrays, with that array changed."""
    leaves, places, build = flatten(value, "value")
    for i, place in enumerate(places):
        changed = change(leaves[i])
        yield place, build([*leaves[:i], changed, *leaves[i + 1 :]])


KINDS = ["mag gate_mix", "mag titans", "mac", "mac levels masked", "mac mean of call", "mal", "lmm"]


@pytest.mark.clause("BLOCKS-1", "MEMORY-1")
@pytest.mark.parametrize("name", KINDS)
def test_each_parameter_of_another_shape_or_precision_is_named(name: str) -> None:
    system = BLOCKS[name]
    params, x = system.drawn(), system.tokens(4)
    state = system.module.start(system.config, 2)
    for change in (
        lambda a: a.astype(np.float32),
        lambda a: np.concatenate([a, a[:1]]),
        lambda a: np.concatenate([a, a[..., :1]], axis=-1),
    ):
        for place, wrong in leaves_of(params, change):
            part = re.escape(place.split(".")[1].partition("[")[0])
            says = rf"^(params.{part}[\w.\[\]]*|x of {part}): "
            with pytest.raises(ValueError, match=says) as refusal:
                system.module.apply(system.config, wrong, state, x)
            assert "\n" not in str(refusal.value), place


@pytest.mark.clause("BLOCKS-2", "MEMORY-9")
@pytest.mark.parametrize("name", ["mag titans", "mal", "mac", "mac mean of call"])
def test_each_part_of_a_state_of_another_batch_is_named(name: str) -> None:
    system = BLOCKS[name]
    params, x = system.drawn(), system.tokens(4)
    state, _ = system.run(params, x[:, :3])
    for place, wrong in leaves_of(state, lambda a: np.concatenate([a, a])):
        with pytest.raises(ValueError, match=r"^state") as refusal:
            system.module.apply(system.config, params, wrong, x)
        assert "\n" not in str(refusal.value), place


@pytest.mark.clause("BLOCKS-1", "MEMORY-1")
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda p: p.replaced(memory=None), "params.memory: missing, but the block has one"),
        (lambda p: p.replaced(mix=p.mix.replaced(W=None)), "params.mix.W: missing"),
        (lambda p: p.replaced(mix=p.mix.replaced(b=np.zeros(5))), r"params.mix.b: shape \(5,\)"),
        (lambda p: p.replaced(mix=mix.Params(norm=None)), "params.mix.W: missing"),
        (
            lambda p: p.replaced(memory=p.memory.replaced(W_out=np.zeros((6, 2, 4)))),
            "params.memory.W_out: shape",
        ),
        (
            lambda p: p.replaced(memory=p.memory.replaced(levels=())),
            "params.memory.levels: 0, expected 1",
        ),
        (
            lambda p: p.replaced(memory=p.memory.replaced(logits=np.zeros(1))),
            "params.memory.logits: present, but the settings have none",
        ),
    ],
)
def test_parameters_that_lack_a_part_are_refused_in_one_line(change: Any, says: str) -> None:
    system = Layer(mag, block(mag, mag="gate_mix"))
    params, x = system.drawn(), system.tokens(4)
    with pytest.raises(ValueError, match=says) as refusal:
        mag.apply(system.config, change(params), mag.start(system.config, 2), x)
    assert "\n" not in str(refusal.value)
