"""Inputs of the recurrences beside rule dplr, and their results by the rule, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from atlas_ref.rules.recurrences import gsa, hgrn

RECORDED = Path(__file__).parents[1] / "data" / "peers_recurrences"
FILES = sorted(RECORDED.glob("*.safetensors"))

B, T, D_IN, D_OUT, SLOTS = 2, 5, 4, 3, 6
MODULES = {"gsa": gsa, "hgrn": hgrn}

#: Names of the state of each member.
STATES = {"gsa": ("K", "M"), "hgrn": ("h",)}

SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "gsa": {
        "k": (B, T, D_IN),
        "v": (B, T, D_OUT),
        "q": (B, T, D_IN),
        "s": (B, T, SLOTS),
        "log_retain": (B, T, SLOTS),
        "K": (B, SLOTS, D_IN),
        "M": (B, D_OUT, SLOTS),
    },
    "hgrn": {"x": (B, T, D_OUT), "log_retain": (B, T, D_OUT), "h": (B, D_OUT)},
}


def drawn(member: str, seed: int = 0, **changes: Any) -> dict[str, Any]:
    """Inputs of a member with a first state; masks come by `changes`."""
    draw = np.random.default_rng(seed)
    x = {name: draw.standard_normal(shape) for name, shape in SHAPES[member].items()}
    x["log_retain"] = -np.abs(x["log_retain"])
    return x | changes


def computed(member: str, x: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """y and the last state of a member, by its rule."""
    module, names = MODULES[member], STATES[member]
    tokens = module.Tokens(**{name: value for name, value in x.items() if name not in names})
    first = module.start(tokens, **{name: x[name] for name in names if name in x})
    after, y = module.run(tokens, first, **settings)
    return {"y": y, **{name: getattr(after, name) for name in names}}


def part(member: str, x: dict[str, Any], tokens: slice) -> dict[str, Any]:
    """Some tokens of inputs, with the first state as it is."""
    masks = ("active", "reset")
    own = {name: z if name in STATES[member] else z[:, tokens] for name, z in x.items()
           if name not in masks}  # fmt: skip
    return own | {name: x[name][tokens] for name in masks if name in x}
