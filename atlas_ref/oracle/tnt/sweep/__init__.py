"""What a sweep draws of a TNT, and how a case of it becomes smaller (SWEEP-15)."""

from __future__ import annotations

from atlas_ref.oracle.drawing import Drawing
from atlas_ref.oracle.tnt.sweep import cut, draw

DRAWING = Drawing(
    space=draw.SPACE,
    request=draw.request,
    convention=draw.convention,
    tensors=draw.dress,
    of_tensors=draw.OF_TENSORS,
    closed=("global", "locals", *draw.OF_TENSORS),
    regimes=draw.REGIMES,
    moves=cut.MOVES,
)

__all__ = ["DRAWING"]
