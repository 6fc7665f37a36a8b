"""How a call of a program is cut into two that give what one gives (PROG-6)."""

from __future__ import annotations

from typing import Any

from atlas_ref.oracle.program.derive.axes import axes
from atlas_ref.oracle.program.derive.ops import Stated
from atlas_ref.oracle.subjects.subject import Calls


def calls(stated: Stated) -> Calls:
    """The cut of a call of a subject, whose first states are the last ones of the call before."""

    def words(case: Any) -> dict[str, str]:
        program, settings = stated(case)
        return {name: " ".join(each) for name, each in axes(program, settings, case.inputs).items()}

    def cuts(case: Any, token: int) -> bool:
        program, settings = stated(case)
        return program.cuts(case.inputs, settings, token)

    return Calls(axes=words, left=_left, returns=True, cuts=cuts)


def _left(name: str) -> str:
    """The first state that a result is in the next call; "" for what is none."""
    return "" if name == "out/y" or not name.startswith("out/") else f"in/{name[4:]}0"
