"""Sweeps of kernels that compute one member: what is asked of them, what is not answered, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import atlas_ref
from atlas_ref.oracle.cases.case import CaseError
from atlas_ref.oracle.dplr import draw
from atlas_ref.oracle.dplr.members import MEMBERS
from atlas_ref.oracle.sources.sources import sweep_settings
from atlas_ref.oracle.sweep.draw import draw_case
from atlas_ref.oracle.sweep.sweep import sweep
from tests.support.one_member import kernel, of_first_row, state_runs_on, token_by_token
from tests.support.swept import numbers, source

RULE = "dplr"
MODULE = "tests.support.one_member"


@pytest.mark.clause("SWEEP-16", "SWEEP-17")
def test_cases_of_a_member_have_what_its_code_has() -> None:
    gates: dict[str, set[str]] = {}
    rare, of_members = dict.fromkeys(draw.RARE, 0), 0
    for number in range(400):
        request = draw_case(RULE, 1, number, {}).request
        member = request["parameters"].get("member")
        if member is None:
            continue
        of_members += 1
        gates.setdefault(member, set()).add(request["gate"])
        for name in draw.RARE:
            plain = draw.SPACE[name][0]
            changed = request["parameters"].get(name, request.get(name, plain)) != plain
            rare[name] += changed and (name != "steps" or member not in draw.STEPPED)
    for member, kinds in gates.items():
        head = MEMBERS[member].gate == "head"
        words = {"token", "log_token"} if head else {"token", "channel", "log_token", "log_channel"}
        assert kinds <= (words if MEMBERS[member].gated is True else {"absent"}), member
    assert sum(rare.values()) < of_members / 3
    assert set(gates) == set(draw.DRAWN)
    free = [draw_case(RULE, 1, n, {"member": (None,)}).request for n in range(100)]
    assert sum(each["pulse"] > 1 for each in free) > 20
    assert {each["gate"] for each in free} == set(draw.SPACE["gate"])
    fixed = {"member": ("kda",), "pulse": (2,), "gate": ("absent",), "q_norm": ("l2",)}
    for number in range(20):
        request = draw_case(RULE, 1, number, fixed).request
        assert (request["pulse"], request["gate"]) == (2, "absent")
        assert request["parameters"]["q_norm"] == "l2"
    stepped = [
        draw_case(RULE, 1, n, {"member": ("gated_delta_product",)}).request for n in range(60)
    ]
    assert sum("steps" in each["parameters"] for each in stepped) > 10


@pytest.mark.sample(1)
@pytest.mark.clause("SWEEP-17")
@pytest.mark.parametrize("member", ["kda", "gated_delta"])
def test_a_kernel_answers_most_cases_of_its_member(member: str, tmp_path: Path) -> None:
    fixed = {"member": (member,)}
    own = source(kernel(token_by_token, member))
    found = sweep(RULE, own, cases=100, choices=fixed, folder=tmp_path)
    assert not found.failures
    assert found.counts["PASS"] >= 60


@pytest.mark.clause("SWEEP-16", "SWEEP-17", "SWEEP-7")
@pytest.mark.parametrize(("mistake", "rows"), [(of_first_row, True), (state_runs_on, False)])
def test_a_state_of_another_row_or_sequence_is_found(
    mistake: Any, rows: bool, tmp_path: Path
) -> None:
    fixed = {"member": ("gated_delta",)}
    wrong = source(kernel(mistake, "gated_delta"))
    found = sweep(RULE, wrong, cases=40, choices=fixed, folder=tmp_path, keep=1, shrink=150)
    assert {each.verdict for each in found.failures} == {"WRONG"}
    assert len(found.failures) >= 3
    (kept,) = [each for each in found.failures if each.file is not None]
    case = atlas_ref.load(tmp_path / str(kept.file))
    assert numbers(case) <= 12
    if rows:  # of two rows or two sequences, where a fault of sequences alone keeps one row
        assert case.inputs["in/v"].ndim == 4 or "in/reset" in case.inputs
    else:
        assert case.inputs["in/v"].ndim < 4
        assert "in/reset" in case.inputs
    assert any(row.verdict == "WRONG" for row in atlas_ref.check(case))


@pytest.mark.clause("SWEEP-18")
def test_reasons_are_counted_and_nothing_compared_is_said_aloud(tmp_path: Path, cli: Any) -> None:
    def picky(case: Any, inputs: Any) -> Any:
        if "reset" in inputs:
            raise NotImplementedError("in/reset: it takes none")
        raise NotImplementedError(f"{inputs['v'].shape[-1]} values: it takes 64")

    found = sweep("dplr", source(picky), cases=40, folder=tmp_path)
    assert found.exit_code == 3
    assert sum(found.refused.values()) == 40
    first, *others = found.refused.items()
    assert first[0] == "in/reset: it takes none"
    assert first[1] > max(count for _, count in others)
    assert [count for _, count in others] == sorted((n for _, n in others), reverse=True)
    words = ["sweep", "delta", "--impl", f"{MODULE}:nothing", "--cases", "12", "-o", tmp_path / "o"]
    ran = cli(*words)
    assert (ran.code, ran.err) == (3, "")
    assert "12 NOT SUPPORTED\nnot answered:\n" in ran.out
    assert "NOTHING WAS COMPARED: none of 12 cases was answered." in ran.out
    assert ran.out.count(": it takes none") <= 8


@pytest.mark.clause("SWEEP-19")
def test_a_sweep_draws_what_an_adapter_states(tmp_path: Path, cli: Any) -> None:
    assert sweep_settings(f"{MODULE}:mine")["gate"] == ("token", "log_token")
    words = ["sweep", RULE, "--for", f"{MODULE}:mine", "-o", tmp_path / "out", "--json"]
    ran = cli(*words, "--cases", "12")
    assert (ran.code, ran.json["counts"], ran.json["refused"]) == (0, {"PASS": 12}, {})
    other = ["--fix", "member=kda", "--impl", f"{MODULE}:nothing"]  # which stand before it
    ran = cli(*words, "--cases", "3", *other)
    assert (ran.code, sum(ran.json["refused"].values())) == (3, 3)
    assert "it takes none" in json.dumps(ran.json["refused"])


@pytest.mark.clause("SWEEP-19")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing", r"for .*:nothing: a method sweep_settings\(\) is needed, name -> values"),
        ("absent", "AttributeError"),
        ("raising", "for .*:raising: ValueError: no device"),
        (
            "listing",
            r"sweep_settings\(\) must return name -> a tuple of values, found \['member'\]",
        ),
        ("single", "must return name -> a tuple of values"),
    ],
)
def test_an_adapter_that_states_nothing_is_bad_input(name: str, words: str, cli: Any) -> None:
    with pytest.raises(CaseError, match=words) as caught:
        sweep_settings(f"{MODULE}:{name}")
    assert "\n" not in str(caught.value)
    ran = cli("sweep", RULE, "--for", f"{MODULE}:{name}")
    assert (ran.code, ran.out) == (2, "")
    ran = cli("sweep", RULE, "--for", f"{MODULE}:lying")
    assert (ran.code, "'speed' is not drawn; tokens, " in ran.err) == (2, True)
