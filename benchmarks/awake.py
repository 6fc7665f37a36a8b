"""Rate of products on each processor after all of them slept, moment by moment.

    python -m benchmarks.awake

On a virtual machine two processors that wake may be two halves of one core of the host until the
host moves one of them.
"""

from __future__ import annotations

import threading
import time

import numpy as np
from threadpoolctl import threadpool_limits

from atlas_ref.backend.threads import processors
from benchmarks.measure import SPIN

# a product that stays in a processor's own cache, and how many make a reading
ROWS, TIMES = (
    128,
    20,
)
MOMENT, MOMENTS, ROUNDS = 0.04, 12, 4


def course() -> np.ndarray:
    """Thousand million float32 operations a second, (processors, moments), after a sleep."""
    readings: list[list[tuple[float, float]]] = [[] for _ in range(processors())]
    time.sleep(SPIN)
    start = time.perf_counter()

    def multiply(into: list[tuple[float, float]]) -> None:
        a = np.ones((ROWS, ROWS), np.float32)
        out = np.empty_like(a)
        while (first := time.perf_counter() - start) < MOMENT * MOMENTS:
            for _ in range(TIMES):
                np.matmul(a, a, out=out)
            into.append((first, time.perf_counter() - start - first))

    threads = [threading.Thread(target=multiply, args=(into,)) for into in readings]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    operations = TIMES * 2 * ROWS**3 / 1e9
    return np.array(
        [[_rate(into, moment, operations) for moment in range(MOMENTS)] for into in readings]
    )


def _rate(readings: list[tuple[float, float]], moment: int, operations: float) -> float:
    """The median of the readings that began in a moment; nan where none did."""
    some = [spent for first, spent in readings if int(first / MOMENT) == moment]
    return operations / float(np.median(some)) if some else float("nan")


def main() -> None:
    """Print some rounds, a line for each processor."""
    print(
        f"GFLOP/s of each of {processors()} processors, every {1e3 * MOMENT:.0f} ms after "
        f"{SPIN} s of sleep"
    )
    with threadpool_limits(1, "blas"):
        for _ in range(ROUNDS):
            print()
            for rates in course():
                print(" ".join(f"{rate:6.1f}" for rate in rates))


if __name__ == "__main__":
    main()
