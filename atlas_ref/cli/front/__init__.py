"""The command try: a front door by the names that kernels have."""

from atlas_ref.cli.front.attempt import register

__all__ = ["register"]
