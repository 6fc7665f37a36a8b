"""Results of readings that searches of one case share, so that many tests of it compute them once.

A search compares what a program returned with our results under hundreds of readings. These are
pure functions of the case and the reading, so a second search of the case finds what it would
compute.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from atlas_ref.oracle.identify.readings.judge import Judge


@pytest.fixture(scope="module", autouse=True)
def remembered() -> Iterator[None]:
    """Share results and tolerances between searches of one case, in the tests of a module."""
    kept: dict[int, tuple[Any, dict[Any, Any], dict[Any, Any]]] = {}
    init, allowed = Judge.__init__, Judge.tolerances

    def start(self: Judge, case: Any, *args: Any) -> None:
        init(self, case, *args)
        # holds the case too, so that its id is given to no other
        _, self.kept, _ = kept.setdefault(id(case), (case, Kept(), {}))

    def once(self: Judge, chosen: Any, *, grad: bool) -> Any:
        names = tuple(each.name for each in chosen)
        key = (names, grad, tuple(self.observation.dtypes.items()))
        tolerances = kept[id(self.case)][2]
        if key not in tolerances:
            tolerances[key] = allowed(self, chosen, grad=grad)
        return tolerances[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Judge, "__init__", start)
        patch.setattr(Judge, "tolerances", once)
        yield


class Kept(dict[Any, Any]):
    """Results that no search can change for the next one."""

    def __setitem__(self, key: Any, results: Any) -> None:
        for x in results.values():
            if isinstance(x, np.ndarray):
                x.flags.writeable = False
        super().__setitem__(key, results)
