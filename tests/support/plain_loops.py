"""The plain loop of a subject beside its rule, and beside certified results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from atlas_ref.certify import certify
from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.deep import functions
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.family.arithmetic import PLAIN, Arithmetic
from atlas_ref.oracle.judge.tolerance import tolerances
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.subjects.subject import Rounding
from tests.support.close import ANALYTIC, Tolerance, assert_close

#: The loop as it stands, in the precision of the case.
PLAINLY = Rounding(PLAIN, functions.same, functions.same, None)


def assert_plain_loop(case: Case, ways: Sequence[Arithmetic], tolerance: Tolerance) -> None:
    """The plain loop gives the rule's results in every arithmetic, and its errors are measured."""
    ours, plain = evaluate(case, grad=True).tensors, SUBJECTS[case.header.rule].plain
    assert plain is not None
    for way in ways:
        theirs = plain(case.inputs, case, PLAINLY._replace(way=way))
        for name, value in theirs.items():
            assert_close(f"{way.name} {name}", value, ours[name], tolerance)
    measured = tolerances(case, dtype="float32")
    assert set(measured) == {name for name in ours if name.startswith("out/")}
    assert all(0.0 < each.rms < 1e-5 for each in measured.values())


def assert_all_agree(case: Case) -> set[str]:
    """The rule, certified results and the plain loop agree; the names of what the rule returns."""
    ours, found = evaluate(case, grad=True).tensors, certify(case, grad=True)
    assert ours.keys() - {"out/state/position"} == found.values.keys()
    for each, want in found.values.items():
        size = max(1.0, float(np.max(np.abs(want), initial=0.0)))
        assert np.all(np.abs(ours[each] - want) <= 1e-11 * size), each
    plain = SUBJECTS[case.header.rule].plain
    assert plain is not None
    for each, value in plain(case.inputs, case, PLAINLY).items():
        assert_close(each, ours[each], value, ANALYTIC)
    return set(ours)
