"""Which levels write when: memories with pulses of several periods, and how far each moves at every token."""

from __future__ import annotations

import numpy as np

from atlas_ref.conventions import resolve
from atlas_ref.rules import delta
from atlas_ref.types import Pulse
from docs.pictures import style

T, PERIODS = 64, (1, 2, 4, 8, 16)


def changes(period: int) -> list[float]:
    """How far the memory of one level moves at each token; a silent level does not move (CONV-32)."""
    config = delta.Config(d_model=8, d_in=4, d_out=4, convention=resolve({"gate": "retain"}, rule="delta"))
    params, state = delta.init(config, seed=0), delta.start(config, leading=(1, 1))
    x = np.random.default_rng(0).standard_normal((T, 1, 8))
    found = []
    for t in range(T):
        after, _ = delta.step(config, params, state, x[t], Pulse(step=t, active=t % period == 0))
        found.append(float(np.linalg.norm(after.M - state.M)))
        state = after
    return found


def picture() -> str:
    """One row a level; a bar where its memory moved, as high as it moved far."""
    moved = {period: changes(period) for period in PERIODS}
    largest = max(max(each) for each in moved.values())
    figure, axes = style.figure(height=3.6)
    ax = axes[0][0]
    for row, each in enumerate(moved.values()):
        ax.bar(range(T), [0.85 * value / largest for value in each], bottom=row, width=0.8, color=style.COLOURS[row])
    ax.set(xlabel="token", ylabel="period of the level", ylim=(-0.1, len(PERIODS)))
    ax.set_yticks(range(len(PERIODS)), labels=[str(period) for period in PERIODS])
    return style.svg(figure, "levels", "Which of five levels write at which token, and how far their memory moves")
