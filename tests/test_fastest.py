"""The fastest of several ways: known after a few runs, found again when it changes, and nothing else depends on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from atlas_ref import fastest
from atlas_ref.fastest import EVERY, KEPT, TASKS, Fastest


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(fastest.time, "perf_counter", lambda: now[0])
    return now


def taken(choice: Fastest, clock: list[float], seconds: Mapping[int, float], runs: int, task: Any = "task") -> list[int]:
    """The ways of so many runs, each as long as `seconds` says."""
    ways = []
    for _ in range(runs):
        with choice.of(tuple(seconds), task) as way:
            ways.append(way)
            clock[0] += seconds[way]
    return ways


def test_each_way_is_compared_with_the_first_and_then_the_fastest_is_taken(clock: list[float]) -> None:
    ways = taken(Fastest(), clock, {1: 3.0, 2: 5.0, 4: 4.0}, EVERY + 8)
    assert ways[: 4 * KEPT] == [1, 2, 1, 4] * KEPT
    assert set(ways[4 * KEPT :]) == {1}
    ways = taken(Fastest(), clock, {1: 3.0, 2: 2.0}, 6 * KEPT)
    assert ways[: 2 * KEPT + 1] == [1, 2] * KEPT + [1]
    assert ways[2 * KEPT + 1 : 4 * KEPT] == [2, 1] * (KEPT - 1) + [2], "compared again, the other way round; 2, 1, 2 was there already"
    assert ways[4 * KEPT :].count(1) <= 1


def test_of_three_ways_the_fastest_is_found(clock: list[float]) -> None:
    ways = taken(Fastest(), clock, {1: 3.0, 2: 2.0, 4: 1.0}, 20 * KEPT)
    assert ways[-2 * KEPT :].count(4) >= 2 * KEPT - 1


def test_the_others_are_looked_at_now_and_then(clock: list[float]) -> None:
    ways = taken(Fastest(), clock, {1: 2.0, 2: 3.0, 4: 5.0}, 10 * EVERY)
    later = ways[4 * KEPT :]
    looks = 10 - 4 * KEPT // EVERY
    assert later.count(2) + later.count(4) == looks
    assert later.count(2) > 2 < later.count(4)


@pytest.mark.parametrize(("before", "after"), [({1: 1.0, 2: 2.0}, {1: 3.0, 2: 2.0}), ({1: 3.0, 2: 2.0}, {1: 1.0, 2: 2.0})])
def test_a_way_that_becomes_the_fastest_is_found(before: dict[int, float], after: dict[int, float], clock: list[float]) -> None:
    """Whether the one taken became slower or the other one faster."""
    choice = Fastest()
    taken(choice, clock, before, 5 * EVERY)
    ways = taken(choice, clock, after, KEPT * EVERY)
    best = min(after, key=lambda way: after[way])
    assert ways[-EVERY + 2 :].count(best) >= EVERY - 4


@pytest.mark.parametrize("slower", [1, 2])
def test_a_tenth_is_seen_where_times_wander_by_more(slower: int, clock: list[float]) -> None:
    """From run to run, and from phase to phase of the machine: neighbouring runs share a phase."""
    choice, draw = Fastest(), np.random.default_rng(0)
    ways: list[int] = []
    for _ in range(60):
        pace = draw.uniform(1.0, 1.5)
        for _ in range(int(draw.integers(30, 100))):
            seconds = {way: pace * (1.1 if way == slower else 1.0) * float(np.exp(0.15 * draw.standard_normal())) for way in (1, 2)}
            ways += taken(choice, clock, seconds, 1)
    later = ways[6 * KEPT :]
    assert later.count(3 - slower) >= 0.92 * len(later)


def test_one_slow_run_changes_nothing(clock: list[float]) -> None:
    choice = Fastest()
    taken(choice, clock, {1: 1.0, 2: 2.0}, 2 * EVERY)
    taken(choice, clock, {1: 100.0, 2: 2.0}, 1)
    assert taken(choice, clock, {1: 1.0, 2: 2.0}, 1) == [1]


def test_one_way_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> float:
        raise AssertionError("timed")

    monkeypatch.setattr(fastest.time, "perf_counter", refused)
    choice = Fastest()
    with choice.of((3,), "task") as way:
        assert way == 3
    assert not choice.tasks


def test_tasks_are_apart_and_the_oldest_is_forgotten(clock: list[float]) -> None:
    choice = Fastest()
    seconds: Callable[[int], dict[int, float]] = lambda task: {1: 1.0 + task % 2, 2: 2.0 - task % 2}  # noqa: E731
    for task in range(TASKS + 5):
        taken(choice, clock, seconds(task), 6 * KEPT, task)
    assert len(choice.tasks) == TASKS
    assert (0, (1, 2)) not in choice.tasks
    assert taken(choice, clock, seconds(6), 1, 6) == [1]
    assert taken(choice, clock, seconds(7), 1, 7) == [2]


def test_a_task_that_is_used_is_remembered(clock: list[float]) -> None:
    choice = Fastest()
    taken(choice, clock, {1: 1.0, 2: 2.0}, 3 * KEPT, "used")
    for task in range(2 * TASKS):
        taken(choice, clock, {1: 1.0, 2: 2.0}, 1, task)
        taken(choice, clock, {1: 1.0, 2: 2.0}, 1, "used")
    assert taken(choice, clock, {1: 1.0, 2: 2.0}, 1, "used") == [1]
    assert len(choice.tasks) == TASKS
    assert choice.tasks["used", (1, 2)].runs > TASKS


def test_a_way_that_fails_is_not_taken_forever(clock: list[float]) -> None:
    choice, failed = Fastest(), 0
    for _ in range(3 * KEPT):
        try:
            with choice.of((1, 2), "task") as way:
                clock[0] += 1.0
                if way == 2:
                    raise ValueError("failed")
        except ValueError:
            failed += 1
    assert failed == KEPT
