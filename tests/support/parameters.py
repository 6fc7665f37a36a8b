"""A few of the parameters and examples of a test function, for runs that ask what is executed."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import Any


def function_of(item: Any) -> str:
    """The test function of an item, without its parameters."""
    return str(item.nodeid.partition("[")[0])


def few(config: Any, items: list[Any], count: int, alike: Callable[[Any], Hashable]) -> None:
    """Leave at most `count` items that are alike, spread evenly, and deselect the others."""
    groups: dict[Hashable, list[Any]] = defaultdict(list)
    for item in items:
        groups[alike(item)].append(item)
    kept = {each for group in groups.values() for each in _spread(group, count)}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def _spread(group: list[Any], count: int) -> list[Any]:
    """At most `count` of a list, the first and the last among them."""
    if len(group) <= count:
        return group
    return [group[i * (len(group) - 1) // (count - 1)] for i in range(count)]


def fewer_examples(count: int) -> None:
    """Cap the examples of every property whose module is imported from here on."""
    import hypothesis  # a third of a second, which few runs need

    original = hypothesis.settings.__init__

    @functools.wraps(original)
    def capped(self: Any, *args: Any, **settings: Any) -> None:
        if "max_examples" in settings:
            settings["max_examples"] = min(settings["max_examples"], count)
        original(self, *args, **settings)

    hypothesis.settings.__init__ = capped  # type: ignore[method-assign]
