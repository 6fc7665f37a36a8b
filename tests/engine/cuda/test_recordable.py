"""Forms in a CUDA graph: no copies, no waits, no products that cannot be recorded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from atlas_ref import backend
from benchmarks import memories
from benchmarks.gpu.plan import SUBJECTS
from tests.support.standin.array import NAME, Strict


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Iterator[backend.Backend]:
    """The stand-in, where a @ b is refused as CuPy refuses it while a stream records."""

    def refused(*_: Any) -> Any:
        raise RuntimeError("a @ b of two arrays cannot be recorded")

    monkeypatch.setattr(Strict, "__matmul__", refused)
    with backend.used(NAME) as found:
        yield found


@pytest.mark.clause("CUDA-15")
@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_forms_that_are_recorded_copy_nothing_and_multiply_by_np_matmul(
    there: backend.Backend, subject: Any
) -> None:
    memory = memories.sized(subject.memory, 8)
    arrays = {
        name: there.from_host(x) for name, x in memories.sequence(memory, 128, heads=2).items()
    }
    start, bar = (
        memories.started(memory, arrays),
        there.from_host(np.ones(arrays["v"].shape, np.float32)),
    )
    counts = []
    for _ in range(2):
        memories.forward(memory, arrays, memory.form, start=start)
        memories.both(memory, arrays, bar, memory.form, start=start)
        counts.append((there.copies.to_device, there.copies.to_host))
    assert counts[1] == counts[0]
    with pytest.raises(RuntimeError, match="cannot be recorded"):
        arrays["k"] @ arrays["v"]
