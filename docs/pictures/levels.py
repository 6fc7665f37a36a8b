"""A block of levels token by token: its pulses, and the movement of each memory."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from atlas_ref.levels import block, presets
from atlas_ref.types import Array
from docs.pictures import style

T, PERIODS = 64, (1, 2, 4, 8, 16)


class Driven(NamedTuple):
    """Pulses and movement of a block at each token.

    active (T, k) holds the pulses of its conductor, moved (T, k) the distance that each memory
    moved.
    """

    active: Array
    moved: Array
    average: float


def driven() -> Driven:
    """A block of the delta rule at five periods, from its first step on (PULSE-2, CMS-4, CMS-5)."""
    config = presets.all_delta(d_model=8, d_in=4, d_out=4, periods=PERIODS)
    params, context = block.init(config, seed=0), block.start(config)
    x = np.random.default_rng(0).standard_normal((T, 1, 8))
    active, moved = [], []
    for token in x:
        active.append(context.conductor.pulse.active)
        after, _ = block.step(config, params, context, token)
        moved.append(
            [
                float(np.linalg.norm(new.M - old.M))
                for new, old in zip(after.states, context.states, strict=True)
            ]
        )
        context = after
    return Driven(np.array(active), np.array(moved), config.conductor().average_active)


def picture() -> str:
    """One row a level: marks at active pulses, bars for the movement of its memory (PULSE-7).

    Below stands the number of levels that write.
    """
    run = driven()
    figure, axes = style.figure(1, 2, height=4.6, sharex=True, height_ratios=(3.2, 1))
    levels, count = axes[:, 0]
    for row in range(len(PERIODS)):
        colour, fires = style.COLOURS[row], np.flatnonzero(run.active[:, row])
        largest = run.moved[:, row].max()
        levels.bar(range(T), 0.7 * run.moved[:, row] / largest, bottom=row, width=0.8, color=colour)
        levels.text(T, row + 0.2, f"up to {largest:.1g}", color=style.TEXT, fontsize=9)
        levels.scatter(
            fires, np.full(len(fires), row - 0.12), s=12, marker="^", color=colour, linewidths=0
        )
    levels.set(
        title="pulses (marks), and how far each memory moves (bars)",
        ylabel="period of the level",
        ylim=(-0.3, len(PERIODS)),
        xlim=(-1, T + 7),
    )
    levels.set_yticks(range(len(PERIODS)), labels=[str(period) for period in PERIODS])
    count.bar(range(T), run.active.sum(axis=1), width=0.8, color=style.COLOURS[7])
    count.axhline(run.average, color=style.TEXT, linewidth=0.9, linestyle=":")
    count.set(
        title=f"levels that write; on average {run.average:.2f}", xlabel="token", ylabel="levels"
    )
    return style.svg(
        figure,
        "levels",
        "Which of five levels write at which token, and how far their memory moves",
    )
