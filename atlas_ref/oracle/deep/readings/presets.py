"""Whole readings of a case of a deep memory: those of public code and papers (DEEP-22, DEEP-34)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.program.reading import Reading

#: What the memories of MIRAS share: gradient descent at the weights of a span (DEEP-34).
MIRAS: dict[str, Any] = {"newton_schulz": "none", "reference": "chunk_start"}

#: Each by the settings that it changes.
PRESETS: dict[str, dict[str, Any]] = {
    "atlas-mag": {
        "parameters.unfinished": "flush",
        "read": "call_end",
        "parameters.coupling": "batch_shared",
        "parameters.reduction": "mean",
        "parameters.fast": "all",
        "parameters.vectors": "unit",
    },
    "titans-pytorch": {
        "gradient_scale": "2/d_out",
        "rate": "momentum",
        "parameters.fast": "all",
        "parameters.vectors": "raw",
    },
    "moneta": {
        **MIRAS,
        "parameters.bias": {"kind": "lp"},
        "parameters.retention": {"kind": "lq"},
    },
    "yaad": {**MIRAS, "parameters.bias": {"kind": "huber"}, "parameters.retention": {"kind": "l2"}},
    "memora": {**MIRAS, "parameters.bias": {"kind": "l2"}, "parameters.retention": {"kind": "kl"}},
}


def presets(case: Case, every: Sequence[Reading]) -> dict[str, list[Reading]]:
    """The readings of each preset that differ from the case; atlas-mag writes once a call.

    Without memora where weights have no logarithms.

    Args:
        every: readings of its settings, one at a time.
    """
    tokens = case.inputs["in/k"].shape[-2]
    wanted = {
        name: {**axes, **({"parameters.chunk": tokens} if name == "atlas-mag" else {})}
        for name, axes in PRESETS.items()
    }
    return {
        name: [each for each in every if each.change.items() <= axes.items()]
        for name, axes in wanted.items()
        if not MIRAS.items() <= axes.items() or _possible(axes, every)
    }


def _possible(axes: Mapping[str, Any], every: Sequence[Reading]) -> bool:
    """Whether each value is that of the case or of a reading."""
    own = {axis: value for each in every for axis, value in each.before.items()}
    tried = [each.change for each in every]
    return all(
        axis not in own or own[axis] == value or {axis: value} in tried
        for axis, value in axes.items()
    )
