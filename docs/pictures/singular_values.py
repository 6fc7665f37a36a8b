"""Singular values through the steps of Newton-Schulz, for each set of coefficients."""

from __future__ import annotations

import numpy as np

from atlas_ref.parts.newton_schulz import NewtonSchulz, iterates
from docs.pictures import style

SETS = {"muon": 5, "cubic": 12, "polar_express": 5}
VALUES = np.geomspace(0.003, 1.0, 9)


def picture() -> str:
    """Singular values of the iterates of a diagonal matrix, which stays diagonal (NS-10)."""
    figure, axes = style.figure(len(SETS), width=9.6, height=3.6, sharey=True)
    for ax, (coefficients, steps) in zip(axes[0], SETS.items(), strict=True):
        settings = NewtonSchulz.model_validate(
            {"coefficients": coefficients, "steps": steps, "eps": 0.0}
        )
        # (steps + 1, values)
        values = np.array([np.diag(X) for X in iterates(np.diag(VALUES), settings)])
        for column, value in enumerate(VALUES):
            colour = style.COLOURS[column % len(style.COLOURS)]
            ax.plot(
                range(steps + 1),
                values[:, column],
                color=colour,
                marker=".",
                linewidth=1.4,
                label=f"{value:.2g}",
            )
        ax.axhline(1.0, color=style.TEXT, linewidth=0.8, linestyle=":")
        ax.set(title=coefficients, xlabel="step", yscale="log")
        ax.set_xticks(range(0, steps + 1, 1 if steps < 8 else 3))
    axes[0][0].set_ylabel("singular value")
    return style.svg(
        figure,
        "singular_values",
        "Singular values through the steps of Newton-Schulz, for three sets of coefficients",
    )
