"""Sweeps of a TNT: draws, what is found of a wrong kernel, and how small it gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atlas_ref
from atlas_ref.forms.tnt import PRESETS
from atlas_ref.oracle.cases.case import Case, CaseError
from atlas_ref.oracle.sweep.draw import draw_case, regimes
from atlas_ref.oracle.sweep.sweep import Named, sweep
from atlas_ref.oracle.tnt import draw
from atlas_ref.oracle.tnt.parameters import GlobalMemory, LocalMemory, Projection
from atlas_ref.rules import FAMILY
from tests.support import tnt_kernels as kernels
from tests.support.swept import assert_goes_on, assert_left_is_needed, numbers, source

RULE = "tnt"


def own(case: Case) -> dict[str, Any]:
    return case.header.parameters or {}


def locals_of(case: Case) -> list[dict[str, Any]]:
    return list(own(case).get("locals") or ())


@pytest.mark.slow
@pytest.mark.clause("SWEEP-2", "SWEEP-15")
def test_the_draw_reaches_every_setting_and_every_value() -> None:
    cases = [draw_case(RULE, 0, number, {}) for number in range(400)]
    names = {f"global.{name}" for name in GlobalMemory.model_fields}
    names |= {f"locals.2.{name}" for name in LocalMemory.model_fields if name != "projection"}
    names |= {f"locals.2.projection.{name}" for name in Projection.model_fields}
    assert names <= set(draw.SPACE)
    met: dict[str, set[str]] = {name: set() for name in draw.SPACE}
    for each in cases:
        given = each.request["parameters"]
        memories = {f"locals.{i}": local for i, local in enumerate(given.get("locals", ()))}
        memories |= {"global": given["global"]} if given.get("global") else {}
        for place, memory in memories.items():
            flat = {f"projection.{n}": x for n, x in memory.get("projection", {}).items()} | memory
            for name, value in flat.items():
                met.get(f"{place}.{name}", set()).add(json.dumps(value))
    for name in names:
        place, _, key = name.partition(".2." if name.startswith("locals") else ".")
        wanted = {json.dumps(value) for value in draw.SPACE[name]} - {"null"}
        every = [f"locals.{i}.{key}" for i in range(draw.MOST)] if place == "locals" else [name]
        assert wanted <= set().union(*(met[each] for each in every)), name
    chosen = [each.request["parameters"] for each in cases]
    assert {each.get("rule", "titans_lmm") for each in chosen} == set(FAMILY)
    assert {each.get("preset", "paper") for each in chosen} == set(PRESETS)
    assert {len(each.get("locals", ())) for each in chosen} == {0, 1, 2, 3}
    assert {each.request["dtype"] for each in cases} == set(draw.SPACE["dtype"])
    assert {each.regime for each in cases} == set(regimes(RULE))
    inputs = {name for each in cases for name in each.case.inputs}
    wanted = {"in/reset", "in/state/position", "in/state/local0/P_keys", "in/state_bar/local0/M"}
    wanted |= {"in/local0/W_QK", "in/local0/q", "in/local0/k", "in/local0/retain", "in/local0/S0"}
    assert wanted | {"in/window_gate", "in/window_weights", "in/global/k"} <= inputs
    assert {each.case.inputs["in/local0/M0"].ndim for each in cases if starts(each.case)} == {2, 3}


def starts(case: Case) -> bool:
    return "in/local0/M0" in case.inputs


@pytest.mark.clause("SWEEP-2", "SWEEP-15")
def test_a_last_shard_is_often_short_and_equations_are_drawn_as_printed() -> None:
    cases = [draw_case(RULE, 3, number, {}).case for number in range(100)]
    short = [
        case
        for case in cases
        if any(case.inputs["in/k"].shape[-2] % local["shard"] for local in locals_of(case))
    ]
    assert len(short) > 40
    printed = [case for case in cases if own(case).get("preset") == "paper-literal"]
    assert len(printed) > 10
    assert all(case.convention.gate == "none" for case in printed if case_sums(case))


def case_sums(case: Case) -> bool:
    """Whether the settings of the preset are in force in a memory."""
    bases = [local.get("base", "previous") for local in locals_of(case)]
    first = own(case).get("global")
    return "previous" in bases or (first is not None and first.get("sum") is None)


@pytest.mark.clause("SWEEP-3", "SWEEP-15")
def test_a_setting_is_fixed_by_its_name_and_moves_nothing_else() -> None:
    fixed = {"locals": (2,), "locals.1.span": (5,), "tokens": (7,), "own": ("nothing",)}
    for number in range(20):
        free = draw_case(RULE, 2, number, {**fixed, "locals.1.span": (4,)}).request
        held = draw_case(RULE, 2, number, fixed).request
        assert held["tokens"] == 7
        assert held["parameters"]["locals"][1].pop("span") == 5
        free["parameters"]["locals"][1].pop("span")
        assert held == free


@pytest.mark.clause("SWEEP-3", "SWEEP-15")
@pytest.mark.parametrize(
    ("fixed", "words"),
    [
        ({"d_model": (3,)}, "'d_model' is not drawn; tokens, d_in, "),
        ({"locals": (4,)}, "locals: 4 is none of 1, 2, 3, 0"),
        ({"global": ("x",)}, "global: 'x' is none of True, False"),
        ({"own": ("all",)}, "own: 'all' is none of nothing, queries, keys, gates"),
        ({"global": (False,), "locals": (0,)}, "300 attempts, .*no global memory and no locals"),
        ({"memory": ("linear",)}, "300 attempts, .*parameters.rule"),
        ({"memory": ("deep_memory",)}, "300 attempts, .*parameters.rule"),
        ({"locals": (1,), "locals.0.span": (0,)}, "300 attempts, .*parameters.locals.0.span"),
        ({"preset": ({},)}, "300 attempts, .*parameters.preset"),
        ({"convention": ("nothing",)}, "300 attempts, .*convention"),
        ({"regime": ("slow",)}, "regime 'slow' does not exist for tnt"),
    ],
)
def test_what_does_not_exist_is_refused_in_a_line(fixed: Any, words: str) -> None:
    with pytest.raises(CaseError, match=f"^sweep: .*{words}") as caught:
        sweep(RULE, source(kernels.right), cases=1, choices=fixed)
    assert "\n" not in str(caught.value)


@pytest.mark.clause("SWEEP-4", "SWEEP-15")
def test_regimes_reach_the_gates_of_every_memory() -> None:
    fixed = {"own": ("gates",), "memory": ("delta",), "locals": (1,), "tokens": (17,)}
    fixed |= {"convention": ("spec",), "preset": ("paper",), "global.sum": (None,)}
    fixed |= {"locals.0.base": (None,), "dtype": ("float64",)}
    ones = draw_case(RULE, 0, 0, {**fixed, "regime": ("ones",)}).case.inputs
    assert all((ones[name] == 1).all() for name in ("in/retain", "in/local0/retain"))
    edges = draw_case(RULE, 0, 0, {**fixed, "regime": ("edges",)}).case.inputs
    for name in ("in/retain", "in/local0/retain"):
        assert 0.1 < np.mean((edges[name] == 0) | (edges[name] == 1)) < 0.6
    history = {**fixed, "history": (3,)}
    empty = draw_case(RULE, 0, 0, {**history, "regime": ("empty",)}).case.inputs
    assert not any("state/" in name or name.endswith("/M0") for name in empty)
    whole = draw_case(RULE, 0, 0, {**history, "regime": ("ordinary",)}).case.inputs
    assert any(name.startswith("in/state/") for name in whole)


@pytest.mark.slow
@pytest.mark.clause("SWEEP-5", "SWEEP-15")
def test_a_right_kernel_passes(tmp_path: Path) -> None:
    found = sweep(RULE, source(kernels.right), cases=60, choices=kernels.KNOWN, folder=tmp_path)
    assert found.counts == {"PASS": 60}, found.failures
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
def test_a_right_kernel_passes_of_other_seeds(seed: int, tmp_path: Path) -> None:
    given = {"choices": kernels.KNOWN, "seed": seed, "folder": tmp_path}
    found = sweep(RULE, source(kernels.right), cases=300, **given)
    assert found.counts == {"PASS": 300}, found.failures


#: What is left of a case that shows a mistake, in tokens.
LEFT = {
    kernels.never_reset: 2,
    kernels.tail_dropped: 1,
    kernels.projection_kept: 2,
    kernels.origin_ignored: 2,
    kernels.key_not_met: 1,
    kernels.running_reference: 2,
}


@pytest.mark.sample(1)
@pytest.mark.clause("SWEEP-7", "SWEEP-15")
@pytest.mark.parametrize("mistake", LEFT, ids=lambda each: each.__name__)
def test_a_mistake_is_found_and_shrunk_to_what_it_needs(mistake: Any, tmp_path: Path) -> None:
    given = {"choices": kernels.KNOWN, "folder": tmp_path, "keep": 2, "shrink": 200}
    found = sweep(RULE, source(mistake), cases=30, **given)
    # what is marginal is saved as it was drawn
    kept = [each for each in found.failures if each.file is not None and each.verdict == "WRONG"]
    assert kept
    for each in kept:
        case = atlas_ref.load(tmp_path / str(each.file))
        assert case.inputs["in/k"].shape[-2] <= LEFT[mistake]
        assert numbers(case) <= 12
        assert any(row.verdict == "WRONG" for row in atlas_ref.check(case))


#: What a mistake may need, and how many numbers are left of a case with it alone.
NEEDS = {
    "nothing": (lambda case: True, 5),
    "a local memory": (lambda case: len(locals_of(case)) > 0, 5),
    "two local memories": (lambda case: len(locals_of(case)) > 1, 5),
    "local memories alone": (lambda case: own(case).get("global") is None, 5),
    "a moved query": (
        lambda case: any(
            local.get("projection", {}).get("kind") == "orthogonal" for local in locals_of(case)
        ),
        5,
    ),
    "a matrix": (lambda case: any(name.endswith("/W_QK") for name in case.inputs), 6),
    "keys from before": (
        lambda case: any(name.endswith("/P_keys") and x.size for name, x in case.inputs.items()),
        12,
    ),
    "a window from before": (
        lambda case: any(name.endswith("/window_k") and x.size for name, x in case.inputs.items()),
        20,
    ),
    "a state": (lambda case: "in/state/position" in case.inputs, 12),
    "keys of its own": (lambda case: any(name.endswith("0/k") for name in case.inputs), 7),
    "rows": (lambda case: case.inputs["in/k"].ndim > 2 and len(case.inputs["in/k"]) > 1, 10),
    "a short shard": (
        lambda case: any(case.inputs["in/k"].shape[-2] % s["shard"] for s in locals_of(case)),
        5,
    ),
    "sum inclusive": (
        lambda case: (own(case).get("global") or {}).get("sum") == "inclusive",
        5,
    ),
    "Newton-Schulz": (lambda case: case.convention.has_newton_schulz, 6),
}


@pytest.mark.clause("SWEEP-7", "SWEEP-15")
def test_what_is_left_of_a_case_is_what_a_mistake_needs() -> None:
    assert_left_is_needed(RULE, NEEDS, 120)


@pytest.mark.slow
@pytest.mark.clause("SWEEP-8", "SWEEP-9", "SWEEP-15")
def test_a_sweep_in_processes_goes_on_from_its_log(tmp_path: Path) -> None:
    named = Named("function", "tests.support.tnt_kernels:never_reset")
    assert_goes_on(RULE, named, tmp_path, cases=12, first=5, choices=kernels.KNOWN)


@pytest.mark.slow
@pytest.mark.clause("SWEEP-11", "SWEEP-15")
def test_the_command_sweeps_a_tnt(cli: Any, tmp_path: Path) -> None:
    words = ["sweep", RULE, "--convention", "newton_schulz=none", "--cases", "6", "--keep", "1"]
    words += ["--fix", "history=0", "--fix", "window_gate=false", "--fix", "preset=paper"]
    words += ["--fix", "global.sum=null", "--fix", "memory=delta", "--fix", "locals=1"]
    words += ["--fix", "locals.0.base=null", "--fix", "locals.0.reset=null", "-o", tmp_path / "out"]
    right = cli(*words, "--impl", "tests.support.tnt_kernels:right")
    assert (right.code, right.err) == (0, "")
    assert "sweep tnt, seed 0, 6 cases: 6 PASS" in right.out
    wrong = cli(*words, "--impl", "tests.support.tnt_kernels:never_reset")
    assert wrong.code == 1
    (file,) = (tmp_path / "out").iterdir()
    assert cli("check", file).code == 1
