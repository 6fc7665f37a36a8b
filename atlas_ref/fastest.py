"""Which of several ways to compute the same is the fastest here and now, by the time that their last runs took.

For ways whose results agree bit by bit, and whose order depends on more than the sizes: on how long a sleeping thread takes to
wake beside how long a product takes, which differs between machines and on one machine from hour to hour.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator, Sequence

KEPT = 3  # last runs of a way, of which the fastest counts: what slows a single run says nothing of the way
EVERY = 32  # runs after which another way than the fastest is looked at again
TASKS = 256  # tasks that are remembered


class _Task:
    """Seconds of the last runs of each way of one task."""

    def __init__(self, ways: Sequence[int]) -> None:
        self.seconds: dict[int, deque[float]] = {way: deque(maxlen=KEPT) for way in ways}
        self.runs = 0

    def next(self) -> int:
        """Each way `KEPT` times in turn; then the fastest, and now and then another one."""
        self.runs += 1
        ways = list(self.seconds)
        unknown = [way for way in ways if len(self.seconds[way]) < KEPT]
        if unknown:
            return min(unknown, key=lambda way: len(self.seconds[way]))
        fastest = min(ways, key=lambda way: min(self.seconds[way]))
        others = [way for way in ways if way != fastest]
        return others[self.runs // EVERY % len(others)] if self.runs % EVERY == 0 else fastest


class Fastest:
    """Ways of tasks, and how long they took."""

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
            known.seconds[way].append(spent)
