"""Random inputs of a memory, so that a first case is one command away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from atlas_ref.conventions import Convention, resolve
from atlas_ref.oracle.drawing import leading, starts
from atlas_ref.parts import gates, window
from atlas_ref.rules import FAMILY, Rule
from atlas_ref.types import Array


def _leading(request: Any) -> tuple[int, ...]:
    return (request.batch, request.heads) if request.level == "token" else leading(request)


def draw(
    request: Any, header: Any, generator: Any, d_phi: int
) -> tuple[dict[str, Array], tuple[int, ...]]:
    """Random inputs in the ranges that the rules are stable in, and the shape of the cotangent.

    Raises:
        ValueError: a convention that the rule does not have.
    """
    rule = FAMILY[request.rule]
    convention = resolve(request.convention, rule=request.rule, level=request.level)
    inputs = _token if request.level == "token" else _project
    tensors = inputs(rule, request, header, convention, generator)
    if rule.has_error and convention.reference == "surrogate":
        tensors["in/param/W_surrogate"] = _surrogate(request, generator)
    states_before = _states(request, convention, generator, d_phi, momentum=rule.has_momentum)
    tensors |= states_before if request.state else {}
    if request.history:
        tensors |= _history(request, header, convention, generator)
    steps = np.arange(request.tokens)
    if request.pulse > 1:
        tensors["in/active"] = (steps % request.pulse == 0).astype(np.uint8)
    if (first := starts(request)) is not None:
        tensors["in/reset"] = first
    return tensors, (*_leading(request), request.tokens, request.d_out)


def states(
    request: Any, header: Any, inputs: Mapping[str, Array], generator: Any
) -> dict[str, Array]:
    """Cotangents of the last states, whose shapes are those of the first (CASE-39)."""
    return {
        f"in/{name[3]}_bar": generator.standard_normal(inputs[name].shape)
        for name in ("in/M0", "in/S0")
        if name in inputs
    }


def _keys(request: Any, draw: Any, rows: int) -> Array:
    return draw.standard_normal((*_leading(request), rows, request.d_in)) / np.sqrt(request.d_in)


def _project(
    rule: Rule, request: Any, header: Any, convention: Convention, draw: Any
) -> dict[str, Array]:
    lead, T = _leading(request), request.tokens
    gate_shape = (*lead, T, request.d_out) if request.per_dimension_gates else (*lead, T)
    tensors = {
        "in/k": _keys(request, draw, T),
        "in/v": draw.standard_normal((*lead, T, request.d_out)),
        "in/q": _keys(request, draw, T),
    }
    forgets = convention.gate == "forget"
    if convention.gate != "none":
        tensors["in/retain"] = (
            draw.uniform(0.0, 0.2, gate_shape) if forgets else draw.uniform(0.8, 1.0, gate_shape)
        )
    if rule.has_momentum:
        tensors["in/momentum"] = draw.uniform(0.2, 0.8, gate_shape)
    if rule.has_error and convention.rate != "none":
        tensors["in/step_size"] = draw.uniform(0.05, 0.4, gate_shape)
    if rule.has_error and convention.rate == "split":
        tensors["in/step_size_memory"] = draw.uniform(0.05, 0.4, gate_shape)
    if rule.has_window and request.window_gate:
        tensors["in/window_gate"] = draw.uniform(0.2, 0.8, (*lead, T))
    elif rule.has_window and request.window > 1:
        tensors["in/window_weights"] = (
            draw.uniform(0.5, 1.5, (*lead, T, request.window)) / request.window
        )
    return tensors


def _token(
    rule: Rule, request: Any, header: Any, convention: Convention, draw: Any
) -> dict[str, Array]:
    H, d_model, d_kv = request.heads, request.d_model, request.d_in + request.d_out
    n = request.d_out if request.per_dimension_gates else 1
    tensors = {"in/x": draw.standard_normal((request.batch, request.tokens, d_model))}
    for key, rows in (("W_K", request.d_in), ("W_V", request.d_out), ("W_Q", request.d_in)):
        tensors[f"in/param/{key}"] = draw.standard_normal((H, rows, d_model)) / np.sqrt(
            d_model * request.d_in
        )
    for gate in rule.gates:
        if (gate == "retain" and convention.gate == "none") or (
            gate == "step_size" and convention.rate == "none"
        ):
            continue
        bias = gates.INITIAL_BIAS[
            "forget" if gate == "retain" and convention.gate == "forget" else gate
        ]
        tensors[f"in/param/W_{gate}"] = 0.5 * draw.standard_normal((H, n, d_kv))
        tensors[f"in/param/b_{gate}"] = np.full((H, n), bias) + 0.5 * draw.standard_normal((H, n))
    if header.window_weights is not None:
        parameters = window.init(
            header.window_weights, heads=H, window=request.window, d_model=d_model, draw=draw
        )
        tensors |= {
            f"in/param/{key}": value + 0.3 * draw.standard_normal(value.shape)
            for key, value in parameters.items()
        }
    return tensors


def _surrogate(request: Any, draw: Any) -> Array:
    """Weights of a learned residual, for each head at level token (SURROGATE-4)."""
    d_kv = request.d_in + request.d_out
    lead = (request.heads,) if request.level == "token" else ()
    return draw.standard_normal((*lead, request.d_out, d_kv)) / np.sqrt(d_kv)


def _states(
    request: Any, convention: Convention, draw: Any, d_phi: int, *, momentum: bool
) -> dict[str, Array]:
    """Initial states that are neither zero nor symmetric, since those hide mistakes."""
    shape = (d_phi, request.d_out) if convention.layout == "transposed" else (request.d_out, d_phi)
    names = ("in/M0", "in/S0") if momentum else ("in/M0",)
    return {key: 0.3 * draw.standard_normal((*_leading(request), *shape)) for key in names}


def _history(request: Any, header: Any, convention: Convention, draw: Any) -> dict[str, Array]:
    lead, n = _leading(request), request.history
    tensors = {
        "in/window_k": _keys(request, draw, n),
        "in/window_v": draw.standard_normal((*lead, n, request.d_out)),
    }
    if request.window_gate or (
        header.window_weights is not None and window.uses_gate(header.window_weights)
    ):
        tensors["in/window_gate_before"] = draw.uniform(0.2, 0.8, (*lead, n))
    if (
        convention.window_at_boundary == "carry"
        and convention.frozen_reference
        and convention.order == "window_then_momentum"
    ):
        tensors["in/window_residual"] = draw.standard_normal((*lead, n, request.d_out))
    return tensors
