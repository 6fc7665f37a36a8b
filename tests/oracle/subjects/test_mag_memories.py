"""Atlas-MAG around its memory as cases: every recorded file, and what is refused."""

import json

import numpy as np
import pytest
import safetensors
import safetensors.numpy

import atlas_ref
from atlas_ref.oracle.cases.case import differentiable, make
from atlas_ref.oracle.cases.recorded_headers import NAMES
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.judge.answers import Answer
from atlas_ref.oracle.judge.arrays import relative_error
from tests.support.layer_cases import ALL_MAG

TOLERANCE = 1e-10
#: Files of each layer that LAYER-17 does not have.
LAYERS = {
    "atlas_mag_gamma_gate": 1,
    "atlas_mag_qkv": 1,
    "atlas_mag_query_key": 3,
    "atlas_mag_memory": 6,
    "atlas_mag_omega_loss": 3,
    "atlas_mag_ttl": 4,
    "atlas_mag_block": 5,
    "atlas_mag_model": 4,
}


def by_name(file):
    return file.stem


def parts(name):
    """Header as recorded, and tensors."""
    file = next(file for file in ALL_MAG if file.stem == f"mag_{name}_11")
    with safetensors.safe_open(file, "np") as opened:
        header = json.loads(opened.metadata()["atlas_ref"])
    return header, safetensors.numpy.load_file(file)


def inputs(tensors):
    return {name: value for name, value in tensors.items() if name.startswith("in/")}


def case_of(name, changes=None, drop=(), **config):
    header, tensors = parts(name)
    header["config"] |= config
    own = inputs(tensors) | (changes or {})
    return make(header, {key: x for key, x in own.items() if key not in drop})


@pytest.mark.clause("LAYER-8", "LAYER-10", "LAYER-17", "LAYER-19", "LAYER-20", "LAYER-21")
@pytest.mark.clause("LAYER-22", "MAG-2", "MAG-3", "MAG-5")
@pytest.mark.parametrize("file", ALL_MAG, ids=by_name)
def test_every_recorded_tensor_of_atlas_mag_passes(file):
    """Values, what lies between, memories after every call and step, and all gradients."""
    case = atlas_ref.load(file)
    rows = atlas_ref.check(case)
    assert {row.tensor for row in rows} == set(case.recorded)
    for row in rows:
        assert row.verdict == "PASS", row
        if "cast" in file.stem:
            assert (row.tolerance, row.error < row.tolerance) == (11 * 2.0**-24, True)
        else:
            assert (row.tolerance, row.error < 5e-12) == (TOLERANCE, True), row


@pytest.mark.clause("LAYER-17", "LAYER-19", "LAYER-20", "LAYER-21", "LAYER-22")
def test_there_are_thirty_six_files_of_thirteen_layers():
    counts = {}
    for file in ALL_MAG:
        header, _ = parts(file.stem.removeprefix("mag_").removesuffix("_11"))
        case = atlas_ref.load(file)
        assert (case.header.rule, case.header.layer) == ("layer", NAMES[header["rule"]])
        inside = {"float32_inside": True} if header.get("float32_inside") else {}
        assert case.header.parameters == header["config"] | inside
        again = make(case.header.plain(), {**case.inputs, **case.recorded})
        assert again.header == case.header
        counts[case.header.layer] = counts.get(case.header.layer, 0) + 1
    assert sum(counts.values()) == len(ALL_MAG) == 36
    assert {name: counts[name] for name in LAYERS} == LAYERS
    assert len(counts) == 13


