"""Rejection of every mutant by every test named for it, in a process each; acceptance of legal
variants.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mutants.mutants import LEGAL, MUTANTS, Mutant

pytestmark = pytest.mark.slow

RUNNER = Path(__file__).with_name("run_mutant.py")
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

Ended = Callable[[str, tuple[str, ...]], dict[str, str]]


@pytest.fixture(scope="module")
def ended() -> Iterator[Ended]:
    """Outcome of each test under a mutant, in a fresh process."""
    env = {
        key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")
    } | ONE_THREAD
    runner = subprocess.Popen(
        [sys.executable, str(RUNNER), "--serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=env,
    )
    assert runner.stdin is not None
    assert runner.stdout is not None
    requests, answers = runner.stdin, runner.stdout

    def ask(name: str, tests: tuple[str, ...]) -> dict[str, str]:
        requests.write(json.dumps([name, tests]) + "\n")
        requests.flush()
        found = json.loads(answers.readline())
        assert "error" not in found, f"{name}: {found['error']}"
        assert set(found["tests"]) == set(tests), (
            f"{name}: of {tests}, pytest ran {sorted(found['tests'])}"
        )
        return dict(found["tests"])

    yield ask
    requests.close()
    answers.close()
    assert runner.wait(timeout=60) == 0


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_mutant_is_rejected(mutant: Mutant, ended: Ended, record_property: Any) -> None:
    found = ended(mutant.name, mutant.tests)
    survived = {test: how for test, how in found.items() if how != "rejected"}
    assert not survived, (
        f"{mutant.name} ({mutant.what}; {mutant.place}) is not rejected: {survived}"
    )
    line = {
        "name": mutant.name,
        "place": MUTANTS.index(mutant),
        "what": mutant.what,
        "rejected_by": mutant.tests,
    }
    record_property("mutants", json.dumps(line))


@pytest.mark.parametrize("variant", LEGAL, ids=[variant.name for variant in LEGAL])
def test_legal_variant_is_not_rejected(variant: Mutant, ended: Ended) -> None:
    found = ended(variant.name, variant.tests)
    assert set(found.values()) == {"passed"}, (
        f"{variant.name} ({variant.what}) computes the same and is rejected: {found}"
    )


def test_without_a_mutant_the_named_tests_pass(ended: Ended) -> None:
    named = sorted({test for mutant in MUTANTS for test in mutant.tests})
    failed = {test: how for test, how in ended("none", tuple(named)).items() if how != "passed"}
    assert not failed


def test_a_mutant_survives_tests_that_are_not_named_for_it(ended: Ended) -> None:
    """A negative result of the runner: a case without a query scale cannot reject the mutant that
    drops it.
    """
    (test,) = [
        each
        for mutant in MUTANTS
        if mutant.name == "ns-last-row-not-repeated"
        for each in mutant.tests
    ]
    assert ended("query-scale-missing", (test,)) == {test: "passed"}
    assert ended("ns-last-row-not-repeated", (test,)) == {test: "rejected"}
    assert ended("none", (test,)) == {test: "passed"}  # the mutants before left no trace


def test_a_crash_is_not_a_rejection(ended: Ended) -> None:
    test = next(
        each for mutant in MUTANTS if mutant.name == "titans-second-rate" for each in mutant.tests
    )
    assert ended("crash", (test,))[test].startswith("call: TypeError")


def test_mutants_are_named_once_and_have_tests() -> None:
    every = [*MUTANTS, *LEGAL]
    assert len({each.name for each in every}) == len(every)
    assert all(each.tests and len(set(each.tests)) == len(each.tests) for each in every)
