"""Gates, sizes and contributions of memories that share attention, in a model and in a recorded one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref import backend
from atlas_ref.blocks import mag
from atlas_ref.models import atlas_mag, audit, language_model
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs
from tests.support.layers import recorded
from tests.support.shared_memories import SETTINGS, drawn
from tests.truth import atlas_mag_loops as loops
from tests.truth import atlas_mag_parts as parts

pytestmark = pytest.mark.host("recorded arrays, and numbers of the host")

FOLDER = "peers_atlas_mag"


def model(preset: str = "causal", **changes: Any) -> Any:
    own = {"chunk": 3} | changes if preset == "causal" else changes
    config = atlas_mag.model(SETTINGS.replaced(training=True), preset, **own)
    params = drawn(language_model, config, 3)
    ids = np.random.default_rng(2).integers(0, SETTINGS.vocab_size, (2, 9))
    return config, params, language_model.start(config, 2), ids


def of_block(values: Any) -> audit.Statistics:
    """Of a recorded tensor, by loops."""
    numbers = [float(each) for each in np.ravel(values)]
    mean = sum(numbers) / len(numbers)
    square = sum((each - mean) ** 2 for each in numbers) / len(numbers)
    return audit.Statistics(mean, square**0.5, min(numbers), max(numbers))


@pytest.mark.clause("MAG-8", "MAG-10")
def test_a_recorded_block_in_a_model_has_the_gates_and_sizes_that_were_recorded() -> None:
    """The block's tokens as rows of the embedding, each an id of its own."""
    file = recorded("mag_block_ttl_off", FOLDER)
    tensors, x = file.tensors, file.tensors["in/x"]
    B, T, D = x.shape
    own = {"vocab_size": B * T, "n_layers": 1, "training": False} | file.settings
    fields = atlas_mag.Settings.model_fields
    settings = atlas_mag.Settings(**{k: v for k, v in own.items() if k in fields})
    settings = settings.replaced(training=False)
    config = atlas_mag.model(settings)
    named = {f"blocks.0.{name}": each for name, each in file.named("in/param/").items()}
    named |= {"tok_emb.weight": x.reshape(B * T, D), "w_init": np.zeros(D)}
    params = atlas_mag.parameters(settings, named | {"norm_f.weight": np.ones(D)})
    ids = np.arange(B * T).reshape(B, T)
    (layer,) = audit.layers(config, params, language_model.start(config, B), ids)
    m, a = tensors["out/mem_out"], tensors["out/attn_projected"]
    for name, got, want in (
        ("gate", layer.gate, of_block(tensors["out/gamma"])),
        ("mix", layer.mix, of_block(1.0 / (1.0 + np.exp(-m)))),
    ):
        assert_close(name, np.array(got), np.array(want), ANALYTIC)
    sizes = [np.sqrt(np.sum(each**2) / each.size) for each in (a, m)]
    assert_close("sizes", np.array([layer.attention, layer.memory]), np.array(sizes), ANALYTIC)
    assert layer.ratio == layer.memory / layer.attention


@pytest.mark.clause("MAG-8")
def test_gates_start_at_a_half_and_every_block_has_its_own() -> None:
    config, params, state, ids = model()
    first = language_model.init(config, 0)
    for layer in audit.layers(config, first, state, ids):
        assert layer.gate == audit.Statistics(0.5, 0.0, 0.5, 0.5)
    layers = audit.layers(config, params, state, ids)
    assert [layer.block for layer in layers] == [0, 1]
    assert layers[0].gate != layers[1].gate
    for layer in layers:
        assert layer.gate is not None
        assert 0.0 < layer.gate.min < layer.gate.mean < layer.gate.max < 1.0
        assert layer.gate.std > 0.0
    plain, *others = audit.layers(*model(memory_input="q", window_weights="decay"))
    assert (plain.gate, len(others)) == (None, 1)
    assert audit.layers(*model(mag="sum"))[0].mix is None


