"""Division of a sequence into chunks and groups, token by token (CHUNK-14, CHUNK-15).

For any spans, chunk and limit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from atlas_ref.forms.chunks import Chunks, alone, grouped

LIMITS: dict[str, Callable[[int], int]] = {
    "alone": alone,
    "few": lambda length: 20,
    "less for short ones": lambda length: 3 * length,
}


@given(
    st.lists(st.booleans(), min_size=1, max_size=80),
    st.integers(1, 40),
    st.sampled_from(sorted(LIMITS)),
)
def test_groups_follow_each_other_and_hold_as_many_equal_chunks_as_the_limit_lets(
    spans: list[bool], chunk: int, name: str
) -> None:
    limit, refresh = LIMITS[name], np.array(spans)
    groups = grouped(refresh, chunk, limit)
    first = 0
    for group in groups:
        assert (group.first, 1 <= group.length <= chunk) == (first, True)
        assert len(group.refresh) == 1 or group.length * len(group.refresh) <= limit(group.length)
        for i, begins in enumerate(group.refresh):
            tokens = refresh[first + i * group.length : first + (i + 1) * group.length]
            assert tokens[0] == begins  # a chunk begins a span, or lies inside of one
            assert not tokens[1:].any()
        first = group.last
    assert first == len(refresh)
    for one, following in itertools.pairwise(groups):
        assert one.length != following.length or one.length * (len(one.refresh) + 1) > limit(
            one.length
        )


def test_a_group_goes_on_over_spans_of_equal_length() -> None:
    refresh = np.arange(24) % 8 == 0
    assert grouped(refresh, 4, lambda length: 16) == [
        Chunks(0, 4, (True, False, True, False)),
        Chunks(16, 4, (True, False)),
    ]
