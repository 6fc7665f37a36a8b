"""The commands of the other tests of commands."""

from tests.oracle.conftest import cli

__all__ = ["cli"]
