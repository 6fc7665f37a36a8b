"""How a call is cut into two, the second of which goes on from results of the first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from atlas_ref.oracle.drawing import Candidate


class Calls(NamedTuple):
    """How a call of a subject is cut into two that give what one gives (CONV-37).

    Attributes:
        cut: (case, tokens) -> the case of these tokens; None where that is none.
        left: (name of a result) -> the input that it is in the next call; "" for none.
        begins: (name of an input) -> whether it is a state before the call.
        returns: whether a reset goes back to the first state of its own call (CONV-33).
        from_zero: (case) -> whether a reset of this case starts from zero instead.
        may_reset: whether the second call may begin with a reset.
        may_cut: (case, token) -> whether the call may be cut before a token.
        blank: (name of a first state) -> the input that it is where a case does not have it, "" for
            zeros; None where that is none (CASE-45).
    """

    cut: Callable[[Any, Sequence[int]], Candidate | None]
    left: Callable[[str], str]
    begins: Callable[[str], bool] = lambda name: name.startswith("in/state/")
    returns: bool = False
    from_zero: Callable[[Any], bool] = lambda case: False
    may_reset: bool = False
    may_cut: Callable[[Any, int], bool] = lambda case, token: True
    blank: Callable[[str], str | None] = lambda name: None


def last_state(name: str) -> str:
    """The input that a result is in the next call, where out/state/X is in/state/X there."""
    return name.replace("out/", "in/", 1) if name.startswith("out/state/") else ""
