"""Which of several ways to compute the same is the fastest here and now, by how long runs took that followed each other.

For ways whose results agree bit by bit, and whose order depends on more than the sizes: on how long a sleeping thread takes to
wake beside how long a product takes, which differs between machines and on one machine from hour to hour. A run of another way is
compared with the runs right before and after it, since what slows the machine for a while slows all three.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator, Sequence

KEPT = 9  # last comparisons with another way, of which the middle one counts: what slows a single run says nothing of the way
EVERY = 32  # runs after which another way is looked at again
TASKS = 256  # tasks that are remembered


class _Task:
    """The way that one task takes, and what is known of the others.

    Attributes:
        way: the one taken.
        ratios: of each other way, its time over the mean of the two neighbouring runs.
        last: the last runs, (way, seconds).
    """

    def __init__(self, ways: Sequence[int]) -> None:
        self.ways = ways
        self.last: deque[tuple[int, float]] = deque(maxlen=3)
        self.runs = 0
        self.take(ways[0])

    def take(self, way: int) -> None:
        """Take a way from now on, of which the comparisons so far say nothing."""
        self.way = way
        self.ratios: dict[int, deque[float]] = {other: deque(maxlen=KEPT) for other in self.ways if other != way}

    def next(self) -> int:
        """The way taken, and between two runs of it another one: often while little is known of it, then now and then."""
        self.runs += 1
        if not self.last or self.last[-1][0] != self.way:
            return self.way
        ratios = self.ratios
        others = list(ratios)
        least = min(others, key=lambda way: len(ratios[way]))
        if len(ratios[least]) < KEPT:
            return least
        return others[self.runs // EVERY % len(others)] if self.runs % EVERY == 0 else self.way

    def ran(self, way: int, seconds: float) -> None:
        """Note a run, and if it closes a comparison that another way has won, take that."""
        self.last.append((way, seconds))
        last, ratios = tuple(self.last), self.ratios
        if len(last) < 3:
            return
        (first, before), (other, between), (third, after) = last
        if first != self.way or third != self.way or other not in ratios:
            return
        ratio = between / max((before + after) / 2, 1e-9)
        if math.isnan(ratio):  # both fail
            return
        ratios[other].append(ratio)
        known = sorted(ratios[other])
        if len(known) == KEPT and known[KEPT // 2] < 1:
            self.take(other)


class Fastest:
    """Ways of tasks, and which of them each task takes."""

    def __init__(self) -> None:
        self.tasks: OrderedDict[Hashable, _Task] = OrderedDict()

    @contextlib.contextmanager
    def of(self, ways: Sequence[int], task: Hashable) -> Iterator[int]:
        """The way to take for the work inside, whose time is taken where there is more than one.

        Args:
            task: what times are compared of: sizes and whatever else decides how much there is to do.
        """
        if len(ways) == 1:
            yield ways[0]
            return
        known = self.tasks.setdefault((task, tuple(ways)), _Task(ways))
        with contextlib.suppress(KeyError):  # another thread may have forgotten it
            self.tasks.move_to_end((task, tuple(ways)))
        while len(self.tasks) > TASKS:
            self.tasks.popitem(last=False)
        way, start = known.next(), time.perf_counter()
        spent = math.inf  # of a run that fails: the way is not taken for it forever
        try:
            yield way
            spent = time.perf_counter() - start
        finally:
            known.ran(way, spent)
