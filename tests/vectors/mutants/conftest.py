"""The set whose vectors reject the mutants of rules with settings of their own."""

from __future__ import annotations

import pytest

from atlas_ref.vectors.sets import manifest
from tests.support.killed import FOLDER


@pytest.fixture(scope="session")
def listing() -> manifest.Manifest:
    """The contents of v2."""
    return manifest.load(FOLDER)
