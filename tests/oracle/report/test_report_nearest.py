"""The search for the nearest convention: at most twice for each rule of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.case import CaseError
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.identify import identify as searches
from atlas_ref.oracle.judge.answers import Answer
from atlas_ref.oracle.judge.compare import checked
from atlas_ref.oracle.report.nearest import Nearest
from atlas_ref.oracle.report.report import Run
from atlas_ref.oracle.sweep.first import first_tokens, tokens_of
from tests.oracle.family.test_departures import case_of
from tests.support.casefiles import written


@pytest.mark.clause("SRC-23")
def test_a_run_searches_once_for_each_rule_that_fails(cli, tmp_path, monkeypatch):
    """At the first case of a rule that a search can explain, however many fail."""
    searched = []

    def counted(case, mine, **more):
        searched.append(Path(case.name).stem)
        return identify(case, mine, **more)

    identify = searches.identify
    monkeypatch.setattr(searches, "identify", counted)
    requests = {
        "1 long": {"rule": "delta", "tokens": 65},
        "2 not finite": {"rule": "delta"},
        "3": {"rule": "delta"},
        "4": {"rule": "hebbian"},
        "5": {"rule": "delta", "seed": 1},
        "6": {"rule": "hebbian", "seed": 1, "convention": {"read": "before"}},
        "7": {"rule": "delta", "seed": 2, "convention": {"decay": "before_error"}},
    }
    for name, request in requests.items():
        case = case_of(**request)
        y = 2.0 * atlas_ref.evaluate(case).tensors["out/y"]
        answer = {"out/y": np.full_like(y, np.nan) if "finite" in name else y}
        header = case.header.plain()
        written(tmp_path / f"{name}.safetensors", header, case.inputs | answer)
    ran = cli("check", tmp_path, "--json")
    assert searched == ["3", "4"]
    found = {Path(each["case"]).stem: each["nearest_convention"] for each in ran.json["failures"]}
    assert (
        found["5"]
        == found["7"]
        == "not searched: 3 was, of the same rule (atlas-ref identify does)"
    )
    assert found["6"].startswith("not searched: 4 was")
    assert found["2 not finite"] == ""
    cli("check", tmp_path, "--no-nearest")
    assert searched == ["3", "4"]


def forgetful(name):
    """A source of gated delta that has no tensor of this name, and the cases that it was asked."""
    asked = []

    def source(case):
        asked.append(tokens_of(case))
        inputs = {each: x for each, x in case.inputs.items() if each != name}
        return Answer(dict(evaluate(case.replaced(inputs=inputs)).tensors))

    return source, asked


def delta(name, tokens, **fields):
    request = Request(rule="dplr", tokens=tokens, parameters={"member": "delta"}, seed=3, **fields)
    case = new(request, name=name)
    M0 = np.random.default_rng(1).standard_normal((*case.inputs["in/v"].shape[:-2], 2, 3))
    return case.replaced(inputs={**case.inputs, "in/M0": M0})


SIZES = {"d_in": 3, "d_out": 2, "heads": 1}


@pytest.mark.clause("SRC-23")
def test_the_smallest_case_is_searched_and_then_the_most_special_one():
    small, other, special = (
        delta("small", 4, **SIZES),
        delta("other", 5, **SIZES),
        delta("special", 6, reset=3, **SIZES),
    )
    source, _ = forgetful("in/reset")
    draw = np.random.default_rng(2)
    run = Run()
    for case in (other, special, small):
        y = evaluate(case).tensors["out/y"]
        noise = {"out/y": y + draw.standard_normal(y.shape)}
        run.add(checked(case, source=source if case is special else lambda _, y=noise: Answer(y)))
    found = {each.case: each.nearest for each in run.report().failures}
    assert found["special"] == "as if in/reset was absent: then this would be right"
    assert found["other"] == "not searched: special was, of the same rule (atlas-ref identify does)"
    assert found["small"] == found["other"]


@pytest.mark.clause("SRC-27")
@pytest.mark.parametrize("again", [True, False], ids=["asked again", "a file"])
def test_a_longer_case_is_searched_by_its_first_tokens(again):
    case = delta("long", 70, **SIZES)
    source, asked = forgetful("in/M0")
    if not again:
        whole = source(case)
        asked.clear()

        def source(other):  # a file, which is about the whole case
            if tokens_of(other) != 70:
                raise CaseError("other inputs")
            return whole

    done = checked(case, source=source)
    words = Nearest().words(done, done.rows)
    assert words == "as if in/M0 was absent: then this would be right (its first 64 tokens)"
    assert asked == ([70, 64] if again else [])


@pytest.mark.clause("SRC-27")
def test_a_mistake_behind_the_first_tokens_is_searched_in_all_of_them():
    case = delta("late", 70, **SIZES)
    found = evaluate(case).tensors
    early = {"out/M": evaluate(first_tokens(case, 64)).tensors["out/M"]}

    def source(each):
        return Answer(dict(found) | early if tokens_of(each) == 70 else evaluate(each).tensors)

    done = checked(case, source=source)
    words = "as if out/M lacked the last 6 tokens, under the case's own convention: then this would"
    assert Nearest().words(done, done.rows) == f"{words} be right"
    other = case_of(rule="hebbian", tokens=70)
    y = evaluate(other).tensors["out/y"]
    last = np.where(np.arange(70)[:, None] < 66, y, 1.0)
    done = checked(other, source=lambda each: Answer({"out/y": last[..., : tokens_of(each), :]}))
    words = Nearest().words(done, done.rows)
    assert words.startswith("not searched: the first 64 of 70 tokens alone are right")
