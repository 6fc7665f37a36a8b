"""Gates with an entry for each of several dimensions of a square memory: which axis they belong to."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.gate_axis import GATES
from atlas_ref.oracle.cases.new import Request, new
from tests.support.refusal import refused_everywhere

VECTORS = Path(__file__).parents[3] / "vectors" / "v1"
READINGS = (
    "has two readings where M is 3 by 3: one gate per output dimension, which scales rows of M, or a "
    "gate per key channel, as of KDA, GLA and the rule dplr, which scales columns of M; the key gate_axis has to say "
    "d_out or d_in"
)


def square(rule="delta", **request):
    """Header without gate_axis, and inputs, of a square memory whose gates have an axis of d_out."""
    case = new(
        Request(rule=rule, draw=1, tokens=5, d_in=3, d_out=3, per_dimension_gates=True, **request)
    )
    header = case.header.plain()
    assert header.pop("gate_axis") == "d_out"
    return header, dict(case.inputs)


@pytest.mark.clause("GATES-15", "CASE-6", "CASE-17")
def test_an_axis_with_two_readings_is_refused_everywhere(tmp_path, cli):
    header, inputs = square()
    file = tmp_path / "case.safetensors"
    atlas_ref.save(file, header, inputs)
    refused_everywhere(file, f"in/retain: shape (2, 5, 3) {READINGS}", cli, tmp_path)


@pytest.mark.clause("GATES-15")
@pytest.mark.parametrize("gate", GATES)
def test_every_gate_that_may_have_an_axis_asks_for_it(gate):
    rule = "titans_lmm"
    header, inputs = square(rule, convention={"rate": "split"})
    first = {
        name: value[..., 0] if value.ndim == 3 and name[3:] in GATES else value
        for name, value in inputs.items()
    }
    plain = gate.removeprefix("log_")
    wide = inputs[f"in/{plain}"]
    tensors = {name: value for name, value in first.items() if name != f"in/{plain}"}
    tensors[f"in/{gate}"] = np.log(wide) if gate != plain else wide
    atlas_ref.make(header, first)
    with pytest.raises(
        atlas_ref.CaseError, match=rf"in/{gate}: shape \(2, 5, 3\) has two readings"
    ):
        atlas_ref.make(header, tensors)
    atlas_ref.make({**header, "gate_axis": "d_out"}, tensors)


@pytest.mark.clause("GATES-15", "GATES-3")
@pytest.mark.parametrize("rule", ["omega", "titans_lmm", "delta", "hebbian"])
def test_stated_gates_scale_rows_forward_and_back(rule):
    """The loop of rows, and gradients that are those of the same case with one row alone."""
    header, inputs = square(rule, cotangent=True)
    case = atlas_ref.make({**header, "gate_axis": "d_out"}, inputs)
    whole = atlas_ref.evaluate(case, grad=True).tensors
    for row in range(3):
        own = {**inputs, "in/v": inputs["in/v"][..., row : row + 1]}
        own |= {
            name: value[..., row : row + 1, :]
            for name, value in inputs.items()
            if name in ("in/M0", "in/S0")
        }
        own |= {
            f"in/{gate}": inputs[f"in/{gate}"][..., row] for gate in GATES if f"in/{gate}" in inputs
        }
        own["in/y_bar"] = inputs["in/y_bar"][..., row : row + 1]
        bare = {**header, "convention": {"newton_schulz": "none"}} if rule == "omega" else header
        if rule == "omega":
            whole = atlas_ref.evaluate(
                atlas_ref.make({**bare, "gate_axis": "d_out"}, inputs), grad=True
            ).tensors
        alone = atlas_ref.evaluate(atlas_ref.make(bare, own), grad=True).tensors
        np.testing.assert_allclose(
            whole["out/M"][..., row, :], alone["out/M"][..., 0, :], rtol=1e-13
        )
        np.testing.assert_allclose(
            whole["grad/retain"][..., row], alone["grad/retain"], rtol=1e-12, atol=1e-14
        )


@pytest.mark.clause("GATES-15")
def test_a_gate_per_key_channel_is_refused_by_name_where_it_is_stated():
    header, inputs = square()
    words = (
        "in/retain: gate_axis d_in is a gate per key channel, as of KDA, GLA and the rule dplr, which scales columns of "
        "M; the rule delta has gates per token or per output dimension alone"
    )
    with pytest.raises(atlas_ref.CaseError, match=words):
        atlas_ref.make({**header, "gate_axis": "d_in"}, inputs)


@pytest.mark.clause("GATES-15", "CASE-6")
@pytest.mark.parametrize("axis", [None, "d_out", "d_in"])
def test_a_shape_of_key_channels_alone_is_refused_by_name_whatever_is_stated(axis):
    case = new(Request(rule="delta", d_in=4, d_out=3))
    header = case.header.plain() | ({} if axis is None else {"gate_axis": axis})
    tensors = {**case.inputs, "in/retain": np.full(case.inputs["in/k"].shape, 0.5)}
    with pytest.raises(
        atlas_ref.CaseError, match="is a gate per key channel, as of KDA, GLA and the rule dplr"
    ):
        atlas_ref.make(header, tensors)


@pytest.mark.clause("GATES-15")
def test_nothing_is_asked_where_the_shape_tells_or_both_readings_are_one():
    for sizes in ({"d_in": 4, "d_out": 3}, {"d_in": 1, "d_out": 1}):
        case = new(Request(rule="delta", per_dimension_gates=True, **sizes))
        header = {key: value for key, value in case.header.plain().items() if key != "gate_axis"}
        atlas_ref.make(header, case.inputs)
    mapped = {"rule": "omega", "feature_map": {"kind": "polynomial", "degree": 2}}
    case = new(Request(d_in=3, d_out=3, per_dimension_gates=True, **mapped))
    header = {key: value for key, value in case.header.plain().items() if key != "gate_axis"}
    atlas_ref.make(header, case.inputs)  # M has more columns than rows


@pytest.mark.clause("GATES-15")
def test_columns_of_a_feature_map_count():
    request = {"rule": "omega", "feature_map": {"kind": "linear"}, "features": 3}
    case = new(Request(d_in=4, d_out=3, per_dimension_gates=True, **request))
    header = {key: value for key, value in case.header.plain().items() if key != "gate_axis"}
    with pytest.raises(atlas_ref.CaseError, match="two readings where M is 3 by 3"):
        atlas_ref.make(header, case.inputs)


@pytest.mark.clause("GATES-15", "CASE-18")
def test_an_axis_that_no_gate_has_is_void():
    case = new(Request(rule="delta"))
    stated = atlas_ref.make({**case.header.plain(), "gate_axis": "d_out"}, case.inputs)
    assert stated.void == {"gate_axis": "every gate is one number per token"}


@pytest.mark.clause("GATES-15", "CASE-2", "CASE-16")
@pytest.mark.parametrize(
    ("header", "message"),
    [
        (
            {"rule": "delta", "level": "token"},
            "gate_axis: belongs to given gates, at level projected",
        ),
        (
            {"rule": "cms", "level": "token"},
            "gate_axis: belongs to given gates, at level projected",
        ),
        ({"rule": "newton_schulz"}, "gate_axis: the rule newton_schulz has no sequence"),
        ({"rule": "deep_memory"}, "gate_axis: the rule deep_memory has none"),
        ({"rule": "layer"}, "gate_axis: the rule layer has none"),
    ],
)
def test_a_key_where_no_gate_is_given_is_refused(header, message):
    with pytest.raises(atlas_ref.CaseError, match=message):
        atlas_ref.make({"schema": 1, "gate_axis": "d_out", **header}, {"in/k": np.zeros((2, 3))})


@pytest.mark.clause("GATES-15", "VEC-5")
def test_a_vector_has_the_axis_that_its_manifest_states(tmp_path):
    """The files of v1 were published without the key: they are read as they were."""
    file = VECTORS / "cases" / "delta-rows.safetensors"
    case = atlas_ref.load(file)
    assert case.header.gate_axis == "d_out"
    want = atlas_ref.evaluate(case).tensors
    np.testing.assert_allclose(case.recorded["out/y"], want["out/y"], rtol=1e-12)
    alone = tmp_path / file.name
    shutil.copy(file, alone)
    with pytest.raises(atlas_ref.CaseError, match="two readings"):
        atlas_ref.load(alone)


@pytest.mark.clause("GATES-15")
@pytest.mark.parametrize(
    "manifest",
    [
        "no JSON",
        "[]",
        "{}",
        '{"vectors": [{"file": "cases/mine.safetensors", "properties": []}]}',
        '{"vectors": [{"file": "cases/other.safetensors", "properties": ["gates per output dimension"]}]}',
        '{"vectors": [{"file": "cases/mine.safetensors"}]}',
        '{"vectors": [{"file": "cases/mine.safetensors", "properties": 3}]}',
        '{"vectors": 3}',
    ],
)
def test_a_manifest_that_does_not_state_it_states_nothing(tmp_path, manifest):
    header, inputs = square()
    (tmp_path / "cases").mkdir()
    (tmp_path / "manifest.json").write_text(manifest)
    atlas_ref.save(tmp_path / "cases" / "mine.safetensors", header, inputs)
    with pytest.raises(atlas_ref.CaseError, match="two readings"):
        atlas_ref.load(tmp_path / "cases" / "mine.safetensors")
    words = {"file": "cases/mine.safetensors", "properties": ["gates per output dimension"]}
    (tmp_path / "manifest.json").write_text(json.dumps({"vectors": [words]}))
    assert atlas_ref.load(tmp_path / "cases" / "mine.safetensors").header.gate_axis == "d_out"
