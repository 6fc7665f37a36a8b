"""Memory that is kept for the next call."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

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


pytestmark = [
    pytest.mark.host("asks the system about its own process"),
    pytest.mark.skipif(sys.platform != "linux", reason="glibc is the allocator of Linux"),
]


def faults(first: str, **environment: str) -> list[int]:
    """Those of the steps of a process that begins with a statement."""
    ran = subprocess.run(
        [sys.executable, "-c", STEPS.format(first=first)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[int] = json.loads(ran.stdout)
    return found


def test_freed_pages_stay_with_the_process_however_many_there_are() -> None:
    """By itself glibc keeps 64 MB, and faults in the rest anew at each step."""
    kept = faults("scratch.keep_freed_pages()")
    trimmed = faults("scratch.keep_pages_of(scratch.FREED)")
    assert max(kept[1:]) < 100 < kept[0]
    if min(trimmed[1:]) < 100:
        pytest.skip("this allocator keeps what is freed by itself")


@pytest.mark.clause("TRAIN-20")
def test_freed_pages_stay_with_a_worker_whose_thresholds_dask_has_fixed() -> None:
    fixed = {"MALLOC_TRIM_THRESHOLD_": "65536"}
    kept = faults("scratch.keep_freed_pages()", **fixed)
    trimmed = faults("scratch.keep_pages_of(scratch.FREED)", **fixed)
    assert max(kept[1:]) < 100 < kept[0]
    if min(trimmed[1:]) < 100:
        pytest.skip("this allocator keeps what is freed by itself")
