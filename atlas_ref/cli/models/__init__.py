"""The commands model: take models of other programs, give them back, show them."""

from __future__ import annotations

import typer

from atlas_ref.cli.models import show, transfer

model = typer.Typer(
    help="Language models in files: import those of other programs, export, show.",
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    transfer.register(model)
    show.register(model)
    app.add_typer(model, name="model")
