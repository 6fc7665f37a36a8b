"""Random inputs of a deep memory, so that a first case is one command away (DEEPCASE-10)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from atlas_ref.oracle.deep import parameters
from atlas_ref.oracle.deep import tensors as tensors_of
from atlas_ref.oracle.deep.settings import rank
from atlas_ref.oracle.drawing import leading, starts
from atlas_ref.parts.deep_momentum import PREFIX
from atlas_ref.parts.window import uses_gate
from atlas_ref.types import Array


def draw(
    request: Any, header: Any, generator: Any, d_phi: int
) -> tuple[dict[str, Array], tuple[int, ...]]:
    """Random inputs, and the shape of the cotangent.

    First weights are away from their start, so that norms, biases and every slope show.

    Raises:
        ValueError: settings that contradict the sizes.
    """
    config = parameters.config(header, request.d_in, request.d_out)
    T, lead = request.tokens, leading(request)
    c = config.convention
    # one gate for rows that share a memory is the mean of theirs, so that they may differ
    tensors = {
        "in/k": generator.standard_normal((*lead, T, request.d_in)),
        "in/v": generator.standard_normal((*lead, T, request.d_out)),
        "in/q": generator.standard_normal((*lead, T, request.d_in)),
    }
    if c.gate != "none":
        low, high = (0.0, 0.2) if c.gate == "forget" else (0.8, 1.0)
        tensors["in/retain"] = generator.uniform(low, high, (*lead, T))
    tensors["in/momentum"] = generator.uniform(0.2, 0.8, (*lead, T))
    if c.rate != "none":
        tensors["in/step_size"] = generator.uniform(0.01, 0.1, (*lead, T))
    if c.rate == "split":
        tensors["in/step_size_memory"] = generator.uniform(0.1, 0.5, (*lead, T))
    if request.window_gate or uses_gate(config.window_weights):
        tensors["in/window_gate"] = generator.uniform(0.2, 0.8, (*lead, T))
    tensors |= _memory(config, generator, lead)
    if config.deep_momentum is not None:
        _scale_down(tensors)
    steps = np.arange(T)
    if request.pulse > 1:  # the last token of a chunk is the one that may write
        chunks = (steps + 1) // config.chunk
        tensors["in/active"] = (chunks % request.pulse == 0).astype(np.uint8)
    if (first := starts(request)) is not None:
        tensors["in/reset"] = first
    if request.history:
        tensors |= _history(request, config, generator, lead)
    return tensors, (*lead, T, request.d_out)


def states(
    request: Any, header: Any, inputs: Mapping[str, Array], generator: Any
) -> dict[str, Array]:
    """Momentum of before the first token, and cotangents of the state after the last (DEEPCASE-10).

    The weights of before it are in/memory.
    """
    config, lead = parameters.config(header, request.d_in, request.d_out), leading(request)
    rows = (1, *lead[1:]) if config.coupling == "batch_shared" else lead
    allowed, _ = tensors_of.table(config, inputs)
    found = {}
    for kind in ("weights", "momentum"):
        shapes = config.momentum_shapes if kind == "momentum" else config.fast_shapes
        for name, shape in shapes.items():
            first, last = (f"{p}{kind}/{name}" for p in (tensors_of.STATE, tensors_of.BAR))
            if first in allowed and kind == "momentum":
                found[first] = 0.1 * generator.standard_normal((*rows, *shape))
            if last in allowed:
                found[last] = generator.standard_normal((*rows, *shape))
    return found


def _memory(config: Any, draw: Any, lead: tuple[int, ...]) -> dict[str, Array]:
    """First weights, one set for all rows, and vectors around 1 or 0."""
    tensors = {}
    for name, shape in config.tensors.items():
        if rank(name) == 2:
            drawn = draw.standard_normal(shape) / np.sqrt(shape[1])
            tensors[f"in/memory/{name}"] = _on_simplex(config, name, drawn)
        elif name.removeprefix(PREFIX) == "norm/gain" or name.endswith("bias"):
            tensors[f"in/memory/{name}"] = 0.3 * draw.standard_normal(shape)
        else:
            tensors[f"in/memory/{name}"] = draw.uniform(0.7, 1.3, shape)
    return tensors


def _scale_down(tensors: dict[str, Array]) -> None:
    """Make gradients so small that a network takes them to small steps (DEEPCASE-10).

    No step size stands before what a network of the momentum returns (DEEP-37).
    """
    tensors["in/k"] *= 0.5 / np.sqrt(tensors["in/k"].shape[-1])
    tensors["in/v"] *= 0.5 / np.sqrt(tensors["in/v"].shape[-1])
    for name in tensors:
        if name.startswith(f"in/memory/{PREFIX}") and rank(name) == 2:
            tensors[name] *= 0.5


def _on_simplex(config: Any, name: str, drawn: Array) -> Array:
    """A drawn matrix, on the simplex where weights have logarithms (DEEP-32)."""
    if not config.retention.positive or len(config.fast_shapes.get(name, ())) != 2:
        return drawn
    axes = {"matrix": (-2, -1), "row": -1, "column": -2}[config.retention.over]
    powers = np.exp(2.0 * drawn)
    shares: Array = config.retention.size * powers / powers.sum(axis=axes, keepdims=True)
    return shares


def _history(request: Any, config: Any, draw: Any, lead: tuple[int, ...]) -> dict[str, Array]:
    """A call that goes on within a document: tokens, weights and momentum from before."""
    n, shared = request.history, config.coupling == "batch_shared"
    rows = (1, *lead[1:]) if shared else lead
    tensors: dict[str, Any] = {
        "in/state/position": np.asarray(n, np.int64),
        "in/state/keys": draw.standard_normal((*lead, n, config.d_in)),
        "in/state/values": draw.standard_normal((*lead, n, config.d_out)),
    }
    if request.window_gate or uses_gate(config.window_weights):
        tensors["in/state/token_gates"] = draw.uniform(0.2, 0.8, (*lead, n))
    for kind, size in (("weights", 0.5), ("momentum", 0.1), ("reference", 0.5)):
        c = config.convention
        if kind == "reference" and not (c.frozen_reference or c.read == "chunk_start"):
            continue
        own = config.momentum_shapes if kind == "momentum" else config.fast_shapes
        for name, shape in own.items():
            drawn = size * draw.standard_normal((*rows, *shape))
            if kind != "momentum":
                drawn = _on_simplex(config, name, drawn)
            tensors[f"in/state/{kind}/{name}"] = drawn
    return tensors
