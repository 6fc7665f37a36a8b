"""Properties explored by `make slow`: as many examples as asked for, those of the seed."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.host("which examples are drawn, whatever computes")

SEEN = """
from tests.support.parameters import explore
explore({factor}, {seed})
from hypothesis import given, settings, strategies as st
seen = []
@settings(max_examples=4, derandomize=True)
@given(st.integers(0, 10**9))
def test(number):
    seen.append(number)
test()
print(seen)
"""


def drawn(factor: int, seed: int) -> list[int]:
    program = SEEN.format(factor=factor, seed=seed)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return [int(word) for word in done.stdout.strip("[] \n").split(",")]


def test_a_seed_draws_its_examples_and_another_seed_draws_others() -> None:
    of_seven = drawn(5, 7)
    assert len(of_seven) == 20
    assert drawn(5, 7) == of_seven
    assert len(set(drawn(5, 8)) & set(of_seven)) < 10


def test_a_run_says_its_seed() -> None:
    asked = ["-m", "pytest", "-n0", "--collect-only", "--explore", "2", "tests/test_explore.py"]
    done = subprocess.run([sys.executable, *asked], capture_output=True, text=True, check=True)
    assert "properties explored with --hypothesis-seed=" in done.stdout
