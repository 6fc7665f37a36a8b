"""Plant every mistake in every case and format, and ask check, replay and identify; `python -m
tests.oracle.planted` prints it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.identify.answer import Identification
from atlas_ref.oracle.identify.identify import identify
from atlas_ref.oracle.judge.answers import Answer
from atlas_ref.oracle.judge.compare import checked
from atlas_ref.oracle.replay.replay import first_wrong, replay
from tests.oracle.planted import chunked, restatement
from tests.oracle.planted.cases import REQUESTS, case_of, inputs_of, rule_of
from tests.oracle.planted.mistakes import MISTAKES, Mistake
from tests.oracle.planted.restatement import RIGHT
from tests.oracle.planted.rounding import LEGAL, PLAIN, Array, Rounding

STORAGE: dict[str, Any] = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}

#: Cases without a window or Newton-Schulz, whose chunk form the restatement has.
CHUNKED = ("titans_lmm", "delta", "hebbian")


class Found(NamedTuple):
    """Verdicts of check and replay on a restatement: the first tensor and the first op that fail.

    "" where all are PASS.
    """

    checked: str
    replayed: str

    @property
    def caught(self) -> bool:
        return bool(self.checked or self.replayed)


def mistakes() -> Iterator[tuple[Mistake, str, str]]:
    """Every mistake in every case that it is planted into, in every format."""
    for mistake in MISTAKES:
        for name in mistake.cases:
            for dtype in STORAGE:
                yield mistake, name, dtype


def legal() -> Iterator[tuple[Rounding | None, str, str]]:
    """The restatement and every legal variant, in every case and format; None for the chunk
    form.
    """
    for name in REQUESTS:
        for dtype in STORAGE:
            for way in (PLAIN, *LEGAL, *([None] if name in CHUNKED else [])):
                yield way, name, dtype


def planted(mistake: Mistake, name: str, dtype: str) -> Found:
    """Verdicts of check and replay on a mistake."""
    return asked(case_of(name), computed(mistake, name, dtype), dtype)


def alarmed(way: Rounding | None, name: str, dtype: str) -> Found:
    """Verdicts of check and replay on a legal variant, gradients included."""
    case = case_of(name)
    if way is None:
        found = chunked.run(rule_of(case), inputs_of(case), STORAGE[dtype])
    else:
        found = restatement.run(
            rule_of(case), inputs_of(case), STORAGE[dtype], RIGHT, way, grad=True
        )
    return asked(case, found, dtype)


def computed(mistake: Mistake, name: str, dtype: str) -> dict[str, Array]:
    """Results and traces of the restatement with a mistake."""
    case = case_of(name)
    if mistake.chunked:
        return chunked.run(rule_of(case), inputs_of(case), STORAGE[dtype], mistake.plant)
    return restatement.run(
        rule_of(case), inputs_of(case), STORAGE[dtype], mistake.plant, grad=mistake.grad
    )


def asked(case: Case, found: dict[str, Array], dtype: str) -> Found:
    results = {name: value for name, value in found.items() if name.startswith(("out/", "grad/"))}
    traced = {name: value for name, value in found.items() if name.startswith(("trace/", "chunk/"))}
    rows = [
        row
        for row in checked(case, source=lambda _: Answer(results), dtype=dtype).rows
        if row.verdict != "PASS"
    ]
    chunk = chunked.CHUNK if any(name.startswith("chunk/") for name in traced) else None
    wrong = first_wrong(replay(case, traced, dtype=dtype, nearest=False, chunk=chunk))
    return Found(rows[0].tensor if rows else "", wrong.op if wrong else "")


# -- conventions -----------------------------------------------------------------------------------


class Named(NamedTuple):
    """The answer of identify to a mistake that is a convention.

    Attributes:
        words: its match on the planted axes, and what it cannot tell from that.
        right: the planted value fits, and the case's own does not.
        unique: no other value fits.
    """

    words: str
    right: bool
    unique: bool


def named(mistake: Mistake, name: str, dtype: str) -> Named:
    """The answer of identify, from the results alone."""
    case = case_of(name)
    results = {
        tensor: value
        for tensor, value in computed(mistake, name, dtype).items()
        if tensor.startswith("out/")
    }
    found = identify(case, results, dtype=dtype)
    values = {axis: _values(found, case, axis) for axis in mistake.axes or {}}
    words = ", ".join(f"{axis}={_words(each)}" for axis, each in values.items())
    right = all(
        value in values[axis] and _own(case, axis) not in values[axis]
        for axis, value in (mistake.axes or {}).items()
    )
    return Named(
        words, right and found.match is not None, all(len(each) == 1 for each in values.values())
    )


def _values(found: Identification, case: Case, axis: str) -> list[Any]:
    """The values of an axis that fit, the match's first."""
    fits = [_of(each, axis) for each in found.fits]
    return list(dict.fromkeys(fits)) if found.verdict in ("MATCH", "UNDECIDABLE") else []


def _own(case: Case, axis: str) -> Any:
    return _of(case.convention, axis)


def _of(convention: Any, axis: str) -> Any:
    outer, _, key = axis.partition(".")
    value = getattr(convention, outer)
    return getattr(value, key, None) if key else value


def _words(values: list[Any]) -> str:
    return (
        "|".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)
        or "?"
    )
