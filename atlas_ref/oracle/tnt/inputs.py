"""Random inputs of a TNT, so that a first case is one command away (TNTCASE-8)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from atlas_ref.oracle.drawing import leading, starts
from atlas_ref.oracle.tnt import tensors
from atlas_ref.oracle.tnt.settings import Settings, stated_settings
from atlas_ref.rules import FAMILY
from atlas_ref.types import Array

#: Memories of a case that states none.
SAMPLE: dict[str, Any] = {"global": {"span": 4}, "locals": [{"span": 2, "shard": 4}]}


def rows(request: Any, s: Settings, generator: Any) -> dict[str, Array]:
    """Random inputs of a call from the start of a document.

    Raises:
        ValueError: a request that a TNT does not have.
    """
    if request.pulse > 1:
        raise ValueError("pulse: every token of a TNT writes")
    first = _first(request, s, generator, lead := leading(request))
    found = {**_tokens(request, s, generator, request.tokens, lead), **first}
    if (resets := starts(request)) is not None:
        found["in/reset"] = resets
    return found


def before(
    request: Any, s: Settings, generator: Any, found: Mapping[str, Array]
) -> dict[str, Array]:
    """Inputs of a call before one, which starts where that does."""
    first = {name: x for name, x in found.items() if name.rpartition("/")[2] in tensors.FIRST}
    return {**_tokens(request, s, generator, request.history, leading(request)), **first}


def states(
    request: Any, header: Any, inputs: Mapping[str, Array], generator: Any
) -> dict[str, Array]:
    """Cotangents of what every memory leaves (TNTCASE-8)."""
    allowed, _ = tensors.table(stated_settings(header), inputs)
    shape = (*leading(request), request.d_out, request.d_in)
    bars = [name for name in allowed if name.startswith(tensors.BAR)]
    return {name: generator.standard_normal(shape) for name in bars}


def _tokens(
    request: Any, s: Settings, generator: Any, T: int, lead: tuple[int, ...]
) -> dict[str, Array]:
    """Keys of length about 1, and gates in the ranges where rules are stable."""
    rule, c = FAMILY[s.rule], s.c
    found = {
        f"in/{name}": generator.standard_normal((*lead, T, size)) / np.sqrt(scale)
        for name, size, scale in (
            ("k", request.d_in, request.d_in),
            ("v", request.d_out, 1),
            ("q", request.d_in, request.d_in),
        )
    }
    if c.gate != "none":
        low, high = (0.0, 0.2) if c.gate == "forget" else (0.8, 1.0)
        found["in/retain"] = generator.uniform(low, high, (*lead, T))
    counted = any(m.base == "previous" or m.sum == "inclusive" for m in s.memories)
    if rule.has_momentum and not counted:
        found["in/momentum"] = generator.uniform(0.2, 0.8, (*lead, T))
    if rule.has_error and c.rate != "none":
        found["in/step_size"] = generator.uniform(0.05, 0.4, (*lead, T))
    if rule.has_error and c.rate == "split":
        found["in/step_size_memory"] = generator.uniform(0.05, 0.4, (*lead, T))
    if rule.has_window and request.window_gate:
        found["in/window_gate"] = generator.uniform(0.2, 0.8, (*lead, T))
    elif rule.has_window and s.window > 1:
        weights = generator.uniform(0.5, 1.5, (*lead, T, s.window)) / s.window
        found["in/window_weights"] = weights
    return found


def _first(request: Any, s: Settings, generator: Any, lead: tuple[int, ...]) -> dict[str, Array]:
    """Where memories start: away from zero, which hides mistakes."""
    has = {"in/momentum": None} if _carries(s) else {}
    allowed, _ = tensors.table(s, has)
    sizes = {"d_out": request.d_out, "d_in": request.d_in}
    found = {}
    for m in s.memories:
        for name, axes in tensors.FIRST.items():
            if f"in/{m.name}/{name}" in allowed:
                own = tuple(sizes[axis] for axis in axes.split())
                front = lead if m.is_global else ()  # W_init is one for all rows
                drawn = 0.3 * generator.standard_normal((*front, *own))
                if request.state or allowed[f"in/{m.name}/{name}"].need == "yes":
                    found[f"in/{m.name}/{name}"] = drawn
    return found


def _carries(s: Settings) -> bool:
    """Whether a drawn case has a momentum gate."""
    counted = any(m.base == "previous" or m.sum == "inclusive" for m in s.memories)
    return FAMILY[s.rule].has_momentum and not counted
