"""How many parameters and examples of a test function run, and which.

Few for runs that ask what is executed; many, of a seed of their own, for runs that explore.
"""

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
    """At most `count` of a list: the first, and from two on the last too."""
    if len(group) <= count:
        return group
    if count == 1:
        return group[:1]
    return [group[i * (len(group) - 1) // (count - 1)] for i in range(count)]


def fewer_examples(count: int) -> None:
    """Cap the examples of every property whose module is imported from here on."""

    def capped(changes: dict[str, Any]) -> None:
        if "max_examples" in changes:
            changes["max_examples"] = min(changes["max_examples"], count)

    _change_settings(capped)


def explore(factor: int, seed: int) -> None:
    """Draw `factor` times as many examples of every property, other ones for every seed.

    A failure prints what repeats it: the seed, and the blob of its example.
    """
    from hypothesis import core

    def more(changes: dict[str, Any]) -> None:
        if "max_examples" in changes:
            changes["max_examples"] *= factor
        changes |= {"derandomize": False, "print_blob": True, "database": None}

    _change_settings(more)
    core.global_force_seed = seed


def end_at_first_failure() -> None:
    """Let a property fail with its first failing example, which it does not simplify."""
    from hypothesis import Phase

    first = {"phases": (Phase.explicit, Phase.generate), "report_multiple_bugs": False}
    _change_settings(lambda changes: changes.update(first))


def _change_settings(change: Callable[[dict[str, Any]], None]) -> None:
    """Change the arguments of every settings object of Hypothesis that is made from here on."""
    import hypothesis  # a third of a second, which few runs need

    original = hypothesis.settings.__init__

    @functools.wraps(original)
    def changed(self: Any, *args: Any, **settings: Any) -> None:
        change(settings)
        original(self, *args, **settings)

    hypothesis.settings.__init__ = changed  # type: ignore[method-assign]
