"""Results that are the state of a run: the format that judges them, and their hand-over in a
narrower one (TOL-8).
"""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.tensor_spec import bare, last_of
from atlas_ref.oracle.norms import FORMATS, round_to
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.subjects.subject import STATES
from atlas_ref.types import Array

#: Format of the state, and of the arithmetic, unless said otherwise.
STATE = "float32"


def judged_in(name: str, dtype: str, state_dtype: str | None) -> str:
    """The format that judges a result under `dtype`: for a state the finer one of it and the
    state's (TOL-8).
    """
    bits = FORMATS[dtype][1]
    if bits >= FORMATS[STATE][1] or not is_state(name):
        return dtype
    state = state_dtype if state_dtype in FORMATS and state_dtype != "float64" else STATE
    return state if FORMATS[state][1] > bits else dtype


def kept_in(header: Any, asked: str | None) -> str | None:
    """The format of the state: the one that is asked for, else the one that a case declares (TOL-8)."""
    return SUBJECTS[header.rule].state_dtype(header) if asked is None else asked


def is_state(name: str) -> bool:
    """Whether a result is the state of a memory (TOL-8)."""
    name = last_of(name)
    if STATES.fullmatch(bare(name)):
        return True
    return any(each.fullmatch(name) for each in _states())


@functools.cache
def _states() -> set[re.Pattern[str]]:
    """Names of results that are the state of each kind of subject: every subject is asked."""
    return {subject.states for subject in SUBJECTS.values() if subject.states is not None}


def gap(got: Array, want: Array, handed: str) -> Array:
    """|got - want|, less half a unit of each entry where all of `got` is held by the format
    `handed`.

    A state may have been rounded to it once, when it was handed over; "" for none.
    """
    distance = np.abs(got - want)
    if not handed or not holds(got, handed):
        return distance
    return np.maximum(distance - half_units(got, handed), 0.0)


def holds(x: Array, dtype: str) -> bool:
    """Whether every number is one of a format, infinities among them."""
    return bool(np.array_equal(round_to(x, dtype), x))


def half_units(x: Array, dtype: str) -> Any:
    """Half a unit in the last place of every entry in a format (TOL-2)."""
    _, bits, least = FORMATS[dtype]
    exponents = np.where(x == 0.0, least, np.frexp(np.abs(x))[1] - 1)
    return np.ldexp(0.5, np.maximum(exponents, least) - bits)
