"""A gap between specs, code and tests."""

from __future__ import annotations

from typing import NamedTuple


class Gap(NamedTuple):
    """Something that is missing or wrong: where, and what in words."""

    path: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"
