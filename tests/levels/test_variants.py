"""Stacks of blocks: the variants that allow each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from atlas_ref.levels import block as cms
from atlas_ref.levels import outer
from atlas_ref.levels.variants import Stack
from atlas_ref.optim import m3, sgd
from atlas_ref.parts.newton_schulz import NewtonSchulz
from tests.support.blocks import MIXED, block
from tests.support.close import assert_close, assert_differs, reordered
from tests.truth import optim_loops

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
        (
            "nested",
            (ONE, TWO),
            "blocks: nested has an optimiser, or None, for each of 2 blocks, found 0",
        ),
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


#: Two time scales of an optimiser, the slow one after three updates.
SCALES = m3.Config(
    rate=0.05,
    scales=(
        m3.Scale(keep=0.9, take=0.1),
        m3.Scale(keep=0.5, take=0.2, period=3, weight=0.75),
    ),
    newton_schulz=NewtonSchulz(scale="norm"),
    second=None,
)


@pytest.mark.clause("CMS-13", "CMS-19")
def test_the_levels_of_a_nested_stack_move_by_levels_of_the_optimiser() -> None:
    """The loop knows neither buffers nor pulses: sums of gradients, one for each move of a level."""
    config = block([{**MIXED[0], "period": 1}, {**MIXED[1], "period": 2}], first_step=1)
    stack = Stack(variant="nested", blocks=(None, config), optimisers=(None, SCALES))
    nothing, loop = stack.outer_loops(threshold=1e6)
    assert nothing is None
    assert loop is not None
    draw = np.random.default_rng(0)
    first, steps = draw.standard_normal((2, 2, 3)), 12
    grads = draw.standard_normal((steps, 2, 2, 3))
    params = cms.Params(levels=tuple({"W": each} for each in first), logits=np.zeros(2))
    state = outer.init(loop, params)
    for g in grads:
        given = params.replaced(levels=tuple({"W": each} for each in g))
        params, state, _ = outer.update(loop, state, params, given)
    for i, period in enumerate((1, 2)):
        sums = [sum(grads[n + 1 - period : n + 1, i]) for n in range(period - 1, steps, period)]
        found = [
            optim_loops.m3(
                first[i].tolist(),
                [each.tolist() for each in sums],
                rates=[0.05] * len(sums),
                scales=[(0.9, 0.1, 1, 1.0), (0.5, 0.2, slow, 0.75)],
                scale="norm",
            )
            for slow in (3, 1)
        ]
        moved = params.levels[i]["W"]
        assert_close(f"level {i}", moved, np.array(found[0]), reordered(64, amplification=100))
        assert_differs("one time scale", moved, np.array(found[1]), 1e-3)
    counts = [state.levels[i].count for i in (0, 1)]
    assert counts == [12, 6]


@pytest.mark.clause("CMS-13")
@pytest.mark.parametrize(
    ("variant", "blocks", "optimisers", "words"),
    [
        (
            "nested",
            (ONE, None),
            (None, None),
            "nested has an M3 where it has levels and nowhere else, found otherwise in block 0",
        ),
        (
            "nested",
            (ONE, None),
            (SCALES, SCALES),
            "nested has an M3 where it has levels and nowhere else, found otherwise in block 1",
        ),
        ("nested", (None,), (None,), "nested has levels in some block, found none"),
        (
            "nested",
            (ONE, block(MIXED[:1], first_step=1)),
            (SCALES, SCALES),
            "nested counts the same steps in every block, found first_step 0, 1",
        ),
        ("basic", (ONE,), (SCALES,), "optimisers: belong to nested, this stack is basic"),
        ("nested", (ONE,), (sgd.Config(rate=0.1),), "optimisers"),
    ],
)
def test_a_nested_stack_has_an_m3_where_it_has_levels(
    variant: Any, blocks: Any, optimisers: Any, words: str
) -> None:
    with pytest.raises(ValidationError, match=words):
        Stack(variant=variant, blocks=blocks, optimisers=optimisers)


@pytest.mark.clause("CMS-19")
def test_a_stack_without_levels_in_its_optimiser_has_no_outer_loop_of_its_own() -> None:
    with pytest.raises(
        ValueError, match="variant: basic, nested alone has levels in its optimiser"
    ):
        Stack(variant="basic", blocks=(ONE,)).outer_loops()
