"""How a call of a program is cut into two that give what one gives (PROG-6)."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from atlas_ref.oracle.drawing import along_tokens
from atlas_ref.oracle.program.derive.axes import axes
from atlas_ref.oracle.program.derive.ops import Stated
from atlas_ref.oracle.subjects.base.calls import Calls

if TYPE_CHECKING:
    from atlas_ref.oracle.cases.case import Case

#: Names of reads and of last states, and those of first states.
LAST = re.compile(r"out/\w+")
FIRST = re.compile(r"in/\w+0")


def calls(stated: Stated) -> Calls:
    """The cut of a call of a subject, whose first states are the last ones of the call before."""

    def may_cut(case: Case, token: int) -> bool:
        program, settings = stated(case)
        return program.cuts(case.inputs, settings, token)

    def from_zero(case: Case) -> bool:
        program, settings = stated(case)
        return program.resets_to_zero(settings)

    return Calls(
        cut=partial(along_tokens, lambda case: axes(*stated(case), case.inputs)),
        left=_next_first_state,
        begins=lambda name: FIRST.fullmatch(name) is not None,
        returns=True,
        from_zero=from_zero,
        may_cut=may_cut,
        blank=lambda name: "",
    )


def _next_first_state(name: str) -> str:
    """The first state that a result is in the next call; "" for what is none."""
    return f"in/{name[4:]}0" if LAST.fullmatch(name) and name != "out/y" else ""
