"""Packed sequences with states of their own: N calls in one case (CASE-44 to CASE-47)."""
