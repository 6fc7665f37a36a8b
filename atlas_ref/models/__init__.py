"""Models: blocks with an embedding and a head, generation, and the names of public checkpoints.

`MODULES` is the only list of modules of public code.
"""

from __future__ import annotations

from atlas_ref.models import atlas_rnn, atlas_rnn_systems
from atlas_ref.models.atlas_mag import modules as atlas_mag_modules
from atlas_ref.models.atlas_mag import parts as atlas_mag_parts
from atlas_ref.models.atlas_rnn import Module
from atlas_ref.models.public import flash_linear_attention, titans_pytorch

#: Name in cases -> module of Atlas-RNN, Atlas-MAG, titans-pytorch or flash-linear-attention.
MODULES: dict[str, Module] = {
    **atlas_rnn.PARTS,
    **atlas_rnn_systems.SYSTEMS,
    **atlas_mag_parts.PARTS,
    **atlas_mag_modules.MODULES,
    "titans_neural_memory": titans_pytorch.MODULE,
    "kda_gate": flash_linear_attention.MODULE,
}
