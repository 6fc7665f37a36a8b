"""What a deep memory recalls of pairs that it was shown once, in one pass and in order."""

from __future__ import annotations

import pytest

from tests.support.close import EXACT, assert_close
from tests.support.recall import DRAWS, mean, reads, share

COUNTS = [8, 16, 32]


@pytest.mark.clause("DEEP-2", "DEEP-7", "DEEP-12", "DEEP-13")
@pytest.mark.parametrize(("n", "guessed"), [(8, 0.3), (16, 0.2), (32, 0.1)])
def test_a_window_over_all_pairs_recalls_most_of_them(n: int, guessed: float) -> None:
    """Measured 0.72, 0.67 and 0.70, without the step 0.09, 0.11 and 0.02."""
    assert mean(n, "no step").angle < guessed
    assert mean(n, "all pairs").angle > 0.6
    assert all(share(n, draw, "all pairs").angle > 0.45 for draw in range(DRAWS))


@pytest.mark.clause("DEEP-7")
@pytest.mark.parametrize(("n", "most"), [(8, 0.4), (16, 0.25), (32, 0.15)])
def test_the_window_does_the_work_and_not_the_step_alone(n: int, most: float) -> None:
    """Measured with a window of the pair itself 0.19, 0.06 and 0.09."""
    assert mean(n, "own pair").angle < most
    assert mean(n, "all pairs").angle > mean(n, "own pair").angle + 0.3


@pytest.mark.clause("DEEP-14")
@pytest.mark.parametrize("n", COUNTS)
def test_a_quarter_of_the_writes_recalls_about_half(n: int) -> None:
    """Measured 0.53, 0.59 and 0.47."""
    assert 0.35 < mean(n, "all pairs, chunks of 4").angle < mean(n, "all pairs").angle


@pytest.mark.clause("DEEP-7")
@pytest.mark.parametrize("n", COUNTS)
def test_a_hit_is_the_nearest_value_by_the_angle_and_not_by_the_distance(n: int) -> None:
    """A read has 0.15 of the length of its value, its direction is what was learned.

    So the shortest value is nearest to many reads: measured 0.28, 0.27 and 0.13 by the distance.
    """
    got = mean(n, "all pairs")
    assert 0.1 < got.length < 0.2
    assert got.distance < 0.35
    assert got.angle > got.distance + 0.3


@pytest.mark.clause("DEEP-17")
def test_training_and_evaluation_recall_the_same_unless_a_phase_parts_them() -> None:
    trained, _ = reads(16, 0, "all pairs", training=True)
    evaluated, _ = reads(16, 0, "all pairs", training=False)
    assert_close("y", evaluated, trained, EXACT)
    plain, _ = reads(16, 0, "no step")
    for phase, training in (("train", False), ("infer", True)):
        own, _ = reads(16, 0, "all pairs", phase=phase, training=training)
        assert_close(phase, own, plain, EXACT)