@pytest.mark.clause("MAG-9")
@pytest.mark.parametrize("preset", ["causal", "atlas-mag"])
def test_a_contribution_is_the_model_against_blocks_without_and_with_a_memory_of_zeros(
    preset: str,
) -> None:
    config, params, state, ids = model(preset)
    found = audit.contribution(config, params, state, ids)
    assert_close("loss", found.loss, language_model.loss(config, params, state, ids)[1], EXACT)
    only = atlas_mag.attention_only(SETTINGS)
    bare = params.replaced(
        blocks=tuple(each.replaced(memory=None, mix=None) for each in params.blocks)
    )
    start = language_model.start(only, 2)
    assert_close("off", found.disabled, language_model.loss(only, bare, start, ids)[1], ANALYTIC)
    halved = bare.replaced(
        blocks=tuple(
            each.replaced(attention=each.attention.replaced(W_out=0.5 * each.attention.W_out))
            for each in bare.blocks
        )
    )
    _, neutral = language_model.apply(only, halved, start, ids[:, :-1])
    loss = language_model.cross_entropy(neutral, ids[:, 1:])
    assert_close("neutral", found.neutral, loss, ANALYTIC)
    _, logits = language_model.apply(config, params, state, ids[:, :-1])
    assert_close("change", found.change, np.max(np.abs(logits - neutral)), ANALYTIC)
    assert_differs("memory", found.loss, found.neutral, 1e-4)


@pytest.mark.clause("MAG-9")
def test_a_memory_that_returns_zero_contributes_nothing_to_the_neutral_model() -> None:
    config, params, state, ids = model("causal", phase="off")
    silent = []
    for each in params.blocks:
        phi = dict(each.memory.phi)
        phi["read_scale"] = np.zeros_like(phi["read_scale"])
        silent.append(each.replaced(memory=each.memory.replaced(phi=phi)))
    found = audit.contribution(config, params.replaced(blocks=tuple(silent)), state, ids)
    assert (found.change, found.loss) == (0.0, found.neutral)
    assert found.disabled != found.neutral


@pytest.mark.clause("MAG-9")
def test_a_model_of_several_kinds_of_blocks_keeps_those_without_a_shared_memory() -> None:
    config, params, state, ids = model()
    only = atlas_mag.attention_only_block(SETTINGS)
    mixed = config.replaced(blocks=(only, config.blocks[1]))
    own = params.replaced(
        blocks=(params.blocks[0].replaced(memory=None, mix=None), params.blocks[1])
    )
    start = state.replaced(blocks=(mag.start(only, 2), state.blocks[1]))
    assert [each.block for each in audit.layers(mixed, own, start, ids)] == [1]
    found = audit.contribution(mixed, own, start, ids)
    assert_close("loss", found.loss, language_model.loss(mixed, own, start, ids)[1], EXACT)
    bare = mixed.replaced(blocks=(only, only))
    with pytest.raises(ValueError, match="config: no block has a memory that shares attention"):
        audit.contribution(bare, own, start, ids)


@pytest.mark.clause("MAG-10")
def test_the_audit_of_the_public_code_is_that_of_plain_loops() -> None:
    settings = SETTINGS.replaced(n_layers=1)
    config = atlas_mag.block(settings)
    params = drawn(mag, config, 5)
    x = np.random.default_rng(6).standard_normal((1, 5, settings.dim))
    named = atlas_mag.state_dict(settings, _model(settings, params))
    p = loops.below({k: backend.host(v) for k, v in named.items()}, "blocks.0.")
    h, _ = parts.rms_norm(x, p["norm1.weight"])
    v, _ = parts.linear(h, p["qkv.w_v.weight"])
    a, _ = parts.linear(v, p["w_o.weight"])
    memory = loops.below(p, "memory.")
    m, _ = loops.memory(h, memory, loops.function(memory, settings.poly_degree))
    want = [np.sqrt(np.mean(each**2)) for each in (a, m)]
    assert_close(
        "sizes", np.array(audit.output_scales(config, params, x)), np.array(want), ANALYTIC
    )
    bare = atlas_mag.block(settings.replaced(disable_memory=True))
    with pytest.raises(ValueError, match="memory: no deep memory of one head"):
        audit.output_scales(bare, params, x)
    with pytest.raises(ValueError, match="memory: does not share attention"):
        mag.branches(bare, params, mag.start(bare), x)


def _model(settings: Any, block: Any) -> language_model.Params:
    config = atlas_mag.model(settings)
    return language_model.init(config).replaced(blocks=(block,))
