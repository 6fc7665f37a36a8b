"""The first tokens of a case up to one that is wrong, by which most mistakes are ruled out (IDENT-17)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.tensors import main_result
from atlas_ref.oracle.identify.readings.judge import Judge
from atlas_ref.oracle.identify.readings.nodes import Node
from atlas_ref.oracle.judge import ensemble
from atlas_ref.oracle.subjects.subject import Searched
from atlas_ref.oracle.sweep.first import first_tokens
from atlas_ref.types import Array

#: Share of the largest error of a token from which on a token is wrong, and of the error up to it
#: that a mistake may leave.
WRONG, LEFT = 0.01, 0.5


class Early(NamedTuple):
    """The case up to the first token that is wrong, and what was handed over of its main result.

    Attributes:
        gap: the norm of the error so far.
    """

    case: Case
    searched: Searched
    name: str
    value: Array
    gap: float

    def explains(self, chosen: Sequence[Any]) -> bool:
        """Whether some readings are near enough to compare them with all tokens."""
        try:
            found = ensemble.exact(self.case, plain=self._plain(chosen))
        except (IndexError, ValueError):  # it needs more tokens than these
            return True
        rest = np.asarray(found[self.name], np.float64) - self.value
        return bool(np.linalg.norm(rest) <= LEFT * self.gap)

    def _plain(self, chosen: Sequence[Any]) -> ensemble.Plain:
        return lambda inputs, case, rounding: self.searched.run(inputs, case, rounding, chosen)


def first_wrong(judge: Judge, node: Node) -> Early | None:
    """The case up to the first token that a reading does not explain.

    None where its main result is right, or says nothing about tokens.
    """
    name = main_result(judge.case.header)
    got = judge.observation.values.get(name)
    own = judge.results(node.chosen, grad=False).get(name)
    if got is None or own is None or got.shape != own.shape or got.ndim < 2:
        return None
    gap = np.abs(got - np.asarray(own, np.float64))
    errors = np.max(np.moveaxis(gap, -2, 0).reshape(gap.shape[-2], -1), axis=1, initial=0.0)
    size = float(np.abs(got).max(initial=0.0))
    wrong = np.flatnonzero(errors > max(WRONG * float(errors.max(initial=0.0)), 1e-6 * size))
    if not wrong.size:
        return None
    count = int(wrong[0]) + 1
    part = first_tokens(judge.case, count)
    if part is None or 2 * count > gap.shape[-2]:  # as long as all tokens
        return None
    early = float(np.linalg.norm(gap[..., :count, :]))
    return Early(part, judge.searched, name, got[..., :count, :], early)
