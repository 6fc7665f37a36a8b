"""The fastest of several ways: known after a few runs, found again when it changes, and nothing else depends on it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
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
    """A look after one run and after two in turn; once another way has won, it is compared again, the other way round."""
    ways = taken(Fastest(), clock, {1: 3.0, 2: 5.0, 4: 4.0}, 5 * KEPT + EVERY)
    assert ways[: 5 * KEPT] == [1, 2, 1, 1, 4] * KEPT
    assert set(ways[5 * KEPT :]) == {1}
    ways = taken(Fastest(), clock, {1: 3.0, 2: 2.0}, 6 * KEPT)
    assert ways[: 5 * KEPT // 2 + 1] == [1, 2, 1, 1, 2] * (KEPT // 2) + [1]
    assert ways[5 * KEPT // 2 + 1] == 2
    assert ways[5 * KEPT // 2 + 1 :].count(1) == KEPT - 1, "2, 1, 2 was there already"
    assert ways[-KEPT // 2 :] == [2] * (KEPT // 2)


def test_of_three_ways_the_fastest_is_found(clock: list[float]) -> None:
    ways = taken(Fastest(), clock, {1: 3.0, 2: 2.0, 4: 1.0}, 20 * KEPT)
    assert ways[-2 * KEPT :].count(4) >= 2 * KEPT - 1


def test_the_others_are_looked_at_now_and_then(clock: list[float]) -> None:
    ways = taken(Fastest(), clock, {1: 2.0, 2: 3.0, 4: 5.0}, 5 * KEPT + 10 * (EVERY + 1))
    later = ways[5 * KEPT :]
    assert [at for at, way in enumerate(later) if way != 1] == [EVERY + look * (EVERY + 1) for look in range(10)]
    assert later.count(2) == later.count(4) == 5


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


@pytest.mark.parametrize("best", [1, 2])
@pytest.mark.parametrize("cold", [0, 1])
def test_calls_that_differ_and_take_turns_favour_no_way(best: int, cold: int, clock: list[float]) -> None:
    """Every second call takes half as long again, whatever the way."""
    choice = Fastest()
    ways: list[int] = []
    for run in range(20 * KEPT):
        pace = 1.5 if run % 2 == cold else 1.0
        ways += taken(choice, clock, {way: pace * (1.0 if way == best else 1.3) for way in (1, 2)}, 1)
    assert ways[10 * KEPT :].count(best) >= 0.9 * 10 * KEPT


def test_each_thread_finds_out_for_itself(clock: list[float]) -> None:
    """Runs of threads that ask at once would stand between each other's."""
    choice = Fastest()
    taken(choice, clock, {1: 2.0, 2: 1.0}, 6 * KEPT)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: len(choice.tasks)).result() == 0
        assert pool.submit(lambda: taken(choice, clock, {1: 1.0, 2: 2.0}, 6 * KEPT)[-KEPT:].count(1)).result() >= KEPT - 1
    assert taken(choice, clock, {1: 2.0, 2: 1.0}, KEPT).count(2) >= KEPT - 1


LOOKS = [at for at in range(5 * KEPT) if at % 5 in (1, 4)]  # runs of another way while little is known of it


def after(run: int, clock: list[float], seconds: Callable[[int, int], float]) -> int:
    """The way taken after so many runs, of seconds that depend on the run and its way."""
    choice = Fastest()
    for at in range(run):
        with contextlib.suppress(ValueError), choice.of((1, 2), "task") as way:
            clock[0] += seconds(at, way)
            if math.isinf(clock[0]):
                clock[0] = 0.0
                raise ValueError("failed")
    return choice.tasks["task", (1, 2)].way


def test_what_changes_steadily_favours_no_way(clock: list[float]) -> None:
    """Each run takes 3 % longer than that before it, and another way 2 % less: the mean of both neighbours counts."""
    pace = 1.03
    assert after(LOOKS[KEPT], clock, lambda at, way: pace**at * (0.98 if way == 2 else 1.0)) == 2
    assert after(LOOKS[KEPT], clock, lambda at, way: pace**-at * (1.02 if way == 2 else 1.0)) == 1


@pytest.mark.parametrize("slow", [0, KEPT // 2, KEPT - 1])
def test_one_slow_look_says_nothing(slow: int, clock: list[float]) -> None:
    assert after(LOOKS[KEPT], clock, lambda at, way: 0.9 if way == 2 and at != LOOKS[slow] else 100.0 if way == 2 else 1.0) == 2


def test_runs_that_all_fail_for_a_while_say_nothing(clock: list[float]) -> None:
    failing = range(LOOKS[KEPT // 2 - 2] - 1, LOOKS[KEPT // 2 + 1])
    assert after(LOOKS[KEPT], clock, lambda at, way: math.inf if at in failing else 0.9 if way == 2 else 1.0) == 2


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
    known = choice.tasks["used", (1, 2)]
    for task in range(2 * TASKS):
        taken(choice, clock, {1: 1.0, 2: 2.0}, 1, task)
        taken(choice, clock, {1: 1.0, 2: 2.0}, 1, "used")
    assert taken(choice, clock, {1: 1.0, 2: 2.0}, 1, "used") == [1]
    assert len(choice.tasks) == TASKS
    assert choice.tasks["used", (1, 2)] is known


def test_a_way_that_fails_is_not_taken_forever(clock: list[float]) -> None:
    choice, failed = Fastest(), 0
    for _ in range(5 * KEPT // 2 + EVERY):
        try:
            with choice.of((1, 2), "task") as way:
                clock[0] += 1.0
                if way == 2:
                    raise ValueError("failed")
        except ValueError:
            failed += 1
    assert failed == KEPT


def test_one_way_that_does_not_fail_is_found(clock: list[float]) -> None:
    choice, ways = Fastest(), []
    for _ in range(15 * KEPT):
        with contextlib.suppress(ValueError), choice.of((1, 2, 4), "task") as way:
            ways.append(way)
            clock[0] += 1.0
            if way != 4:
                raise ValueError("failed")
    assert ways[-KEPT:].count(4) >= KEPT - 1


def test_ways_that_take_no_time_are_the_same(clock: list[float]) -> None:
    ways = taken(Fastest(), clock, {1: 0.0, 2: 0.0}, 10 * KEPT)
    assert set(ways[5 * KEPT // 2 :][:EVERY]) == {1}
