"""The commands about training: train a model, plot its curve, evaluate it, generate from it."""

from __future__ import annotations

import typer

from atlas_ref.cli.train import evaluate, generate, plot, train


def register(app: typer.Typer) -> None:
    """Add the commands."""
    train.register(app)
    plot.register(app)
    evaluate.register(app)
    generate.register(app)
