"""Errata of layers and models: what leaks, what hides, what changes nothing."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atlas_ref
import tape
from atlas_ref.blocks import mac, mag, mix, with_memory
from atlas_ref.layers import attention, convention, memory
from atlas_ref.models import generation, language_model
from atlas_ref.models.import_atlas_rnn import Settings, model_config
from atlas_ref.parts.feature_maps import IDENTITY
from tests.support.close import ANALYTIC, assert_close
from tests.support.layer_blocks import block
from tests.support.layers import RECORDED, Layer, recorded
from tests.support.memories import layer, rule

SURVEY = Path(__file__).parents[2] / "specs" / "survey.json"

LAST = {"attention_window": "last_keys_of_call", "persistent_visible": "right_aligned"}


def moved(config: Any, module: Any, changed: int, tokens: int = 24) -> Any:
    """Tokens whose result changes with token `changed`."""
    system = Layer(module, config)
    params, x = system.drawn(), np.array(system.tokens(tokens))
    _, y = system.run(params, x)
    x[:, changed] += 1.0
    _, other = system.run(params, x)
    return np.flatnonzero((np.asarray(other) != np.asarray(y)).any(axis=(0, 2)))


@pytest.mark.clause("E-R06")
@pytest.mark.host("bits, token by token")
def test_e_r06_a_causal_mask_is_not_all_that_sees_the_future():
    public = {"conv_padding": "centred", "conv_state": "zero_per_call"}
    first = [
        int(moved(layer(rule("delta"), kernel=kernel, **public), memory, 20)[0])
        for kernel in (2, 3, 4, 5, 8)
    ]
    assert first == [20, 19, 19, 18, 17]
    assert moved(block(mag, window=8, persistent=0, **LAST), mag, 23)[0] == 0
    for kernel in (2, 3, 4, 5, 8):
        assert moved(layer(rule("delta"), kernel=kernel), memory, 20)[0] == 20
    assert moved(block(mag, window=8), mag, 23)[0] == 23


@pytest.mark.clause("E-G05")
def test_e_g05_memory_as_a_gate_is_four_functions():
    draw = np.random.default_rng(0)
    x, a, m = draw.standard_normal((3, 1, 16, 6))
    W, b = draw.uniform(-1, 1, (6, 6)) / np.sqrt(6), draw.uniform(-1, 1, 6) / np.sqrt(6)

    def sigmoid(z: Any) -> Any:
        return 1 / (1 + np.exp(-z))

    def rms(z: Any) -> Any:
        return z / np.sqrt((z * z).mean(axis=-1, keepdims=True) + 1e-6)

    g = np.array([[sigmoid(W @ token + b) for token in row] for row in x])
    literal = {
        "attention_times_gate": a * sigmoid(m),
        "gate_mix": g * a + (1 - g) * m,
        "product": rms(a) * rms(m),
        "sum": a + g * m,
    }
    sizes = [
        np.linalg.norm(one - other) / np.linalg.norm(other)
        for one, other in itertools.permutations(literal.values(), 2)
    ]
    assert (min(sizes), max(sizes)) == pytest.approx((0.577, 1.716), abs=0.001)
    for kind, want in literal.items():
        config = mix.configured(convention.resolve({"mag": kind}), 6)
        params = mix.init(config, draw)
        if config.has_gate:
            params = params.replaced(W=W, b=b)
        assert_close(kind, mix.mixed(config, params, x, a, m), want, ANALYTIC)


@pytest.mark.clause("E-R07", "BLOCKS-1")
@pytest.mark.host("recorded arrays")
def test_e_r07_the_printed_calls_of_mag_mal_and_lmm_do_not_run():
    (row,) = (
        row for row in json.loads(SURVEY.read_text())["rnn"]["rows"] if "README" in row["fault"]
    )
    assert row["package"] == "TypeError, TypeError, ImportError"
    assert row["atlas-rnn"] == "runs, runs, runs"
    for name in ("mag", "mal", "lmm", "mac"):
        file = recorded(f"atlas_rnn_lm_{name}")
        found = {
            name.split(".")[1]
            for name in file.named("in/param/")
            if name.endswith("memory.to_q.weight")
        }
        assert found == {str(i) for i in range(file.settings["depth"])}, "each layer has a memory"
    sizes: dict[str, Any] = {"dim": 8, "dim_head": 4, "heads": 2, "vocab": 11, "depth": 4}
    for kind in ("mag", "mal", "lmm"):
        config = model_config(Settings(**sizes, block_type=kind))
        config = config.replaced(blocks=with_memory(config.blocks, (1, 3)))
        assert [each.memory is not None for each in config.blocks] == [True, False, True, False]
        ids = np.arange(9)[None]
        _, loss = language_model.loss(
            config, language_model.init(config), language_model.start(config), ids
        )
        assert loss == pytest.approx(np.log(11), abs=0.01)
    for layers, found in (((0,), "0"), ((5,), "5")):
        with pytest.raises(ValueError, match=rf"^layers: {found}, expected 1 to 4$"):
            with_memory(config.blocks, layers)
    with pytest.raises(ValueError, match=r"^layers: block 2 is MAC, "):
        with_memory(model_config(Settings(**sizes, block_type="mac")).blocks, (1,))


@pytest.mark.clause("E-R21")
def test_e_r21_a_training_step_of_mac_reaches_into_those_before_it():
    mean = {"mac_context": "mean_of_call", "segment": 4, **LAST}
    draw = np.random.default_rng(0)
    steps, bar = draw.standard_normal((3, 1, 4, 6)), draw.standard_normal((1, 4, 6))

    def last_loss(config: Any, *calls: Any) -> Any:
        """Of the last of training steps, each given a fresh state."""
        params, before = Layer(mac, config).drawn(), mac.start(config)
        for x in calls:
            after, y = mac.apply(config, params, before, x)
            before = mac.forgotten(config, mac.start(config), after)
        return tape.ops.sum(y * bar)

    committed = block(mac, mac_state="committed", **mean)
    gradients = tape.grad(lambda *x: last_loss(committed, *x), argnums=(0, 1, 2))(*steps)
    sizes = [np.linalg.norm(each) / np.linalg.norm(gradients[-1]) for each in gradients]
    assert sizes == pytest.approx([0.153, 0.323, 1.0], abs=0.001)
    for i, gradient in enumerate(gradients):
        calls = list(steps.astype(complex))
        direction = draw.standard_normal(calls[i].shape)
        calls[i] = calls[i] + 1e-30j * direction
        slope = last_loss(committed, *calls).imag / 1e-30
        assert_close(f"call {i}", np.sum(gradient * direction), slope, ANALYTIC)
    for config in (block(mac, **mean), block(mac)):
        assert last_loss(config, *steps) == last_loss(config, steps[2])
        assert last_loss(committed, *steps) != last_loss(committed, steps[2])


@pytest.mark.clause("E-R16")
@pytest.mark.host("recorded arrays")
def test_e_r16_the_memory_of_mac_lives_outside_of_its_state():
    file = recorded("atlas_rnn_lm_mac")
    first, again = (file.tensors[f"out/logits_call{i}"] for i in range(2))
    assert file.settings["repeat_calls"] == [16, 16]
    assert np.linalg.norm(again - first) / np.linalg.norm(first) == pytest.approx(0.193, abs=0.001)
    assert moved(block(mac, mac_context="mean_of_call", segment=32, **LAST), mac, 23)[0] == 0
    config = block(mac)
    params, x = Layer(mac, config).drawn(), Layer(mac, config).tokens(16)
    once, twice = (mac.apply(config, params, mac.start(config, 2), x)[1] for _ in range(2))
    assert np.array_equal(once, twice)
    assert moved(config, mac, 23)[0] == 23


@pytest.mark.clause("E-R17")
@pytest.mark.host("recorded arrays")
def test_e_r17_a_degree_without_a_mode_and_a_mode_of_degree_1_change_nothing():
    for inert in ({"poly_degree": 2}, {"poly_mode": "elementwise"}, {"poly_mode": "tensor"}):
        assert Settings(dim=4, **inert).feature_map == IDENTITY
    assert Settings(dim=4, poly_degree=2, poly_mode="elementwise").feature_map != IDENTITY
    case = atlas_ref.load(RECORDED / "atlas_rnn_memory_omega4_tensor1_inert_11.safetensors")
    assert {row.verdict for row in atlas_ref.check(case)} == {"PASS"}


@pytest.mark.clause("E-R19")
@pytest.mark.host("bits, token by token")
def test_e_r19_persistent_tokens_fall_under_the_causal_mask():
    def queries(**settings: Any) -> list[int]:
        config = block(mag, window=5, persistent=3, **settings).attention
        params = attention.init(config, 0)
        other = params.replaced(persistent=params.persistent + np.array([0.0, 0.0, 1.0])[:, None])
        x = np.random.default_rng(0).standard_normal((1, 12, 6))
        start = attention.start(config)
        one, two = (attention.apply(config, p, start, x)[1] for p in (params, other))
        return np.flatnonzero((one != two).any(axis=(0, 2))).tolist()

    assert queries() == list(range(12))
    # four queries take the mean of all, three see none, one or two of the rows
    assert queries(**LAST) == [0, 1, 2, 3, 6, 7, 8, 9, 10, 11]


@pytest.mark.clause("E-R20")
@pytest.mark.host("recorded arrays")
def test_e_r20_generation_with_a_cache_is_another_function():
    apart = []
    for name in ("mag", "mal", "lmm", "mac"):
        file = recorded(f"atlas_rnn_lm_{name}")
        cached, whole = (file.tensors[f"out/greedy_{run}_logits"] for run in ("cached", "uncached"))
        assert_close("first", cached[:, 0], whole[:, 0], ANALYTIC)
        apart.append(np.linalg.norm(cached[:, 1] - whole[:, 1]) / np.linalg.norm(whole[:, 1]))
    assert (min(apart), max(apart)) == pytest.approx((0.071, 0.560), abs=0.001)
    config = language_model.configured(
        convention.resolve("causal"), [block(mag), block(mac)], vocabulary=11
    )
    params, prompt = language_model.init(config, 0), np.array([[1, 2, 3]])
    runs = [
        generation.generate(config, params, prompt, steps=4, temperature=0.0, cached=cached)
        for cached in (True, False)
    ]
    assert_close("logits", runs[0].logits, runs[1].logits, ANALYTIC)
