"""The fixture of commands, for tests of runs that only a command makes."""

from tests.support.command import cli

__all__ = ["cli"]
