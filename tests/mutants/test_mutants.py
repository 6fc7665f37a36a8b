"""Every mutant is rejected by every test named for it, each in a process of its own; legal variants are not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.mutants.mutants import LEGAL, MUTANTS, Mutant

RUNNER = Path(__file__).with_name("run_mutant.py")
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def ended(name: str, tests: tuple[str, ...]) -> dict[str, str]:
    """How each test ended under a mutant, in a fresh process."""
    done = subprocess.run(
        [sys.executable, str(RUNNER), name, *tests], capture_output=True, text=True, timeout=300, env={**os.environ, **ONE_THREAD}
    )
    assert done.returncode == 0, f"{name}: the runner failed\n{done.stderr}"
    result = json.loads(done.stdout.splitlines()[-1])
    assert set(result["tests"]) == set(tests), f"{name}: of {tests}, pytest ran {sorted(result['tests'])} (exit code {result['code']})"
    return dict(result["tests"])


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_mutant_is_rejected(mutant: Mutant, record_property: Any) -> None:
    found = ended(mutant.name, mutant.tests)
    survived = {test: how for test, how in found.items() if how != "rejected"}
    assert not survived, f"{mutant.name} ({mutant.what}; {mutant.place}) is not rejected: {survived}"
    line = {"name": mutant.name, "place": MUTANTS.index(mutant), "what": mutant.what, "rejected_by": mutant.tests}
    record_property("mutants", json.dumps(line))


@pytest.mark.parametrize("variant", LEGAL, ids=[variant.name for variant in LEGAL])
def test_legal_variant_is_not_rejected(variant: Mutant) -> None:
    found = ended(variant.name, variant.tests)
    assert set(found.values()) == {"passed"}, f"{variant.name} ({variant.what}) computes the same and is rejected: {found}"


def test_without_a_mutant_the_named_tests_pass() -> None:
    named = sorted({test for mutant in MUTANTS for test in mutant.tests})
    failed = {test: how for test, how in ended("none", tuple(named)).items() if how != "passed"}
    assert not failed


def test_a_mutant_survives_tests_that_are_not_named_for_it() -> None:
    """The runner can say no: a case without a query scale does not see that the scale is missing."""
    (test,) = [each for mutant in MUTANTS if mutant.name == "ns-last-row-not-repeated" for each in mutant.tests]
    assert ended("query-scale-missing", (test,)) == {test: "passed"}


def test_a_crash_is_not_a_rejection() -> None:
    """An index that no longer fits is not the verdict of a test."""
    test = next(each for mutant in MUTANTS if mutant.name == "titans-second-rate" for each in mutant.tests)
    assert ended("crash", (test,))[test].startswith("call: ")


def test_mutants_are_named_once_and_have_tests() -> None:
    every = [*MUTANTS, *LEGAL]
    assert len({each.name for each in every}) == len(every)
    assert all(each.tests and len(set(each.tests)) == len(each.tests) for each in every)
