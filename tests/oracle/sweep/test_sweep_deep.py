"""Sweeps of deep memories: their draws, what is found of a wrong program, and how small it gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.case import Case, CaseError
from atlas_ref.oracle.deep.parameters import Parameters
from atlas_ref.oracle.deep.sweep import draw as deep_draw
from atlas_ref.oracle.judge.answers import Answer
from atlas_ref.oracle.sweep.draw import draw_case, regimes
from atlas_ref.oracle.sweep.sweep import sweep
from tests.support import deep_implementations
from tests.support.swept import assert_left_is_needed

RULE = "deep_memory"

#: What the programs of `deep_implementations` compute.
PLAIN: dict[str, tuple[Any, ...]] = {
    "memory": (deep_implementations.REQUEST["parameters"]["memory"],),
    "convention": (deep_implementations.REQUEST["convention"],),
    "chunk": (2,),
    "window": (3,),
    "window_gate": (False,),
    **dict.fromkeys(("history", "reset"), (0,)),
    "pulse": (1,),
    **{
        name: deep_draw.SPACE[name][:1]
        for name in deep_draw.SPACE
        if name not in (*deep_draw.OF_REQUEST, "memory", "chunk", "window")
    },
}


def source(function: Any) -> Any:
    def answered(case: Case) -> Answer:
        inputs = {name.removeprefix("in/"): x for name, x in case.inputs.items()}
        try:
            with np.errstate(over="ignore"):  # of momenta that do not fade
                found = function(case.header.plain(), inputs)
        except NotImplementedError as error:
            return Answer.no_support(str(error))
        return Answer({f"out/{name}": x for name, x in found.items()})

    return answered


@pytest.mark.clause("SWEEP-2", "SWEEP-13")
def test_the_draw_reaches_every_parameter_and_every_value() -> None:
    cases = [draw_case(RULE, 0, number, {}) for number in range(400)]
    assert set(Parameters.model_fields) <= {*deep_draw.SPACE, *deep_draw.LATER_PARAMETERS}
    assert not any("deep_momentum" in each.request["parameters"] for each in cases)
    for name in set(deep_draw.SPACE) - set(deep_draw.OF_REQUEST):
        met = {json.dumps(each.request["parameters"].get(name)) for each in cases}
        default, *others = (json.dumps(value) for value in deep_draw.SPACE[name])
        values = {*others} - {"null", default}
        assert name == "span" or values <= met, (name, values - met)
    assert {each.request["dtype"] for each in cases} == set(deep_draw.SPACE["dtype"])
    assert {each.regime for each in cases} == set(regimes(RULE))
    assert "slow" not in regimes(RULE)
    assert max(each.request["tokens"] for each in cases) == 17
    assert len({each.case.convention.model_dump_json() for each in cases}) > 150
    names = {name for each in cases for name in each.case.inputs}
    wanted = {"in/active", "in/reset", "in/window_gate", "in/state/keys", "in/step_size_memory"}
    assert wanted | {"in/state/weights/W_1", "in/state/reference/W_1", "in/y_bar"} <= names
    frozen = [each.case for each in cases if each.case.convention.reference == "chunk_start"]
    assert frozen
    assert all(case.header.parameters["span"] for case in frozen)
    assert any(len(each.case.inputs["in/k"]) > 1 for each in cases)


@pytest.mark.clause("SWEEP-3", "SWEEP-13")
def test_a_parameter_is_fixed_by_its_name_and_moves_nothing_else() -> None:
    moved = 0
    for number in range(30):
        free = draw_case(RULE, 2, number, {}).request
        held = draw_case(RULE, 2, number, {"reduction": ("mean",), "tokens": (5,)}).request
        assert held["tokens"] == 5
        assert held["parameters"].pop("reduction") == "mean"
        free["parameters"].pop("reduction", None)
        moved += {**free, "tokens": 5} != held
    assert moved == 0
    with pytest.raises(CaseError, match="sweep: 'd_model' is not drawn; tokens, d_in, d_out, "):
        sweep(RULE, source(deep_implementations.right), choices={"d_model": (3,)})
    with pytest.raises(
        CaseError, match="no case fits what is fixed after 300 attempts, the last: "
    ):
        sweep(RULE, source(deep_implementations.right), choices={"chunk": (2,), "span": (3,)})
    with pytest.raises(CaseError, match="regime 'slow' does not exist for deep_memory"):
        sweep(RULE, source(deep_implementations.right), choices={"regime": ("slow",)})


@pytest.mark.clause("SWEEP-4", "SWEEP-13")
def test_an_empty_regime_has_no_state() -> None:
    fixed = {"regime": ("empty",), "history": (1,), "chunk": (2,), "window": (3,)}
    free = draw_case(RULE, 0, 1, {**fixed, "regime": ("ordinary",)}).case
    case = draw_case(RULE, 0, 1, fixed).case
    assert any(name.startswith("in/state/") for name in free.inputs)
    assert not any(name.startswith("in/state/") for name in case.inputs)


@pytest.mark.slow
@pytest.mark.clause("SWEEP-5", "SWEEP-13")
def test_a_right_program_passes_and_a_wrong_one_shrinks_to_a_chunk(tmp_path: Path) -> None:
    right = sweep(
        RULE,
        source(deep_implementations.right),
        cases=25,
        choices=PLAIN,
        folder=tmp_path,
    )
    assert right.counts == {"PASS": 25}, right.failures
    wrong = source(deep_implementations.gates_of_the_first_token)
    found = sweep(RULE, wrong, cases=12, choices=PLAIN, folder=tmp_path, keep=1, shrink=150)
    assert found.exit_code == 1
    (kept,) = [each for each in found.failures if each.file is not None]
    assert kept.shrunk is not None
    assert kept.shrunk["numbers"][1] < kept.shrunk["numbers"][0]
    case = atlas_ref.load(tmp_path / str(kept.file))
    assert case.inputs["in/k"].shape[-2] == 2  # the one chunk that shows it
    assert any(row.verdict == "WRONG" for row in atlas_ref.check(case))


#: What a mistake may need, and what is left of a case with it alone.
NEEDS = {
    "a span": lambda case: "span" in (case.header.parameters or {}),
    "a state": lambda case: "in/state/weights/W_1" in case.inputs,
    "tokens before": lambda case: "in/state/keys" in case.inputs,
    "rows": lambda case: len(case.inputs["in/k"].shape) > 2 and len(case.inputs["in/k"]) > 1,
    "a polynomial": lambda case: (
        (case.header.parameters or {}).get("memory", {}).get("kind") == "polynomial"
    ),
    "a clip": lambda case: (case.header.parameters or {}).get("clip") == "soft",
    "a shared memory": lambda case: (
        (case.header.parameters or {}).get("coupling") == "batch_shared"
    ),
    "wide values": lambda case: case.inputs["in/v"].shape[-1] > 2,
}


@pytest.mark.clause("SWEEP-7", "SWEEP-13")
def test_what_is_left_of_a_case_is_what_a_mistake_needs() -> None:
    sizes = {name: (needed, 45 if name == "a polynomial" else 24) for name, needed in NEEDS.items()}
    assert_left_is_needed(RULE, sizes, 60)


@pytest.mark.clause("SWEEP-11", "SWEEP-13")
def test_the_command_sweeps_a_deep_memory(cli: Any, tmp_path: Path) -> None:
    words = ["sweep", RULE, "--convention", "newton_schulz=none", "--cases", "4", "--keep", "0"]
    for name, values in PLAIN.items():
        if name != "convention":
            words += ["--fix", f"{name}={json.dumps(values[0])}"]
    right = cli(*words, "--impl", "tests.support.deep_implementations:right", "-o", tmp_path)
    assert (right.code, right.err) == (0, "")
    assert "sweep deep_memory, seed 0, 4 cases: 4 PASS" in right.out
    bad = cli(*words[:2], "--impl", "tests.support.deep_implementations:right", "--fix", "chunk=0")
    assert bad.code == 2
    assert "parameters.chunk" in bad.err
    for fixed in ("memory=mlp", "chunk=many", "window={}", "history=-1", "span=true", "clip=1"):
        ran = cli(*words[:2], "--impl", "tests.support.deep_implementations:right", "--fix", fixed)
        assert (ran.code, ran.err.count("\n")) == (2, 1), fixed
    assert list(tmp_path.iterdir()) == []
