"""The mistakes of the design's list, each with its cases and, for a convention, its name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.oracle.planted.restatement import CUBIC, Plant

OMEGA = ("omega", "omega plain")
GATED = ("omega", "omega plain", "titans_lmm", "delta", "hebbian")
ERRORS = ("omega", "omega plain", "titans_lmm", "delta")
MOMENTUM = ("omega plain", "titans_lmm")
NEWTON_SCHULZ = ("omega", "omega tall")


@dataclass(frozen=True)
class Mistake:
    """A mistake in the restatement.

    Attributes:
        plant: what it changes.
        cases: names of `cases.REQUESTS`.
        op: the op that computes it, which a replay must name; "" where no op does: it is in the
            backward pass or in the padding.
        axes: the convention that it is, axis -> value; None where it is no convention.
        grad: it is in the backward pass, so that gradients are handed over too.
        chunked: it is in the chunk form.
    """

    name: str
    plant: Plant
    cases: tuple[str, ...]
    op: str = ""
    axes: dict[str, Any] | None = None
    grad: bool = False
    chunked: bool = False


WRITTEN_BACK = {"newton_schulz.argument": "written_back"}

MISTAKES = (
    Mistake("forget for retain", Plant(forget=True), GATED, "M", {"gate": "forget"}),
    Mistake(
        "rate at the memory", Plant(rate="memory"), (*OMEGA, "titans_lmm"), "S", {"rate": "memory"}
    ),
    Mistake(
        "rate in the momentum alone", Plant(rate="momentum"), ("omega",), "M", {"rate": "momentum"}
    ),
    Mistake("rate twice", Plant(rate="both"), MOMENTUM, "M", {"rate": "both"}),
    Mistake("factor 2", Plant(factor=2.0), ERRORS, "gradient", {"gradient_scale": 2.0}),
    Mistake("window off by one", Plant(window_short=True), OMEGA, "residual"),
    Mistake("window weights reversed", Plant(window_reversed=True), OMEGA, "gradient"),
    Mistake(
        "window order swapped",
        Plant(momentum_first=True),
        OMEGA,
        "gradient",
        {"order": "momentum_then_window"},
    ),
    Mistake("read before write", Plant(read_before=True), GATED, "y", {"read": "before"}),
    Mistake(
        "frozen for running", Plant(frozen=True), ERRORS, "residual", {"reference": "call_start"}
    ),
    Mistake(
        "cubic for quintic",
        Plant(coefficients=CUBIC),
        NEWTON_SCHULZ,
        "X1",
        {"newton_schulz.coefficients": "cubic"},
    ),
    Mistake(
        "Newton-Schulz written back", Plant(written_back=True), NEWTON_SCHULZ, "S", WRITTEN_BACK
    ),
    Mistake("missing eps", Plant(eps=0.0), ("omega small",), "X0", {"newton_schulz.eps": 0.0}),
    Mistake("spurious transpose in a backward", Plant(transposed=True), ERRORS, grad=True),
    Mistake("dropped carry of dM", Plant(drops_dM=True), GATED, grad=True),
    Mistake("dropped carry of dS", Plant(drops_dS=True), ("omega", *MOMENTUM), grad=True),
    Mistake(
        "gate values copied onto padding",
        Plant(padding=True),
        ("titans_lmm", "delta", "hebbian"),
        chunked=True,
    ),
    Mistake(
        "padding leaks a future token",
        Plant(leak=True),
        (*NEWTON_SCHULZ, "omega plain"),
        "residual",
    ),
)
