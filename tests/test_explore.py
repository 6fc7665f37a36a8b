"""Properties explored by `make slow`: as many examples as asked for, those of the seed."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.host("which examples are drawn, whatever computes")

SEEN = """
from tests.support.parameters import explore
explore(5, 7)
from hypothesis import core, given, settings, strategies as st
@settings(max_examples=4, derandomize=True)
@given(st.integers(0, 10**9))
def test(number):
    seen.append(number)
for seed in (7, 7, 8):
    core.global_force_seed, seen = seed, []
    test()
    print(*seen)
"""


def test_a_seed_draws_its_examples_and_another_seed_draws_others() -> None:
    done = subprocess.run([sys.executable, "-c", SEEN], capture_output=True, text=True, check=True)
    first, again, other = (line.split() for line in done.stdout.splitlines())
    assert len(first) == 20
    assert again == first
    assert len(set(other) & set(first)) < 10


@pytest.mark.slow
def test_a_run_says_its_seed() -> None:
    asked = ["-m", "pytest", "-n0", "--collect-only", "--explore", "2", "tests/test_explore.py"]
    done = subprocess.run([sys.executable, *asked], capture_output=True, text=True, check=True)
    assert "properties explored with --hypothesis-seed=" in done.stdout
