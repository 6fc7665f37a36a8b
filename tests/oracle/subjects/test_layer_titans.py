"""The neural memory of titans-pytorch as cases: recorded files, calls, and what is refused."""

import json

import numpy as np
import pytest
import safetensors
import safetensors.numpy

import atlas_ref
from atlas_ref.oracle.cases.case import differentiable, make
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.judge.arrays import relative_error
from atlas_ref.oracle.judge.compare import checked
from atlas_ref.oracle.report.failures import explain
from tests.support.close import EXACT, assert_close
from tests.support.layer_cases import TITANS

TOLERANCE = 1e-10


def by_name(file):
    return file.stem


def file_of(name):
    return next(file for file in TITANS if file.stem == f"titans_{name}_11")


def parts(name):
    """Header as recorded, and inputs."""
    with safetensors.safe_open(file_of(name), "np") as opened:
        header = json.loads(opened.metadata()["atlas_ref"])
    tensors = safetensors.numpy.load_file(file_of(name))
    return header, {key: value for key, value in tensors.items() if key.startswith("in/")}


@pytest.mark.clause("LAYER-18", "LAYER-8", "LAYER-10", "NEURAL-2", "NEURAL-6", "NEURAL-10")
@pytest.mark.parametrize("file", TITANS, ids=by_name)
def test_every_recorded_tensor_of_titans_pytorch_passes(file):
    """Values, the state with the weights of every write, and gradients of every parameter."""
    assert len(TITANS) == 13
    case = atlas_ref.load(file)
    rows = atlas_ref.check(case)
    assert {row.tensor for row in rows} == set(case.recorded)
    for row in rows:
        assert row.verdict == "PASS", row
        if case.recorded[row.tensor].dtype.kind != "i":
            assert (row.tolerance, row.allowed) == (TOLERANCE, 1.0)
            assert row.error < 5e-12, row


@pytest.mark.clause("LAYER-18")
@pytest.mark.parametrize("file", TITANS, ids=by_name)
def test_a_header_of_titans_pytorch_is_that_of_a_layer(file):
    header, _ = parts(file.stem.removeprefix("titans_").removesuffix("_11"))
    case = atlas_ref.load(file)
    assert (case.header.rule, case.header.layer) == ("layer", "titans_neural_memory")
    assert case.header.parameters == header["config"]
    assert case.header.note == "lucidrains/titans-pytorch cc016eb 11 float64"
    assert make(case.header.plain(), {**case.inputs, **case.recorded}).header == case.header
    recorded = {name.removeprefix("grad/") for name in case.recorded if name.startswith("grad/")}
    assert recorded == {name.removeprefix("in/") for name in differentiable(case)}


@pytest.mark.clause("LAYER-18")
def test_the_parameters_that_the_code_copies_have_the_gradient_zero():
    results = evaluate(atlas_ref.load(file_of("depth2_chunk4_heads2")), grad=True).tensors
    copied = [name for name in results if name.startswith("grad/param/memory_model.")]
    assert len(copied) == 3
    assert not any(np.any(results[name]) for name in copied)


@pytest.mark.clause("LAYER-10", "LAYER-18")
@pytest.mark.parametrize("name", ["depth2_chunk4_two_calls", "depth1_chunk1"])
def test_a_recorded_tensor_that_is_off_in_one_entry_is_wrong_there(name):
    case = atlas_ref.load(file_of(name))
    for key, value in case.recorded.items():
        if not value.any():
            continue
        at = np.unravel_index(int(np.argmax(np.abs(value))), value.shape)
        moved = value.copy()
        moved[at] += 1 if value.dtype.kind == "i" else 2e-9 * np.linalg.norm(value)
        rows = atlas_ref.check(case.replaced(recorded={**case.recorded, key: moved}))
        (wrong,) = [row for row in rows if row.verdict != "PASS"]
        assert (wrong.tensor, wrong.verdict) == (key, "WRONG")


@pytest.mark.clause("LAYER-18", "NEURAL-8")
def test_calls_that_end_inside_a_chunk_are_one_call():
    """Results of calls that the code itself refuses; gradients of the tokens are parts of one."""
    header, tensors = parts("depth2_chunk4_refresh8")
    whole = evaluate(make(header, tensors), grad=True).tensors
    calls, first, cut = [5, 2, 1, 14], 0, dict(tensors)
    for i, length in enumerate(calls):
        for key in ("x", "y_bar"):
            cut[f"in/call{i}/{key}"] = tensors[f"in/{key}"][:, first : first + length]
        first += length
    own = {key: value for key, value in cut.items() if key not in ("in/x", "in/y_bar")}
    config = {**header["config"], "calls": calls}
    found = evaluate(make({**header, "config": config}, own), grad=True).tensors
    for key in ("out/y", "grad/x"):
        start, end = key.split("/")
        each = [found[f"{start}/call{i}/{end}"] for i in range(4)]
        assert relative_error(np.concatenate(each, axis=1), whole[key]) < 1e-12
    for key in ("last_update/norm.gamma", "weights/norm.gamma", "last_momentum/norm.gamma"):
        assert relative_error(found[f"out/call3/{key}"], whole[f"out/{key}"]) < 1e-13
    written = [found[f"out/call{i}/updates/norm.gamma"] for i in range(4)]
    assert [each.shape[1] for each in written] == [2, 1, 2, 4]
    assert_close("no write", written[1][:, 0], found["out/call1/weights/norm.gamma"], EXACT)
    assert [int(found[f"out/call{i}/seq_index"]) for i in range(4)] == [4, 4, 8, 20]


