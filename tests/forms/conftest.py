"""The invariant of all tests of the forms: no work space is still in use afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from atlas_ref.backend.scratch import scratch


@pytest.fixture(autouse=True)
def _work_space_is_given_back() -> Iterator[None]:
    assert scratch.used == 0
    yield
    in_use, scratch.used = scratch.used, 0
    assert in_use == 0
