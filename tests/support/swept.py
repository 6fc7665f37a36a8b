"""Kernels in this process as sources of a sweep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.sources.answers import Answer


def source(kernel: Callable[..., dict[str, Any]]) -> Callable[[Case], Answer]:
    """A kernel of (case, inputs), whose results may leave out the prefix out/."""

    def answered(case: Case) -> Answer:
        inputs = {name.removeprefix("in/"): x for name, x in case.inputs.items()}
        try:
            found = kernel(case.header.plain(), inputs)
        except NotImplementedError as error:
            return Answer.unsupported(str(error))
        return Answer({f"out/{name.removeprefix('out/')}": x for name, x in found.items()})

    return answered


def numbers(case: Case) -> int:
    """Numbers in the inputs of a case."""
    return sum(int(x.size) for x in case.inputs.values())
