"""Results of a run as data: figures, ratios, checks, omissions, and the verdict on each target."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from benchmarks.measure import ERROR_BOUND, Spread, finite

#: A bfloat16 keeps 8 bits; fla's kernels round products of products to it.
ERROR_BOUND_OF_STORAGE = 2e-2

BATCH = "Newton-Schulz batch"  # the subject that is no memory


class Figure(NamedTuple):
    """One candidate at one size.

    Attributes:
        subject, label, kind, heads, d, tokens, storage: what ran.
        ours, judged, form: whose it is.
        seconds: of one run, by the device's clock.
        error: of reads, with the backward of the worst gradient too, against float64; None where
            none was made.
        peak: bytes beyond what was held before; peak_how: who counted.
        bandwidth, rate: share of the measured copy bandwidth and matrix rate that its useful bytes
            and multiply-adds take.
        copies: between host and device during one run; None for a reference.
        first: seconds of the first run, with all compiling and tuning.
        skipped: why it did not run.
    """

    subject: str
    label: str
    kind: str
    heads: int
    d: int
    tokens: int
    storage: str = "float32"
    ours: bool = True
    judged: bool = False
    form: str | None = None
    seconds: Spread = Spread.one()
    error: float | None = None
    peak: float = math.nan
    peak_how: str = ""
    bandwidth: float = math.nan
    rate: float = math.nan
    copies: int | None = None
    first: float = math.nan
    skipped: str | None = None

    @property
    def right(self) -> bool:
        """Whether its error, where one was taken, is that of rounding."""
        bound = ERROR_BOUND if self.storage == "float32" else ERROR_BOUND_OF_STORAGE
        return self.error is None or self.error <= bound

    @property
    def size(self) -> tuple[int, int, int]:
        return self.heads, self.d, self.tokens


class Ratio(NamedTuple):
    """The speed-up of one of ours over a reference, of the same rounds."""

    ours: Figure
    theirs: Figure
    faster: Spread


class Check(NamedTuple):
    """A form on the device against the same form on NumPy, or the sequential rule in float64."""

    subject: str
    form: str
    what: str  # "reads" or "gradients"
    dtype: str
    against: str  # "NumPy" or "float64 sequential"
    error: float
    bound: float

    @property
    def kept(self) -> bool:
        return self.error <= self.bound


class Verdict(NamedTuple):
    """A target of the issue: met, missed or open, with the figure that decides."""

    target: str
    word: str
    found: str

    def line(self) -> str:
        return f"{self.word:<6}  {self.target}: {self.found}"


class Found(NamedTuple):
    """All results of a run."""

    machine: dict[str, Any]
    figures: list[Figure]
    ratios: list[Ratio]
    checks: list[Check]
    left_out: list[str]

    def plain(self) -> dict[str, Any]:
        """The results as JSON takes them: no nan, ratios by the names of their sides."""
        found: dict[str, Any] = finite(
            {
                "machine": self.machine,
                "figures": [_plain(each) for each in self.figures],
                "ratios": [
                    {
                        "subject": r.ours.subject,
                        "kind": r.ours.kind,
                        "heads": r.ours.heads,
                        "d": r.ours.d,
                        "tokens": r.ours.tokens,
                    }
                    | {"ours": r.ours.label, "theirs": r.theirs.label, "faster": r.faster._asdict()}
                    for r in self.ratios
                ],
                "checks": [each._asdict() | {"kept": each.kept} for each in self.checks],
                "left_out": self.left_out,
                "targets": [each._asdict() for each in self.verdicts()],
            }
        )
        return found

    def verdicts(self) -> list[Verdict]:
        """One verdict for each target of the issue.

        A run on the CPU decides none that is about speed.
        """
        on_gpu = bool(self.machine.get("measured"))
        speed = self.ratios if on_gpu else []
        exact_deltas = [
            r for r in speed if r.theirs.label.startswith("fla Triton") and r.ours.tokens == 8192
        ]
        shares = [
            f
            for f in self.figures
            if on_gpu and f.subject == BATCH and f.ours and f.kind == "forward"
        ]
        return [
            _least(
                "frozen and exact forms at least as fast as PyTorch eager",
                _of(speed, "PyTorch eager"),
                1.0,
            ),
            _least(
                "20 times as fast as the public PyTorch cell", _of(speed, "atlas-rnn cell"), 20.0
            ),
            _least(
                "exact delta forms within 3 times of fla's Triton chunk kernels at T = 8k",
                exact_deltas,
                1 / 3,
            ),
            *(
                _share(storage, [f for f in shares if f.storage == storage])
                for storage in ("float32", "bfloat16")
            ),
            *(_same(self.checks if on_gpu else [], what) for what in ("reads", "gradients")),
        ]


def _plain(figure: Figure) -> dict[str, Any]:
    return figure._asdict() | {"seconds": figure.seconds._asdict()}


def _of(ratios: Iterable[Ratio], label: str) -> list[Ratio]:
    return [each for each in ratios if each.theirs.label == label and each.ours.subject != BATCH]


def _named(figure: Figure) -> str:
    return (
        f"{figure.subject}, {figure.label}, {figure.kind}, {figure.heads} heads, d = {figure.d}, "
        f"T = {figure.tokens}"
    )


def _least(target: str, ratios: list[Ratio], bound: float) -> Verdict:
    """Verdict met where every judged ratio, of a right result, keeps the bound.

    It shows the worst ratio.
    """
    judged = [each for each in ratios if each.ours.judged]
    if not judged:
        return Verdict(target, "open", "not measured")
    kept = [each for each in judged if each.faster.median >= bound and each.ours.right]
    worst = min(judged, key=lambda each: each.faster.median)
    found = (
        f"{len(kept)} of {len(judged)} rows; worst {worst.faster.median:.3g} times faster "
        f"({_named(worst.ours)})"
    )
    return Verdict(target, "met" if len(kept) == len(judged) else "missed", found)


def _share(storage: str, figures: list[Figure]) -> Verdict:
    target = f"Newton-Schulz batch at half of the measured {storage} matrix rate"
    taken = [each for each in figures if each.skipped is None and math.isfinite(each.rate)]
    if not taken:
        return Verdict(target, "open", "not measured")
    worst = min(taken, key=lambda each: each.rate)
    kept = all(each.rate >= 0.5 and each.right for each in taken)
    return Verdict(
        target, "met" if kept else "missed", f"{worst.rate:.2f} of it at its worst (d = {worst.d})"
    )


def _same(checks: list[Check], what: str) -> Verdict:
    target = f"{what} equal to NumPy's within REORDERED"
    judged = [each for each in checks if each.what == what and each.against == "NumPy"]
    if not judged:
        return Verdict(target, "open", "not measured")
    kept = [each for each in judged if each.kept]
    worst = max(judged, key=lambda each: each.error / each.bound)
    found = (
        f"{len(kept)} of {len(judged)} forms and formats; worst {worst.error:.1e} of "
        f"{worst.bound:.1e} allowed"
    )
    return Verdict(
        target,
        "met" if len(kept) == len(judged) else "missed",
        f"{found} ({worst.subject}, {worst.form}, {worst.dtype})",
    )
