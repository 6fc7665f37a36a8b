"""Blocks of levels in cases: their schedule, nested contexts, and gates that decide who writes.

Nothing is imported here, as in `atlas_ref.oracle.subjects`.
"""
