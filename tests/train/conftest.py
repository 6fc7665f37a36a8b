"""Fixtures of commands, for runs that only a command makes, and of a text to train on."""

from pathlib import Path

import pytest

from tests.support.command import cli
from tests.support.training import library

__all__ = ["cli"]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A folder of text."""
    return library(tmp_path)