@pytest.mark.clause("LAYER-8", "LAYER-19", "LAYER-20", "LAYER-21", "LAYER-22")
@pytest.mark.parametrize("file", ALL_MAG, ids=by_name)
def test_recorded_gradients_are_those_of_every_input_that_has_one(file):
    case = atlas_ref.load(file)
    recorded = {name.removeprefix("grad/") for name in case.recorded if name.startswith("grad/")}
    own = {name.removeprefix("in/") for name in differentiable(case)}
    if case.header.layer == "atlas_mag_attention_block":
        own |= {"q", "k", "v", "attn", "attn_projected"}
    if case.header.layer == "atlas_mag_query_key":
        names = {"q", "k", "gamma"} & {name.removeprefix("in/") for name in case.inputs}
        own = {f"{form}/{name}" for form in ("chunked", "sequential") for name in names}
    if case.header.layer == "atlas_mag_ttl" or "cast" in file.stem:
        own = set()
    assert recorded == own


@pytest.mark.clause("LAYER-10", "LAYER-20", "LAYER-21", "LAYER-22")
@pytest.mark.parametrize(
    "name", ["memory_gelu", "ttl_clip", "ttl_adaptive", "block_ttl", "skeleton_ttl", "qk_gates"]
)
def test_a_recorded_tensor_that_is_off_in_one_entry_is_wrong(name):
    header, tensors = parts(name)
    case = make(header, tensors)
    wrong = {}
    for key, value in list(case.recorded.items())[::7]:
        moved = np.array(value)
        at = np.unravel_index(int(np.argmax(np.abs(moved))), moved.shape)
        moved[at] *= 1 + 1e-6
        wrong[key] = moved
    rows = atlas_ref.check(case.replaced(recorded={**case.recorded, **wrong}))
    assert {row.tensor for row in rows if row.verdict == "WRONG"} == set(wrong)


@pytest.mark.clause("LAYER-19")
def test_a_norm_in_float32_passes_and_another_epsilon_does_not():
    header, tensors = parts("rmsnorm_cast")
    header["config"]["eps"] = 1e-5
    (row,) = atlas_ref.check(make(header, tensors))
    assert (row.verdict, row.error > row.tolerance) == ("WRONG", True)
    assert row.basis == "of a norm in float32 (LAYER-19)"


@pytest.mark.clause("LAYER-19")
def test_a_gradient_of_one_form_is_that_of_its_inputs_alone():
    """A change of the keys of one form moves its result and no other one."""
    case = case_of("qk_gates")
    results = evaluate(case, grad=True).tensors
    bar, step = case.inputs["in/y_bar"], 1e-6
    along = np.random.default_rng(0).standard_normal(case.inputs["in/k"].shape)
    moved = [
        evaluate(case_of("qk_gates", {"in/k": case.inputs["in/k"] + sign * step * along})).tensors
        for sign in (1, -1)
    ]
    for form in ("chunked", "sequential"):
        plus, minus = (np.sum(bar * each[f"out/y_{form}"]) for each in moved)
        slope = (plus - minus) / (2 * step)
        assert np.sum(results[f"grad/{form}/k"] * along) == pytest.approx(slope, rel=1e-7)
    assert relative_error(results["grad/chunked/k"], results["grad/sequential/k"]) > 1e-9


@pytest.mark.clause("LAYER-17")
def test_a_masked_token_reaches_no_other_and_its_own_row_through_the_residual_alone():
    header, tensors = parts("attention_block_masked")
    mask = tensors["in/attention_mask"]
    x = tensors["in/x"].copy()
    assert not mask[0, 0, 0, 3]
    x[0, 3] += 1.0
    changed = evaluate(case_of("attention_block_masked", {"in/x": x})).tensors
    others = np.arange(12) != 3
    assert np.array_equal(changed["out/y"][0, others], tensors_of(header, tensors)[0, others])


def tensors_of(header, tensors):
    return evaluate(make(header, inputs(tensors))).tensors["out/y"]


@pytest.mark.clause("LAYER-21", "CASE-18")
def test_settings_that_buffers_hold_or_that_disabled_memories_have_are_void():
    why = "buffers of the projection hold it"
    assert case_of("block_ttl", persistent_factor=0.5).void == {"parameters.persistent_factor": why}
    off = case_of("block_no_memory", ttl_eta=0.5, persistent_size=2.0)
    assert off.void["parameters.ttl_eta"] == "memories are disabled"
    _, tensors = parts("block_no_memory")
    y = evaluate(off, grad=True).tensors
    assert relative_error(y["out/y"], tensors["out/y"]) < 1e-14
    assert not y["grad/param/memory.w1.weight"].any()


