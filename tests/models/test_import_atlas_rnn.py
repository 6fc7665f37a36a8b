"""State_dicts of atlas-rnn: taken, computed as recorded, and given back with every bit."""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atlas_ref.layers import rotary
from atlas_ref.models import checkpoint, import_atlas_rnn, language_model
from atlas_ref.models.atlas_rnn_files import IMPORTER
from atlas_ref.models.import_atlas_rnn import Settings
from atlas_ref.models.public.importer import Told
from atlas_ref.storage import files
from tests.support.close import Tolerance, assert_close
from tests.support.layers import recorded
from tests.support.models import MODELS, RECORDED, arguments, public_file

pytestmark = pytest.mark.host("recorded arrays")

#: Logits of the recordings; the one in float32 rounds each layer to 6e-8.
DOUBLE, SINGLE = Tolerance("DOUBLE", 1e-10), Tolerance("SINGLE", 3e-6)


def public(name: str) -> dict[str, Any]:
    return recorded(name).named("in/param/")


@pytest.mark.clause("MODEL-12")
def test_every_recorded_model_is_here() -> None:
    assert len(RECORDED) == 8


@pytest.mark.clause("MODEL-12")
@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_model_computes_its_logits_and_comes_back(name: str, tmp_path: Path) -> None:
    record, tensors = recorded(name), public(name)
    file = public_file(tmp_path / "public", tensors, {"config": json.dumps(arguments(record))})
    config, params, told, _ = IMPORTER.read(file)
    checkpoint.save(tmp_path / "ours", config, params, source=IMPORTER.source(told))
    ours = checkpoint.read(tmp_path / "ours")
    assert (ours.config, ours.params) == (config, params)
    ids = record.tensors["in/ids"]
    state = language_model.start(config, len(ids), dtype=params.embedding.dtype)
    logits = language_model.apply(config, params, state, ids)[1]
    within = SINGLE if "float32" in name else DOUBLE
    assert_close("logits", logits, record.tensors["out/logits"], within)

    IMPORTER.write(tmp_path / "back", ours)
    _, back = files.read(tmp_path / "back")
    dummies = {each for each in back if each.endswith("._dummy")}
    assert len(dummies) == len(config.blocks)
    assert all(back[each].tolist() == [0.0] for each in dummies)
    assert back.keys() - dummies == tensors.keys()
    for each, array in tensors.items():
        assert (back[each].dtype, back[each].shape) == (array.dtype, array.shape)
        assert back[each].tobytes() == array.tobytes(), each
    again = IMPORTER.read(tmp_path / "back")
    assert (again.config, again.params) == (config, params)


def made(tmp_path: Path, **settings: Any) -> tuple[Settings, dict[str, Any]]:
    """Settings and the tensors of a state_dict, from a model of ours."""
    sizes: dict[str, Any] = {"dim": 6, "dim_head": 4, "heads": 2, "vocab": 5, "depth": 2}
    own = Settings(**sizes | settings)
    config = import_atlas_rnn.model_config(own)
    return own, IMPORTER.state_dict(config, language_model.init(config, 2), told=Told(own))


@pytest.mark.clause("MODEL-12")
@pytest.mark.parametrize(
    "settings",
    [
        {"block_type": "mag", "num_persist_mem_tokens": 3, "qkv_conv_kernel": None},
        {"block_type": "mal", "ff_mult": 2.5, "qk_norm": False},
        {"block_type": "mac", "use_momentum": False, "qkv_conv_kernel": 3},
        {"block_type": "lmm", "ff_mult": 7.25},
        {"block_type": "lmm", "ff_mult": 1.9},
    ],
)
def test_shapes_tell_the_settings(settings: dict[str, Any], tmp_path: Path) -> None:
    own, tensors = made(tmp_path, **settings)
    told = IMPORTER.read_settings(tensors, {})
    assert told.settings.replaced(ff_mult=own.ff_mult) == own
    assert told.settings.d_inner == own.d_inner
    by_default = {"conv", "omega_window", "poly_mode", "poly_degree", "scan_chunk_len"}
    by_default |= {"window_size"} if own.block_type in ("mag", "mal") else set()
    by_default |= {"segment_len", "num_longterm_mem_tokens"} if own.block_type == "mac" else set()
    assert {name for name, by in told.by.items() if by == "default"} == by_default
    assert set(told.by.values()) == {"shapes", "default"}


@pytest.mark.clause("MODEL-12")
def test_arguments_tell_what_no_shape_tells(tmp_path: Path) -> None:
    given = {"window_size": 9, "num_tokens": 5, "mem_chunk_size": 4, "ff_mult": 4, "heads": 2}
    told = IMPORTER.read_settings(made(tmp_path)[1], given)
    assert (told.settings.window_size, told.by["window_size"]) == (9, "given")
    assert (told.by["vocab"], told.by["heads"]) == ("shapes", "shapes")


