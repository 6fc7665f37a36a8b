"""Every reading, and every pair of readings, of every rule runs on cases of every kind.

A pair is made as a search makes one: the second is one that can be made beside the first.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.inputs import convert
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.family import lattice
from atlas_ref.oracle.family.departures import ignore_features
from atlas_ref.oracle.family.facts import facts
from atlas_ref.oracle.family.habits import habits
from atlas_ref.oracle.identify import departed
from atlas_ref.oracle.identify.observation import Observation
from atlas_ref.oracle.identify.score import score, seen_as
from atlas_ref.oracle.judge import ensemble
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.rules import FAMILY
from tests.oracle.identify import test_deep_axes as deep
from tests.oracle.identify import test_dplr_formula_readings as formulas
from tests.oracle.identify import test_tnt_readings as tnt
from tests.support import deep_cases, every_rule

#: Memories of a case: a size that no other axis of it has.
MEMORIES = 11

#: What each rule has beside a small call of it.
KINDS: dict[str, dict[str, dict[str, Any]]] = {
    "deep_memory": {
        "polynomial": deep.POLYNOMIAL,
        "packed": deep.PACKED,
        "normed": deep.NORMED,
        "huber": deep.HUBER,
        "simplex": deep.SIMPLEX,
        "span": deep.QUIET,
        "full": deep_cases.FULL,
        "network": {"parameters": {"memory": {"kind": "mlp"}, "deep_momentum": {}}},
    },
    "tnt": {
        "one": tnt.REQUESTS["one"],
        "resumed": tnt.REQUESTS["resumed"],
        "window": tnt.WINDOW,
        "packed": tnt.PACKED,
        **{rule: {"parameters": {"rule": rule}} for rule in FAMILY},
    },
}


@functools.cache
def cases() -> dict[str, Case]:
    """Cases of every rule that has readings of its own, with leading axes and without.

    Those of a schedule, which is no call of one memory, run in tests/oracle/serving.
    """
    own = {rule for rule, each in SUBJECTS.items() if each.searched and each.calls}
    assert own >= KINDS.keys()
    found = dict[str, Case]()
    for rule in sorted(own):
        of_rule = KINDS.get(rule) or {
            case.name: {"parameters": case.header.parameters} for case in every_rule.cases()[rule]
        }
        for name, request in of_rule.items():
            found[f"{rule} {name}"] = _small(rule, request)
    found |= {f"dplr of {name}": case for name, case in formulas.CASES.items()}
    for name, case in list(found.items()):
        keys, values = every_rule.keys_and_values(case)
        if keys.shape[:-2] == values.shape[:-2] != ():
            found[f"{name}, alone"] = every_rule.without_leading_axes(case)
    return found


def _small(rule: str, request: dict[str, Any]) -> Case:
    sizes: dict[str, Any] = {"d_in": 3, "d_out": 3, "reset": 3} | request
    sizes["parameters"] = {each: x for each, x in (sizes["parameters"] or {}).items() if x}
    fixed = {"tokens": 5, "heads": MEMORIES, "cotangent": True, "dtype": "float64"}
    return new(Request(rule=rule, **(sizes | fixed)))


def run(case: Case, chosen: tuple[Any, ...], *, grad: bool = False) -> None:
    searched = searched_of(case)
    ensemble.exact(
        case,
        grad=grad,
        plain=lambda inputs, at, rounding: searched.run(inputs, at, rounding, chosen),
    )


def searched_of(case: Case) -> Any:
    return SUBJECTS[case.header.rule].searched


def beside(case: Case, chosen: tuple[Any, ...] = ()) -> Iterator[Any]:
    """Settings and mistakes that can be made beside others."""
    taken = {axis for each in chosen for axis in each.change}
    searched = searched_of(case)
    for each in (*searched.settings(case, chosen), *searched.departures(case, chosen)):
        if not taken & each.change.keys() and each.name not in {one.name for one in chosen}:
            yield each


@pytest.mark.sample(4)
@pytest.mark.clause("CASE-38", "DEEPCASE-15", "DPLRCASE-10", "TNTCASE-12", "PROG-4")
@pytest.mark.parametrize("name", cases())
def test_every_reading_runs(name: str, request: Any) -> None:
    """And its gradients; with `make test` those that are about them alone."""
    case, every = cases()[name], "slow" in request.node.keywords
    for each in beside(case):
        if every or not each.grad:
            run(case, (each,))
        if every or each.grad:
            run(case, (each,), grad=True)


#: Pairs of a case go into so many tests, of seconds each: a case of a deep memory has thousands.
PARTS = 64


@pytest.mark.sample(3)
@pytest.mark.clause("CASE-38", "DEEPCASE-15", "DPLRCASE-10", "TNTCASE-12", "PROG-4")
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", [name for name in cases() if name.endswith("alone")])
def test_every_pair_of_readings_runs(name: str, part: int, request: Any) -> None:
    """With `make test` a few of them."""
    case = cases()[name]
    pairs = [(one, other) for one in beside(case) for other in beside(case, (one,))]
    random.Random(0).shuffle(pairs)
    pairs = pairs[part::PARTS]
    for pair in pairs if "slow" in request.node.keywords else pairs[:40]:
        run(case, pair, grad=any(each.grad for each in pair))


#: What a kernel tends to miss, where a rule of the family has it.
FEATURES: dict[str, Any] = {"tokens": 5, "pulse": 2, "reset": 3, "per_dimension_gates": True}


@functools.cache
def of_family() -> dict[str, Case]:
    """Cases of the rules of the family, with and without leading axes."""
    found = dict[str, Case]()
    for rule, each in FAMILY.items():
        more = {"window": 2, "history": 1} if each.has_window else {}
        request = {"d_in": 3, "d_out": 3, "heads": MEMORIES, "cotangent": True}
        found[rule] = new(Request(rule=rule, **request, **FEATURES, **more))
        found[f"{rule}, alone"] = every_rule.without_leading_axes(found[rule])
    return found


@pytest.mark.sample(2)
@pytest.mark.clause("CASE-38", "IDENT-14", "IDENT-15")
@pytest.mark.parametrize("name", of_family())
def test_every_departure_runs_under_every_convention(name: str, request: Any) -> None:
    """And every two changes of a convention; with `make test` some of both."""
    case, every = of_family()[name], "slow" in request.node.keywords
    results = evaluate(case, grad=True).tensors
    values = {key: results[key] for key in ("out/y", "out/M")}
    gradients = {key: x for key, x in results.items() if key.startswith("grad/")}
    seen = Observation(values, {}, dict.fromkeys(values, "float64"), ())
    graded = Observation({}, gradients, dict.fromkeys(gradients, "float64"), ())
    own, inputs = lattice.point(case.convention), convert(case, "float64")
    two, one = (
        list(lattice.enumerate_points(facts(case), own, depth).conventions) for depth in (2, 1)
    )
    steps = 1 if every else 29
    assert np.isfinite(score(case, inputs, two[::steps], seen).distance).any()
    score(case, inputs, one[::steps], graded)
    for convention in one[::steps]:
        view = seen_as(case, convention)
        for each in (*ignore_features(view), *habits(view)):
            other = view if each.case is None else each.case(view)
            departed._distance(other, seen, columns=each.columns)


@pytest.mark.clause("CASE-38", "DEEP-11")
def test_a_number_of_a_memory_that_is_alone_decays() -> None:
    """A fast tensor without axes in a call without them: the first of many gives the same."""
    case = cases()["deep_memory polynomial"]
    alone = every_rule.without_leading_axes(case)
    assert alone.inputs["in/memory/read_scale"].shape == alone.inputs["in/k"].shape[:-2] == ()
    whole, found = (evaluate(each, grad=True).tensors for each in (case, alone))
    for name in ("out/y", "out/state/weights/read_scale", "grad/retain"):
        np.testing.assert_allclose(found[name], whole[name][0], rtol=1e-9, atol=1e-12)
