"""Which of several ways to compute the same is the fastest here and now, by how long runs took that followed each other.

For ways whose results agree bit by bit, and whose order depends on more than the sizes: on how long a sleeping thread takes to
wake beside how long a product takes, which differs between machines and on one machine from hour to hour. A run of another way is
compared with the runs of the same thread right before and after it, since what slows the machine for a while slows all three.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator, Sequence

KEPT = 12  # last comparisons with another way, of which the middle half counts: what slows a single run says nothing of the way
EVERY = 32  # runs of the way taken between two looks at another one: with the look an odd number, where calls that differ take turns
TASKS = 256  # tasks that a thread remembers
RESOLVED = 1e-9  # seconds, below which times are the same


class _Task:
    """The way that one task takes, and what is known of the others.

    Attributes:
        way: the one taken.
        ratios: of each other way, its time over the mean of the two neighbouring runs.
        last: the last runs, (way, seconds).
        looks, since: runs of another way, and those of the way taken since the last of them.
    """

    def __init__(self, ways: Sequence[int]) -> None:
        self.ways = tuple(ways)
        self.last: deque[tuple[int, float]] = deque(maxlen=3)
        self.looks = 0
        self.take(ways[0])

    def take(self, way: int) -> None:
        """Take a way from now on, of which the comparisons so far say nothing."""
        self.way, self.since = way, 0
        self.ratios: dict[int, deque[float]] = {other: deque(maxlen=KEPT) for other in self.ways if other != way}

    def next(self) -> int:
        """The way taken, and between two runs of it another one: often while little is known of it, then now and then.

        At first after one run and after two in turn, so that calls that differ and take turns favour no way.
        """
        others = list(self.ratios)
        least = min(others, key=lambda way: len(self.ratios[way]))
        unknown = len(self.ratios[least]) < KEPT
        if self.since < (1 + self.looks % 2 if unknown else EVERY):
            self.since += 1
            return self.way
        self.since, self.looks = 0, self.looks + 1
        return least if unknown else others[self.looks % len(others)]

    def ran(self, way: int, seconds: float) -> None:
        """Note a run, and if it closes a comparison that another way has won, take that."""
        self.last.append((way, seconds))
        if len(self.last) < 3:
            return
        (_, before), (other, between), (_, after) = self.last
        if other == self.way:  # a look stands between two runs of the way taken
            return
        ratio = max(between, RESOLVED) / max((before + after) / 2, RESOLVED)
        self.ratios[other].append(1.0 if math.isnan(ratio) else ratio)  # both fail
        known = sorted(self.ratios[other])
        if len(known) == KEPT and math.prod(known[KEPT // 4 : -(KEPT // 4)]) < 1:
            self.take(other)


class Fastest(threading.local):
    """Ways of tasks, and which of them each task takes; each thread that asks finds out for itself."""

    def __init__(self) -> None:
        self.tasks: OrderedDict[Hashable, _Task] = OrderedDict()

    @contextlib.contextmanager
    def of(self, ways: Sequence[int], task: Hashable) -> Iterator[int]:
        """The way to take for the work inside, whose time is taken where there is more than one.

        Args:
            ways: different ones, at least one; the first is the one to begin with.
            task: what times are compared of: sizes and whatever else decides how much there is to do.
        """
        if len(ways) == 1:
            yield ways[0]
            return
        key = (task, tuple(ways))
        known = self.tasks.setdefault(key, _Task(ways))
        self.tasks.move_to_end(key)
        if len(self.tasks) > TASKS:
            self.tasks.popitem(last=False)
        way, start = known.next(), time.perf_counter()
        spent = math.inf  # of a run that fails: the way is not taken for it forever
        try:
            yield way
            spent = time.perf_counter() - start
        finally:
            known.ran(way, spent)