@pytest.mark.clause("MODEL-12")
def test_tensors_that_the_public_code_does_not_read_come_back_as_zeros(tmp_path: Path) -> None:
    own, tensors = made(tmp_path, block_type="lmm", poly_mode="tensor", poly_degree=1)
    tensors = tensors | {
        name: array + 1.0
        for name, array in tensors.items()
        if name.endswith(("_dummy", "phi.proj"))
    }
    config, params, _ = IMPORTER.model_from(tensors, Told(own))
    assert config.blocks[0].memory.levels.levels[0].config.feature_map.kind == "identity"
    back = IMPORTER.state_dict(config, params, told=Told(own))
    assert back.keys() == tensors.keys()
    for name, array in back.items():
        zeros = name.endswith(("_dummy", "phi.proj"))
        assert np.array_equal(array, np.zeros_like(array) if zeros else tensors[name]), name
    assert "layers.0.memory.phi.proj" not in IMPORTER.state_dict(config, params)


@pytest.mark.clause("MODEL-12")
def test_a_stated_base_may_be_that_of_the_frequencies(tmp_path: Path) -> None:
    own, tensors = made(tmp_path, rotary_base=5000)
    file = public_file(tmp_path / "public", tensors)
    model = IMPORTER.read(file, {"rotary_base": 5000})
    assert model.told.settings.rotary_base == own.rotary_base
    names = [name for name in tensors if name.endswith("freqs")]
    half = {name: tensors[name].astype(np.float32).view(np.uint32) for name in names}
    cut = {name: ((bits + 0x8000) & 0xFFFF0000).view(np.float32) for name, bits in half.items()}
    tensors |= {name: cut[name].astype(tensors[name].dtype) for name in names}
    file = public_file(tmp_path / "rounded to bfloat16", tensors)
    IMPORTER.read(file, {"rotary_base": 5000})
    with pytest.raises(ValueError, match="has frequencies of another base"):
        IMPORTER.read(file, {"rotary_base": 5050})


@pytest.mark.clause("MODEL-12")
def test_frequencies_become_settings_of_each_block(tmp_path: Path) -> None:
    own, tensors = made(tmp_path)
    tensors["layers.1.attention.rotary_emb.freqs"] = np.array([0.5, 0.25])
    config, params, _ = IMPORTER.model_from(tensors, Told(own))
    assert config.blocks[1].attention.rotary.frequencies == (0.5, 0.25)
    first = rotary.frequencies(config.blocks[0].attention.rotary)
    assert first.tolist() == tensors["layers.0.attention.rotary_emb.freqs"].tolist()
    back = IMPORTER.state_dict(config, params)
    assert back["layers.1.attention.rotary_emb.freqs"].tolist() == [0.5, 0.25]