@pytest.mark.clause("LAYER-20")
def test_steps_have_no_gradients():
    with pytest.raises(atlas_ref.CaseError, match="out/read: the steps are outside of the graph"):
        evaluate(case_of("ttl_plain"), grad=True)


@pytest.mark.clause("LAYER-11")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["gamma_gate", "qkv", "qk_gates", "memory_gelu", "block_ttl_off"])
def test_a_module_that_works_in_a_narrower_format_passes(name, dtype):
    case = case_of(name)
    mine = evaluate(case, grad=True, dtype=dtype).tensors
    rows = atlas_ref.check(case, source=lambda case: Answer(dict(mine)), dtype=dtype)
    assert {row.tensor: row.verdict for row in rows} == dict.fromkeys(mine, "PASS")


ZERO = np.zeros((2, 1, 1, 12), bool)
BAD = {
    "heads": ("qkv", {}, {"n_heads": 3}, "parameters.dim: 16 is no multiple of n_heads = 3"),
    "heads of a projection": ("qk_plain", {}, {"n_heads": 3}, "parameters.dim: 16 is no multiple"),
    "persistent": (
        "qk_gates",
        {"in/buffer/m_persistent": np.eye(16)},
        {},
        "in/buffer/m_persistent: not the sum of products of in/persistent_keys",
    ),
    "size": (
        "qk_gates",
        {"in/buffer/norm_persistent": np.array(2.0)},
        {},
        "in/buffer/norm_persistent: not the sum of their squares",
    ),
    "unit": (
        "qk_default_persistent",
        {"in/buffer/m_persistent": np.ones((16, 16))},
        {},
        "in/buffer/m_persistent: not the unit matrix times 1",
    ),
    "powers": ("qk_plain", {}, {"decay_base": 0.5}, "in/buffer/decay_weights: not powers of"),
    "unit of a block": (
        "block_ttl",
        {"in/buffer/qk_memory.m_persistent": np.ones((16, 16))},
        {},
        "in/buffer/qk_memory.m_persistent: not the unit matrix times 1",
    ),
    "no gates": ("omega_loss_gates", {}, {"gamma": False}, "in/gamma: unknown tensor for layer"),
    "both bounds": (
        "ttl_clip",
        {},
        {"adaptive_eta": True},
        "parameters.max_grad_norm: null with adaptive_eta",
    ),
    "tanh": ("memory_gelu", {}, {"gelu": "tanh"}, "parameters.gelu: must be 'erf'"),
    "calls": ("skeleton_ttl", {}, {"calls": 3}, "in/call2/ids: missing"),
    "one id": (
        "skeleton_inference",
        {"in/ids": np.zeros((2, 1), np.int64)},
        {},
        "in/ids: 1 tokens, at least 2 are needed",
    ),
    "an id": (
        "skeleton_inference",
        {"in/ids": np.full((2, 3), 32)},
        {},
        "in/ids: entries must be at most 31",
    ),
    "mask": (
        "attention_block_masked",
        {"in/attention_mask": ZERO},
        {},
        "in/attention_mask: row 0 leaves token 0 no token of its window",
    ),
    "mask without": (
        "attention_block_masked",
        {},
        {"attention_mask": False},
        "in/attention_mask: unknown tensor",
    ),
}


@pytest.mark.clause("LAYER-17", "LAYER-19", "LAYER-20", "LAYER-21", "LAYER-22", "CASE-17")
@pytest.mark.parametrize("name", BAD)
def test_a_bad_recording_is_refused_in_one_line(name):
    stem, tensors, config, words = BAD[name]
    with pytest.raises(atlas_ref.CaseError) as refused:
        case_of(stem, tensors, **config)
    assert str(refused.value).startswith(f"case: {words}")
    assert "\n" not in str(refused.value)
