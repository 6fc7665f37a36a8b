"""Certified results of deep memories: against float64, plain loops, and differences of values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref.certify import certify
from atlas_ref.certify.differences import differences
from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.sweep.draw import draw_case
from tests.support import deep_cases
from tests.support.certified import assert_certified
from tests.support.close import Tolerance
from tests.support.deep_requests import REQUESTS

#: Rounding of float64 that a few writes with Newton-Schulz, norms and clips magnify.
ROUNDED = Tolerance("ROUNDED", 1e-9)

#: Sizes at which no norm is of one entry, whose balls never become exact zeros.
SIZES: dict[str, tuple[Any, ...]] = {
    "tokens": (2, 3, 5),
    "d_in": (2, 3),
    "d_out": (3,),
    "heads": (1, 2),
    "regime": ("ordinary", "edges", "small", "repeated"),
}


def agrees(case: Case) -> None:
    assert_certified(case, ROUNDED)


@pytest.mark.clause("CERT-17")
@pytest.mark.parametrize("name", REQUESTS)
def test_certified_results_are_those_of_the_rule(name: str) -> None:
    agrees(deep_cases.made(**{**REQUESTS[name], "cotangent": True}))


@pytest.mark.clause("CERT-17")
@pytest.mark.parametrize(
    ("convention", "parameters"),
    [({"gate": "forget"}, {}), ({"rate": "split"}, {"adaptive": True})],
    ids=["forget", "two adaptive steps"],
)
def test_certified_results_of_other_gates_are_those_of_the_rule(
    convention: dict[str, Any], parameters: dict[str, Any]
) -> None:
    own = {"memory": {"kind": "mlp"}, "chunk": 2, **parameters}
    agrees(deep_cases.made(cotangent=True, convention=convention, parameters=own))


@pytest.mark.clause("CERT-17")
@pytest.mark.sample(12)
@pytest.mark.parametrize("number", range(60))
def test_certified_results_of_drawn_cases_are_those_of_the_rule(number: int) -> None:
    agrees(draw_case("deep_memory", 7, number, SIZES).case)


@pytest.mark.clause("CERT-17")
def test_a_state_weighs_what_it_is_given() -> None:
    case = deep_cases.made(**REQUESTS["default"])
    draw = np.random.default_rng(1)
    bars = {
        name.replace("out/state/", "in/state_bar/"): draw.standard_normal(x.shape)
        for name, x in evaluate(case).tensors.items()
        if name.startswith(("out/state/weights", "out/state/momentum"))
    }
    agrees(case.replaced(inputs={**case.inputs, **bars}))


@pytest.mark.clause("CERT-11", "CERT-17")
@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "memory",
    [
        {"kind": "linear"},
        {"kind": "mlp", "expansion": 1.0},
        {"kind": "mlp", "expansion": 1.0, "activation": "silu", "residual_norm": True},
        {"kind": "polynomial", "key_width": 2, "expansion": 1.0, "activation": "gelu_tanh"},
    ],
    ids=str,
)
def test_differences_of_values_prove_every_derivative(memory: dict[str, Any]) -> None:
    case = deep_cases.made(
        tokens=3,
        d_in=2,
        d_out=2,
        heads=1,
        convention={"newton_schulz": {"steps": 1}},
        parameters={"memory": memory, "fast": "all", "vectors": "raw", "clip": "hard"},
    )
    found = certify(case, grad=True)
    proved = list(differences(case, found))
    assert len(proved) == sum(x.size for n, x in found.values.items() if n.startswith("grad/"))
    assert [each for each in proved if not each.agrees] == []


@pytest.mark.clause("CERT-17", "CERT-7")
def test_a_norm_of_one_entry_is_left_open_where_a_clip_looks_at_it() -> None:
    parameters = {
        "memory": {"kind": "polynomial", "key_width": 2, "expansion": 1.0},
        "clip": "soft",
    }
    case = deep_cases.made(tokens=2, d_out=1, heads=1, parameters=parameters)
    found = certify(case, max_bits=256)
    assert "out/state/momentum/W_in" in found.unresolved
