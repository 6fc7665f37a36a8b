"""MIRAS's Moneta, Yaad and Memora as settings of a deep memory.

Every reading that the paper leaves open is a value of an axis: of the bias, the retention, or the
convention. Specified in specs/deep_memory.md (DEEP-34). Source: MIRAS (2504.13173) Eqs 24 to 27.
"""

from __future__ import annotations

from typing import Any

from atlas_ref.messages import no_such
from atlas_ref.rules.deep_memory.config import Config

#: Tokens between refreshes of the weights at which gradients are taken; the paper has 16 and 64.
SPAN = 16

#: x + (1 + gain) LayerNorm(W_2 gelu(W_1 x)) with four times as many hidden units.
MEMORY: dict[str, Any] = {"kind": "mlp", "residual_norm": True}

#: Gradient descent, one write a token, at the weights of the last span.
CONVENTION: dict[str, Any] = {"newton_schulz": "none", "reference": "chunk_start"}

#: Bias and retention of each.
PRESETS: dict[str, dict[str, Any]] = {
    "moneta": {
        "bias": {"kind": "lp", "power": 3.0},
        "retention": {"kind": "lq", "power": 4.0},
    },
    "yaad": {"bias": {"kind": "huber"}, "retention": {"kind": "l2"}},
    "memora": {"bias": {"kind": "l2"}, "retention": {"kind": "kl"}},
}


def preset(name: str, *, d: int, **changes: Any) -> Config:
    """The settings of moneta, yaad or memora.

    Args:
        name: of the preset.
        d: length of keys, queries and values.
        changes: other settings of `Config`, in the place of the preset's; axes of `convention` are
            changed one by one.

    Raises:
        ValueError: an unknown preset, or settings that contradict each other.

    Source: DEEP-34.
    """
    if name not in PRESETS:
        raise ValueError(no_such("preset", name, PRESETS))
    axes = CONVENTION | dict(changes.pop("convention", {}))
    own = {"memory": MEMORY, "span": SPAN, **PRESETS[name], **changes, "convention": axes}
    return Config(d_in=d, d_out=d, **own)
