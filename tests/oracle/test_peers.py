"""Records of independent implementations against ours, tensor by tensor, values and gradients."""

import numpy as np
import pytest
from safetensors.numpy import load_file

import atlas_ref
from atlas_ref.oracle.cases.case import differentiable
from atlas_ref.oracle.judge.arrays import TOLERANCE
from tests.support.casefiles import PEERS, RESERVED

FILES = sorted(PEERS.glob("*.safetensors"))
#: Recordings of modules, judged as those of layers are.
MODULES = [file for file in FILES if file.stem.startswith(("mag_ttl", "mag_qk"))]
SUPPORTED = [file for file in FILES if file not in MODULES]


def by_name(file):
    return file.stem


def test_there_are_seventeen_cases_of_rules_and_three_of_modules():
    assert (len(SUPPORTED), len(MODULES)) == (17, 3)


@pytest.mark.clause("CASE-20", "CASE-21")
@pytest.mark.parametrize("file", SUPPORTED, ids=by_name)
def test_every_recorded_tensor_of_a_supported_case_passes(file):
    case = atlas_ref.load(file)
    verdicts = atlas_ref.check(case)
    assert {each.tensor for each in verdicts} == set(case.recorded)
    for each in verdicts:
        assert each.verdict == "PASS", each
        assert each.ratio <= each.allowed
        if case.recorded[each.tensor].dtype == np.float64:
            assert (each.tolerance, each.allowed) == (TOLERANCE, 1.0)


@pytest.mark.clause("CASE-14")
@pytest.mark.parametrize(
    "file",
    [f for f in SUPPORTED if f.stem.startswith("atlas_rnn") and "phi" not in f.stem],
    ids=by_name,
)
def test_a_recorded_run_with_gradients_records_one_for_every_floating_input(file):
    case = atlas_ref.load(file)
    recorded = {name.removeprefix("grad/") for name in case.recorded if name.startswith("grad/")}
    assert recorded == {name.removeprefix("in/") for name in differentiable(case)}


@pytest.mark.clause("LAYER-17", "LAYER-19", "LAYER-20")
@pytest.mark.parametrize("file", MODULES, ids=by_name)
def test_every_recorded_tensor_of_an_earlier_recording_passes(file):
    """Each as it was recorded, under the name that later recordings have."""
    case = atlas_ref.load(file)
    tensors = {name for name in load_file(file) if name.startswith("out/")}
    assert len(case.recorded) == len(tensors)
    verdicts = atlas_ref.check(case)
    assert {each.tensor for each in verdicts} == set(case.recorded)
    assert {each.verdict for each in verdicts} == {"PASS"}
    assert all(each.error <= 1e-12 for each in verdicts), max(each.error for each in verdicts)


@pytest.mark.clause("CASE-21")
def test_a_reserved_rule_is_not_supported():
    case = atlas_ref.load(RESERVED)
    (verdict,) = atlas_ref.check(case)
    assert verdict.verdict == "NOT SUPPORTED"
    assert verdict.why == f"rule {case.header.rule}: not yet supported"
    with pytest.raises(atlas_ref.CaseError, match="not yet supported"):
        atlas_ref.evaluate(case)


@pytest.mark.sample(6)
@pytest.mark.clause("CASE-20")
@pytest.mark.parametrize("file", SUPPORTED, ids=by_name)
def test_a_recorded_tensor_that_is_off_by_a_billionth_is_wrong(file):
    """Records with half of the entries moved.

    By 2e-9 of themselves, a thousand times the tolerance; float32 by 1e-4.
    """
    case = atlas_ref.load(file)
    random = np.random.default_rng(0)
    for name, value in case.recorded.items():
        share = 2e-9 if value.dtype == np.float64 else 2e-4
        moved = value * (1 + share * random.integers(0, 2, value.shape)).astype(value.dtype)
        if not moved.any():
            moved = moved + np.asarray(share, value.dtype)
        verdicts = atlas_ref.check(case.replaced(recorded={**case.recorded, name: moved}))
        wrong = [each.tensor for each in verdicts if each.verdict != "PASS"]
        assert wrong == [name]
