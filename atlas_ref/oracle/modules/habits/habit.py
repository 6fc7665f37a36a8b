"""A habit: another way in which programs compute one value, which no axis says.

Specified in specs/modules.md (MODULES-18).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


def always(work: Any) -> bool:
    """Every work of the kind has the habit."""
    return True


class Habit(NamedTuple):
    """Another way to compute a value (MODULES-18).

    Attributes:
        words: what such a program does, after the name of its module.
        function: (work, sources of the value) -> the value.
        where: (work) -> whether it has this habit.
    """

    words: str
    function: Callable[..., Any]
    where: Callable[[Any], bool] = always
