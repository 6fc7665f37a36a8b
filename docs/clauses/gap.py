"""A gap between specs, code and tests."""

from __future__ import annotations

from typing import NamedTuple


class Gap(NamedTuple):
    """A missing or wrong link of the trace: its place, and a description."""

    path: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"