WRONG: dict[str, tuple[Any, dict[str, Any], str]] = {
    "missing": (
        lambda t: t.pop("layers.1.gate.0.bias"),
        {},
        "layers.1.gate.0.bias: missing, shape (6,) is needed",
    ),
    "unknown": (lambda t: t.update(extra=np.ones(1)), {}, "extra: unknown tensor"),
    "misshapen": (
        lambda t: t.update({"norm.bias": np.ones(5)}),
        {},
        "norm.bias: shape (5,), expected (6,)",
    ),
    "infinite": (
        lambda t: t.update({"norm.bias": np.full(6, np.inf)}),
        {},
        "norm.bias: every entry must be finite, found inf at (0,)",
    ),
    "half": (
        lambda t: t.update({"norm.bias": np.ones(6, np.float16)}),
        {},
        "norm.bias: float16, float32 or float64 is needed",
    ),
    "many": (
        lambda t: [t.pop(name) for name in list(t) if name.startswith("layers.1.memory.to_")],
        {},
        "; and 5 others",
    ),
    "no frequencies": (
        lambda t: t.pop("layers.0.attention.rotary_emb.freqs"),
        {},
        "layers.0.attention.rotary_emb.freqs: missing, shape (2,) is needed",
    ),
    "negative frequency": (
        lambda t: t.update({"layers.0.attention.rotary_emb.freqs": np.array([1.0, -1.0])}),
        {},
        "layers.0.attention.rotary_emb.freqs: no entry may be negative",
    ),
    "dummy": (
        lambda t: t.update({"layers.0.memory._dummy": np.zeros(2)}),
        {},
        "layers.0.memory._dummy: shape (2,), expected (1,)",
    ),
    "no model": (
        lambda t: [t.pop(name) for name in list(t) if "memory" in name],
        {},
        "this is no state_dict of a language model of atlas-rnn",
    ),
    "no embedding": (lambda t: t.pop("embed.weight"), {}, "embed.weight: missing; its shape"),
    "flat embedding": (
        lambda t: t.update({"embed.weight": np.ones(30)}),
        {},
        "embed.weight: shape (30,), expected 2 axes",
    ),
    "rows": (
        lambda t: t.update({"layers.0.memory.to_q.weight": np.ones((7, 6))}),
        {},
        "layers.0.memory.to_q.weight: 7 rows, expected a multiple of 2 heads",
    ),
    "gate": (
        lambda t: t.update({"layers.0.memory.to_omega_gate.0.bias": np.ones(2)}),
        {},
        "omega_window: must be stated in the settings: no shape tells it",
    ),
    "sketch": (
        lambda t: t.update({"layers.0.memory.phi.proj": np.ones((20, 4))}),
        {},
        "poly_degree: must be stated in the settings: no shape tells it",
    ),
    "argument": (None, {"window": 3}, "window: unknown setting"),
    "twice": (None, {"vocab": 5, "num_tokens": 5}, "given twice, as num_tokens and as vocab"),
    "rows of stated heads": (
        lambda t: t.update({"layers.0.memory.to_q.weight": np.ones((6, 8))}),
        {"dim_head": 4},
        "dim_head: 4, but the tensors have 3, by layers.0.memory.to_q.weight (6, 8)",
    ),
    "words": (None, {"vocab": 9}, "vocab: 9, but the tensors have 5, by embed.weight (5, 6)"),
    "gate stated": (
        None,
        {"use_omega_gate": True},
        "use_omega_gate: true, but the tensors have false",
    ),
    "base": (
        None,
        {"rotary_base": 5000},
        "rotary_base: 5000.0, but layers.0.attention.rotary_emb.freqs has frequencies of another",
    ),
    "half with a base": (
        lambda t: t.update({name: t[name].astype(np.float16) for name in t}),
        {"rotary_base": 10000},
        "embed.weight: float16, float32 or float64 is needed",
    ),
    "frequencies that are no numbers": (
        lambda t: t.update({"layers.0.attention.rotary_emb.freqs": np.array([1.0, np.nan])}),
        {"rotary_base": 10000},
        "layers.0.attention.rotary_emb.freqs: every entry must be finite, found nan at (1,)",
    ),
    "frequencies of another head": (
        lambda t: t.update({"layers.0.attention.rotary_emb.freqs": np.ones(3)}),
        {"rotary_base": 10000},
        "layers.0.attention.rotary_emb.freqs: shape (3,), expected (2,)",
    ),
    "prefix": (
        lambda t: [t.update({f"module.{name}": t.pop(name)}) for name in list(t)],
        {},
        "layers.0.memory.pre_norm.weight: missing, but module.layers.0.memory.pre_norm.weight is "
        "there; names must not begin with module.",
    ),
    "degree": (
        None,
        {"poly_mode": "elementwise", "poly_degree": 101},
        "poly_degree: must be at most 100, found 101",
    ),
    "heads": (None, {"heads": 4}, "heads: 4, but the tensors have 2"),
    "ff_mult": (None, {"ff_mult": 2}, "ff_mult: 2, but the tensors have 4.0"),
    "kernel": (None, {"qkv_conv_kernel": None}, "qkv_conv_kernel: null, but the tensors have 4"),
    "block": (None, {"block_type": "mal"}, "block_type: 'mal', but the tensors have 'mag'"),
    "type": (None, {"window_size": "8"}, "window_size: must be an integer, found '8'"),
    "tensor mode": (
        None,
        {"poly_mode": "tensor", "poly_degree": 2},
        "poly_mode: tensor, but the tensors have no phi.proj",
    ),
}


@pytest.mark.clause("MODEL-12")
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_state_dict_is_one_line_that_names_it(name: str, tmp_path: Path) -> None:
    edit, given, says = WRONG[name]
    _, tensors = made(tmp_path)
    if edit is not None:
        edit(tensors)
    file = public_file(tmp_path / "public", tensors)
    with pytest.raises(ValueError) as found:
        IMPORTER.read(file, given)
    assert str(found.value).startswith(f"{file}: ")
    assert says in str(found.value)
    assert "\n" not in str(found.value)


@pytest.mark.clause("MODEL-12")
@pytest.mark.parametrize(
    ("metadata", "given", "says"),
    [
        ({"config": "{"}, {}, "metadata key 'config': not JSON"),
        ({"config": "[1]"}, {}, "metadata key 'config': an object is needed"),
        (
            {"config": '{"window_size": 9}'},
            {"window_size": 8},
            "window_size: 8, but metadata key 'config' has 9",
        ),
        ({"atlas_ref_model": "{}"}, {}, "is a model of atlas-ref already"),
    ],
)
def test_wrong_metadata_are_one_line(
    metadata: dict[str, str], given: dict[str, Any], says: str, tmp_path: Path
) -> None:
    file = public_file(tmp_path / "public", made(tmp_path)[1], metadata)
    with pytest.raises(ValueError, match=says) as found:
        IMPORTER.read(file, given)
    assert "\n" not in str(found.value)


