"""Sweeps of rule dplr with formulas of gates and step sizes, which are drawn where they are fixed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.case import CaseError
from atlas_ref.oracle.dplr import formulas
from atlas_ref.oracle.sweep.draw import draw_case
from atlas_ref.oracle.sweep.sweep import sweep
from tests.support import dplr_formula_kernels as kernels
from tests.support.swept import numbers, source

RULE = "dplr"

FIXED: dict[str, dict[str, Any]] = {
    "softplus": {"gate_formula": ("softplus",)},
    "bounded": {"gate_formula": ("bounded",), "gate_lower_bound": (-5.0, -0.6065)},
    "log_sigmoid": {
        "gate_formula": ("log_sigmoid",),
        "gate_normalizer": (1.0, 16.0),
        "gate_least": (-1.0, -0.1),
    },
    "floored_sigmoid": {"gate_formula": ("floored_sigmoid",)},
    "exponential": {"gate_formula": ("exponential",)},
    "beta": {"beta_formula": ("sigmoid", "twice_sigmoid"), "member": ("delta", "kda")},
}


@pytest.mark.sample(2)
@pytest.mark.clause("SWEEP-16", "DPLRCASE-16", "DPLRCASE-17")
@pytest.mark.parametrize("name", FIXED)
def test_a_right_kernel_passes(name: str, tmp_path: Path) -> None:
    found = sweep(RULE, source(kernels.right), cases=25, choices=FIXED[name], folder=tmp_path)
    assert found.counts == {"PASS": 25}, found.failures


@pytest.mark.clause("SWEEP-7", "SWEEP-16", "DPLRCASE-16")
def test_a_forgotten_bias_is_found_and_shrunk_to_a_token_of_its_formula(tmp_path: Path) -> None:
    fixed = FIXED["softplus"] | {"regime": ("ordinary",)}
    wrong = source(kernels.without_bias)
    found = sweep(RULE, wrong, cases=20, choices=fixed, folder=tmp_path, keep=1, shrink=200)
    (kept,) = [each for each in found.failures if each.file is not None]
    case = atlas_ref.load(tmp_path / str(kept.file))
    assert case.header.parameters == {"gate_formula": "softplus"}
    assert {"in/gate_input", "in/gate_bias"} <= case.inputs.keys()
    assert case.inputs["in/q"].shape[-2] <= 2
    assert numbers(case) <= 12
    assert any(row.verdict == "WRONG" for row in atlas_ref.check(case))


@pytest.mark.clause("SWEEP-3", "SWEEP-16")
def test_a_formula_that_is_fixed_moves_no_other_name() -> None:
    names = set(formulas.SETTINGS) | {"gate_formula", "beta_formula"}
    for number in range(20):
        free = draw_case(RULE, 2, number, {"gate": ("channel",), "member": ("kda",)})
        held = draw_case(
            RULE,
            2,
            number,
            {"gate": ("channel",), "member": ("kda",), "gate_formula": ("exponential",)},
        )
        own = {n: x for n, x in held.request["parameters"].items() if n not in names}
        assert {**held.request, "parameters": own} == free.request
        assert held.regime == free.regime


@pytest.mark.clause("SWEEP-4", "SWEEP-16")
def test_raw_numbers_are_far_out_at_the_edges() -> None:
    fixed = {"regime": ("edges",), "member": ("kda",), "gate_formula": ("softplus",)}
    case = draw_case(RULE, 0, 0, {**fixed, "tokens": (33,), "dtype": ("float64",)}).case
    assert {-1000.0, -17.0, 0.0, 20.0, 1000.0} <= set(np.unique(case.inputs["in/gate_input"]))


@pytest.mark.clause("SWEEP-3", "SWEEP-16")
@pytest.mark.parametrize(
    ("fixed", "words"),
    [
        ({"member": ("delta",), "gate_formula": ("softplus",)}, "delta has no gate that is given"),
        (
            {"member": ("kda",), "gate_formula": ("softplus",), "gate": ("log_token",)},
            "gate: log_token, but gate_form",
        ),
        ({"member": ("kda",), "gate_formula": ("bounded",)}, "gate_lower_bound: missing"),
        ({"gate_formule": ("bounded",)}, "'gate_formule' is not drawn; tokens, .*gate_formula, "),
    ],
)
def test_what_fits_no_formula_is_refused_in_a_line(fixed: Any, words: str) -> None:
    with pytest.raises(CaseError, match=f"^sweep: .*{words}") as caught:
        sweep(RULE, source(kernels.right), cases=1, choices=fixed)
    assert "\n" not in str(caught.value)
