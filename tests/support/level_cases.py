"""Blocks of the package as cases."""

from __future__ import annotations

from typing import Any

import numpy as np

import atlas_ref
from atlas_ref.levels import block as cms
from tests.support.blocks import tensors_of


def case_of(
    specs: Any,
    params: cms.Params,
    x: Any,
    context: cms.Context,
    *,
    reset: Any = None,
    **header: Any,
) -> atlas_ref.Case:
    """A block of the package as a case."""
    own = [
        {key: value for key, value in spec.items() if key not in ("period", "d_in")}
        for spec in specs
    ]
    schedule = {"periods": [spec["period"] for spec in specs], "first_step": context.conductor.step}
    tensors: dict[str, Any] = {"in/x": x, "in/logits": params.logits} | (
        {} if reset is None else {"in/reset": reset.astype(np.uint8)}
    )
    for i, state in enumerate(context.states):
        tensors |= {
            f"in/level{i}/{name[3:]}": value for name, value in tensors_of(params.levels[i]).items()
        }
        tensors |= {
            f"in/level{i}/{name}0": getattr(state, name)
            for name in ("M", "S")
            if hasattr(state, name)
        }
    return atlas_ref.make(
        {
            "schema": 1,
            "rule": "cms",
            "level": "token",
            "levels": own,
            "schedule": schedule,
            **header,
        },
        tensors,
    )
