"""Kernels in this process as sources of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.judge.answers import Answer
from atlas_ref.oracle.sweep.draw import draw_case
from atlas_ref.oracle.sweep.shrink import shrunk
from atlas_ref.oracle.sweep.sweep import Named, sweep


def source(kernel: Callable[..., dict[str, Any]]) -> Callable[[Case], Answer]:
    """A kernel of (case, inputs), whose results may leave out the prefix out/."""

    def answered(case: Case) -> Answer:
        inputs = {name.removeprefix("in/"): x for name, x in case.inputs.items()}
        try:
            found = kernel(case.header.plain(), inputs)
        except NotImplementedError as error:
            return Answer.no_support(str(error))
        return Answer({f"out/{name.removeprefix('out/')}": x for name, x in found.items()})

    return answered


def numbers(case: Case) -> int:
    """Numbers in the inputs of a case."""
    return sum(int(x.size) for x in case.inputs.values())


def assert_left_is_needed(
    rule: str, needs: Mapping[str, tuple[Callable[[Case], bool], int]], cases: int
) -> None:
    """Of a drawn case that has what a mistake needs, shrinking leaves that and little else.

    Args:
        needs: name -> (what a case must have, numbers that may be left).
        cases: that are drawn; each need must be met by one of them.
    """
    met = set()
    for number in range(cases):
        case = draw_case(rule, 4, number, {}).case
        for name, (needed, most) in needs.items():
            if name in met or not needed(case):
                continue
            met.add(name)
            small, asked = shrunk(case, needed, 400)
            assert needed(small)
            assert asked < 100, name
            assert numbers(small) <= most, (name, small.header.plain(), list(small.inputs))
            evaluate(small)
    assert met == set(needs)


def assert_goes_on(
    rule: str, named: Named, folder: Path, *, cases: int, first: int, **given: Any
) -> None:
    """A sweep that stops and goes on in two processes ends with the rows of one that does not."""
    logs = [folder / "one", folder / "two"]
    given |= {"keep": 1}
    alone = sweep(rule, named, cases=cases, resume=logs[0], folder=folder / "a", **given)
    sweep(rule, named, cases=first, resume=logs[1], folder=folder / "b", **given)
    both = sweep(rule, named, cases=cases, jobs=2, resume=logs[1], folder=folder / "b", **given)
    assert both == alone
    first_rows, second_rows = (set(log.read_text().splitlines()) for log in logs)
    assert first_rows <= second_rows
