"""What a sweep draws of a deep memory, and how a case of it becomes smaller (SWEEP-13)."""

from __future__ import annotations

from atlas_ref.oracle import regimes
from atlas_ref.oracle.deep.sweep import cut, draw
from atlas_ref.oracle.drawing import Drawing

DRAWING = Drawing(
    space=draw.SPACE,
    later=draw.LATER_PARAMETERS,
    request=draw.request,
    convention=draw.convention,
    regimes=regimes.SEQUENCES,
    moves=cut.MOVES,
)

__all__ = ["DRAWING"]
