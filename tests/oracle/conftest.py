"""The fixture `cli`, for the tests of the oracle."""

from command import cli

__all__ = ["cli"]
