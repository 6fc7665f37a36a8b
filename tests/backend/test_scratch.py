"""Memory that is kept for the next call."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.host("asks the system about its own process")

#: Page faults of three steps, each of which touches 192 MB in blocks of 8 and frees them.
STEPS = """
import json, resource
import numpy as np
from atlas_ref.backend import scratch

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def step():
    before, held = faults(), [np.ones(2**20) for _ in range(24)]
    del held
    return faults() - before

{first}
print(json.dumps([step() for _ in range(3)]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is the allocator of Linux")
def test_freed_pages_stay_with_the_process_however_many_there_are() -> None:
    """By itself glibc keeps 64 MB, and faults in the rest anew at each step."""
    steps = {
        first: json.loads(
            subprocess.run(
                [sys.executable, "-c", STEPS.format(first=first)],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        for first in ("scratch.keep_freed_pages()", "scratch._keep_freed_pages(scratch.FREED)")
    }
    kept, trimmed = steps.values()
    assert max(kept[1:]) < 100 < kept[0]
    if min(trimmed[1:]) < 100:
        pytest.skip("this allocator keeps what is freed by itself")
