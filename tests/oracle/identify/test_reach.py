"""What a search leaves out: tolerances and evaluations of conventions that cannot fit."""

from __future__ import annotations

import numpy as np
import pytest

from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.evaluate import evaluate, under
from atlas_ref.oracle.family import candidates
from atlas_ref.oracle.identify import score
from atlas_ref.oracle.identify.identify import identify
from atlas_ref.oracle.identify.observation import observe
from atlas_ref.oracle.judge.tolerance import MARGINAL, tolerances

#: Settings of Newton-Schulz, gentle and steep, and the tokens of a case.
STEEP = [
    ({}, 8),
    ({"steps": 10}, 24),
    ({"argument": "written_back"}, 24),
    ({"coefficients": "cubic", "guard": "clamp", "eps": 1e-3}, 16),
    ({"argument": "nesterov", "scale": "norm"}, 12),
    ({"argument": "accumulated"}, 8),
]


@pytest.mark.sample(6)
@pytest.mark.clause("IDENT-7")
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize(("settings", "tokens"), STEEP)
def test_what_a_tolerance_does_not_exclude_is_within_reach(settings, tokens, dtype):
    axes = {"newton_schulz": settings}
    case = new(Request(rule="omega", window=3, tokens=tokens, dtype=dtype, convention=axes))
    ours = evaluate(case).tensors
    bounds = tolerances(case, dtype=dtype, only=["out/y"], alternatives=False)
    y = np.asarray(ours["out/y"], np.float64)
    for factor, beyond in ((MARGINAL, False), (1e5, True)):
        distance = factor * bounds["out/y"].rms * np.sqrt(y.size) / float(np.linalg.norm(y))
        seen = observe(case, {"out/y": ours["out/y"]}, dtype)
        assert score.beyond_reach(case, case.convention, seen, "out/y", distance) == beyond


@pytest.mark.clause("IDENT-7")
def test_without_newton_schulz_every_near_convention_is_judged():
    case = new(Request(rule="delta", dtype="float32"))
    seen = observe(case, {"out/y": evaluate(case).tensors["out/y"]}, None)
    assert not score.beyond_reach(case, case.convention, seen, "out/y", 1.0)


@pytest.mark.slow
@pytest.mark.clause("IDENT-7", "SRC-24")
def test_a_search_measures_few_tolerances_and_judges_few_conventions(monkeypatch):
    """Conventions beyond every tolerance are ranked, and not judged."""
    case = new(Request(rule="omega", window=3, dtype="float32"))
    mine = {"out/y": 1.01 * np.asarray(evaluate(case).tensors["out/y"], np.float32)}
    counts = {"tolerances": 0, "conventions": 0}

    def measured(*arguments, **options):
        counts["tolerances"] += 1
        return tolerances(*arguments, **options)

    def evaluated(case, inputs, conventions, **options):
        counts["conventions"] += len(conventions)
        return every(case, inputs, conventions, **options)

    every = candidates.evaluate
    monkeypatch.setattr(score, "tolerances", measured)
    monkeypatch.setattr(candidates, "evaluate", evaluated)
    answer = identify(case, mine)
    assert answer.verdict == "NO MATCH"
    assert counts["tolerances"] <= 4
    assert counts["conventions"] < 1.3 * answer.searched


@pytest.mark.slow
@pytest.mark.clause("IDENT-7")
def test_a_convention_whose_own_tolerance_reaches_is_still_named():
    """The nearest one is wrong by its tolerance, and a steeper one beside it is right."""
    case = new(Request(rule="omega", window=3, tokens=12, dtype="float32"))
    steep = {"newton_schulz": {"steps": 10}}
    found = evaluate(under(case, steep), dtype="float32").tensors
    answer = identify(case, {"out/y": np.asarray(found["out/y"], np.float32)})
    assert answer.verdict in ("MATCH", "UNDECIDABLE")
    assert answer.match.convention == {"preset": "spec", **steep}
