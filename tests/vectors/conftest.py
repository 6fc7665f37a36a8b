"""Fixtures for the tests of vectors: the command line, the shipped set, a copy of it to spoil."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from atlas_ref.vectors.sets import locate, manifest
from tests.support.command import cli

__all__ = ["cli"]


@pytest.fixture(scope="session")
def shipped() -> Path:
    """The folder of v1."""
    return locate.folder("v1")


@pytest.fixture(scope="session")
def listed(shipped: Path) -> manifest.Manifest:
    return manifest.load(shipped)


@pytest.fixture
def spoilt(shipped: Path, tmp_path: Path) -> Path:
    """A copy of v1."""
    return Path(shutil.copytree(shipped, tmp_path / "set"))
