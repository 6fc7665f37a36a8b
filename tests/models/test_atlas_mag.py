"""Atlas-MAG: counts of parameters from settings alone, its model without memories against recorded
results, and what its blocks compute around a memory.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tape
from atlas_ref.blocks import mag, mix
from atlas_ref.layers import attention, feed_forward, norm, query_key, rotary
from atlas_ref.layers.projection import hidden_gate
from atlas_ref.models import atlas_mag, checkpoint, language_model
from atlas_ref.models.shapes import params_of
from atlas_ref.parts.gates import HiddenGateParams
from tape import ops
from tape.nested import flatten
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs
from tests.support.directions import check_directions
from tests.support.layers import Recorded, recorded

FOLDER = "peers_atlas_mag"
SPEC = (Path(__file__).parents[2] / "specs" / "language_model.md").read_text()
BLOCKS = ["block_ttl", "block_ttl_adaptive", "block_ttl_off", "block_inference"]
MODELS = ["attention_only", "ttl", "ttl_adaptive", "inference"]


def settings_of(file: Recorded) -> atlas_mag.Settings:
    """The arguments of a recorded block or model."""
    own = dict(file.settings)
    own |= {"vocab_size": own.get("vocab_size", 1), "n_layers": own.get("n_layers", 1)}
    own["memory_expansion"] = own.pop("ffn_expansion", own.get("memory_expansion"))
    fields = atlas_mag.Settings.model_fields
    return atlas_mag.Settings(**{name: x for name, x in own.items() if name in fields})


# -- counts ----------------------------------------------------------------------------------------


def rows() -> list[tuple[str, ...]]:
    table = re.search(r"\| memories \| rank .*?\n\|[-|]+\n(.*?)\n\n", SPEC, flags=re.S)
    assert table is not None
    return [tuple(each.split(" | ")) for each in re.findall(r"^\| (.*) \|$", table[1], flags=re.M)]


@pytest.mark.clause("MODEL-14")
@pytest.mark.parametrize("row", rows(), ids=lambda row: " ".join(row[:2]))
def test_parameters_are_as_many_as_the_table_says(row: tuple[str, ...]) -> None:
    memories, rank, *counts = row
    changes: dict[str, Any] = {"disable_memory": True}
    if memories != "none":
        changes = {"memory_mlp": memories, "poly_rank": int(rank)}
    for name, want in zip(("small", "base"), counts, strict=True):
        own = atlas_mag.CONFIGURATIONS[name]
        assert own.vocab_size == 32000
        settings = own.replaced(**changes)
        assert f"{atlas_mag.count(settings):,}" == want
        assert atlas_mag.count(settings) == by_hand(settings)


def by_hand(s: atlas_mag.Settings) -> int:
    """The number by one sum."""
    D, k, gated = s.dim, s.dim // s.n_heads, 2 if s.memory_mlp == "geglu" else 1
    F = k + k * (k + 1) // 2 if s.poly_degree == 2 else k
    r = s.poly_rank if 0 < s.poly_rank < F else 0
    h, n = k * s.memory_expansion, 2 * D * s.memory_expansion // 3
    memory = 2 * D * k + 2 * F + F * r + h * k + gated * (r or F) * h + 2 * D + 1 + 64 * D + 64
    block = 2 * D + 4 * D * D + 2 * k + 3 * D * n + (0 if s.disable_memory else memory)
    return s.vocab_size * D + 2 * D + s.n_layers * block


@pytest.mark.clause("MODEL-14")
def test_the_text_of_the_public_code_counts_the_two_configurations() -> None:
    counts = {name: atlas_mag.count(each) for name, each in atlas_mag.CONFIGURATIONS.items()}
    assert {name: f"{count / 1e6:.1f}M" for name, count in counts.items()} == {
        "small": "42.6M",
        "base": "124.7M",
    }
    assert atlas_mag.Settings().features == 2144
    assert atlas_mag.Settings(poly_rank=2144).rank is None
    assert atlas_mag.Settings(poly_degree=1).features == 64


@pytest.mark.clause("MODEL-14")
@pytest.mark.host("recorded arrays")
@pytest.mark.parametrize("name", MODELS)
def test_names_and_shapes_are_those_of_recorded_models(name: str) -> None:
    file = recorded(f"mag_skeleton_{name}", FOLDER)
    found = {key: x.shape for key, x in file.named("in/param/").items()}
    assert atlas_mag.shapes(settings_of(file)) == found


@pytest.mark.clause("MODEL-14", "MODEL-15")
@pytest.mark.parametrize("name", ["small", "base"])
def test_the_model_without_memories_has_as_many_parameters_of_ours(name: str) -> None:
    settings = atlas_mag.CONFIGURATIONS[name].replaced(disable_memory=True)
    config = atlas_mag.attention_only(settings)
    needed = flatten(params_of(config), "params")[0]
    assert sum(math.prod(each.shape) for each in needed) == atlas_mag.count(settings)


@pytest.mark.clause("MODEL-14")
def test_heads_of_an_odd_length_are_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match="n_heads: 4 heads of dim 12, expected heads of an even"):
        atlas_mag.Settings(dim=12, n_heads=4)


# -- the model without memories --------------------------------------------------------------------


@pytest.mark.clause("MODEL-1", "MODEL-5", "MODEL-15", "BLOCKS-4")
@pytest.mark.host("recorded arrays")
def test_a_recorded_model_without_memories_its_loss_and_gradients() -> None:
    file = recorded("mag_skeleton_attention_only", FOLDER)
    settings, ids = settings_of(file), file.tensors["in/ids"]
    config, theirs = atlas_mag.attention_only(settings), file.named("in/param/")
    state = language_model.start(config, ids.shape[0])

    def loss(at: Any) -> Any:
        return language_model.loss(config, atlas_mag.parameters(settings, at), state, ids)[1]

    params = atlas_mag.parameters(settings, theirs)
    logits = language_model.apply(config, params, state, ids[:, :-1])[1]
    assert_close("logits", logits, file.tensors["out/logits"], ANALYTIC)
    assert_close("loss", loss(theirs), file.tensors["out/loss"], ANALYTIC)
    gradient, wanted = tape.grad(loss)(theirs), file.named("grad/param/")
    assert gradient.keys() == wanted.keys()
    for key, want in wanted.items():
        assert_close(key, gradient[key], want, ANALYTIC)
    back = atlas_mag.state_dict(settings, params)
    assert back.keys() == theirs.keys()
    for key, tensor in theirs.items():
        assert_close(key, back[key], tensor, EXACT)


@pytest.mark.clause("MODEL-15", "BLOCKS-4")
@pytest.mark.host("recorded arrays")
@pytest.mark.parametrize("name", ["attention_block", "block_no_memory"])
def test_a_recorded_block_without_memory_and_its_gradients(name: str) -> None:
    """An attention-only block, and one whose memory is disabled and stays without gradients."""
    file = recorded(f"mag_{name}", FOLDER)
    settings, tensors = settings_of(file).replaced(disable_memory=True), file.tensors
    config, theirs = atlas_mag.attention_only_block(settings), file.named("in/param/")
    state = mag.start(config, tensors["in/x"].shape[0])

    def run(at: Any) -> Any:
        return mag.apply(config, atlas_mag.block_parameters(settings, at), state, at["x"])[1]

    at = theirs | {"x": tensors["in/x"]}
    assert_close("y", run(at), tensors["out/y"], ANALYTIC)
    gradient = tape.grad(lambda at: ops.sum(run(at) * tensors["in/y_bar"]))(at)
    own = atlas_mag.shapes(settings)
    wanted = file.named("grad/param/")
    for key, want in (wanted | {"x": tensors["grad/x"]}).items():
        if key != "x" and f"blocks.0.{key}" not in own:
            assert not want.any(), key
        assert_close(key, gradient[key], want, ANALYTIC)


@pytest.mark.clause("MODEL-3", "MODEL-4", "MODEL-15")
@pytest.mark.host("token ids")
def test_the_model_without_memories_is_causal_and_may_be_cut_anywhere() -> None:
    settings = atlas_mag.Settings(
        vocab_size=11, dim=8, n_layers=2, n_heads=2, memory_expansion=2, attn_window_size=4
    )
    config = atlas_mag.attention_only(settings)
    params = language_model.init(config, 1)
    leaves, _, build = flatten(params, "params")
    draw = np.random.default_rng(2)
    params = build([leaf + 0.3 * draw.standard_normal(leaf.shape) for leaf in leaves])
    ids = draw.integers(0, 11, (2, 12))
    start = language_model.start(config, 2)
    _, logits = language_model.apply(config, params, start, ids)
    state, parts = start, []
    for part in np.split(np.arange(12), [5, 6, 7]):
        state, each = language_model.apply(config, params, state, ids[:, part])
        parts.append(each)
    assert_close("cut", np.concatenate(parts, axis=1), logits, ANALYTIC)
    other = ids.copy()
    other[:, 7] = (other[:, 7] + 1) % 11
    _, changed = language_model.apply(config, params, start, other)
    assert config.causal
    assert_close("before", changed[:, :7], logits[:, :7], EXACT)
    assert_differs("at", changed[:, 7], logits[:, 7], 1e-3)
    check_directions(
        lambda p: language_model.loss(config, p, start, ids)[1], params, tolerance=1e-11
    )


@pytest.mark.clause("MODEL-1", "MODEL-2", "MODEL-11")
@pytest.mark.host("token ids")
def test_a_vector_for_every_id_starts_at_zero_is_saved_and_must_be_there(tmp_path: Path) -> None:
    settings = atlas_mag.Settings(vocab_size=5, dim=4, n_layers=1, n_heads=1)
    config = atlas_mag.attention_only(settings)
    params = language_model.init(config)
    assert_close("start", params.embedding_bias, np.zeros(4), EXACT)
    moved = params.replaced(embedding_bias=np.arange(4.0))
    checkpoint.save(tmp_path / "model.safetensors", config, moved)
    loaded, same = checkpoint.load(tmp_path / "model.safetensors")
    assert (loaded, same) == (config, moved)
    ids, state = np.array([[0, 3]]), language_model.start(config)
    _, logits = language_model.apply(config, moved, state, ids)
    other = params.replaced(embedding=params.embedding + np.arange(4.0), head=params.embedding)
    bare = config.replaced(embedding_bias=False, tied=False)
    other = other.replaced(embedding_bias=None)
    assert_close("added", logits, language_model.apply(bare, other, state, ids)[1], ANALYTIC)
    for wrong, of, says in (
        (other.replaced(head=None), config, "params.embedding_bias: missing, but embedding_bias"),
        (moved.replaced(head=params.embedding), bare, "params.embedding_bias: present, but"),
        (params.replaced(embedding_bias=np.zeros(3)), config, r"params.embedding_bias: shape \(3,"),
    ):
        with pytest.raises(ValueError, match=says):
            language_model.apply(of, wrong, state, ids)


# -- around a memory -------------------------------------------------------------------------------


@pytest.mark.clause("QK-1", "QK-6", "QK-12", "GATES-14", "BLOCKS-3")
@pytest.mark.host("recorded arrays")
@pytest.mark.parametrize("name", BLOCKS)
def test_recorded_blocks_gate_and_project_before_a_memory_and_multiply_after_it(name: str) -> None:
    """Gates and queries of the memory from the tokens, and the block's result from its output."""
    file = recorded(f"mag_{name}", FOLDER)
    settings = settings_of(file).replaced(disable_memory=True)
    tensors, theirs = file.tensors, file.named("in/param/")
    config = atlas_mag.attention_only_block(settings)
    params = atlas_mag.block_parameters(settings, theirs)
    own, x = config.attention, tensors["in/x"]
    assert own.rotary is not None
    (B, T, D), H = x.shape, settings.n_heads
    n = norm.normed(own.norm, params.attention.norm, x)
    gate = HiddenGateParams(
        W_in=theirs["gamma_gate.gate.0.weight"], W_out=theirs["gamma_gate.gate.2.weight"]
    )
    u = hidden_gate(gate, n)[:, 0]
    assert_close("gamma", u, tensors["out/gamma"][..., 0], ANALYTIC)
    W = np.reshape(params.attention.W_qkv, (3, D, D))
    qkv = np.stack([np.swapaxes(np.reshape(n @ each.T, (B, T, H, D // H)), 1, 2) for each in W], 1)
    qkv = attention.heads_normed(own, params.attention, qkv)
    at, _ = rotary.positions(own.rotary, rotary.State(), T, None)
    turned = rotary.rotated(own.rotary, qkv[:, :2], *rotary.tables(own.rotary, at, x))
    q, k = (np.reshape(np.swapaxes(turned[:, i], 1, 2), (B, T, D)) for i in range(2))
    of = query_key.Config(
        d=D,
        **query_key.PRESETS["atlas-mag"]
        | {
            "window": file.settings["omega_context_window"],
            "decay": file.settings["omega_decay_base"],
            "identity_size": float(tensors["in/buffer/qk_memory.norm_persistent"]) / D,
        },
    )
    _, projected = query_key.apply(of, query_key.Params(), query_key.start(of, B), q, k, u)
    want = np.reshape(np.swapaxes(tensors["out/q_projected"], 1, 2), (B, T, D))
    assert_close("q'", projected, want, ANALYTIC)
    state = attention.start(own, B)
    a = attention.apply(own, params.attention, state, x)[1]
    assert_close("a", a, tensors["out/attn_projected"], ANALYTIC)
    m = tensors["out/mem_out"]
    between = x + mix.mixed(config.mix, mix.Params(norm=None), x, a, m)
    assert_close("x", between, x + a / (1.0 + np.exp(-m)), ANALYTIC)
    ff = feed_forward.apply(
        config.feed_forward, params.feed_forward, feed_forward.State(), between
    )[1]
    assert_close("y", between + ff, tensors["out/y"], ANALYTIC)
