"""What a sweep draws of rule dplr, and how a case of it becomes smaller (SWEEP-16)."""

from __future__ import annotations

from atlas_ref.oracle.dplr.sweep import cut, draw
from atlas_ref.oracle.drawing import Drawing
from atlas_ref.oracle.regimes import layer_gates

DRAWING = Drawing(
    space=draw.SPACE,
    request=draw.request,
    tensors=draw.dress,
    of_tensors=draw.OF_TENSORS,
    closed=draw.OF_TENSORS,
    later=draw.LATER_PARAMETERS,
    regimes=draw.REGIMES,
    long=draw.LONG_SPACE,
    named={"slow": draw.slow, "trained": layer_gates},
    moves=cut.MOVES,
)

__all__ = ["DRAWING"]
