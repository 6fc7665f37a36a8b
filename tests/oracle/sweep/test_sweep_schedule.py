"""A sweep of kernels that are called as a server calls them."""

import json

import pytest

import atlas_ref
from atlas_ref import CaseError
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.judge.answers import Answer
from atlas_ref.oracle.sweep.first import tokens_of
from atlas_ref.oracle.sweep.sweep import sweep

FIXED = {"member": ["kda"], "reset": [0], "steps": [1], "dtype": ["float64"]}


def right(case):
    return Answer(evaluate(case).tensors)


def forgets(case):
    """From no memory where a call has several tokens, but not the first, which has none in a case."""
    if tokens_of(case) > 1:
        inputs = {name: x for name, x in case.inputs.items() if name != "in/M0"}
        case = atlas_ref.make(case.header.plain(), inputs)
    return right(case)


@pytest.mark.clause("SWEEP-20")
def test_a_right_kernel_passes_and_cases_that_cannot_be_cut_are_told(tmp_path):
    found = sweep("dplr", right, cases=12, choices=FIXED, schedule="serving", folder=tmp_path)
    assert found.counts == {"PASS": 12}
    packed = {**FIXED, "reset": [3], "tokens": [6, 7]}
    refused = sweep("dplr", right, cases=4, choices=packed, schedule="serving", folder=tmp_path)
    assert refused.counts == {"NOT SUPPORTED": 4}
    assert any("in/reset goes back" in why for why in refused.refused)


@pytest.mark.clause("SWEEP-20")
def test_a_kernel_that_forgets_is_found_and_shrunk(tmp_path):
    fixed = {**FIXED, "state": ["absent"], "tokens": [9, 12]}
    assert sweep("dplr", forgets, cases=4, choices=fixed, folder=tmp_path).counts == {"PASS": 4}
    found = sweep(
        "dplr", forgets, cases=4, choices=fixed, schedule="serving", folder=tmp_path, keep=1
    )
    assert found.counts == {"WRONG": 4}
    assert found.failures[0].shrunk is not None
    small = atlas_ref.load(tmp_path / str(found.failures[0].file))
    assert tokens_of(small) < 9


def test_a_log_of_before_goes_on_and_one_of_a_schedule_is_another(tmp_path):
    log = tmp_path / "log.jsonl"
    sweep("dplr", right, cases=2, choices=FIXED, folder=tmp_path, resume=log)
    assert "schedule" not in json.loads(log.read_text().splitlines()[0])
    with pytest.raises(CaseError, match=r"another sweep|schedule"):
        sweep(
            "dplr", right, cases=2, choices=FIXED, folder=tmp_path, resume=log, schedule="serving"
        )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"schedule": "prefill:4"}, "only serving is one"),
        ({"schedule": "serving", "only": ["y"]}, "only: not with a schedule"),
    ],
)
def test_other_schedules_and_only_are_refused(options, said, tmp_path):
    with pytest.raises(CaseError, match=said):
        sweep("dplr", right, cases=2, choices=FIXED, folder=tmp_path, **options)
