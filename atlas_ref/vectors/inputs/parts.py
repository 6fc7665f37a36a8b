"""Some tokens of a case whose settings are parameters, and the state that they start from.

Source: DEEP-23, TNT-11, DPLR-7.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case, make
from atlas_ref.oracle.evaluate import Results
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.subjects.subject import Calls

STATE = "in/state/"

#: Keys of the header of results that say where the next call stands (CASE-13, RECUR-13).
COUNTED = ("parameters",)


def calls(case: Case) -> Calls | None:
    """How a case of this subject is cut, where it says so itself."""
    own = SUBJECTS[case.header.rule].own
    return None if own is None else own.calls


def part(
    case: Case, tokens: range, before: Results | None = None, lost: tuple[str, ...] = ()
) -> Case:
    """Some tokens, from the state that results hold; from that of the case without them.

    Args:
        lost: names of results that are not carried over, so that their state starts at zero.
    """
    own = calls(case)
    assert own is not None
    axes = {name: words.split() for name, words in own.axes(case).items()}
    count, header = tokens_of(case), case.header.plain()
    tensors = {
        name: _taken(x, axes.get(name, []), tokens, count) for name, x in case.inputs.items()
    }
    if before is not None:
        tensors = {name: x for name, x in tensors.items() if not name.startswith(STATE)}
        left = {own.left(name): x for name, x in before.tensors.items() if own.left(name)}
        tensors |= left
        header |= {name: before.header[name] for name in COUNTED if name in before.header}
    gone = {own.left(name) for name in lost}
    tensors = {name: x for name, x in tensors.items() if name not in gone}
    return make(header, tensors, name=case.name)


def tokens_of(case: Case) -> int:
    """Tokens of a call that is cut by the axes of its inputs."""
    own = calls(case)
    assert own is not None
    axes = {name: words.split() for name, words in own.axes(case).items()}
    name = next(name for name in case.inputs if "T" in axes.get(name, []))
    return int(case.inputs[name].shape[axes[name].index("T") - len(axes[name])])


def _taken(x: Any, axes: list[str], tokens: range, count: int) -> Any:
    """Some of `count` tokens of a tensor with all of their steps; one without tokens as it is."""
    found = [i - len(axes) for i, word in enumerate(axes) if word in ("T", "R")]
    if not found:
        return x
    (axis,) = found
    steps = x.shape[axis] // count
    rows = np.arange(x.shape[axis]).reshape(count, steps)[list(tokens)].ravel()
    return np.take(x, rows, axis=axis)
