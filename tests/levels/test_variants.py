"""Stacks of blocks: the variants that allow each."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from atlas_ref.levels.variants import Stack
from tests.support.blocks import MIXED, block

ONE, TWO, THREE = (block(MIXED[:count]) for count in (1, 2, 3))
OTHER_PERIODS = block([{**MIXED[0], "period": 3}, {**MIXED[1], "period": 7}])


@pytest.mark.clause("CMS-13")
@pytest.mark.parametrize(
    ("variant", "blocks"),
    [
        ("basic", (THREE,)),
        ("sequential", (ONE, TWO, TWO, THREE)),
        ("sequential", (TWO,)),
        ("independent", (TWO, OTHER_PERIODS, ONE)),
        ("hybrid", (None, TWO, None, ONE)),
    ],
)
def test_a_variant_takes_what_it_is_for(variant: Any, blocks: Any) -> None:
    stack = Stack(variant=variant, blocks=blocks)
    assert [conductor and conductor.periods for conductor in stack.conductors()] == [
        each and each.periods for each in blocks
    ]
    assert stack.with_levels == tuple(each for each in blocks if each is not None)


@pytest.mark.clause("CMS-13")
@pytest.mark.parametrize(
    ("variant", "blocks", "words"),
    [
        (
            "basic",
            (ONE, TWO),
            "blocks: basic is one block with levels, found 2, 2 of them with levels",
        ),
        (
            "basic",
            (None,),
            "blocks: basic is one block with levels, found 1, 0 of them with levels",
        ),
        (
            "sequential",
            (ONE, THREE, TWO),
            (
                "blocks: sequential never has fewer levels further down, found 3 in block 1 and 2 "
                "in block 2"
            ),
        ),
        (
            "sequential",
            (ONE, None, TWO),
            "blocks: sequential has levels in every block, found none in block 1",
        ),
        (
            "independent",
            (None, TWO),
            "blocks: independent has levels in every block, found none in block 0",
        ),
        (
            "hybrid",
            (ONE, TWO),
            "blocks: hybrid has blocks with levels and blocks without, found 2 with levels among 2",
        ),
        (
            "hybrid",
            (None, None),
            "blocks: hybrid has blocks with levels and blocks without, found 0 with levels among 2",
        ),
        (
            "independent",
            (ONE, block(MIXED[:1], first_step=1)),
            "counts the same steps in every block, found first_step 0, 1",
        ),
        (
            "independent",
            (ONE, block(MIXED[:1], d_model=6)),
            "blocks: d_model must be the same in all of them",
        ),
        ("sequential", (), "blocks"),
        ("nested", (ONE,), "nested puts levels into the optimiser, which is not yet supported"),
        ("deep", (ONE,), "variant"),
    ],
)
def test_a_variant_refuses_what_it_is_not(variant: Any, blocks: Any, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Stack(variant=variant, blocks=blocks)


@pytest.mark.clause("CMS-13")
def test_the_steps_of_all_blocks_are_the_same() -> None:
    stack = Stack(variant="independent", blocks=(TWO, OTHER_PERIODS))
    conductors = [each.advanced(21) for each in stack.conductors() if each is not None]
    assert [each.pulse.active for each in conductors] == [(True, False), (True, True)]
    assert {each.step for each in conductors} == {21}
