"""TNT beside ordinary runs: both sides compute what they are timed for, and every row is made."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks import memories, tnt
from tests.support.close import assert_close, assert_differs, reordered

pytestmark = pytest.mark.host("times of the host")
SMALL = {"TOKENS": 48, "SPAN": 16, "SHARD": 16, "SPANS": (8, 4), "FEW": 32, "SIZES": (16, 32, 48)}


@pytest.fixture
def small(monkeypatch):
    for name, value in {**SMALL, "SAMPLES": 1}.items():
        monkeypatch.setattr(tnt, name, value)


def test_the_reference_is_the_tnt_without_a_projection(small) -> None:
    arrays = tnt.inputs(48, np.float64)
    made = tnt.config(8)
    bare = made.replaced(
        local_memories=tuple(
            each.replaced(projection=each.projection.replaced(kind="none"))
            for each in made.local_memories
        )
    )
    want = tnt._of_tnt(bare, arrays)
    assert_close("y", tnt.ordinary(8, arrays), want, reordered(48, amplification=4))
    assert_differs("projected", tnt.forward(8, arrays), want, 0.01)
    assert_differs("Titans alone", tnt.titans(8, arrays), want, 0.01)


def test_every_row_is_made_and_its_results_are_right(small) -> None:
    found = tnt.rows()
    assert len(found) == 10
    for row in found:
        assert row.measured
        assert row.error is None or row.error < 1e-5
        assert not math.isnan(row.ratio.median)
    assert [row.target is None for row in found] == [*[True, False, False] * 2, False, *[True] * 3]
    assert memories.TITANS is tnt.MEMORY
