"""Models in files of our own: every bit comes back, and a wrong file is one line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from atlas_ref.models import checkpoint, language_model, shapes
from atlas_ref.storage import files
from tape.nested import flatten
from tests.support.models import MODELS

Edit = Callable[[dict[str, Any], dict[str, Any]], None]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    config = MODELS["mag titans"]
    checkpoint.save(tmp_path / "model.safetensors", config, language_model.init(config, 1))
    return tmp_path / "model.safetensors"


@pytest.mark.sample(30)
@pytest.mark.clause("MODEL-11")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", MODELS)
def test_what_is_saved_is_loaded_bit_for_bit(name: str, dtype: Any, tmp_path: Path) -> None:
    config, file = MODELS[name], tmp_path / "model.safetensors"
    params = language_model.init(config, 3, dtype=dtype)
    checkpoint.save(file, config, params)
    again, own = checkpoint.load(file)
    assert own == params
    assert checkpoint.described(again) == checkpoint.described(config)
    ids = np.array([[1, 6, 0, 2, 2]])
    for one, other in zip(_run(config, params, ids), _run(again, own, ids), strict=True):
        assert one.tobytes() == other.tobytes()
    checkpoint.save(tmp_path / "again.safetensors", again, own)
    assert (tmp_path / "again.safetensors").read_bytes() == file.read_bytes()
    assert checkpoint.load(tmp_path / "again.safetensors") == (again, own)


def _run(config: Any, params: Any, ids: Any) -> list[Any]:
    dtype = params.embedding.dtype
    state = language_model.start(config, 1, dtype=dtype)
    return flatten(language_model.apply(config, params, state, ids), "results")[0]


@pytest.mark.clause("MODEL-11")
@pytest.mark.parametrize("name", MODELS)
def test_shapes_are_told_without_the_parameters(name: str) -> None:
    config = MODELS[name]
    leaves, paths, _ = flatten(language_model.init(config), "params")
    needed = checkpoint.needed_by(config)
    assert list(needed) == [checkpoint.name_of(path) for path in paths]
    told: dict[str, int] = {}
    for slot, leaf in zip(needed.values(), leaves, strict=True):
        assert slot.fits(leaf.shape, told)
        assert not slot.fits((*leaf.shape, 1), told)
        assert not slot.fits((leaf.shape[0] + 1, *leaf.shape[1:]), told)


@pytest.mark.clause("MODEL-11")
def test_names_are_paths_and_settings_say_kind_and_rule(saved: Path) -> None:
    tensors = safetensors.numpy.load_file(saved)
    assert {"embedding", "blocks.0.memory.levels.0.projection.W_Q"} <= set(tensors)
    metadata, _ = files.read(saved)
    header = json.loads(metadata["atlas_ref_model"])
    assert (header["schema"], header["model"], "source" in header) == (1, "language_model", False)
    block = header["config"]["blocks"][0]
    assert (block["kind"], block["memory"]["levels"]["levels"][0]["rule"]) == ("mag", "titans_lmm")
    assert block["memory"]["levels"]["levels"][0]["config"]["convention"]["gate"] == "forget"


@pytest.mark.clause("MODEL-11")
def test_a_key_that_is_missing_has_its_default_and_a_source_comes_back(saved: Path) -> None:
    def without(header: dict[str, Any], tensors: dict[str, Any]) -> None:
        del header["config"]["sampling"]
        header["source"] = {"from": "elsewhere"}

    _edit(saved, without)
    found = checkpoint.read(saved)
    assert (found.config, found.source) == (
        checkpoint.config_of(checkpoint.described(MODELS["mag titans"])),
        {"from": "elsewhere"},
    )


def _edit(path: Path, edit: Edit) -> None:
    metadata, tensors = files.read(path)
    header = json.loads(metadata["atlas_ref_model"])
    edit(header, tensors)
    files.write(path, {"atlas_ref_model": json.dumps(header)}, tensors)


def _level(header: dict[str, Any]) -> dict[str, Any]:
    level: dict[str, Any] = header["config"]["blocks"][0]["memory"]["levels"]["levels"][0]
    return level


def _with_nan(header: dict[str, Any], tensors: dict[str, Any]) -> None:
    array = tensors["blocks.1.mix.attention_norm.weight"].copy()
    array[2] = np.nan
    tensors["blocks.1.mix.attention_norm.weight"] = array


WRONG: dict[str, tuple[Edit, str]] = {
    "missing": (
        lambda h, t: t.pop("head"),
        "head: missing, shape (7, 6) is needed",
    ),
    "unknown": (
        lambda h, t: t.update({"heads": np.ones(2)}),
        "heads: unknown tensor",
    ),
    "misshapen": (
        lambda h, t: t.update(embedding=np.ones((7, 5))),
        "embedding: shape (7, 5), expected (7, 6)",
    ),
    "NaN": (
        _with_nan,
        "blocks.1.mix.attention_norm.weight: every entry must be finite, found nan at (2,)",
    ),
    "integers": (
        lambda h, t: t.update(embedding=np.ones((7, 6), int)),
        "embedding: int64, float32 or float64 is needed",
    ),
    "mixed": (
        lambda h, t: t.update(head=t["head"].astype(np.float32)),
        "head: float32, but others are float64",
    ),
    "many": (
        lambda h, t: [t.pop(name) for name in list(t) if name.startswith("blocks.1.")],
        "; and 25 others",
    ),
    "schema": (lambda h, t: h.update(schema=2), "schema: 1 is needed, found 2"),
    "schema true": (lambda h, t: h.update(schema=True), "schema: 1 is needed, found true"),
    "no schema": (lambda h, t: h.pop("schema"), "schema: 1 is needed, missing"),
    "model": (lambda h, t: h.update(model="mlp"), "model: 'language_model' is needed, found 'mlp'"),
    "key": (lambda h, t: h.update(sources={}), "sources: unknown key; did you mean source?"),
    "source": (lambda h, t: h.update(source=[]), "source: an object is needed, found []"),
    "no config": (lambda h, t: h.pop("config"), "config: an object is needed, found null"),
    "config key": (
        lambda h, t: h["config"].update(vocab=7),
        "config.vocab: unknown key; did you mean vocabulary?",
    ),
    "vocabulary": (
        lambda h, t: h["config"].update(vocabulary="7"),
        "config.vocabulary: must be an integer, found '7'",
    ),
    "huge": (
        lambda h, t: h["config"].update(vocabulary=10**17),
        "embedding: shape (7, 6), expected (100000000000000000, 6)",
    ),
    "no blocks": (
        lambda h, t: h["config"].update(blocks={}),
        "config.blocks: a list is needed, found {}",
    ),
    "kind": (
        lambda h, t: h["config"]["blocks"][1].update(kind="magg"),
        "config.blocks.1.kind: one of mag, mal, mac, lmm is needed, found 'magg'",
    ),
    "no kind": (
        lambda h, t: h["config"]["blocks"][1].pop("kind"),
        "config.blocks.1.kind: one of mag, mal, mac, lmm is needed, missing",
    ),
    "rule": (
        lambda h, t: _level(h).update(rule="titans"),
        "config.blocks.0.memory.levels.levels.0.rule: one of omega, titans_lmm, delta, hebbian, "
        "deep_memory is needed, found 'titans'",
    ),
    "rule key": (
        lambda h, t: _level(h)["config"].update(window=3),
        "config.blocks.0.memory.levels.levels.0.config.window: unknown key",
    ),
    "axis": (
        lambda h, t: _level(h)["config"]["convention"].update(read="later"),
        "config.blocks.0.memory.levels.levels.0.config.convention",
    ),
    "sizes": (
        lambda h, t: h["config"]["blocks"][0]["feed_forward"]["norm"].update(d=5),
        "config.blocks.0.feed_forward",
    ),
    "form": (
        lambda h, t: _level(h).update(form="x"),
        "config.blocks.0.memory.levels.levels.0.",
    ),
    "part": (
        lambda h, t: h["config"].update(norm=3),
        "config.norm: ",
    ),
}


@pytest.mark.clause("MODEL-11")
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_one_line_that_names_it(name: str, saved: Path) -> None:
    edit, says = WRONG[name]
    _edit(saved, edit)
    with pytest.raises(ValueError) as found:
        checkpoint.load(saved)
    assert str(found.value).startswith(f"{saved}: ")
    assert says in str(found.value)
    assert "\n" not in str(found.value)


@pytest.mark.clause("MODEL-11")
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data: data[:-8], "not a whole safetensors file"),
        (lambda data: data[:100], "not a whole safetensors file"),
        (lambda data: b"", "not a whole safetensors file"),
        (lambda data: data + b"\0", "not a whole safetensors file"),
        (lambda data: data.replace(b"atlas_ref_model", b"atlas_ref_mode1"), "missing, a model"),
        (lambda data: data.replace(b'{\\"schema', b'[\\"schema'), "not JSON"),
    ],
)
def test_a_spoilt_file_is_one_line(change: Any, says: str, saved: Path) -> None:
    saved.write_bytes(change(saved.read_bytes()))
    with pytest.raises(ValueError, match=says) as found:
        checkpoint.load(saved)
    assert str(found.value).startswith(f"{saved}: ")
    assert "\n" not in str(found.value)


@pytest.mark.clause("MODEL-11")
def test_hidden_axes_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    config = MODELS["residual mlp"]
    params = language_model.init(config)
    checkpoint.save(tmp_path / "file", config, params)
    name = "blocks.0.memory.levels.0.projection.phi.W1"
    _edit(tmp_path / "file", lambda h, t: t.update({name: t[name][:-1]}))
    with pytest.raises(ValueError, match=r"phi\.W2: shape \(3, 12\), expected \(3, hidden\)"):
        checkpoint.load(tmp_path / "file")


@pytest.mark.clause("MODEL-11")
def test_parameters_that_contradict_the_settings_are_not_written(tmp_path: Path) -> None:
    config, file = MODELS["mal"], tmp_path / "file"
    params = language_model.init(config)
    with pytest.raises(ValueError, match="embedding: shape"):
        checkpoint.save(file, config, params.replaced(embedding=np.ones((3, 6))))
    with pytest.raises(ValueError, match=r"blocks\.1\.attention\.norm\.weight: missing"):
        checkpoint.save(file, config, params.replaced(blocks=params.blocks[:1]))
    assert os.listdir(tmp_path) == []
    with pytest.raises(ValueError, match="absent does not exist"):
        checkpoint.save(tmp_path / "absent" / "file", config, params)


@pytest.mark.clause("MODEL-11")
def test_a_file_that_cannot_be_finished_leaves_the_one_before(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    config = MODELS["mal"]
    with pytest.raises(ValueError, match="No space left"):
        checkpoint.save(saved, config, language_model.init(config))
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


def test_five_problems_are_told_and_others_counted() -> None:
    with pytest.raises(ValueError, match=r"^1; 2; 3; 4; 5$"):
        shapes.refuse(list("12345"))
    with pytest.raises(ValueError, match=r"^1; 2; 3; 4; 5; and 2 others$"):
        shapes.refuse(list("1234567"))
