"""Atlas-MAG: its settings, names and shapes of its tensors, its blocks and its model.

Shapes and their number follow from the settings alone: nothing is drawn. Specified in
specs/language_model.md (MODEL-14, MODEL-15) and specs/atlas_mag.md.
"""

from __future__ import annotations

from atlas_ref.models.atlas_mag.configs import (
    attention_only,
    attention_only_block,
    block,
    block_parameters,
    memory,
    model,
    momenta,
    of_state,
    parameters,
    state_dict,
)
from atlas_ref.models.atlas_mag.names import count, shapes
from atlas_ref.models.atlas_mag.settings import CONFIGURATIONS, Settings

__all__ = [
    "CONFIGURATIONS",
    "Settings",
    "attention_only",
    "attention_only_block",
    "block",
    "block_parameters",
    "count",
    "memory",
    "model",
    "momenta",
    "of_state",
    "parameters",
    "shapes",
    "state_dict",
]
