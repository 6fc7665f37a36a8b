"""Where results come from: files, a function, a program. Specified in specs/sources.md.

    source = sources.function("mine.kernels:delta")
    rows = atlas_ref.check(case, source=source)

A source never ends a run: an error inside an implementation is an answer like any other.

Precision, conventions and functions: SRC-10, SRC-11, CASE-25.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case, CaseError, load_results
from atlas_ref.oracle.cases.header import title
from atlas_ref.oracle.cases.inputs import same
from atlas_ref.oracle.judge import answers
from atlas_ref.oracle.judge.answers import Answer, Garbage, Source
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.sources.programs import TIMEOUT, Isolated, program

__all__ = [
    "TIMEOUT",
    "Answer",
    "Isolated",
    "Source",
    "against",
    "function",
    "program",
    "read_results",
    "respond",
    "sweep_settings",
]

Function = Callable[[dict[str, Any], dict[str, Any]], Mapping[str, Any]]


def against(path: str | os.PathLike[str]) -> Source:
    """Results from files: one file, or a folder with one file per case (SRC-2).

    In a folder, results have the file name of their case.

    Raises:
        CaseError: no such file or folder.
    """
    place = Path(path)
    if not os.path.exists(place):  # False, too, for what no system can hold
        raise CaseError(f"{place}: no such file or folder")

    def answer(case: Case) -> Answer:
        file = place / Path(case.name).name if place.is_dir() else place
        if place.is_dir() and not os.path.exists(file):
            return Answer(None, f"{place} holds no {file.name}", "MISSING")
        return Answer(read_results(file, case))

    return answer


def read_results(path: str | os.PathLike[str], case: Case) -> dict[str, np.ndarray[Any, Any]]:
    """Every result and trace of a file about this case (SRC-3).

    Raises:
        CaseError: not such a file, one of another rule, or with other inputs than the case's.
    """
    name = os.fspath(path)
    header, tensors = load_results(name)
    if title(header) != case.title:
        raise CaseError(
            f"{name}: rule: the case has {case.title}, found {title(header)}: results of "
            "another case"
        )
    for key, value in tensors.items():
        if key.startswith("in/") and not same(value, case.inputs.get(key)):
            raise CaseError(f"{name}: {key}: differs from the case's: results of another case")
    return {key: value for key, value in tensors.items() if not key.startswith("in/")}


def function(name: str) -> Source:
    """A function of this process, `pkg.module:function`: f(case, inputs) -> results (SRC-6).

    Its module is an installed one, or lies in the current folder, which is looked into last. What
    it raises is an answer; what ends the process ends the run, so `check --impl` calls it in a process of its
    own (`programs.Isolated`).

    Raises:
        CaseError: no such module or function, or the module cannot be imported.
    """
    call = import_function(name)
    return lambda case: respond(call, case)


def import_function(name: str) -> Function:
    """The function that `pkg.module:function` names.

    Raises:
        CaseError: there is none, or importing it fails.
    """
    module, colon, path = name.partition(":")
    if module.endswith(".py"):
        raise CaseError(f"impl {name}: is a file, a module is needed: {_as_module(module, path)}")
    if not (module and colon and path):
        raise CaseError(f"impl: pkg.module:function is needed, found {name!r}")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last: a file there never stands in for an installed module
    try:
        target: Any = importlib.import_module(module)
        for part in path.split("."):
            target = getattr(target, part)
    except (KeyboardInterrupt, MemoryError):
        raise
    except BaseException as error:  # a module under test may raise anything while it is imported
        raise CaseError(f"impl {name}: {type(error).__name__}: {_short(error)}") from None
    if not callable(target):
        raise CaseError(f"impl {name}: a function is needed, found {type(target).__name__}")
    function: Callable[..., Any] = target  # its result is checked later
    return function


def sweep_settings(name: str) -> dict[str, tuple[Any, ...]]:
    """Names that a sweep draws and the values that an adapter takes, as the adapter says (SWEEP-19).

    Args:
        name: `pkg.module:adapter`, an object with a method `sweep_settings() -> {name: values}`.

    Raises:
        CaseError: there is none, it has no such method, or that returns something else.
    """
    method = getattr(import_function(name), "sweep_settings", None)
    if not callable(method):
        raise CaseError(f"for {name}: a method sweep_settings() is needed, name -> values")
    try:
        with contextlib.redirect_stdout(sys.stderr):
            stated = method()
    except (KeyboardInterrupt, MemoryError):
        raise
    except BaseException as error:  # as of a module under test
        raise CaseError(f"for {name}: {type(error).__name__}: {_short(error)}") from None
    if not isinstance(stated, Mapping) or not all(
        isinstance(key, str) and isinstance(values, tuple | list) for key, values in stated.items()
    ):
        raise CaseError(
            f"for {name}: sweep_settings() must return name -> a tuple of values, found "
            f"{_short(ValueError(repr(stated)))}"
        )
    return {key: tuple(values) for key, values in stated.items()}


def _as_module(file: str, function: str) -> str:
    """What to write in place of a file's name."""
    place = Path(os.path.relpath(file))
    module = ".".join(place.with_suffix("").parts)
    if place.parts[0] == os.pardir or not module.replace(".", "_").isidentifier():
        return f"in the folder {place.parent}, write {place.stem}:{function or 'FUNCTION'}"
    return f"write {module}:{function or 'FUNCTION'}"


def respond(call: Function, case: Case) -> Answer:
    """Call a function with a case (SRC-6, SRC-8).

    Its `case` is the JSON object, its `inputs` map names without `in/` to arrays of its own.

    Raises:
        CaseError: it names a result that no rule has.
    """
    inputs = {name.removeprefix("in/"): np.array(value) for name, value in case.inputs.items()}
    # a layer has results of its own, which the comparison lists where it refuses one
    known = SUBJECTS[case.header.rule].results is None
    try:
        with contextlib.redirect_stdout(sys.stderr):  # standard output holds our results alone
            return Answer(answers.tensors(call(case.header.plain(), inputs), known=known))
    except NotImplementedError as error:
        return Answer.no_support(_short(error))
    except Garbage as error:
        return Answer.no_answer(f"garbage: {error}")
    except CaseError as error:
        raise CaseError(f"{case.name}: {error}") from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too
        return Answer.no_answer(f"crash: {type(error).__name__}: {_short(error)}{_where(error)}")


def _short(error: BaseException) -> str:
    """The first line of an error, short enough for a table."""
    try:
        text = " ".join(str(error).split("\n\n")[0].split())
    except Exception:  # an error's own text may raise
        text = "without words"
    return text if len(text) <= 200 else text[:197] + "..."


def _where(error: BaseException) -> str:
    """The innermost line of the implementation's own file that raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if len(frames) > 1 else ""
