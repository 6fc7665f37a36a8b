"""Recorded cases and the code that their evaluation executes (TRACE-8)."""

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from docs.clauses.places import PACKAGES

#: Recorded cases; what a set holds beside its cases is bad input, or large.
PATTERNS = (
    "tests/data/peers/*.safetensors",
    "tests/data/peers_layers/*.safetensors",
    "tests/data/peers_atlas_mag/*.safetensors",
    "vectors/*/cases/**/*.safetensors",
)


def evaluations(
    root: Path, place: int = 0, places: int = 1
) -> Iterator[tuple[str, Callable[[], None]]]:
    """(path from the root, evaluation) of every case that this version evaluates.

    Args:
        place, places: of a process among those that share the cases.
    """
    from atlas_ref.oracle.cases.case import load

    paths = sorted(each for pattern in PATTERNS for each in root.glob(pattern))
    for path in paths[place::places]:
        case = load(path)
        if case.supported:
            yield path.relative_to(root).as_posix(), functools.partial(_evaluate, case)


def _evaluate(case: Any) -> None:
    """Evaluate a case in each form that computes it, with gradients if it has a cotangent."""
    from atlas_ref.oracle.evaluate import evaluate
    from atlas_ref.vectors.inputs.properties import forms

    grad = any(name in case.inputs for name in ("in/y_bar", "in/X_bar", "in/phi_bar"))
    evaluate(case, grad=grad)
    for form, chunk in dict(reversed(forms(case))).items():  # of each form the shorter chunk
        evaluate(case, grad=grad, form=form, chunk=chunk)


def executed(root: Path, jobs: int | None = None) -> dict[str, Mapping[str, frozenset[int]]]:
    """By case and file, the lines of all functions that its evaluation called.

    It needs no recorded run.

    Args:
        jobs: processes that share the cases; as many as processors where it is left out.
    """
    places = jobs or os.cpu_count() or 1
    if places == 1:
        return share(root, 0, 1)
    with multiprocessing.get_context("spawn").Pool(places) as pool:
        parts = pool.starmap(share, [(root, place, places) for place in range(places)])
    return {name: lines for part in parts for name, lines in part.items()}


def share(root: Path, place: int, places: int) -> dict[str, Mapping[str, frozenset[int]]]:
    """The lines of one process's share."""
    found: dict[str, Mapping[str, frozenset[int]]] = {}
    for name, evaluate in evaluations(root, place, places):
        lines: dict[str, set[int]] = {}
        for code in called(evaluate):
            path = Path(code.co_filename)
            if path.is_relative_to(root) and path != Path(__file__):
                file = path.relative_to(root).as_posix()
                if file.startswith(PACKAGES):
                    lines.setdefault(file, set()).update(_lines(code))
        found[name] = {file: frozenset(each) for file, each in lines.items()}
    return found


def called(function: Callable[[], None]) -> set[CodeType]:
    """The code of all Python functions that this function calls."""
    codes: set[CodeType] = set()

    def saw(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            codes.add(frame.f_code)

    sys.setprofile(saw)
    try:
        function()
    finally:
        sys.setprofile(None)
    return codes


@functools.cache
def _lines(code: CodeType) -> frozenset[int]:
    return frozenset(line for _, _, line in code.co_lines() if line)