@pytest.mark.clause("MODEL-12")
def test_a_pickle_is_refused_with_how_to_convert_it(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "archive.pt", "w") as archive:
        archive.writestr("archive/data.pkl", b"x")
    (tmp_path / "old.pt").write_bytes(pickle.dumps({"embed.weight": [0.0]}, protocol=2))
    for name in ("archive.pt", "old.pt"):
        with pytest.raises(ValueError, match="is a pickle") as found:
            IMPORTER.read(tmp_path / name)
        assert "safetensors.torch.save_file(torch.load(FILE, weights_only=True)" in str(found.value)
    # a header of 640 bytes begins as a pickle does
    (tmp_path / "file").write_bytes((640).to_bytes(8, "little") + b"{" + bytes(8))
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        IMPORTER.read(tmp_path / "file")
    with pytest.raises(ValueError, match="no such file"):
        IMPORTER.read(tmp_path / "absent")


@pytest.mark.clause("MODEL-12")
def test_memories_alone_have_no_block(tmp_path: Path) -> None:
    name = "atlas_rnn_lm_memory_only"
    with pytest.raises(ValueError, match="block_type: the tensors are those of memories alone"):
        IMPORTER.read_settings(public(name), {"block_type": "mag", "omega_window": 3})
    told = IMPORTER.read_settings(public(name), {"omega_window": 3})
    assert told.memory_only
    assert "block_type" not in told.by


def _public(**settings: Any) -> Any:
    sizes: dict[str, Any] = {"dim": 6, "dim_head": 4, "heads": 2, "vocab": 5, "depth": 2}
    return import_atlas_rnn.model_config(Settings(**sizes | settings))


def _departed(config: Any, **changes: Any) -> Any:
    blocks = (config.blocks[0], config.blocks[1].replaced(**changes))
    return config.replaced(blocks=blocks)


MAG = _public()


@pytest.mark.clause("MODEL-12")
@pytest.mark.parametrize(
    ("config", "says"),
    [
        (
            _departed(MAG, feed_forward=MODELS["mag sum"].blocks[0].feed_forward),
            "blocks.1.feed_forward.d_inner: 5, atlas-rnn has 16",
        ),
        (MODELS["mag without memory"], "blocks.0.memory: none, atlas-rnn has one in each block"),
        (
            MODELS["memory delta"],
            "blocks.0.memory.levels.levels.0.rule: delta, atlas-rnn has omega",
        ),
        (MAG.replaced(tied=True), "tied: true, atlas-rnn has false"),
        (
            _departed(MAG, memory=MAG.blocks[1].memory.replaced(step_size="softplus")),
            "blocks.1.memory.step_size: softplus, atlas-rnn has sigmoid",
        ),
        (
            _departed(MAG, attention=MAG.blocks[1].attention.replaced(window=3)),
            "blocks.1.attention.window: 3, atlas-rnn has 64",
        ),
        (
            MAG.replaced(blocks=(MAG.blocks[0], _public(block_type="lmm").blocks[0])),
            "blocks.1: lmm, atlas-rnn has mag",
        ),
    ],
)
def test_a_model_that_public_code_does_not_have_is_refused(config: Any, says: str) -> None:
    with pytest.raises(ValueError, match="atlas-rnn has") as found:
        IMPORTER.express(config)
    assert says in str(found.value)


@pytest.mark.clause("MODEL-12")
def test_an_export_has_the_arguments_of_the_constructor(tmp_path: Path) -> None:
    config = _public(window_size=9, conv="causal", omega_window=3)
    told = IMPORTER.express(config)
    assert IMPORTER.constructor_arguments(told) == {
        **{"num_tokens": 5, "dim": 6, "depth": 2, "block_type": "mag", "window_size": 9},
        **{"dim_head": 4, "heads": 2, "ff_mult": 4.0, "num_persist_mem_tokens": 0},
        **{"omega_window": 3, "use_omega_gate": False, "use_momentum": True, "poly_degree": 1},
        **{"poly_mode": "off", "qkv_conv_kernel": 4, "conv": "causal"},
    }
    params = language_model.init(config).replaced(head=None)
    with pytest.raises(ValueError, match=r"^head: missing"):
        IMPORTER.state_dict(config, params)


@pytest.mark.clause("MODEL-12")
def test_settings_that_a_model_came_from_hold_only_while_they_fit() -> None:
    own = Settings(dim=6, dim_head=4, heads=2, vocab=5, depth=2, ff_mult=4.1)
    config = import_atlas_rnn.model_config(own)
    assert IMPORTER.express(config, own).settings == own
    other = own.replaced(window_size=7)
    assert IMPORTER.express(config, other).settings.window_size == 64
