"""The search for the nearest convention: once for each rule of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.report import nearest
from tests.oracle.family.test_departures import case_of
from tests.support.casefiles import written


@pytest.mark.clause("SRC-23")
def test_a_run_searches_once_for_each_rule_that_fails(cli, tmp_path, monkeypatch):
    """At the first case of a rule that a search can explain, however many fail."""
    searched = []

    def counted(case, mine, **more):
        searched.append(Path(case.name).stem)
        return identify(case, mine, **more)

    identify = nearest.identify
    monkeypatch.setattr(nearest, "identify", counted)
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
