"""Recorded cases of layers, and small ones to change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import atlas_ref
from tests.support.casefiles import parts

FOLDER = Path(__file__).parents[1] / "data" / "peers_layers"
FILES = sorted(FOLDER.glob("atlas_rnn_*.safetensors"))

#: Files of norms, feed-forward and attention, and of what holds them.
PARTS = [
    file
    for file in FILES
    if file.stem.startswith(
        tuple(
            f"atlas_rnn_{name}" for name in ("rms_norm", "multihead", "feed_forward", "attention")
        )
    )
]
#: Files that stand for all where each takes a process or more.
FEW = [
    *PARTS,
    *(
        FOLDER / f"atlas_rnn_{name}_11.safetensors"
        for name in ("memory_omega4_chained", "block_mag", "lm_mag")
    ),
]
#: Files of Atlas-MAG, which have headers of their own.
MAG = sorted(FOLDER.glob("mag_*.safetensors"))
#: Every file of Atlas-MAG, with its memory, its learning, its blocks and models.
ALL_MAG = sorted((FOLDER.parent / "peers_atlas_mag").glob("mag_*.safetensors"))
#: Files of titans-pytorch.
TITANS = sorted((FOLDER.parent / "peers_atlas_mag").glob("titans_*.safetensors"))
#: Files of the gates of Kimi Delta Attention.
GATES = sorted((FOLDER.parent / "peers_gates").glob("gate_*.safetensors"))
SYSTEMS = [file for file in FILES if file not in PARTS]

#: One file of each layer.
ONE = {
    "rms_norm": "rms_norm",
    "multihead_rms_norm": "multihead_rms_norm",
    "feed_forward": "feed_forward_mult4",
    "sliding_window_attention": "attention_w5_p3",
}


def file_of(name: str) -> Path:
    return FOLDER / f"atlas_rnn_{name}_11.safetensors"


def layer_case(name: str = "attention_w5_p3") -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and inputs of a recorded case, to change."""
    return parts(atlas_ref.load(file_of(name)))
