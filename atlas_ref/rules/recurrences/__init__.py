"""Recurrences of the linear family that no setting of `dplr` is, each written out in its own file.

Specified in specs/recurrences.md.
"""
