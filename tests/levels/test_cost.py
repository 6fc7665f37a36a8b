"""Memory of a stream through a block: the same for any number of tokens behind it."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from atlas_ref.levels import block as cms
from atlas_ref.levels import presets
from tests.support.blocks import block

PIECE = 64


def peak(config: cms.Config, tokens: int) -> int:
    """Peak bytes of a stream in pieces, which are created one at a time."""
    params, context = cms.init(config, 0), cms.start(config)
    draw = np.random.default_rng(0)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(tokens // PIECE):
        context, _ = cms.run(config, params, draw.standard_normal((1, PIECE, 6)), context)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most - before


@pytest.mark.host("bytes that Python allocates")
@pytest.mark.clause("CMS-16")
@pytest.mark.parametrize("preset", list(presets.PRESETS))
def test_a_stream_takes_the_same_memory_whatever_its_length(preset: str) -> None:
    config = presets.PRESETS[preset](d_model=6, d_in=16, d_out=16, heads=2)
    peak(config, 2 * PIECE)
    short, long = peak(config, 4 * PIECE), peak(config, 24 * PIECE)
    assert long < 1.1 * short


@pytest.mark.clause("CMS-8", "CMS-16")
def test_a_context_has_the_size_of_its_states_whatever_is_behind_it() -> None:
    config = block(
        [
            {"rule": "titans_lmm", "period": 1, "d_in": 4},
            {"rule": "omega", "period": 8, "d_in": 4, "window": 5},
        ]
    )
    params, context = cms.init(config, 0), cms.start(config)

    def numbers(context: cms.Context) -> int:
        arrays = [
            each
            for state in context.states
            for each in state.__dict__.values()
            if isinstance(each, np.ndarray)
        ]
        return sum(int(held.size) for held in map(_held, arrays))

    def _held(array: Any) -> Any:
        """Bytes that an array keeps alive: a view keeps all of its base."""
        return array if array.base is None else array.base

    sizes = []
    for _ in range(3):
        context, _ = cms.run(config, params, np.ones((1, 40, 5)), context)
        sizes.append(numbers(context))
    assert sizes == [numbers(cms.start(config))] * 3
