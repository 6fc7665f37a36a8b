"""A run of Omega token by token: window, surprise, and sizes of memory and momentum."""

from __future__ import annotations

import numpy as np

from atlas_ref.oracle.cases.case import make
from atlas_ref.oracle.replay.trace import trace
from docs.pictures import style

T, D, WINDOW, NEW = 24, 4, 4, 12


def picture() -> str:
    """Keys repeat with a period of four; at token NEW their values change, and the memory learns
    again (OMEGA-2).
    """
    draw = np.random.default_rng(3)
    keys = np.linalg.qr(draw.standard_normal((D, D)))[0]
    values = draw.standard_normal((2, D, 3))
    k = np.array([keys[t % D] for t in range(T)])
    v = np.array([values[int(t >= NEW), t % D] for t in range(T)])
    gates = {
        "in/retain": np.full(T, 0.98),
        "in/momentum": np.full(T, 0.3),
        "in/step_size": np.full(T, 0.9),
    }
    header = {
        "schema": 1,
        "rule": "omega",
        "window": WINDOW,
        "convention": {"newton_schulz": "none"},
    }
    case = make(
        header,
        {
            "in/k": k[None],
            "in/v": v[None],
            "in/q": k[None],
            **{name: gate[None] for name, gate in gates.items()},
        },
    )
    steps = {name.removeprefix("trace/"): value[0] for name, value in trace(case).items()}
    lags = np.linalg.norm(steps["residual"], axis=-1)  # (T, c)
    figure, axes = style.figure(1, 3, width=8.4, height=6.0, sharex=True, height_ratios=(1.3, 1, 1))
    window, surprise, memory = axes[:, 0]
    grid = np.full((T, T), np.nan)
    for t in range(T):
        for lag in range(min(WINDOW, t + 1)):
            grid[t - lag, t] = lags[t, lag]
    image = window.imshow(grid, origin="lower", aspect="auto", cmap="cool", interpolation="nearest")
    window.set(
        title="the window: each token's residual, as long as it is held", ylabel="token held"
    )
    bar = figure.colorbar(image, ax=window)
    bar.set_label("residual", color=style.TEXT)
    bar.ax.tick_params(colors=style.TEXT)
    surprise.bar(range(T), lags[:, 0], color=style.COLOURS[1])
    surprise.set(title="surprise: the residual of the newest token", ylabel="norm")
    for name, place in (("M", 0), ("S", 2)):
        norms = np.linalg.norm(steps[name], axis=(-2, -1))
        memory.plot(
            range(T),
            norms,
            color=style.COLOURS[place],
            marker=style.MARKERS[place],
            markersize=4,
            label=f"{name}",
        )
    memory.set(title="memory M and momentum S", xlabel="token", ylabel="norm")
    style.legend(memory, ncols=2)
    for ax in (window, surprise, memory):
        ax.axvline(NEW - 0.5, color=style.TEXT, linewidth=0.9, linestyle=":")
    return style.svg(
        figure, "tokens", "Window, surprise, memory and momentum of an Omega memory token by token"
    )
