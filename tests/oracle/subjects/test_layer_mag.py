"""Modules of Atlas-MAG as cases: their headers, their results between, and what is refused."""

import json

import numpy as np
import pytest
import safetensors
import safetensors.numpy

import atlas_ref
from atlas_ref.blocks import mag
from atlas_ref.models import MODULES, atlas_rnn
from atlas_ref.oracle.cases.case import differentiable, make
from atlas_ref.oracle.cases.recorded_headers import NAMES
from atlas_ref.oracle.judge.arrays import relative_error
from tests.support.layer_cases import FOLDER, MAG


def by_name(file):
    return file.stem


def parts(name):
    """Header as recorded, and tensors."""
    file = FOLDER / f"mag_{name}_11.safetensors"
    with safetensors.safe_open(file, "np") as opened:
        header = json.loads(opened.metadata()["atlas_ref"])
    return header, safetensors.numpy.load_file(file)


def inputs(tensors):
    return {name: value for name, value in tensors.items() if name.startswith("in/")}


@pytest.mark.clause("LAYER-17")
@pytest.mark.parametrize("file", MAG, ids=by_name)
def test_a_header_of_atlas_mag_is_that_of_a_layer_with_its_settings_and_origin(file):
    header, _ = parts(file.stem.removeprefix("mag_").removesuffix("_11"))
    case = atlas_ref.load(file)
    assert (case.header.rule, case.header.layer) == ("layer", NAMES[header["rule"]])
    assert case.header.parameters == header["config"]
    assert case.header.note.startswith("toddwbucy/Atlas-MAG_OmegaRule d01dcaf 11 float64")
    assert case.header.note.endswith(header.get("note", ""))
    again = make(case.header.plain(), {**case.inputs, **case.recorded})
    assert again.header == case.header


@pytest.mark.clause("LAYER-8", "LAYER-17")
@pytest.mark.parametrize("file", MAG, ids=by_name)
def test_recorded_gradients_are_those_of_inputs_parameters_and_values_between(file):
    case = atlas_ref.load(file)
    recorded = {name.removeprefix("grad/") for name in case.recorded if name.startswith("grad/")}
    own = {name.removeprefix("in/") for name in differentiable(case)}
    block = case.header.layer == "atlas_mag_attention_block"
    assert recorded == own | ({"q", "k", "v", "attn", "attn_projected"} if block else set())


@pytest.mark.clause("LAYER-17")
def test_the_gradient_of_a_value_between_is_that_of_a_change_of_it():
    """Along a direction of the reads, which the projection back and all that follows see."""
    header, tensors = parts("attention_block")
    results = atlas_ref.evaluate(make(header, inputs(tensors)), grad=True).tensors
    along = np.random.default_rng(0).standard_normal(results["out/attn"].shape)

    p = {name.removeprefix("in/param/"): value for name, value in inputs(tensors).items()}

    def loss(h):
        """The loss of reads moved by h, by what the block does with them."""
        x = p["in/x"] + (results["out/attn"] + h * along) @ p["w_o.weight"].T
        n = x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-6) * p["norm2.weight"]
        a = n @ p["ffn.w1.weight"].T
        y = x + (a / (1 + np.exp(-a)) * (n @ p["ffn.w2.weight"].T)) @ p["ffn.w3.weight"].T
        return np.sum(y * p["in/y_bar"])

    slope = np.imag(loss(1e-30j)) / 1e-30
    assert np.sum(results["grad/attn"] * along) == pytest.approx(slope, rel=1e-12)


@pytest.mark.clause("LAYER-17", "BLOCKS-4")
def test_an_attention_block_is_a_mag_block_without_memory():
    header, tensors = parts("attention_block")
    module = MODULES["atlas_mag_attention_block"]
    settings = module.settings(**header["config"])
    config = module.config(settings, 0.0, {})
    own = {name.removeprefix("in/param/"): value for name, value in tensors.items()}
    params = atlas_rnn.parameters(module, settings, config, own)
    x = tensors["in/x"]
    _, y = mag.apply(config, params, mag.start(config, len(x)), x)
    assert relative_error(y, tensors["out/y"]) < 1e-14


