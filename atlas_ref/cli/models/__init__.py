"""The commands model: take models of other programs, give them back, show them, replay modules."""

from __future__ import annotations

import typer

from atlas_ref.cli.models import replay, show, transfer

model = typer.Typer(
    help="Language models: import those of other programs, export, show, and replay modules.",
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    transfer.register(model)
    show.register(model)
    replay.register(model)
    app.add_typer(model, name="model")
