"""Newton-Schulz on a batch of matrices, as a share of the measured matrix rate.

PyTorch in eager mode on the same formula stands beside it.

With storage in bfloat16 PyTorch also multiplies in it. Ours stores in it and computes in float32,
which is all that this package offers, and is compared with the rate of bfloat16 all the same.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

import tape
from atlas_ref.parts.newton_schulz import NewtonSchulz, newton_schulz
from benchmarks.gpu import eager, storage
from benchmarks.gpu.devices import Array, Device
from benchmarks.gpu.plan import KINDS
from benchmarks.gpu.results import BATCH, Figure, Ratio
from benchmarks.gpu.running import Settings, Taken, alternated, error, reason
from benchmarks.gpu.speeds import Speeds
from benchmarks.measure import Spread

OURS, EAGER = "Newton-Schulz", "PyTorch eager"
SETTINGS = NewtonSchulz()
Results = tuple[Array, dict[str, Array] | None]
Run = Callable[[], Results]


def multiply_adds(count: int, d: int, kind: str) -> float:
    """Three products a step; in the backward each has two."""
    return float(count * SETTINGS.steps * 3 * d**3 * (1 if kind == "forward" else 3))


def measured(
    count: int, d: int, format_: str, device: Device, settings: Settings, speeds: Speeds
) -> Taken:
    """Ours and PyTorch's, forward and with the backward."""
    drawn = np.random.default_rng(0).standard_normal((min(count, 256), d, d), np.float32)
    S, bar = (
        device.tiled(device.ours(each), (count, d, d)) for each in (drawn, drawn[::-1].copy())
    )
    if format_ == "bfloat16":
        S, bar = (storage.widened(storage.narrowed(each)) for each in (S, bar))
    found = Taken([], [])
    for kind in KINDS:
        true = _ours(S.astype(np.float64), bar.astype(np.float64), kind)()
        begun: dict[str, Figure] = {}
        runs: dict[str, Run] = {}
        for label, make in {OURS: _own, EAGER: _eager}.items():
            ours = label == OURS
            blank = Figure(
                BATCH,
                label,
                kind,
                count,
                d,
                1,
                format_,
                ours,
                ours,
                "newton_schulz" if ours else None,
            )
            try:
                runs[label] = make(S, bar, kind, format_, device)
                begun[label] = _begun(blank, runs[label], true, device)
            except (
                Exception
            ) as failed:  # a format that one of them does not take: the other goes on
                runs.pop(label, None)
                begun[label] = blank._replace(skipped=reason(failed, device))
        times = alternated(runs, begun, device, settings)
        operations = 2 * multiply_adds(count, d, kind)
        done = {
            label: _finished(figure, times.get(label), operations / speeds.rate(format_))
            for label, figure in begun.items()
        }
        found.figures.extend(done.values())
        if len(times) == 2:
            faster = [
                theirs / ours for ours, theirs in zip(times[OURS], times[EAGER], strict=False)
            ]
            found.ratios.append(Ratio(done[OURS], done[EAGER], Spread.of(faster)))
        device.release()
    return found


def _begun(blank: Figure, run: Run, true: Any, device: Device) -> Figure:
    """The first run, the error and the peak."""
    first = device.seconds(run)
    y, gradient = run()
    off = error(
        (
            _wide(y),
            None if gradient is None else {name: _wide(each) for name, each in gradient.items()},
        ),
        true,
    )
    peak = device.peak(run) if blank.ours else device.peak_of_torch(run)
    return blank._replace(
        seconds=Spread.one(device.seconds(run)),
        first=first,
        error=off,
        peak=peak.bytes,
        peak_how=peak.how,
    )


def _finished(figure: Figure, times: list[float] | None, at_full_rate: float) -> Figure:
    if times is None:
        return figure
    seconds = Spread.of(times)
    return figure._replace(seconds=seconds, rate=at_full_rate / seconds.median)


def _wide(x: Array) -> Array:
    return storage.widened(x) if x.dtype.itemsize == 2 else x


def _own(S: Array, bar: Array, kind: str, format_: str, device: Device) -> Run:
    if format_ == "float32":
        return _ours(S, bar, kind)
    held = storage.narrowed(S), storage.narrowed(bar)

    def run() -> Results:
        y, gradient = _ours(storage.widened(held[0]), storage.widened(held[1]), kind)()
        return storage.narrowed(y), None if gradient is None else {
            "S": storage.narrowed(gradient["S"])
        }

    return run


def _ours(S: Array, bar: Array, kind: str) -> Run:
    def forward() -> Results:
        return newton_schulz(S, SETTINGS), None

    def both() -> Results:
        y, pullback = tape.vjp(lambda given: newton_schulz(given, SETTINGS), S)
        return y, {"S": pullback(bar)[0]}

    return forward if kind == "forward" else both


def _eager(S: Array, bar: Array, kind: str, format_: str, device: Device) -> Run:
    torch = importlib.import_module("torch")
    if device.torch is None:
        raise RuntimeError("PyTorch sees no GPU")
    kept = getattr(torch, format_)
    leaf, cotangent = device.tensor(S).to(kept).requires_grad_(), device.tensor(bar).to(kept)

    def array(tensor: Any) -> Array:
        return device.array(tensor.float())

    def forward() -> Results:
        with torch.no_grad():
            return array(eager.newton_schulz(leaf, SETTINGS)), None

    def both() -> Results:
        y = eager.newton_schulz(leaf, SETTINGS)
        return array(y), {"S": array(torch.autograd.grad(y, leaf, cotangent)[0])}

    return forward if kind == "forward" else both
