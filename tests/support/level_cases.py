"""Blocks of the package as cases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

import atlas_ref
from atlas_ref.levels import block as cms
from tests.support.blocks import tensors_of
from tests.support.close import ANALYTIC


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


def assert_complex_steps(
    inputs: Mapping[str, Any],
    found: Mapping[str, Any],
    weighed: Callable[[dict[str, Any]], complex],
    names: Iterable[str],
    draw: np.random.Generator,
) -> None:
    """Recorded gradients are the complex steps of a sum of results, in a drawn direction each."""
    bound = ANALYTIC.bound
    assert bound is not None
    for name in names:
        gradient = found[f"grad/{name[3:]}"]
        direction = draw.standard_normal(inputs[name].shape)
        moved = weighed({**inputs, name: inputs[name] + 1e-30j * direction}).imag / 1e-30
        got = np.sum(gradient * direction)
        possible = float(np.linalg.norm(gradient) * np.linalg.norm(direction)) + 1.0
        assert abs(got - moved) <= bound * 1e2 * possible, f"{name}: {got} against {moved}"
