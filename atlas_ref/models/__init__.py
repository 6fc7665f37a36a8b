"""Models: blocks with an embedding and a head, generation, and the names of public checkpoints.

`MODULES` is the only list of modules of public code.
"""

from __future__ import annotations

from atlas_ref.models import atlas_mag_parts, atlas_rnn, atlas_rnn_systems
from atlas_ref.models.atlas_rnn import Module

#: Name in cases -> module of Atlas-RNN or Atlas-MAG.
MODULES: dict[str, Module] = atlas_rnn.PARTS | atlas_rnn_systems.SYSTEMS | atlas_mag_parts.PARTS
