"""The commands model: take models of other programs, give them back, show them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import typer

model = typer.Typer(
    help="Language models in files: import those of other programs, export, show.",
    no_args_is_help=True,
)

#: Programs whose files are read and written.
PROGRAMS = ("atlas-rnn",)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    from atlas_ref.cli.models import show, transfer

    transfer.register(model)
    show.register(model)
    app.add_typer(model, name="model")


def programs(incomplete: str) -> list[str]:
    """Names of other programs, for the completion of a shell."""
    return [name for name in PROGRAMS if name.startswith(incomplete)]


@contextlib.contextmanager
def bad_input() -> Iterator[None]:
    """Turn an error of a file into one line with exit code 2 (CASE-17)."""
    from atlas_ref.oracle.cases.case import CaseError

    try:
        yield
    except ValueError as error:
        raise CaseError(" ".join(str(error).split())) from None
