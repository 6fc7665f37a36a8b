"""Sweeps of recurrences: what is drawn, kernels by another hand, and how small a failure gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.case import Case, CaseError
from atlas_ref.oracle.drawing import LONG
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.recurrences.members import MEMBERS
from atlas_ref.oracle.sweep.draw import draw_case, drawing, regimes
from atlas_ref.oracle.sweep.sweep import sweep
from tests.support.swept import assert_left_is_needed, source
from tests.truth import recurrence_loops

RULE = "recurrence"


def kernel(case: dict[str, Any], inputs: dict[str, Any], **change: Any) -> dict[str, Any]:
    """A member as a literal loop over sequences in float64, each head by itself."""
    own = case["parameters"]
    if own.get("groups", 1) > 1 or own.get("state_layout", "")[:7] == "(d_in, ":
        raise NotImplementedError("groups and other layouts")
    member = MEMBERS[own["member"]].program
    x = {name: z.astype(np.float64) for name, z in inputs.items() if z.dtype.kind == "f"}
    shapes = member.shapes({f"in/{name}": z for name, z in x.items()}, _Own)
    lead = shapes["y"][:-2]
    flat = {
        name: np.broadcast_to(x[name], shapes[name]) if name in x else np.zeros(shapes[name])
        for name in shapes
        if name != "y" and name not in member.states
    }
    flat |= {name: x.get(f"{name}0", np.zeros(shapes[name])) for name in member.states}
    whole = {
        name: np.broadcast_to(z, (*lead, z.shape[-1])) if name in ("gain", "shift", "ridge") else z
        for name, z in flat.items()
    }
    rows = {name: z.reshape((-1, *z.shape[len(lead) :])) for name, z in whole.items()}
    masks = {name: inputs[name].astype(bool) for name in ("active", "reset") if name in inputs}
    scale = 1.0 if own.get("query_scale") == 1 else x["q"].shape[-1] ** -0.5 if "q" in x else 1.0
    named = {"mini_batch", "norm_eps", "position"} & own.keys()
    settings = {"scale": scale, **{name: own[name] for name in named}} | change.pop("settings", {})
    found = recurrence_loops.run(own["member"], {**rows, **masks, **change}, **settings)
    return {name: z.reshape((*lead, *z.shape[1:])) for name, z in found.items()}


class _Own:
    groups = 1


def right(case: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    return kernel(case, inputs)


def without_active(case: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    """A kernel that does not know of silent tokens."""
    return kernel(case, {name: x for name, x in inputs.items() if name != "active"})


@pytest.mark.clause("RECUR-16", "SWEEP-2", "SWEEP-12", "PROG-6")
def test_the_draw_reaches_every_member_setting_regime_and_tensor() -> None:
    cases = [draw_case(RULE, 0, number, {}) for number in range(300)]
    of = drawing(RULE)
    drawn = {name: each.program for name, each in MEMBERS.items() if not each.program.later}
    assert {each.request["parameters"]["member"] for each in cases} == set(drawn)
    for name in ("query_scale", "state_layout", "mini_batch", "norm_eps", "groups", "position"):
        met = {json.dumps(each.request["parameters"].get(name)) for each in cases}
        default, *others = (json.dumps(value) for value in of.space[name])
        assert {*others} - {"null", default} <= met, name
    for name in (*of.of_tensors, "dtype", "pulse", "reset"):
        assert {each.request[name] for each in cases} == set(of.space[name]), name
    assert {each.regime for each in cases} == {*regimes(RULE), "slow"}
    long = [each for each in cases if each.regime == "slow"]
    assert {each.request["tokens"] for each in long} == set(LONG)
    names = {name for each in cases for name in each.case.inputs}
    every = {name for program in drawn.values() for name in program.tensors}
    assert names == every


@pytest.mark.clause("RECUR-16", "SWEEP-3")
def test_a_name_is_fixed_and_moves_nothing_else() -> None:
    for number in range(20):
        free = draw_case(RULE, 2, number, {}).request
        held = draw_case(RULE, 2, number, {"state_bar": (True,)}).request
        assert held.pop("state_bar") is True
        free.pop("state_bar")
        assert held == free
    chosen = {"member": ("ttt_linear",), "mini_batch": (3,)}
    assert draw_case(RULE, 0, 0, chosen).request["parameters"]["mini_batch"] == 3


@pytest.mark.clause("RECUR-16", "SWEEP-3")
@pytest.mark.parametrize(
    ("fixed", "words"),
    [
        ({"convention": ("spec",)}, "'convention' is not drawn; tokens, d_in, "),
        ({"state": ("some",)}, "state: 'some' is none of absent, first"),
        ({"member": ("gsb",)}, "300 attempts, .*parameters.member"),
        ({"member": ("hgrn",), "groups": (2,)}, "300 attempts, .*groups: the member hgrn has none"),
        (
            {"regime": ("small",)},
            "regime 'small' does not exist for recurrence; regimes are ordinary",
        ),
    ],
)
def test_what_does_not_exist_is_refused_in_a_line(fixed: Any, words: str) -> None:
    with pytest.raises(CaseError, match=f"^sweep: .*{words}") as caught:
        sweep(RULE, source(right), cases=1, choices=fixed)
    assert "\n" not in str(caught.value)


@pytest.mark.clause("RECUR-16", "SWEEP-4")
def test_regimes_are_what_the_clause_says() -> None:
    def logs(regime: str, member: str = "gsa") -> Any:
        fixed = {"regime": (regime,), "member": (member,), "tokens": (33,), "dtype": ("float64",)}
        return draw_case(RULE, 0, 0, fixed).case.inputs["in/log_retain"]

    assert {-np.inf, -100.0, -1000.0, 0.0} <= set(np.unique(logs("edges")))
    assert (logs("ones") == 0).all()
    faded = np.exp(logs("fading"))
    np.testing.assert_allclose((faded.min(), faded.max()), (2.0**-13, 0.25), rtol=1e-14)
    for member in ("gsa", "mesa"):
        sudden = logs("sudden", member)
        rows = sudden == -1000.0
        assert rows.sum() == sudden.size / 33
        assert (sudden[~rows] > -0.02).all()
    k = draw_case(RULE, 0, 0, {"regime": ("repeated",), "member": ("mesa",)}).case.inputs["in/k"]
    assert (k == k[..., :1, :]).all()
    empty = draw_case(RULE, 0, 0, {"regime": ("empty",)}).case
    assert not [name for name in empty.inputs if name.endswith("0")]


@pytest.mark.clause("RECUR-16", "SWEEP-1", "SWEEP-5")
def test_a_right_kernel_passes_and_a_wrong_one_is_found_small(tmp_path: Path) -> None:
    small: dict[str, Any] = {"tokens": (1, 2, 3, 5), "dtype": ("float64",)}
    found = sweep(RULE, source(right), cases=40, seed=1, choices=small, folder=tmp_path / "right")
    assert not found.failures
    assert found.counts["PASS"] > 20
    wrong = sweep(
        RULE,
        source(without_active),
        cases=12,
        choices={**small, "pulse": (2,), "member": ("gsa",)},
        folder=tmp_path / "wrong",
        keep=1,
    )
    failure = next(each for each in wrong.failures if each.file is not None)
    case = atlas_ref.load(tmp_path / "wrong" / str(failure.file))
    assert "in/active" in case.inputs
    assert sum(int(x.size) for x in case.inputs.values()) < 30
    evaluate(case)


def _member(case: Case, name: str) -> bool:
    return bool((case.header.parameters or {})["member"] == name)


@pytest.mark.clause("RECUR-16", "SWEEP-7", "PROG-6")
def test_shrinking_leaves_what_a_mistake_needs() -> None:
    def first(case: Case) -> bool:
        return _member(case, "mesa") and "in/G0" in case.inputs

    def grouped(case: Case) -> bool:
        return bool((case.header.parameters or {}).get("groups", 1) > 1)

    def resets(case: Case) -> bool:
        return _member(case, "ttt_linear") and bool(np.any(case.inputs.get("in/reset", 0)))

    def turned(case: Case) -> bool:
        return _member(case, "gsa") and "state_layout" in (case.header.parameters or {})

    needs = {
        "first": (first, 9),
        "grouped": (grouped, 12),
        "resets": (resets, 8),
        "turned": (turned, 8),
    }
    assert_left_is_needed(RULE, needs, 120)
