"""The test-time step of Atlas-MAG as settings of the deep memory rule, and what was recorded of it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from atlas_ref.rules import deep_memory, sequence
from atlas_ref.rules.sequence import Tokens
from tests.truth import atlas_mag_loops as loops

RECORDED = Path(__file__).parents[1] / "data" / "peers_atlas_mag"
Array = Any
Tensors = dict[str, Any]


def recorded(name: str) -> Tensors:
    return safetensors.numpy.load_file(RECORDED / f"{name}_11.safetensors")


def below(tensors: Tensors, start: str) -> Tensors:
    return {name.removeprefix(start): a for name, a in tensors.items() if name.startswith(start)}


def named(tensors: Tensors) -> Tensors:
    """A memory's tensors by our names, from those of the public code."""
    return {loops.NAMES[name]: a for name, a in tensors.items()}


def function(tensors: Tensors) -> dict[str, Any]:
    """Settings of the memory function that has these tensors, by our names."""
    kd = tensors["W_down"].shape[0]
    compress = tensors["W_compress"].shape[0] if "W_compress" in tensors else None
    expansion = tensors["W_in"].shape[0] / kd
    return {
        "kind": "polynomial",
        "key_width": kd,
        "expansion": expansion,
        "compress": compress,
        "gated": "W_value" in tensors,
    }


def config(tensors: Tensors, tokens: int, **more: Any) -> deep_memory.Config:
    """One write at the end of each call of `tokens` tokens, which all of its tokens read."""
    d_out, d_in = tensors["W_up"].shape[0], tensors["W_down"].shape[1]
    own: Tensors = {
        "chunk": tokens,
        "window": 256,
        "reduction": "mean",
        "coupling": "batch_shared",
        "fast": "all",
        "vectors": "unit",
        "outer_gradient": "straight_through",
        "phase": "train",
        "memory_reset": "never",
        "momentum_reset": "never",
        "convention": {
            "read": "call_end",
            "newton_schulz": {"guard": "return", "transpose": "never"},
        },
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a window below the call, which public code has
        return deep_memory.Config(d_in=d_in, d_out=d_out, memory=function(tensors), **own | more)


def run(
    settings: deep_memory.Config,
    tensors: Tensors,
    k: Array,
    v: Array,
    *,
    q: Array = None,
    gate: Array = None,
    state: Any = None,
    rates: tuple[float, float, float] = (0.999, 0.9, 0.01),
) -> tuple[Any, Array]:
    """State and reads of one call on k, v (B, T, d); the keys are the queries unless given.

    Args:
        gate (B, T): weights of the tokens.
        rates: retain, momentum, step size.
    """
    B, T = k.shape[:2]
    names = ("retain", "momentum", "step_size")
    gates = {name: np.full((B, T), rate) for name, rate in zip(names, rates, strict=True)}
    if gate is not None:
        gates["window_gate"] = gate
    tokens = Tokens(k=k, v=v, q=k if q is None else q, **gates)
    state = deep_memory.start(settings, (B,)) if state is None else state
    return sequence.run(deep_memory.RULE, settings, tokens, state, phi=tensors)
