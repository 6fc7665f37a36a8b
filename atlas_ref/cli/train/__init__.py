"""The commands train and plot: train a model on text, and draw what a run's log has."""

from __future__ import annotations

import typer

from atlas_ref.cli.train import plot, train


def register(app: typer.Typer) -> None:
    """Add the commands."""
    train.register(app)
    plot.register(app)
