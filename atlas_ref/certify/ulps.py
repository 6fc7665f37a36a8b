"""Errors of the NumPy path against certified results, in units in the last place (CERT-12)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.certify.results import Certified

Array = np.ndarray[Any, Any]


class Row(NamedTuple):
    """One tensor of one case.

    Attributes:
        case, tensor: names.
        entries: number of entries.
        bits: precision at which every resolved entry had one nearest float64.
        unresolved: number of entries that are not resolved.
        worst, median: error of ours in units in the last place of each entry.
        scale: the largest error in units in the last place of the largest entry of the tensor.
    """

    case: str
    tensor: str
    entries: int
    bits: int
    unresolved: int
    worst: float
    median: float
    scale: float


def rows(case: str, certified: Certified, ours: Mapping[str, Array]) -> list[Row]:
    """A row for every certified tensor."""
    table = []
    for name, want in certified.values.items():
        each, largest = errors(ours[name], want)
        lost = len(certified.unresolved.get(name, ()))
        table.append(
            Row(
                case,
                name,
                want.size,
                certified.bits[name],
                lost,
                _most(each),
                _middle(each),
                _most(largest),
            )
        )
    return table


def errors(got: Array, want: Array) -> tuple[Array, Array]:
    """|got - want| in units in the last place of each entry of `want`, and of its largest entry.

    An entry that is exactly 0 has no last place of its own and is measured by the largest entry's.
    Entries that are unresolved are left out.
    """
    resolved = ~np.isnan(want)
    got, want = got[resolved], want[resolved]
    with np.errstate(all="ignore"):  # an infinity beside a number is an error without bound
        gap = np.where(got == want, 0.0, np.abs(got - want))
        top = np.spacing(np.max(np.abs(want[np.isfinite(want)]), initial=0.0))
        unit = np.where(want == 0, top, np.spacing(np.abs(want)))
        return np.where(gap == 0, 0.0, gap / unit), gap / top


def _most(errors: Array) -> float:
    return float(np.max(errors, initial=0.0))


def _middle(errors: Array) -> float:
    return float(np.median(errors)) if errors.size else 0.0
