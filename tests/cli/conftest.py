"""The fixtures of commands and of vectors, for the tests of the command line."""

from tests.support.command import cli
from tests.vectors.conftest import listed, shipped, spoilt

__all__ = ["cli", "listed", "shipped", "spoilt"]
