"""Weights of pages in the search: what a reader asks for stands above code."""

from __future__ import annotations

#: What a match on a page counts for, by the beginning of its path; else 1.
BOOST = {"specs/": 4.0, "tutorial/": 4.0, "index.md": 2.0, "reference/": 0.5, "CHANGELOG": 0.5}


def weight(path: str) -> float:
    """What a match on a page counts for."""
    return next((boost for start, boost in BOOST.items() if path.startswith(start)), 1.0)
