"""Inputs of the recurrences beside rule dplr, and their results by the rule, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from atlas_ref.rules.recurrences import gsa, hgrn, log_linear, mesa, ttt_linear

RECORDED = Path(__file__).parents[1] / "data" / "peers_recurrences"
FILES = sorted(RECORDED.glob("*.safetensors"))

B, T, D_IN, D_OUT, SLOTS, LEVELS = 2, 5, 4, 3, 6, 4
MODULES: dict[str, Any] = {
    "gsa": gsa,
    "hgrn": hgrn,
    "mesa": mesa,
    "ttt_linear": ttt_linear,
    "log_linear": log_linear,
}

#: Names of the state of each member, those with a gate, and parameters without an axis of tokens.
STATES = {
    "gsa": ("K", "M"),
    "hgrn": ("h",),
    "mesa": ("G", "M"),
    "ttt_linear": ("M", "bias"),
    "log_linear": ("M",),
}
GATED = tuple(member for member in MODULES if member != "ttt_linear")
FIXED = ("ridge", "gain", "shift")

#: Settings of a literal loop: mini-batches that end in a short one, tokens before the first.
SETTINGS: dict[str, dict[str, Any]] = {
    "gsa": {"scale": D_IN**-0.5},
    "hgrn": {},
    "mesa": {},
    "ttt_linear": {"scale": D_IN**-0.5, "mini_batch": 2},
    "log_linear": {"scale": D_IN**-0.5, "position": 3},
}

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
    "mesa": {
        "k": (B, T, D_IN),
        "v": (B, T, D_OUT),
        "q": (B, T, D_IN),
        "weight": (B, T),
        "log_retain": (B, T),
        "ridge": (B, D_IN),
        "G": (B, D_IN, D_IN),
        "M": (B, D_OUT, D_IN),
    },
    "ttt_linear": {
        **dict.fromkeys(("k", "v", "q"), (B, T, D_IN)),
        "step_size": (B, T),
        "gain": (B, D_IN),
        "shift": (B, D_IN),
        "M": (B, D_IN, D_IN),
        "bias": (B, D_IN),
    },
    "log_linear": {
        "k": (B, T, D_IN),
        "v": (B, T, D_OUT),
        "q": (B, T, D_IN),
        "log_retain": (B, T),
        "level_scales": (B, T, LEVELS),
        "M": (B, LEVELS, D_OUT, D_IN),
    },
}


def drawn(member: str, seed: int = 0, **changes: Any) -> dict[str, Any]:
    """Inputs of a member with a first state; masks come by `changes`."""
    draw = np.random.default_rng(seed)
    x = {name: draw.standard_normal(shape) for name, shape in SHAPES[member].items()}
    if "log_retain" in x:
        x["log_retain"] = -np.abs(x["log_retain"])
    if member == "mesa":
        x["ridge"] = 4.0 + np.abs(x["ridge"])
    if member == "ttt_linear":
        x["step_size"] = 0.1 * x["step_size"]
    if member == "log_linear":
        empty = [level for level in range(LEVELS) if level not in (0, 2)]  # after three tokens
        x["M"][:, empty] = 0.0
    return x | changes


def started(member: str, x: dict[str, Any], position: int = 3) -> tuple[Any, Any]:
    """Tokens and first state of a member; of log_linear, after some tokens."""
    module, names = MODULES[member], STATES[member]
    tokens = module.Tokens(**{name: value for name, value in x.items() if name not in names})
    first = {name: x[name] for name in names if name in x}
    if member == "log_linear":
        first["position"] = position
    return tokens, module.start(tokens, **first)


def driven(member: str, tokens: Any, state: Any, **settings: Any) -> tuple[Any, Any]:
    """State and reads of a member, under the settings of its literal loop."""
    if member == "ttt_linear":
        chosen = {"mini_batch": SETTINGS[member]["mini_batch"]} | settings
        return ttt_linear.run(ttt_linear.Config(**chosen), tokens, state)
    return MODULES[member].run(tokens, state, **settings)


def results(member: str, state: Any, y: Any) -> dict[str, Any]:
    """y and the last state of a member, as its literal loop names them."""
    memory = ttt_linear.memory(state) if member == "ttt_linear" else state
    return {"y": y, **{name: getattr(memory, name) for name in STATES[member]}}


def computed(member: str, x: dict[str, Any], position: int = 3, **settings: Any) -> dict[str, Any]:
    """y and the last state of a member, by its rule."""
    return results(member, *driven(member, *started(member, x, position), **settings))


def part(member: str, x: dict[str, Any], tokens: slice) -> dict[str, Any]:
    """Some tokens of inputs, with the first state as it is."""
    masks, whole = ("active", "reset"), (*STATES[member], *FIXED)
    own = {name: z if name in whole else z[:, tokens] for name, z in x.items() if name not in masks}
    return own | {name: x[name][tokens] for name in masks if name in x}
