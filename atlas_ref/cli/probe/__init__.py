"""The commands probe: small tasks whose answer is known, asked of memories and of models."""

from __future__ import annotations

import typer

from atlas_ref.cli.probe import capacity, recall

probe = typer.Typer(
    help="Small tasks whose answer is known: how many pairs a memory holds, and how soon a model "
    "learns to recall them.",
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    capacity.register(probe)
    recall.register(probe)
    app.add_typer(probe, name="probe")
