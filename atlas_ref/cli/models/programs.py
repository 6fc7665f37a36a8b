"""Public projects whose files the commands model import and model export know."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from atlas_ref.cli.models.files import bad_input
from atlas_ref.messages import meant

if TYPE_CHECKING:
    from atlas_ref.models.public.importer import Importer

#: Name of a project -> the module with its `IMPORTER`, whose class says what it must provide; it
#: is imported at its use, since it loads every rule.
PROGRAMS: dict[str, str] = {
    "atlas-rnn": "atlas_ref.models.atlas_rnn_files",
    "atlas-mag": "atlas_ref.models.atlas_mag.files",
}

#: Their names in help.
NAMES = ", ".join(PROGRAMS)


def beginning(incomplete: str) -> list[str]:
    """Names of projects that begin so, for the completion of a shell."""
    return [name for name in PROGRAMS if name.startswith(incomplete)]


def format_of(program: str, option: str) -> Importer:
    """The files of a project (MODEL-13).

    Args:
        option: that named it.

    Raises:
        CaseError: names the option and the projects that are known.
    """
    with bad_input():
        if program not in PROGRAMS:
            known = f"{', '.join(PROGRAMS)} {'is' if len(PROGRAMS) == 1 else 'are'} known"
            raise ValueError(f"{option} {program}: unknown; {known}{meant(program, PROGRAMS)}")
    own: Importer = importlib.import_module(PROGRAMS[program]).IMPORTER
    return own
