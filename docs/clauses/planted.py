"""The mutants of the tests, read from their list: each with the line of code that it changes."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

from docs.clauses.record import Mutant


def read(root: Path) -> tuple[Mutant, ...]:
    """The mutants of a clone; none where there is no list of them."""
    if not (root / "tests/mutants/mutants.py").is_file():
        return ()
    from tests.mutants.mutants import MUTANTS

    mutants = []
    for each in MUTANTS:
        path, line = _changed(root, each.place)
        tests = tuple(dict.fromkeys(test.partition("[")[0] for test in each.tests))
        mutants.append(Mutant(each.name, each.what, path, line, tests))
    return tuple(mutants)


def _changed(root: Path, place: str) -> tuple[str, int]:
    """File and first line of the function "module:attribute"; line 0 for anything else."""
    module, _, path = place.partition(":")
    target: Any = importlib.import_module(module)
    file = Path(target.__file__).relative_to(root).as_posix()
    for name in path.split("."):
        target = getattr(target, name, None)
    target = inspect.unwrap(getattr(target, "function", target)) if target is not None else None
    if not inspect.isfunction(target):
        return file, 0
    path = Path(inspect.getfile(target)).relative_to(root).as_posix()
    return path, target.__code__.co_firstlineno