@pytest.mark.clause("LAYER-17")
def test_parts_of_a_rotary_case_in_calls_have_the_positions_of_the_whole():
    header, tensors = parts("rotary_offset")
    cut = {
        name: value if "inv_freq" in name else value[..., 4:, :]
        for name, value in inputs(tensors).items()
    }
    header["config"]["seq_offset"] += 4
    results = atlas_ref.evaluate(make(header, cut)).tensors
    for name in ("out/q", "out/k"):
        assert relative_error(results[name], tensors[name][..., 4:, :]) < 1e-15


@pytest.mark.clause("LAYER-17", "CASE-18")
def test_a_base_beside_recorded_frequencies_of_rotary_is_void():
    header, tensors = parts("rotary_start")
    header["config"]["base"] = 100.0
    case = make(header, inputs(tensors))
    assert case.void == {"parameters.base": "in/buffer/inv_freq holds the frequencies"}
    assert np.array_equal(atlas_ref.evaluate(case).tensors["out/q"], tensors["out/q"])


@pytest.mark.clause("LAYER-17")
def test_gradients_of_turned_queries_need_their_cotangent():
    header, tensors = parts("rotary_start")
    own = inputs(tensors)
    own.pop("in/q_bar")
    with pytest.raises(atlas_ref.CaseError, match="in/q_bar: missing, gradients need it"):
        atlas_ref.evaluate(make(header, own), grad=True)


BAD = {
    "unknown key": ("swiglu", {"width": 3}, {}, "width: unknown key of a recording of Atlas-MAG"),
    "config as a number": ("swiglu", {"config": 3}, {}, "config: must be an object, found 3"),
    "note as a number": ("swiglu", {"note": 3}, {}, "note: must be a string, found 3"),
    "float32 inside": (
        "swiglu",
        {"float32_inside": True},
        {},
        "float32_inside: true; results that were rounded to float32 on the way have no tolerance "
        "but those of atlas_mag_rms_norm",
    ),
    "another schema": ("rmsnorm", {"schema": 2}, {}, "schema: this version reads 1, found 2"),
    "unknown setting": ("rmsnorm", {}, {"width": 3}, "parameters.width: layer atlas_mag_rms_norm"),
    "eps 0": ("rmsnorm", {}, {"eps": 0}, "parameters.eps: must be greater than 0, found 0"),
    "odd dim": ("rotary_start", {}, {"dim": 7}, "parameters.dim: "),
    "another layout": ("rotary_start", {}, {"layout": "pairs"}, "parameters.layout: must be"),
    "a negative offset": ("rotary_start", {}, {"seq_offset": -1}, "parameters.seq_offset: "),
    "padding": (
        "attention_block",
        {},
        {"attention_mask": True},
        "in/attention_mask: missing, axes (B, 1, 1, T) are needed",
    ),
    "odd heads": ("attention_block", {}, {"n_heads": 16}, "parameters.dim: 16 is no multiple of"),
    "no hidden entry": (
        "attention_block",
        {},
        {"ffn_expansion": 0.01},
        "parameters.ffn_expansion: 0.01 leaves no hidden entry",
    ),
    "another width": ("swiglu", {}, {"hidden_dim": 20}, "in/param/w1.weight: "),
    "fused": ("swiglu", {}, {"fused": True}, "in/param/w1.weight: unknown tensor"),
}


@pytest.mark.clause("LAYER-17", "CASE-17")
@pytest.mark.parametrize("name", BAD)
def test_a_bad_recording_of_atlas_mag_is_refused_in_one_line(name, cli, tmp_path):
    stem, keys, config, words = BAD[name]
    header, tensors = parts(stem)
    header = {**header, **({"config": header["config"] | config} if config else {}), **keys}
    with pytest.raises(atlas_ref.CaseError) as refused:
        make(header, tensors, name="it")
    assert str(refused.value).startswith(f"it: {words}")
    file = tmp_path / "it.safetensors"
    safetensors.numpy.save_file(tensors, file, {"atlas_ref": json.dumps(header)})
    ran = cli("check", file)
    assert ran.code == 2
    assert ran.err.startswith(f"atlas-ref: {file}: {words}")
    assert ran.err.count("\n") == 1


@pytest.mark.clause("LAYER-17")
def test_a_rule_of_that_name_without_a_config_is_no_recording():
    _, tensors = parts("rmsnorm")
    with pytest.raises(atlas_ref.CaseError, match="rule: must be "):
        make({"schema": 1, "rule": "rms_norm"}, tensors)