@pytest.mark.clause("LAYER-12", "LAYER-18")
@pytest.mark.parametrize(
    ("name", "tensor", "clause", "token"),
    [
        ("depth1_chunk1", "out/y", "NEURAL-2", 0),
        ("depth1_chunk1_two_calls", "out/call1/y", "NEURAL-2", 0),
        ("depth1_chunk1_two_calls", "out/call0/updates/norm.gamma", "NEURAL-6", None),
        ("depth1_chunk1_two_calls", "grad/call0/x", "LAYER-8", None),
    ],
)
def test_a_failure_names_the_clause_and_the_token(name, tensor, clause, token):
    case = atlas_ref.load(file_of(name))
    wrong = case.replaced(recorded={**case.recorded, tensor: case.recorded[tensor] * 1.5})
    done = checked(wrong)
    failure = explain(done, done.rows, "again")
    assert failure is not None
    assert (failure.op, failure.clause, failure.token) == (tensor, clause, token)


@pytest.mark.clause("LAYER-9", "LAYER-11", "LAYER-18")
@pytest.mark.parametrize(
    "name", ["depth1_chunk1", "depth2_chunk4_heads2", "depth1_chunk1_two_calls"]
)
def test_a_neural_memory_in_float32_passes(name):
    case = atlas_ref.load(file_of(name))
    mine = evaluate(case, grad=True, dtype="float32").tensors
    kinds = {value.dtype.name for key, value in mine.items() if "seq_index" not in key}
    assert kinds == {"float32"}
    rows = atlas_ref.check(case.replaced(recorded=dict(mine)), dtype="float32")
    assert {row.verdict for row in rows} == {"PASS"}


@pytest.mark.clause("LAYER-18", "CASE-18")
def test_arguments_without_effect_are_void():
    header, tensors = parts("depth1_chunk1_nomomentum")
    header["config"] |= {"momentum_order": 2}
    assert make(header, tensors).void == {
        "parameters.expansion_factor": "one matrix has no hidden entries",
        "parameters.momentum_order": "there is no momentum",
    }
    assert atlas_ref.load(file_of("depth2_chunk4")).void == {}


@pytest.mark.clause("LAYER-8", "LAYER-18")
def test_gradients_need_the_cotangent_of_the_first_call():
    header, tensors = parts("depth2_chunk4_two_calls")
    tensors.pop("in/call0/y_bar")
    case = make(header, tensors)
    assert "out/call1/y" in evaluate(case).tensors
    with pytest.raises(atlas_ref.CaseError, match="in/call0/y_bar: missing, gradients need it"):
        evaluate(case, grad=True)


BAD = {
    "unknown key": ({"width": 3}, {}, "width: unknown key of a recording of titans-pytorch"),
    "unknown setting": ({}, {"width": 3}, "parameters.width: layer titans_neural_memory has none"),
    "a span of half a chunk": ({}, {"batch_size": 6}, "parameters.batch_size: 6 is no multiple"),
    "one short head": ({}, {"dim_head": 3}, "parameters.dim_head: must be dim = 6 for one head"),
    "no hidden entry": ({}, {"expansion_factor": 0.1}, "parameters.expansion_factor: 0.1 leaves"),
    "memory names": ({}, {"memory_names": ["weights.0"]}, "parameters.memory_names: must be norm"),
    "other tokens": ({}, {"calls": [13]}, "in/x: "),
    "no calls": ({}, {"calls": []}, "parameters.calls: "),
    "a call of nothing": ({}, {"calls": [0, 14]}, "parameters.calls"),
    "several calls": ({}, {"calls": [7, 7]}, "in/x: unknown tensor"),
    "depth": ({}, {"depth": 3, "memory_names": None}, "in/param/memory_model_parameters."),
    "momentum": ({}, {"momentum": False}, "in/param/to_momentum.0."),
    "schema": ({"schema": 2}, {}, "schema: this version reads 1, found 2"),
}


@pytest.mark.clause("LAYER-18", "CASE-17")
@pytest.mark.parametrize("name", BAD)
def test_a_bad_recording_of_titans_pytorch_is_refused_in_one_line(name):
    keys, config, words = BAD[name]
    header, tensors = parts("depth2_chunk4")
    header = {**header, "config": header["config"] | config, **keys}
    with pytest.raises(atlas_ref.CaseError) as refused:
        make(header, tensors, name="it")
    assert str(refused.value).startswith(f"it: {words}"), refused.value
    assert "\n" not in str(refused.value)
