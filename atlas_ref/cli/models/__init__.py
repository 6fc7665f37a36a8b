"""The commands model: take models of other programs, give them back, show them, replay modules."""

from __future__ import annotations

import typer

from atlas_ref.cli.models import identify, replay, show, transfer

model = typer.Typer(
    help="Language models: import those of other programs, export, show, replay and identify modules.",
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    transfer.register(model)
    show.register(model)
    replay.register(model)
    identify.register(model)
    app.add_typer(model, name="model")
