"""Fixtures of the tests of adapters."""

from tests.support.command import cli

__all__ = ["cli"]
