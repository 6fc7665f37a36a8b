"""Names of tensors of a case, what each may hold, and the limits of the format.

Specified in specs/case.md (CASE-2, CASE-32) and specs/feature_maps.md (PHI-20).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.parts import feature_maps
from atlas_ref.types import Array

#: The rule of a block of frequency levels, and that of a layer or model around memories.
BLOCK, LAYER = "cms", "layer"

#: Levels of objects and arrays inside each other, and digits of an integer: what any JSON reader
#: can take.
DEEPEST, LONGEST = 100, 18

#: Characters of a case's JSON object, and levels or periods, that are at most read: more than any
#: model has, and few enough to be looked at in a moment (CASE-2).
CHARACTERS, LEVELS = 1_000_000, 256

#: Where a tensor of one level of a block stands: in/level0/M0, out/level2/M, grad/level1/param/W_K
#: (CASE-32).
LEVEL = re.compile(r"^(in|out|grad)/level(\d+)/")

#: Where a tensor of one of several calls or steps stands: in/call0/x, out/call1/y, out/step2/loss
#: (LAYER-18, LAYER-20).
CALL = re.compile(r"^(in|out|grad)/(call|step)\d+/")

#: Tensors that stand for another by its logarithm.
LOGARITHMS = {"in/log_retain": "in/retain", "in/log_momentum": "in/momentum"}

#: Tokens, gates and weights of a call of a memory, without `in/`.
OF_TOKENS = (
    "k",
    "v",
    "q",
    "retain",
    "momentum",
    "step_size",
    "step_size_memory",
    "window_weights",
    "window_gate",
)

#: Header keys of a sequence.
SEQUENCE_KEYS = (
    "level",
    "window",
    "span",
    "phase",
    "chunk",
    "window_weights",
    "gate_axis",
    "schedule",
)


def bare(name: str) -> str:
    """The name that a level's tensor would have in a case of its own; other names as they are."""
    return LEVEL.sub(r"\1/", name)


def last_of(name: str) -> str:
    """The last state that a result of states behind some tokens is of (CASE-50); others as they are."""
    return name.replace("out/states/", "out/", 1) if name.startswith("out/states/") else name


def of_call(name: str) -> str:
    """The name that a tensor of one of several calls would have in a single one."""
    return CALL.sub(r"\1/", name)


class Tensor(NamedTuple):
    """One input tensor of a case.

    Attributes:
        axes: named axes; "..." are the leading axes, the same for every tensor that has them.
            "gate" stands for "... T" or, with one gate per output dimension, "... T d_out".
        need: "yes", or what stands in when it is absent.
        low, high: inclusive range; None for finite.
        mask: True for bool or uint8 of zeros and ones.
        whole: True for int64 or int32, as tokens by number.
    """

    axes: str
    need: str = "yes"
    low: float | None = None
    high: float | None = None
    mask: bool = False
    whole: bool = False


#: Where a call ends in its span: None without spans; of a block, that of each level.
Position = int | None | list[int | None]

#: Name -> tensor that a case may hold, and name -> the reason why it may not hold another.
Legal = tuple[dict[str, Tensor], dict[str, str]]


def masks(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Tokens that are active, and resets, where a case has them."""
    return {
        name: np.asarray(inputs[f"in/{name}"]).astype(bool)
        for name in ("active", "reset")
        if f"in/{name}" in inputs
    }


def under(inputs: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    """The tensors whose names begin with a prefix, without it."""
    return {
        name.removeprefix(prefix): value
        for name, value in inputs.items()
        if name.startswith(prefix)
    }


def phi_of(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Tensors of the feature map, by name."""
    tensors = {
        name.removeprefix("in/phi/"): value
        for name, value in inputs.items()
        if name.startswith("in/phi/")
    }
    return tensors | ({"proj": inputs["in/proj"]} if "in/proj" in inputs else {})


def phi_tensors(header: Any) -> dict[str, Tensor]:
    """Tensors of the case's feature map."""
    names = feature_maps.TENSORS.get(header.feature_map.kind, {})
    return {_of_phi(name): Tensor(axes) for name, axes in names.items()}


def frozen_tensors(header: Any) -> set[str]:
    """Tensors of the feature map that have no derivative, of every level of a block.

    Source: PHI-20.
    """
    own = {_of_phi(name) for name in feature_maps.frozen(header.feature_map)}
    levels = {
        f"in/level{number}/{_of_phi(name).removeprefix('in/')}"
        for number, level in enumerate(header.levels or ())
        for name in feature_maps.frozen(level.feature_map)
    }
    return own | levels


def _of_phi(name: str) -> str:
    """The name in a case of a tensor of a feature map."""
    return "in/proj" if name == "proj" else f"in/phi/{name}"
