"""Distance of the rule with a frozen reference from the running one, over span and step size."""

from __future__ import annotations

from typing import Any

import numpy as np

from atlas_ref import forms as parallel
from atlas_ref.conventions import resolve
from atlas_ref.rules import omega
from atlas_ref.rules.sequence import Tokens
from docs.pictures import style

T, D, WINDOW = 128, 16, 4
SPANS = (2, 4, 8, 16, 32)
STEPS = tuple(float(step) for step in np.geomspace(1e-3, 0.3, 8))
TOP = 10.0


def reads(step: float, span: int | None) -> Any:
    """Reads of Omega without Newton-Schulz, under the running reference or one frozen for a
    span.
    """
    draw = np.random.default_rng(0)
    k, v, q = draw.standard_normal((3, T, D))
    k, q = (rows / np.linalg.norm(rows, axis=-1, keepdims=True) for rows in (k, q))
    reference = {"reference": "running"} if span is None else {"reference": "chunk_start"}
    convention = resolve({"newton_schulz": "none", **reference}, rule="omega")
    config = omega.Config(d_in=D, d_out=D, window=WINDOW, span=span, convention=convention)
    gates = {"retain": np.full(T, 0.98), "momentum": np.full(T, 0.8), "step_size": np.full(T, step)}
    with np.errstate(all="ignore"):  # where the frozen rule is unstable it may overflow
        form = "sequential" if span is None else "chunkwise"
        return parallel.run(
            omega.RULE, config, Tokens(k=k, v=v, q=q, **gates), omega.start(config), form=form
        )[1]


def picture() -> str:
    """Distance of all reads, relative (E-P06, ATLASP-10)."""
    figure, axes = style.figure(height=4.0)
    ax = axes[0][0]
    running = {step: reads(step, None) for step in STEPS}
    for place, span in enumerate(SPANS):
        apart = [
            float(np.linalg.norm(reads(step, span) - running[step]) / np.linalg.norm(running[step]))
            for step in STEPS
        ]
        heights = [min(each, TOP) if np.isfinite(each) else TOP for each in apart]
        ax.plot(
            STEPS,
            heights,
            color=style.COLOURS[place],
            marker=style.MARKERS[place],
            markersize=5,
            label=f"span {span}",
        )
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="step size",
        ylabel="distance from the running rule, relative",
        ylim=(None, 1.3 * TOP),
    )
    style.legend(ax)
    return style.svg(
        figure,
        "references",
        "Distance of the frozen from the running reference over the step size, for five spans",
    )
