"""Features of cases, and implementations that are declared not to have some."""

from __future__ import annotations

import numpy as np
import pytest

import atlas_ref
from atlas_ref.cli import options
from atlas_ref.oracle.cases.features import FEATURES, declared_features, features
from tests.support.casefiles import RESERVED, some

SMALL = {"heads": 1, "d_in": 3, "d_out": 3, "cotangent": False}

#: Changes of a plain Delta or Omega case, and what they add to its features.
CHANGES = [
    ("delta", {}, set()),
    ("delta", {"pulse": 2}, {"pulse"}),
    ("delta", {"reset": 2}, {"reset"}),
    ("delta", {"per_dimension_gates": True}, {"rows"}),
    ("delta", {"heads": 2}, {"heads"}),
    ("delta", {"d_in": 4}, {"rectangular"}),
    ("delta", {"cotangent": True}, {"gradient"}),
    ("titans_lmm", {}, {"momentum"}),
    ("delta", {"span": 2}, {"span"}),
    ("delta", {"level": "token", "batch": 2}, {"token", "heads"}),
    ("delta", {"level": "token", "per_dimension_gates": True}, {"token", "rows"}),
    ("titans_lmm", {"level": "token", "d_out": 2}, {"token", "momentum", "rectangular"}),
    ("omega", {"convention": {"newton_schulz": "none"}}, {"momentum"}),
    ("omega", {}, {"momentum", "iterations"}),
    (
        "omega",
        {"window": 3, "history": 2, "window_gate": True},
        {"momentum", "iterations", "window", "history", "weights"},
    ),
    ("omega", {"feature_map": {"kind": "elu"}}, {"momentum", "iterations", "map"}),
    ("newton_schulz", {}, {"iterations"}),
    ("newton_schulz", {"d_in": 2, "heads": 3}, {"iterations", "rectangular", "heads"}),
    (
        "cms",
        {"level": "token", "levels": ("delta", "titans_lmm"), "periods": (1, 2), "d_out": 2},
        {"token", "momentum", "rectangular", "pulse"},
    ),
]


@pytest.mark.clause("SRC-21")
@pytest.mark.parametrize(("rule", "request_", "want"), CHANGES)
def test_a_case_has_the_features_that_it_holds(rule, request_, want):
    case = atlas_ref.make(*some(rule, **(SMALL | request_)))
    assert set(features(case)) - {"state", "weights"} == want - {"weights"}
    assert ("weights" in features(case)) == (
        "in/window_weights" in case.inputs or "weights" in want
    )


@pytest.mark.clause("SRC-21")
def test_a_state_a_phase_and_logarithms_are_features():
    header, tensors = some("delta", **SMALL)
    assert features(atlas_ref.make(header, tensors)) == ("state",)
    bare = {name: value for name, value in tensors.items() if name != "in/M0"}
    assert features(atlas_ref.make(header, bare)) == ()
    assert features(atlas_ref.make({**header, "phase": 1}, bare)) == ("resumed",)
    logs = {name: value for name, value in bare.items() if name != "in/retain"}
    logs["in/log_retain"] = np.log(np.full_like(tensors["in/retain"], 0.5))
    assert features(atlas_ref.make(header, logs)) == ("logarithms",)
    assert features(atlas_ref.load(RESERVED)) == ()


@pytest.mark.clause("SRC-21")
def test_a_case_with_an_absent_feature_is_skipped_and_nobody_is_asked():
    case = atlas_ref.make(*some("delta", pulse=2, reset=3))

    def asked(problem):
        raise AssertionError("nobody is to be asked")

    (row,) = atlas_ref.check(case, source=asked, without=["reset", "rows", "pulse"])
    assert (row.tensor, row.verdict) == ("-", "NOT SUPPORTED")
    assert row.why == "skipped: without reset, pulse"
    with pytest.raises(AssertionError):
        atlas_ref.check(case, source=asked, without=["rows"])


@pytest.mark.clause("SRC-21")
def test_a_feature_that_does_not_exist_is_refused():
    assert declared_features(["rows", "pulse", "rows"]) == ("rows", "pulse")
    with pytest.raises(
        atlas_ref.CaseError,
        match=r"^without: feature 'resets' does not exist; features are pulse, reset, .*; did you "
        r"mean reset or resumed\?$",
    ):
        declared_features(["pulse", "resets"])


def test_the_help_that_loads_no_case_names_every_feature():
    text = options.Without.__metadata__[0].help
    assert text.endswith(f"Of {', '.join(FEATURES)}.")
