"""fla-core's kernels, compiled before they are needed: some processes fill Triton's cache.

Compiling every configuration that a kernel is tuned over takes minutes, most of them on the host.
These processes run side by side, so their choice of the best configuration is thrown away: the
timed process tunes for itself, alone on the GPU.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.gpu.plan import Group

PATIENCE = 90.0  # seconds; the timed process compiles the rest
MOST = 6  # processes at a time
TOKENS = 256


def shapes(groups: Sequence[Group]) -> list[tuple[str, str, int, int]]:
    """(peer, storage, heads, d) of every Triton kernel of the plan, in its order."""
    return list(
        dict.fromkeys(
            (str(each.peer), each.storage, group.heads, group.d)
            for group in groups
            for each in group.candidates
            if each.is_triton
        )
    )


def begin(groups: Sequence[Group]) -> list[subprocess.Popen[bytes]]:
    """Processes that compile, none where fla-core or Triton is missing."""
    if any(importlib.util.find_spec(name) is None for name in ("torch", "triton", "fla")):
        return []
    environment = {**os.environ, "FLA_CACHE_RESULTS": "0"}
    return [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu.warm", peer, storage, str(heads), str(d)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for peer, storage, heads, d in shapes(groups)[:MOST]
    ]


def wait(processes: list[subprocess.Popen[bytes]], patience: float = PATIENCE) -> str:
    """Wait until all processes ended, or end those that run too long.

    Nothing else may run on the GPU from here on.
    """
    until = time.monotonic() + patience
    ended = 0
    for process in processes:
        try:
            ended += process.wait(max(0.0, until - time.monotonic())) == 0
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return f"{ended} of {len(processes)} shapes of Triton kernels"


def main(peer: str, storage: str, heads: int, d: int) -> None:
    """Forward and backward of one kernel at a few tokens."""
    from benchmarks.gpu import peers, running
    from benchmarks.gpu.devices import open_device
    from benchmarks.gpu.plan import SUBJECTS

    subject, candidate = next(
        (subject, each)
        for subject in SUBJECTS
        for each in subject.candidates
        if each.peer == peer and each.storage == storage
    )
    device = open_device("cuda", tf32=os.environ.get("ATLAS_REF_TF32") == "1")
    group = Group(subject, heads, d, TOKENS, (candidate,))
    peers.call(candidate, group, *running.inputs(group, device), device).both()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
