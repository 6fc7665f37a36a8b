"""The commands probe: small tasks whose answer is known, asked of memories and of models."""

from __future__ import annotations

import typer

from atlas_ref.cli.probe import capacity, needle, recall

probe = typer.Typer(
    help="Small tasks whose answer is known, asked of memories and models.", no_args_is_help=True
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    capacity.register(probe)
    needle.register(probe)
    recall.register(probe)
    app.add_typer(probe, name="probe")
