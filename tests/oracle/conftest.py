"""The fixture `cli`, for the tests of the oracle."""

from tests.support.command import cli

__all__ = ["cli"]
