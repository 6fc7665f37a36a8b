"""The depthwise convolution against plain loops and recorded memories of public code, and what it
sees of the future.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

import tape
from atlas_ref.layers import convolution, norm
from tape import ops
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs
from tests.support.layers import files, recorded
from tests.truth import layer_loops

#: Memory layers of one token, without a window.
RECORDED = [
    f"atlas_rnn_memory_titans{each}"
    for each in ("", "_causalconv", "_conv2", "_conv3_nonorm", "_conv5")
]


@pytest.mark.clause("CONVOLUTION-1", "CONVOLUTION-2", "CONVOLUTION-6", "CONVOLUTION-8", "NORM-4")
@pytest.mark.host("recorded arrays")
@pytest.mark.parametrize("name", RECORDED)
def test_recorded_memories_of_public_code_with_their_gradients(name: str) -> None:
    """Convolution and norms inside a memory layer, the rest of which is a loop of the tests."""
    file = recorded(name)
    theirs = {each.removeprefix("cell."): a for each, a in file.named("in/param/").items()}
    D, d, H = (file.settings[key] for key in ("dim", "dim_head", "heads"))
    causal = "atlas-rnn causal" if file.settings["conv"] == "causal" else "atlas-rnn"
    conv = convolution.Config(
        d_model=D, kernel=file.settings["qkv_conv_kernel"], **convolution.PRESETS[causal]
    )
    of_tokens = norm.Config(d=D, **norm.PRESETS["atlas-rnn"])
    of_heads = norm.Config(d=d, heads=H, **norm.PRESETS["atlas-rnn head"])

    def run(at: Any) -> Any:
        n = norm.normed(of_tokens, norm.Params(weight=at["pre_norm.weight"]), at["x"])

        def convolved(which: str) -> Any:
            weight = ops.squeeze(at[f"{which}_conv.weight"], 1)
            params, state = convolution.Params(weight=weight), convolution.start(conv, B)
            return convolution.apply(conv, params, state, n)[1]

        def heads(x: Any, which: str) -> Any:
            if not file.settings["qk_norm"]:
                return x
            weight = ops.squeeze(at[f"{which}_norm.gamma"], 1)
            return norm.apply(of_heads, norm.Params(weight=weight), norm.State(), x)[1]

        S, Z = (ops.reshape(at[each], (B, H, d, d)) for each in ("S", "Z"))
        inputs = (*map(convolved, "qkv"), n)
        return layer_loops.memory(inputs, heads, at, S, Z, ops)

    B = file.tensors["in/x"].shape[0]
    empty = {each: np.zeros((B * H, d, d)) for each in ("S", "Z")}
    at = theirs | empty | file.named("in/state/") | {"x": file.tensors["in/x"]}
    y, S, Z = run(at)
    assert_close("y", y, file.tensors["out/y"], ANALYTIC)
    assert_close("S", S.reshape(B * H, d, d), file.tensors["out/state/S"], ANALYTIC)
    assert_close("Z", Z.reshape(B * H, d, d), file.tensors["out/state/Z"], ANALYTIC)

    def loss(at: Any) -> Any:
        y, *states = run(at)
        total = ops.sum(y * file.tensors["in/y_bar"])
        for each, key in zip(states, ("S", "Z"), strict=True):
            bar = file.tensors.get(f"in/state_bar/{key}")
            total = total if bar is None else total + ops.sum(each * bar.reshape(B, H, d, d))
        return total

    gradient = tape.grad(loss)(at)
    for key, want in file.named("grad/param/cell.").items():
        assert_close(key, gradient[key], want, ANALYTIC)
    assert_close("x", gradient["x"], file.tensors["grad/x"], ANALYTIC)


@pytest.mark.clause("CONVOLUTION-1", "CONVOLUTION-6", "CONVOLUTION-8")
@pytest.mark.host("recorded arrays")
@pytest.mark.parametrize("name", files("causal_conv"))
def test_a_recorded_causal_convolution_with_a_bias_and_its_gradients(name: str) -> None:
    file = recorded(name)
    config = convolution.Config(
        d_model=file.settings["dim"],
        kernel=file.settings["kernel_size"],
        **convolution.PRESETS["atlas-mag"],
    )
    state = convolution.start(config, file.tensors["in/x"].shape[0])

    def run(at: Any) -> Any:
        weight = ops.squeeze(at["conv.weight"], 1)
        params = convolution.Params(weight=weight, bias=at["conv.bias"])
        return convolution.apply(config, params, state, at["x"])[1]

    at = file.named("in/param/") | {"x": file.tensors["in/x"]}
    assert_close("y", run(at), file.tensors["out/y"], ANALYTIC)
    gradient = tape.grad(lambda at: ops.sum(run(at) * file.tensors["in/y_bar"]))(at)
    for key, want in (file.named("grad/param/") | {"x": file.tensors["grad/x"]}).items():
        assert_close(key, gradient[key], want, ANALYTIC)


@pytest.mark.clause("CONVOLUTION-1", "CONVOLUTION-2", "CONVOLUTION-4", "CONVOLUTION-5")
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("padding", ["causal", "centred"])
@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 5, 8])
def test_a_convolution_is_its_definition_in_loops(
    kernel: int, padding: Any, activation: Any, packed: bool
) -> None:
    state = "carried" if padding == "causal" or kernel <= 2 else "zero_per_call"
    config = convolution.Config(
        d_model=3, kernel=kernel, padding=padding, activation=activation, state=state
    )
    draw = np.random.default_rng(kernel)
    params = convolution.init(config, 1)
    tail = draw.standard_normal((2, config.rows, 3))
    x = draw.standard_normal((2, 6, 3))
    reset = np.array([False, False, True, False, True, False]) if packed else None
    after, y = convolution.apply(config, params, convolution.State(tail=tail), x, reset=reset)
    want = layer_loops.convolution(x, params.weight, padding, activation, tail, reset)
    assert_close("y", y, want, ANALYTIC)
    rows = np.concatenate([tail, x], axis=1)[:, -config.rows :] if config.rows else tail
    if packed and config.rows > 2:
        rows = np.where((np.arange(config.rows) < config.rows - 2)[:, None], 0.0, rows)
    assert_close("tail", after.tail, rows, EXACT)


@pytest.mark.clause("CONVOLUTION-3")
@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("padding", ["causal", "centred"])
def test_a_centred_convolution_looks_k_minus_1_minus_half_k_tokens_ahead(
    padding: Any, kernel: int
) -> None:
    config = convolution.Config(d_model=2, kernel=kernel, padding=padding, state="zero_per_call")
    ahead = kernel - 1 - kernel // 2 if padding == "centred" else 0
    assert config.look_ahead == ahead
    params, state = convolution.init(config, 1), convolution.start(config)
    x = np.random.default_rng(0).standard_normal((1, 12, 2))
    _, y = convolution.apply(config, params, state, x)
    other = np.array(x)
    other[:, 8] += 1.0
    _, changed = convolution.apply(config, params, state, other)
    first = int(np.argmax(np.any(np.asarray(changed != y), axis=(0, 2))))
    assert first == 8 - ahead
    assert_close("before", changed[:, :first], y[:, :first], EXACT)


@pytest.mark.clause("CONVOLUTION-4")
def test_under_zero_per_call_a_cut_shows_and_the_state_is_empty() -> None:
    config = convolution.Config(d_model=2, kernel=4, **convolution.PRESETS["atlas-rnn causal"])
    params, state = convolution.init(config, 1), convolution.start(config)
    x = np.random.default_rng(0).standard_normal((1, 8, 2))
    _, whole = convolution.apply(config, params, state, x)
    after, first = convolution.apply(config, params, state, x[:, :5])
    _, second = convolution.apply(config, params, after, x[:, 5:])
    assert after.tail.shape == (1, 0, 2)
    assert_close("before the cut", first, whole[:, :5], EXACT)
    assert_differs("after the cut", second, whole[:, 5:], 1e-2)


@pytest.mark.clause("CONVOLUTION-7")
@pytest.mark.host("a distribution")
def test_filters_start_within_their_bounds() -> None:
    config = convolution.Config(d_model=200, kernel=4)
    weight = convolution.init(config, 3).weight
    assert 0.49 < np.max(np.abs(weight)) <= 0.5
    assert np.std(weight) == pytest.approx(0.5 / np.sqrt(3), rel=0.1)


@pytest.mark.clause("CONVOLUTION-3", "CONVOLUTION-4")
def test_a_centred_filter_has_no_state_to_carry_and_shapes_must_agree() -> None:
    with pytest.raises(ValidationError, match="centred at kernel 4 reads 1 token of the future"):
        convolution.Config(d_model=2, kernel=4, padding="centred")
    config = convolution.Config(d_model=2, kernel=4)
    params, state, x = convolution.init(config), convolution.start(config), np.ones((1, 3, 2))
    for arguments, says in (
        ((convolution.Params(weight=np.ones((2, 3))), state, x), r"params.weight: shape \(2, 3\)"),
        ((params, convolution.start(config, 2), x), r"state.tail: shape \(2, 3, 2\), expected"),
        ((params.replaced(bias=np.ones(2)), state, x), "params.bias: present, but bias False has"),
        ((params, state, x[:, :0]), "with at least one token"),
    ):
        with pytest.raises(ValueError, match=says):
            convolution.apply(config, *arguments)
