"""The regime of trained layers, of a sweep and of `new`."""

import numpy as np
import pytest

from atlas_ref import CaseError
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.judge.answers import Answer
from atlas_ref.oracle.sweep.draw import draw_case
from atlas_ref.oracle.sweep.sweep import sweep

SIZES = {"tokens": 200, "d_in": 4, "d_out": 3, "heads": 8, "seed": 4}


def of(rule, parameters=None, **request):
    return new(
        Request(rule=rule, parameters=parameters or {}, regime="trained", **SIZES, **request)
    )


@pytest.mark.clause("SWEEP-4")
@pytest.mark.parametrize("log", [False, True])
def test_gates_are_those_of_trained_layers(log):
    inputs = of("dplr", {"member": "kda"}, log=log).inputs
    with np.errstate(divide="ignore"):
        logs = inputs["in/log_retain"] if log else np.log(inputs["in/retain"])
    assert logs.max() <= -1e-3
    usual = logs[logs >= -20.1 - 1e-9]
    assert 0.8 < usual.size / logs.size < 1.0
    least = logs.min()
    assert -2661 - 1e-6 <= least < -745 if log else least == -np.inf
    rates = -logs.reshape(8, -1).max(axis=1) / 1e-3  # of heads, which differ
    assert rates.max() > 4 * rates.min()
    for name in ("in/k", "in/q"):
        assert np.allclose(np.linalg.norm(inputs[name], axis=-1), 1.0)


@pytest.mark.clause("SWEEP-4")
def test_raw_gates_have_their_rate_as_an_input():
    inputs = of("dplr", {"member": "kda", "gate_formula": "softplus"}).inputs
    rates = np.exp(inputs["in/gate_log_rate"])
    steps = np.logaddexp(0.0, inputs["in/gate_input"])
    assert 1.0 <= rates.min() < rates.max() <= 201.0
    assert 1e-3 * (1 - 1e-9) <= steps.min() < 0.1 < steps.max() < 13.3


@pytest.mark.clause("SWEEP-4")
def test_a_gate_that_says_what_is_forgotten_is_turned():
    shares = of("titans_lmm", convention={"gate": "forget"}).inputs["in/retain"]
    assert 9e-4 < np.median(shares) < 0.99
    assert shares.max() == 1.0
    assert np.median(of("titans_lmm").inputs["in/retain"]) > 0.01


@pytest.mark.clause("SWEEP-4")
@pytest.mark.parametrize(
    ("rule", "fixed"),
    [("dplr", {"member": ["gdn2"]}), ("recurrence", {"member": ["hgrn", "mesa"]}), ("delta", {})],
)
def test_a_sweep_takes_it_by_name_and_no_other_draw_has_it(rule, fixed, tmp_path):
    def right(case):
        return Answer(evaluate(case).tensors)

    fixed = {**fixed, "regime": ["trained"]}
    assert sweep(rule, right, cases=6, choices=fixed, folder=tmp_path).counts == {"PASS": 6}
    assert "trained" not in {draw_case(rule, 0, number, {}).regime for number in range(40)}


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"rule": "dplr", "regime": "brisk"}, "regime 'brisk': rule dplr has ordinary, edges"),
        ({"rule": "deep_memory", "regime": "trained"}, "rule deep_memory has ordinary"),
        (
            {"rule": "delta", "level": "token", "regime": "ones"},
            "regime ones: changes no input of this case",
        ),
    ],
)
def test_a_regime_that_is_none_or_changes_nothing_is_refused(request_, said):
    with pytest.raises(CaseError, match=said):
        new(Request(**request_))
