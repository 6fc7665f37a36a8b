"""Shrinking by itself: any property of a case in place of a mistake, over cases of every rule."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.sweep.draw import SWEPT, draw_case
from atlas_ref.oracle.sweep.shrink import shrunk
from atlas_ref.types import same_bits

#: What a "mistake" needs, and how many numbers a case has at most that is left with nothing else,
#: beyond the rule's own.
NEEDS: dict[str, Callable[[Case], bool]] = {
    "nothing": lambda case: True,
    "three tokens": lambda case: "in/k" in case.inputs and case.inputs["in/k"].shape[-2] >= 3,
    "level token": lambda case: case.header.level == "token",
    "a window": lambda case: case.header.window >= 3,
    "a feature map": lambda case: case.header.feature_map.kind != "identity",
    "a history": lambda case: "in/window_k" in case.inputs and case.inputs["in/window_k"].size > 0,
    "tall": lambda case: (
        "in/v" in case.inputs and case.inputs["in/v"].shape[-1] > case.inputs["in/k"].shape[-1]
    ),
    "carry": lambda case: (
        case.convention.window_at_boundary == "carry" and case.convention.frozen_reference
    ),
    "Newton-Schulz": lambda case: case.convention.has_newton_schulz,
    "bfloat16": lambda case: all(
        value.dtype.name in ("bfloat16", "uint8") for value in case.inputs.values()
    ),
    "a large state": lambda case: (
        "in/M0" in case.inputs
        and float(np.abs(case.inputs["in/M0"].astype(np.float64)).max()) > 0.3
    ),
}

#: How many numbers a case that is left has at most. Three tokens of log-linear attention
#: make three levels, whose scales are 9 of its 21 numbers; none of them can be left out.
NUMBERS = 20
NUMBERS_OF_RULE = {"recurrence": 21}


def numbers(case: Case) -> int:
    return sum(int(value.size) for value in case.inputs.values())


@pytest.mark.sample(1)
@pytest.mark.clause("SWEEP-7")
@pytest.mark.parametrize("rule", SWEPT)
def test_what_is_left_still_fails_and_no_step_makes_it_smaller(rule: str) -> None:
    tried: set[str] = set()
    for number in range(12):
        case = draw_case(rule, 1, number, {}).case
        for name, needed in NEEDS.items():
            if not needed(case):
                continue
            tried.add(name)
            small, asked = shrunk(case, needed, 400)
            assert needed(small), name
            most = NUMBERS_OF_RULE.get(rule, NUMBERS)
            assert numbers(small) <= min(numbers(case), most), name
            assert asked < 60, name
            again, _ = shrunk(small, needed, 400)
            assert same_bits(again.inputs, small.inputs), name
            assert again.header.plain() == small.header.plain(), name
    assert len(tried) >= (10 if rule == "omega" else 2)


@pytest.mark.clause("SWEEP-7")
def test_no_more_comparisons_than_told() -> None:
    case = draw_case("omega", 1, 3, {"tokens": (17,)}).case
    asked: list[Case] = []

    def fails(smaller: Case) -> bool:
        asked.append(smaller)
        return True

    for most in (0, 1, 7):
        asked.clear()
        small, count = shrunk(case, fails, most)
        assert count == len(asked) == most
        assert same_bits(small.inputs, (asked[-1] if asked else case).inputs)


def test_nothing_is_asked_twice() -> None:
    case = draw_case("omega", 1, 5, {"level": ("projected",)}).case
    asked: list[bytes] = []

    def fails(smaller: Case) -> bool:
        asked.append(
            repr(
                (
                    smaller.header.plain(),
                    [(k, v.dtype, v.tobytes()) for k, v in smaller.inputs.items()],
                )
            ).encode()
        )
        return smaller.convention.has_newton_schulz and len(asked) % 3 != 0

    shrunk(case, fails, 400)
    assert len(asked) == len(set(asked)) > 20
