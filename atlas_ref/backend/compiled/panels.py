"""The work space of compiled products by tiles, without Numba."""

from __future__ import annotations

from typing import Any

import numpy as np

#: Bytes of a row of a panel: two registers of AVX2, one of AVX-512.
PANEL_BYTES = 64

Shape = tuple[int, ...]


def room(rows: int, columns: int, kind: np.dtype[Any], kept: int) -> tuple[Shape, Shape, Shape]:
    """Shapes of the panels of X, X^T and A = X X^T for the steps of Newton-Schulz on one matrix.

    Args:
        kept: steps that go back, each with its own X, A and B.
    """
    width = PANEL_BYTES // kind.itemsize
    down, across = -(-rows // width), -(-columns // width)
    wide, turned, square = (across, down), (down, across), (down, down)
    counts = (kept + 3, 2, 2 * kept + 2) if kept else (2, 1, 2)
    shapes = (
        (count, panels, tiles * width, width)
        for count, (panels, tiles) in zip(counts, (wide, turned, square), strict=True)
    )
    of_x, of_x_T, of_A = shapes
    return of_x, of_x_T, of_A
