"""Properties of every layer: calls cut anywhere, documents, sequences of a batch, causality,
gradients, refusals.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from atlas_ref import backend, layers
from atlas_ref.layers import convention, memory, norm
from atlas_ref.levels.pulse import Conductor
from atlas_ref.types import Frozen
from tape import ops
from tape.check import check_gradient, check_second
from tape.nested import flatten
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs
from tests.support.directions import check_directions
from tests.support.layer_blocks import BLOCKS
from tests.support.layers import LAYERS, Layer
from tests.support.memories import MEMORIES

#: Layers and blocks.
SYSTEMS = LAYERS | BLOCKS

DOCUMENTS = [name for name, each in SYSTEMS.items() if each.documents]
#: Whose last rows of a call are those of all documents at once.
REFUSE_DOCUMENTS = ("attention last keys", "mac mean of call")
SPLITS = [name for name, each in SYSTEMS.items() if each.splits]
CAUSAL = [name for name, each in SYSTEMS.items() if each.causal]


def at_step(state: Any, tokens: int) -> Any:
    """A state whose conductors have driven so many tokens: steps of levels go on (CMS-9)."""
    if isinstance(state, Conductor):
        return state.advanced(tokens)
    if isinstance(state, tuple):
        return tuple(at_step(each, tokens) for each in state)
    if isinstance(state, Frozen):
        return state.replaced(**{name: at_step(each, tokens) for name, each in state})
    return state


def same_state(one: Any, other: Any) -> None:
    leaves, paths, _ = flatten(one, "state")
    for path, a, b in zip(paths, leaves, flatten(other, "state")[0], strict=True):
        assert_close(path, a, b, ANALYTIC)
    assert backend.changed(one, np.zeros_like) == backend.changed(other, np.zeros_like)


@pytest.mark.sample(20)
@pytest.mark.clause(
    "NORM-3",
    "ROTARY-4",
    "CONVOLUTION-4",
    "FEED-4",
    "ATTENTION-8",
    "MEMORY-9",
    "NEURAL-8",
    "BLOCKS-2",
)
@pytest.mark.parametrize("name", SPLITS)
@settings(max_examples=12, deadline=None)
@given(
    cuts=st.sets(st.integers(1, 14), max_size=5),
    boundaries=st.sets(st.integers(0, 14), max_size=3),
)
def test_calls_of_any_length_give_what_one_call_gives(
    name: str, cuts: set[int], boundaries: set[int]
) -> None:
    layer = SYSTEMS[name]
    params, x = layer.drawn(), layer.tokens(15)
    reset = np.isin(np.arange(15), list(boundaries))
    whole, y = layer.run(params, x, reset=reset)
    after, same = layer.run(params, x, cuts, reset)
    assert_close("y", same, y, ANALYTIC)
    same_state(after, whole)


@pytest.mark.sample(20)
@pytest.mark.clause(
    "NORM-3",
    "ROTARY-5",
    "CONVOLUTION-5",
    "FEED-4",
    "ATTENTION-9",
    "MEMORY-9",
    "NEURAL-8",
    "BLOCKS-2",
)
@pytest.mark.parametrize("name", DOCUMENTS)
@settings(max_examples=12, deadline=None)
@given(boundaries=st.sets(st.integers(0, 12), min_size=1, max_size=4))
def test_documents_packed_into_a_call_are_documents_alone(name: str, boundaries: set[int]) -> None:
    layer = SYSTEMS[name]
    params, x, before = layer.drawn(), layer.tokens(13), layer.tokens(5, seed=1)
    reset = np.isin(np.arange(13), list(boundaries))
    state, _ = layer.run(params, before)
    after, y = layer.run(params, x, reset=reset, state=state)
    for part in np.split(np.arange(13), sorted(boundaries)):
        if len(part):
            fresh = state
            if reset[part[0]]:
                documents = 1 + int(reset[: part[0]].sum())
                steps = 5 + int(part[0]) + documents * layer.before
                fresh = at_step(layer.module.start(layer.config, 2), steps)
            alone, want = layer.run(params, x[..., part, :], state=fresh)
            assert_close(f"tokens {part}", y[..., part, :], want, ANALYTIC)
    same_state(after, alone)


@pytest.mark.clause(
    "NORM-3",
    "ROTARY-6",
    "CONVOLUTION-3",
    "FEED-4",
    "ATTENTION-10",
    "MEMORY-10",
    "NEURAL-9",
    "BLOCKS-2",
)
@pytest.mark.parametrize("name", CAUSAL)
def test_no_token_changes_a_bit_of_what_comes_before_it(name: str) -> None:
    layer = SYSTEMS[name]
    params, x = layer.drawn(), layer.tokens(70)
    _, y = layer.run(params, x)
    for t in (0, 1, 33, 69):
        other = np.array(backend.host(x))
        other[..., t, :] += 1.0
        _, changed = layer.run(params, backend.device(other))
        assert_close(f"before {t}", changed[..., :t, :], y[..., :t, :], EXACT)
        if name != "norm layer":  # which takes away what is added to all entries
            assert_differs(f"at {t}", changed[..., t, :], y[..., t, :], 1e-3)


@pytest.mark.clause(
    "NORM-3", "CONVOLUTION-1", "FEED-4", "ATTENTION-10", "MEMORY-10", "NEURAL-9", "BLOCKS-2"
)
@pytest.mark.parametrize("name", SYSTEMS)
def test_sequences_of_a_batch_are_independent(name: str) -> None:
    layer = SYSTEMS[name]
    params, x = layer.drawn(), layer.tokens(9, batch=3)
    _, together = layer.run(params, x)
    for b in range(3):
        assert_close(str(b), layer.run(params, x[b : b + 1])[1], together[b : b + 1], ANALYTIC)


def weighed(layer: Layer, T: int, cut: int, reset: Any) -> tuple[Any, Any]:
    """A linear function of results and of the last state of two calls, and where it is taken."""
    at = {"params": layer.drawn(), "x": layer.tokens(T, batch=1)}
    state, y = layer.run(at["params"], at["x"], (cut,), reset)
    draw = np.random.default_rng(7)
    bar = draw.standard_normal(y.shape)
    bars = [draw.standard_normal(leaf.shape) for leaf in flatten(state, "state")[0]]

    def loss(at: Any) -> Any:
        state, total = layer.module.start(layer.config, 1), 0.0
        for part in (slice(0, cut), slice(cut, T)):
            documents = None if reset is None else reset[part]
            state, y = layer.module.apply(
                layer.config, at["params"], state, at["x"][..., part, :], reset=documents
            )
            total = total + ops.sum(y * bar[..., part, :])
        for leaf, each in zip(flatten(state, "state")[0], bars, strict=True):
            total = total + ops.sum(leaf * each)
        return total

    return loss, at


@pytest.mark.sample(36)
@pytest.mark.clause(
    "NORM-6",
    "ROTARY-6",
    "CONVOLUTION-6",
    "FEED-3",
    "ATTENTION-12",
    "MEMORY-2",
    "NEURAL-2",
    "BLOCKS-2",
)
@pytest.mark.host("a complex step, entry by entry")
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", SYSTEMS)
def test_every_gradient_is_its_complex_step(name: str, packed: bool) -> None:
    if packed and name in REFUSE_DOCUMENTS:
        with pytest.raises(ValueError, match=r"reset: (attention_window|context) \w+ knows no doc"):
            weighed(SYSTEMS[name], 7, 4, np.arange(7) == 5)
        return
    reset = np.isin(np.arange(7), [2, 5]) if packed else None
    loss, at = weighed(SYSTEMS[name], 7, 4, reset)
    if name in LAYERS:
        check_gradient(loss, at)
    else:
        check_directions(loss, at, tolerance=1e-11)


@pytest.mark.clause("NORM-6", "ATTENTION-12")
@pytest.mark.host("a complex step, entry by entry")
@pytest.mark.parametrize("name", ["norm rms", "feed_forward", "convolution silu", "attention"])
def test_a_second_derivative_is_the_complex_step_of_the_first(name: str) -> None:
    loss, at = weighed(SYSTEMS[name], 5, 3, None)
    leaves, _, build = flatten(at, "at")
    draw = np.random.default_rng(3)
    along = build([draw.standard_normal(leaf.shape) for leaf in leaves])
    check_second(loss, at, along)


@pytest.mark.clause("NORM-2")
@pytest.mark.parametrize("name", SYSTEMS)
def test_float32_stays_float32_and_precisions_do_not_mix(name: str) -> None:
    layer = SYSTEMS[name]
    config, x = layer.config, layer.tokens(5)
    params, state = layer.module.init(config), layer.module.start(config, 2)
    small = layer.module.init(config, dtype=np.float32)
    beside = layer.module.start(config, 2, dtype=np.float32)
    after, y = layer.module.apply(config, small, beside, x.astype(np.float32))
    _, want = layer.module.apply(config, params, state, x)
    assert y.dtype == np.float32
    assert all(leaf.dtype == np.float32 for leaf in flatten(after, "state")[0])
    assert float(np.max(np.abs(y - want))) < 1e-5
    if flatten(params, "params")[0]:
        with pytest.raises(ValueError, match=r"(x is|x:) float32.*cast them to one"):
            layer.module.apply(config, params, beside, x.astype(np.float32))


@pytest.mark.clause("NORM-2")
@pytest.mark.parametrize("name", SYSTEMS)
def test_arguments_of_another_shape_or_layer_are_refused_in_one_line(name: str) -> None:
    layer = SYSTEMS[name]
    apply, config = layer.module.apply, layer.config
    params, state, x = layer.drawn(), layer.module.start(config, 2), layer.tokens(5)
    another = norm.Params() if layer.module is not norm else LAYERS["rotary"].drawn()
    broken = np.array(backend.host(x))
    broken[0, ..., 2, 1] = np.nan
    wrong = [
        ((config, another, state, x), {}, r"params: atlas_ref\.(layers|blocks)\."),
        ((params, params, state, x), {}, r"config: atlas_ref\.(layers|blocks)\."),
        ((config, params, None, x), {}, r"state: builtins.NoneType, expected atlas_ref\."),
        ((config, params, state, x[..., :4]), {}, r"x: shape \("),
        ((config, params, state, backend.device(broken)), {}, "x: every entry must be finite"),
        ((config, params, state, x), {"reset": np.ones(4, bool)}, r"reset: bool of shape \(4,\)"),
        ((config, params, state, x), {"reset": np.ones(5)}, r"reset: float64 of shape \(5,\)"),
    ]
    for arguments, keywords, says in wrong:
        with pytest.raises(ValueError, match=says) as refusal:
            apply(*arguments, **keywords)
        assert "\n" not in str(refusal.value)
    for seed in (-1, 0.5, True):
        with pytest.raises(ValueError, match=r"seed: .*, expected a whole number"):
            layer.module.init(config, seed)
    with pytest.raises(ValueError, match="batch: -1, expected a whole number"):
        layer.module.start(config, -1)
    with pytest.raises(ValueError, match="dtype: a floating or complex dtype is needed"):
        layer.module.init(config, 0, dtype=np.int64)
    with pytest.raises(ValidationError, match="Extra inputs"):
        type(config)(**config.__dict__, unknown=1)


@pytest.mark.clause("NORM-2")
def test_every_layer_has_the_same_six_names_and_is_tested_here() -> None:
    modules = {layer.module.__name__ for layer in SYSTEMS.values()}
    assert {name for name in modules if name.startswith("atlas_ref.layers.")} == {
        f"atlas_ref.layers.{name}" for name in layers.LAYERS
    }
    for layer in SYSTEMS.values():
        state = layer.module.start(layer.config)
        assert isinstance(layer.config, layer.module.Config)
        assert isinstance(layer.module.init(layer.config), layer.module.Params)
        assert isinstance(state, layer.module.State)
        for preset in getattr(layer.module, "PRESETS", {}).values():
            assert preset.keys() <= layer.module.Config.model_fields.keys()


def _without(params: Any, name: str, value: Any) -> Any:
    """Parameters of a memory layer of one level with one part of its branch in place of another."""
    (branch,) = params.levels
    return params.replaced(levels=(branch.replaced(**{name: value}),))


@pytest.mark.clause("NORM-2", "MEMORY-1", "MEMORY-9")
def test_a_memory_names_wrong_taps_and_tails() -> None:
    c, own = convention.resolve("causal"), MEMORIES["memory delta"].config
    for kernel in (0, -1, 2.0, True):
        with pytest.raises(ValueError, match=rf"kernel: {kernel}, expected"):
            memory.configured(c, own.levels, kernel=kernel)  # type: ignore[arg-type]
    params, state = memory.init(own), memory.start(own, 2)
    ((q, k, v),) = state.tails
    longer = q.replaced(tail=np.zeros((2, 9, 6)))
    for tails, says in (
        (((longer, k, v),), r"state.tails\[0\]: q: shape \(2, 9, 6\), expected"),
        (((q, k),), r"state.tails\[0\]: 2, expected those of q, k and v"),
    ):
        with pytest.raises(ValueError, match=says):
            memory.apply(own, params, state.replaced(tails=tails), np.zeros((2, 4, 6)))


@pytest.mark.clause("NORM-2")
def test_a_memory_refuses_parts_that_its_settings_contradict() -> None:
    plain = MEMORIES["memory delta"].config
    biased = plain.replaced(conv=plain.conv.replaced(bias=True))
    params = memory.init(biased)
    (branch,) = params.levels
    filters, x = branch.q_conv, np.zeros((2, 4, 6))
    for config, own, says in (
        (biased, None, r"params.q_conv: missing, but the settings need it"),
        (biased, filters.replaced(bias=None), r"params.q_conv.bias: missing, but bias True needs"),
        (plain, filters, r"params.q_conv.bias: present, but bias False has none"),
        (biased, filters.replaced(bias=np.ones(5)), r"params.q_conv.bias: shape \(5,\), expected"),
        (
            biased,
            filters.replaced(bias=np.ones(6, np.float32)),
            r"params.q_conv.bias: float32, but x is float64",
        ),
        (plain.replaced(conv=None), filters, r"params.q_conv: present, but the settings have none"),
    ):
        state = memory.start(config, 2)
        with pytest.raises(ValueError, match=says):
            memory.apply(config, _without(params, "q_conv", own), state, x)
    state = memory.start(biased, 2)
    memory.apply(biased, params, state, x)
    for name, says in (
        ("q_norm", "params.q_norm: missing, but head_norm is rms"),
        ("window_gate", "params.window_gate: present, but window_gate is False"),
    ):
        value = None if name == "q_norm" else branch.projection.gates.retain
        with pytest.raises(ValueError, match=says):
            memory.apply(biased, _without(params, name, value), state, x)
