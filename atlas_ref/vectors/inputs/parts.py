"""Some tokens of a case whose settings are parameters, and the state that they start from.

Source: DEEP-23, TNT-11.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case, make
from atlas_ref.oracle.evaluate import Results
from atlas_ref.oracle.subjects import SUBJECTS
from atlas_ref.oracle.subjects.subject import Calls

STATE = "in/state/"


def calls(case: Case) -> Calls | None:
    """How a case of this subject is cut, where it says so itself."""
    own = SUBJECTS[case.header.rule].own
    return None if own is None else own.calls


def part(case: Case, tokens: range, before: Results | None = None) -> Case:
    """Some tokens, from the state that results hold; from that of the case without them."""
    own = calls(case)
    assert own is not None
    axes = {name: words.split() for name, words in own.axes(case).items()}
    tensors = {name: _taken(x, axes.get(name, []), tokens) for name, x in case.inputs.items()}
    if before is not None:
        tensors = {name: x for name, x in tensors.items() if not name.startswith(STATE)}
        left = {own.left(name): x for name, x in before.tensors.items() if own.left(name)}
        tensors |= left
    return make(case.header.plain(), tensors, name=case.name)


def _taken(x: Any, axes: list[str], tokens: range) -> Any:
    """Some places of the axis of tokens; a tensor without one as it is."""
    return np.take(x, list(tokens), axis=axes.index("T") - len(axes)) if "T" in axes else x
