"""Newton-Schulz alone, on a batch of matrices: the share of the measured matrix rate, beside PyTorch eager on the same formula."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tape
from atlas_ref.newton_schulz import NewtonSchulz, newton_schulz
from benchmarks.gpu import eager
from benchmarks.gpu.devices import Array, Device
from benchmarks.gpu.plan import KINDS
from benchmarks.gpu.results import BATCH, Figure, Ratio
from benchmarks.gpu.running import FEWEST_ROUNDS, MOST_ROUNDS, Settings, Taken, error
from benchmarks.gpu.speeds import Speeds
from benchmarks.measure import Spread, Work

SETTINGS = NewtonSchulz()


def multiply_adds(count: int, d: int, kind: str) -> float:
    """Three products a step; in the backward each has two."""
    return float(count * SETTINGS.steps * 3 * d**3 * (1 if kind == "forward" else 3))


def measured(count: int, d: int, device: Device, settings: Settings, speeds: Speeds) -> Taken:
    """Ours and PyTorch's, forward and with the backward."""
    draw = np.random.default_rng(0)
    drawn = draw.standard_normal((min(count, 256), d, d), np.float32)
    S, bar = (device.tiled(device.ours(each), (count, d, d)) for each in (drawn, drawn[::-1].copy()))
    figures: list[Figure] = []
    ratios: list[Ratio] = []
    for kind in KINDS:
        sides = {"Newton-Schulz": _ours(S, bar, kind)}
        if device.torch is not None:
            sides["PyTorch eager"] = _eager(S, bar, kind, device)
        true = _ours(S.astype(np.float64), bar.astype(np.float64), kind)()
        made = {label: _figure(label, work, true, kind, count, d, device) for label, work in sides.items()}
        total = sum(each.seconds.median for each in made.values())
        rounds = int(min(MOST_ROUNDS, max(FEWEST_ROUNDS, settings.slot / total)))
        times: dict[str, list[float]] = {label: [] for label in sides}
        for _ in range(rounds):
            for label, work in sides.items():
                times[label].append(device.seconds(work))
        for label, figure in made.items():
            seconds = Spread.of(times[label])
            operations = 2 * multiply_adds(count, d, kind)
            made[label] = figure._replace(seconds=seconds, rate=operations / seconds.median / speeds.rate("float32"))
        figures += made.values()
        if len(made) == 2:
            ours, theirs = made.values()
            faster = [b / a for a, b in zip(*times.values(), strict=True)]
            ratios.append(Ratio(ours, theirs, Spread.of(faster)))
        device.release()
    return Taken(figures, ratios)


def _ours(S: Array, bar: Array, kind: str) -> Callable[[], tuple[Array, dict[str, Array] | None]]:
    def forward() -> tuple[Array, None]:
        return newton_schulz(S, SETTINGS), None

    def both() -> tuple[Array, dict[str, Array]]:
        y, pullback = tape.vjp(lambda given: newton_schulz(given, SETTINGS), S)
        return y, {"S": pullback(bar)[0]}

    return forward if kind == "forward" else both


def _eager(S: Array, bar: Array, kind: str, device: Device) -> Callable[[], Any]:
    torch = device.torch
    leaf, cotangent = device.tensor(S).requires_grad_(), device.tensor(bar)

    def forward() -> tuple[Any, None]:
        with torch.no_grad():
            return device.array(eager.newton_schulz(leaf, SETTINGS)), None

    def both() -> tuple[Any, dict[str, Any]]:
        y = eager.newton_schulz(leaf, SETTINGS)
        return device.array(y), {"S": device.array(torch.autograd.grad(y, leaf, cotangent)[0])}

    return forward if kind == "forward" else both


def _figure(label: str, work: Work, true: Any, kind: str, count: int, d: int, device: Device) -> Figure:
    ours = label == "Newton-Schulz"
    first = device.seconds(work)
    peak = device.peak(work) if ours else device.peak_of_torch(work)
    off = error(work(), true)
    blank = Figure(BATCH, label, kind, count, d, 1, ours=ours, judged=ours, form="newton_schulz" if ours else None)
    return blank._replace(seconds=Spread.one(device.seconds(work)), first=first, error=off, peak=peak.bytes, peak_how=peak.how)
