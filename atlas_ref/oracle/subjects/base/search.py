"""How identify explains results of a subject: by conventions, or by readings of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from atlas_ref.oracle.subjects.base.deferred import defer


class Search(NamedTuple):
    """The search of a subject.

    Attributes:
        identify: (case, results, depth, dtype, progress) -> the identification of results.
        deciding: (case, what fits, dtype) -> a case that tells them apart; None for none.
        readings: (passes) -> name and passes of each other reading of a trace (REPLAY-16).
    """

    identify: Callable[[Any, Mapping[str, Any], int, str | None, Any], Any]
    deciding: Callable[[Any, Sequence[Any], str], Any]
    readings: Callable[[Any], list[tuple[str, Callable[[], Any]]]]


#: Conventions, and what departs from each (IDENT-1 to IDENT-16).
CONVENTIONS = Search(
    identify=defer("identify.identify:by_conventions"),
    deciding=defer("identify.deciding:deciding_convention"),
    readings=defer("replay.nearest:by_conventions"),
)

#: Settings and mistakes that the subject lists itself (DEEPCASE-14).
READINGS = Search(
    identify=defer("identify.identify:by_readings"),
    deciding=defer("identify.readings.trials:deciding_reading"),
    readings=defer("replay.nearest:by_readings"),
)
