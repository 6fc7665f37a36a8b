"""State_dicts of Atlas-MAG: taken, computed as recorded, and given back with every bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atlas_ref.models import atlas_mag, checkpoint, language_model
from atlas_ref.models.atlas_mag.files import IMPORTER
from atlas_ref.models.public.importer import Told
from atlas_ref.storage import files
from tests.support.close import Tolerance, assert_close
from tests.support.layers import recorded
from tests.support.mag_files import FOLDER, Tensors, public, written
from tests.support.shared_memories import SETTINGS, drawn

pytestmark = [pytest.mark.clause("MAG-6"), pytest.mark.host("recorded arrays")]

#: Logits of the recordings, whose positions are exact where the code has those of float32.
SINGLE = Tolerance("SINGLE", 1e-6)


@pytest.mark.clause("MAG-7", "MODEL-16")
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", ["attention_only", "inference", "ttl", "ttl_adaptive"])
def test_a_recorded_model_computes_its_logits_and_comes_back(
    name: str, dtype: Any, tmp_path: Path
) -> None:
    own, tensors = public(name)
    tensors = {key: each.astype(dtype) for key, each in tensors.items()}
    head = {"lm_head.weight": tensors["tok_emb.weight"]}
    file = written(tmp_path / "public", tensors | head, own)
    found = IMPORTER.read(file)
    source = IMPORTER.source(found.told)
    checkpoint.save(
        tmp_path / "ours", found.config, found.params, source=source, initial=found.initial
    )
    ours = checkpoint.read(tmp_path / "ours")
    assert (ours.config, ours.params) == (found.config, found.params)
    if dtype is np.float64:
        record = recorded(f"mag_skeleton_{name}", FOLDER).tensors
        place = "call0/" if own["training"] and name == "ttl" else ""
        ids, want = record[f"in/{place}ids"], record[f"out/{place}logits"]
        start = language_model.start(ours.config, 2, initial=ours.initial)
        _, logits = language_model.apply(ours.config, ours.params, start, ids[:, :-1])
        assert_close("logits", logits, want, SINGLE)
    its = IMPORTER.write(tmp_path / "back", ours)
    metadata, back = files.read(tmp_path / "back")
    assert json.loads(metadata["config"]) == its
    assert {key: its.get(key, x) for key, x in own.items()} == own
    assert back.keys() == (tensors | head).keys()
    for key, array in (tensors | head).items():
        assert (back[key].dtype, back[key].shape) == (array.dtype, array.shape)
        assert back[key].tobytes() == array.tobytes(), key
    again = IMPORTER.read(tmp_path / "back")
    assert (again.config, again.params) == (found.config, found.params)


def made(**changes: Any) -> tuple[atlas_mag.Settings, Tensors]:
    """Settings and the tensors of a state_dict, from a model of ours."""
    settings = SETTINGS.replaced(**changes)
    config = atlas_mag.model(settings)
    return settings, IMPORTER.state_dict(config, drawn(language_model, config, 2))


@pytest.mark.clause("MAG-7", "MODEL-14")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"memory_mlp": "geglu", "poly_rank": 0},
        {"poly_degree": 1, "poly_rank": 3, "n_layers": 1},
        {"memory_expansion": 3, "gate_hidden": 2, "omega_context_window": 7},
        {"persistent_factor": 0.25, "persistent_size": 0.5},
        {"disable_memory": True, "memory_expansion": 1},
    ],
    ids=str,
)
def test_tensors_tell_the_settings(changes: Tensors) -> None:
    own, tensors = made(**changes)
    stated = {"omega_decay_base": 0.8, "attn_window_size": 4}
    stated |= {"ttl_eta": 0.05, "ttl_theta": 0.7, "ttl_alpha": 0.95}
    found = IMPORTER.read_settings(tensors, stated)
    if own.has_memory:
        assert found.settings == own
    else:
        assert atlas_mag.model(found.settings) == atlas_mag.model(own)
    by_default = {name for name, by in found.by.items() if by == "default"}
    free = {"ttl_enabled", "ttl_ns_iters", "ttl_adaptive_eta", "training"}
    assert by_default == (free if own.has_memory else set())
    config, params, initial = IMPORTER.model_from(tensors, found)
    back = IMPORTER.state_dict(config, params, initial)
    for name, array in tensors.items():
        assert back[name].tobytes() == array.tobytes(), name


@pytest.mark.clause("MAG-7")
def test_arguments_tell_what_no_tensor_tells_and_an_ignored_one_does_nothing() -> None:
    _, tensors = made()
    found = IMPORTER.read_settings(
        tensors, {"ttl_eta": 0.5, "layer_pattern": "mag", "dim": 8, "poly_rank": 5}
    )
    assert (found.settings.ttl_eta, found.by["ttl_eta"]) == (0.5, "given")
    assert (found.by["dim"], found.by["ttl_theta"]) == ("shapes", "default")
    _, whole = made(poly_rank=0)
    assert IMPORTER.read_settings(whole, {"poly_rank": 512}).settings.rank is None


@pytest.mark.clause("MODEL-16")
def test_weights_that_a_model_starts_from_are_its_parameters_there() -> None:
    settings, _ = made(training=True)
    config = atlas_mag.model(settings)
    params, ids = drawn(language_model, config, 2), np.array([[1, 4, 2, 2, 7]])
    state, _ = language_model.apply(config, params, language_model.start(config), ids)
    initial = []
    for each in state.blocks:
        own = each.memory.levels.states[0]
        initial.append({"weights": dict(own.weights), "momentum": dict(own.momentum)})
    tensors = IMPORTER.state_dict(config, params, tuple(initial))
    again = IMPORTER.model_from(tensors, Told(settings))
    start = language_model.start(again[0], initial=again[2])
    _, logits = language_model.apply(*again[:2], start, ids)
    _, want = language_model.apply(config, params, state, ids)
    assert_close("logits", logits, want, SINGLE)


WRONG: dict[str, tuple[Any, Tensors, str]] = {
    "missing": (
        lambda t: t.pop("blocks.1.memory.w1.weight"),
        {},
        "blocks.1.memory.w1.weight: missing, shape (4, 8) is needed",
    ),
    "no momentum": (
        lambda t: t.pop("blocks.0.memory.momentum_output_scale"),
        {},
        "blocks.0.memory.momentum_output_scale: missing, shape () is needed",
    ),
    "unknown": (lambda t: t.update(extra=np.ones(1)), {}, "extra: unknown tensor"),
    "head": (
        lambda t: t.update({"lm_head.weight": np.ones((11, 8))}),
        {},
        "lm_head.weight: differs from tok_emb.weight, which it is another name for",
    ),
    "persistent": (
        lambda t: t.update({"blocks.1.qk_memory.m_persistent": np.ones((8, 8))}),
        {},
        "blocks.1.qk_memory.m_persistent: no multiple of the unit matrix by 0.1",
    ),
    "size": (
        lambda t: t.update({"blocks.1.qk_memory.norm_persistent": np.array(3.0)}),
        {},
        "blocks.1.qk_memory.norm_persistent: 3, but block 0 has 0.08",
    ),
    "no unit": (
        lambda t: t.update({"blocks.0.qk_memory.m_persistent": np.ones((4, 4))}),
        {},
        "blocks.0.qk_memory.m_persistent: shape (4, 4), expected (8, 8)",
    ),
    "no constants": (
        lambda t: t.pop("blocks.0.qk_memory.decay_weights"),
        {},
        "blocks.0.qk_memory.decay_weights: missing; it tells the settings",
    ),
    "heads": (
        lambda t: t.update({"blocks.0.qkv.q_norm.weight": np.ones(3)}),
        {},
        "blocks.0.qkv.q_norm.weight: 3 of a head, but dim is 8",
    ),
    "inner": (
        lambda t: t.update({"blocks.0.ffn.w1.weight": np.ones((9, 8))}),
        {},
        "blocks.0.ffn.w1.weight: 9 rows, no memory_expansion of dim 8 has so many",
    ),
    "no model": (lambda t: t.pop("tok_emb.weight"), {}, "tok_emb.weight: missing; it tells"),
    "axes": (
        lambda t: t.update({"tok_emb.weight": np.ones(4)}),
        {},
        "tok_emb.weight: shape (4,), expected 2 axes",
    ),
    "argument": (None, {"window": 3}, "window: unknown setting"),
    "contradiction": (None, {"n_heads": 4}, "n_heads: 4, but the tensors have 2"),
    "type": (None, {"ttl_eta": "8"}, "ttl_eta: must be a number, found '8'"),
    "range": (None, {"ttl_theta": 2.0}, "ttl_theta: must be"),
    "rank": (
        lambda t: [t.pop(name) for name in list(t) if "poly_compress" in name],
        {"poly_rank": 5},
        "poly_rank: 5, but the tensors have none",
    ),
}


@pytest.mark.clause("MAG-7")
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_state_dict_is_one_line_that_names_it(name: str, tmp_path: Path) -> None:
    edit, given, says = WRONG[name]
    _, tensors = made()
    if edit is not None:
        edit(tensors)
    file = written(tmp_path / "public", tensors)
    with pytest.raises(ValueError) as found:
        IMPORTER.read(file, given)
    assert str(found.value).startswith(f"{file}: ")
    assert says in str(found.value)
    assert "\n" not in str(found.value)


OTHERS: dict[str, tuple[Any, str]] = {
    "causal": (
        lambda: atlas_mag.model(SETTINGS, "causal", chunk=5),
        "atlas-mag has no such model: blocks.0.memory.levels.levels.0.config.chunk: 5, atlas-mag "
        "has call",
    ),
    "base": (
        lambda: _with_attention(base=100.0),
        "blocks.0.attention.rotary.base: 100.0, atlas-mag has 10000.0",
    ),
    "untied": (lambda: atlas_mag.model(SETTINGS).replaced(tied=False), "tied: false, atlas-mag"),
}


def _with_attention(**changes: Any) -> language_model.Config:
    config = atlas_mag.model(SETTINGS)
    blocks = tuple(
        each.replaced(
            attention=each.attention.replaced(rotary=each.attention.rotary.replaced(**changes))
        )
        for each in config.blocks
    )
    return config.replaced(blocks=blocks)


@pytest.mark.clause("MAG-7")
@pytest.mark.parametrize("name", OTHERS)
def test_a_model_that_the_code_does_not_have_is_refused_by_the_setting(
    name: str, tmp_path: Path
) -> None:
    build, says = OTHERS[name]
    config = build()
    model = checkpoint.Checkpoint(config, language_model.init(config), {})
    with pytest.raises(ValueError) as found:
        IMPORTER.write(tmp_path / "out", model)
    assert says in str(found.value)
    assert not (tmp_path / "out").exists()
