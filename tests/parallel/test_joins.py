"""Tokens behind their history, share by share."""

import numpy as np
import pytest
from close import EXACT, assert_close

from atlas_ref.parallel.joins import Joins
from atlas_ref.scratch import scratch


@pytest.mark.clause("CHUNK-15")
@pytest.mark.parametrize("shares", [[slice(0, 5)], [slice(3, 5), slice(0, 3)]])
def test_each_share_of_memories_gets_its_own_tokens_behind_their_history(shares):
    draw = np.random.default_rng(0)
    pairs = [(draw.standard_normal((5, 2, x)), draw.standard_normal((5, 7, x))) for x in (3, 4)]
    joins = Joins()
    with scratch.frame():
        rooms = [joins.room(earlier, own) for earlier, own in pairs]
        for room in rooms:
            room[...] = np.nan
        for memories in shares:
            joins.fill(memories)
            assert not any(np.isnan(room[memories]).any() for room in rooms)
        for room, pair in zip(rooms, pairs, strict=True):
            assert_close("joined", room, np.concatenate(pair, axis=1), EXACT)
