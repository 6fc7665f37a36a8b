"""Rates of the device in the same run: copies in memory, and large products in float32 and
bfloat16.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from benchmarks.gpu.devices import Device
from benchmarks.measure import Spread, Work

COPIED = 2**30  # bytes
LARGE = 8192  # rows and columns
SMALL = {"copied": 2**24, "large": 512}  # on a processor
RUNS = 7


class Speeds(NamedTuple):
    """Bytes a second, read and written counted apart; operations a second, a multiply-add counting
    as two.
    """

    copy: Spread
    float32: Spread
    bfloat16: Spread

    @property
    def bandwidth(self) -> float:
        return self.copy.median

    def rate(self, storage: str) -> float:
        return self.bfloat16.median if storage == "bfloat16" else self.float32.median

    def plain(self) -> dict[str, Any]:
        return {name: spread._asdict() for name, spread in self._asdict().items()}

    def words(self) -> str:
        def tera(spread: Spread) -> str:
            return (
                "not measured"
                if math.isnan(spread.median)
                else "{:.3g}, {:.3g}, {:.3g}".format(*(each / 1e12 for each in spread))
            )

        return (
            f"copy within the device {tera(self.copy)} TB/s; product of float32 "
            f"{tera(self.float32)}, "
            f"of bfloat16 {tera(self.bfloat16)} TFLOP/s (quartiles)"
        )


def measured(device: Device) -> Speeds:
    """All three; bfloat16 needs PyTorch."""
    copied, large = (COPIED, LARGE) if device.measured else (SMALL["copied"], SMALL["large"])
    source = device.ours(np.zeros(copied // 4, np.float32))
    target = source.copy()

    def copy() -> None:
        target[...] = source

    bandwidth = _per_second(copy, 2 * copied, device)
    draw = np.random.default_rng(0)
    a, b = (device.ours(draw.standard_normal((large, large), np.float32)) for _ in range(2))
    operations = 2 * large**3
    float32 = _per_second(lambda: a @ b, operations, device)
    return Speeds(bandwidth, float32, _bfloat16(a, b, operations, device))


def _bfloat16(a: Any, b: Any, operations: int, device: Device) -> Spread:
    if not device.measured or device.torch is None:
        return Spread.one()
    low = [device.tensor(each).bfloat16() for each in (a, b)]
    return _per_second(lambda: low[0] @ low[1], operations, device)


def _per_second(work: Work, amount: float, device: Device) -> Spread:
    device.seconds(work)
    low, median, high = Spread.of([device.seconds(work) for _ in range(RUNS)])
    return Spread(amount / high, amount / median, amount / low)
