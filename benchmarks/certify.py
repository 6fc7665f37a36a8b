"""Time of certified results in ball arithmetic."""

from __future__ import annotations

import time

from atlas_ref.certify import certify
from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.new import Request, new
from benchmarks.measure import Row, Spread, Target, timer

SAMPLES = 3


def rows() -> list[Row]:
    """The bound of the design, in CPU time on one core."""
    large = new(Request(rule="omega", tokens=64, d_in=16, d_out=16, heads=1))
    small = new(Request(rule="omega", tokens=8, d_in=4, d_out=4, heads=1, window=3, cotangent=True))
    linear = new(Request(rule="titans_lmm", tokens=64, d_in=16, d_out=16, heads=1, cotangent=True))
    return [
        _row(
            "certify values, T = 64, d = 16, five steps of Newton-Schulz",
            large,
            grad=False,
            most=5.0,
        ),
        _row(
            "certify values and gradients, T = 8, d = 4, the same with a window", small, grad=True
        ),
        _row("certify values and gradients, Titans, T = 64, d = 16", linear, grad=True),
    ]


def _row(name: str, case: Case, *, grad: bool, most: float | None = None) -> Row:
    certified = certify(case, grad=grad)
    assert not certified.unresolved
    seconds = [
        timer(lambda: certify(case, grad=grad), time.process_time)()
        for _ in range(SAMPLES if most is not None else 1)
    ]
    nothing = Spread.one()
    target = None if most is None else Target("at most", None, most)
    note = f"CPU time of the process; {max(certified.bits.values())} bits"
    return Row(name, "s", Spread.of(seconds), "", nothing, nothing, target, note=note)
