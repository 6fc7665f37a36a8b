"""Synthetic times of a run on a GPU, for the table, the JSON file and the pictures."""

from __future__ import annotations

from typing import Any

from benchmarks.gpu.results import BATCH, Check, Figure, Found, Ratio
from benchmarks.measure import Spread


def figure(
    label: str = "chunkwise", tokens: int = 8192, seconds: float = 1e-3, **more: Any
) -> Figure:
    fields: dict[str, Any] = {
        "form": label,
        "judged": True,
        "error": 1e-6,
        "rate": 0.1,
        "bandwidth": 0.2,
        "peak": 5e6,
    } | more
    times = Spread(0.9 * seconds, seconds, 1.1 * seconds)
    return Figure(
        fields.pop("subject", "frozen Omega"),
        label,
        fields.pop("kind", "forward"),
        8,
        64,
        tokens,
        seconds=times,
        **fields,
    )


def theirs(label: str, tokens: int = 8192, seconds: float = 2e-3, **more: Any) -> Figure:
    return figure(label, tokens, seconds, **({"ours": False, "judged": False, "form": None} | more))


def ratio(ours: Figure, other: Figure) -> Ratio:
    return Ratio(ours, other, Spread.one(other.seconds.median / ours.seconds.median))


def check(
    error: float = 1e-15, bound: float = 1e-13, what: str = "reads", against: str = "NumPy"
) -> Check:
    return Check("delta", "exact", what, "float64", against, error, bound)


def found(measured: bool = True, **more: Any) -> Found:
    """Results in which every target is met."""
    frozen, exact = figure(), figure("exact", subject="delta", seconds=2e-3)
    others = [
        theirs("PyTorch eager"),
        theirs("atlas-rnn cell", seconds=3e-2),
        theirs("fla Triton chunk, bfloat16", subject="delta"),
    ]
    batches = [
        figure("Newton-Schulz", subject=BATCH, rate=0.6, storage=storage)
        for storage in ("float32", "bfloat16")
    ]
    small = [figure(tokens=1024, seconds=2e-4), theirs("PyTorch eager", 1024, 1e-3)]
    figures = [
        *small,
        frozen,
        *others[:2],
        exact,
        others[2],
        *batches,
        figure("scan", skipped="would hold about 900 GB"),
    ]
    ratios = [
        ratio(small[0], small[1]),
        ratio(frozen, others[0]),
        ratio(frozen, others[1]),
        ratio(exact, others[2]),
    ]
    checks = [check(), check(what="gradients"), check(against="float64 sequential")]
    result = Found(
        {"measured": measured, "device": "none"},
        figures,
        ratios,
        checks,
        ["delta, 8 heads, d = 64, T = 131072: the budget was spent"],
    )
    return result._replace(**more)
