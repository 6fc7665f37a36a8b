"""Recorded layers as plain loops take them: one sequence at a time, parameters by their names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.support.layers import Recorded
from tests.truth import memory_layer_loops as loops

Arrays = dict[str, Any]


def inputs(file: Recorded) -> Arrays:
    """Everything that has a gradient, by the name that follows grad/."""
    named = {f"param/{name}": a for name, a in file.named("in/param/").items()}
    named |= {f"state/{name}": a for name, a in file.named("in/state/").items()}
    return named | ({"x": file.tensors["in/x"]} if "in/x" in file.tensors else {})


def below(at: Arrays, start: str) -> Arrays:
    """Arrays whose names begin so, by the rest of their names."""
    return {name.removeprefix(start): a for name, a in at.items() if name.startswith(start)}


def reading(settings: dict[str, Any], eps: float = float(np.finfo(np.float64).eps)) -> Any:
    """The memory of public code with these settings."""
    off = settings["poly_degree"] <= 1
    return loops.Reading(
        heads=settings["heads"],
        norm_eps=eps,
        conv_padding=settings.get("conv", "centred"),
        conv_state="zero_per_call",
        head_norm="rms_clamp" if settings.get("qk_norm", True) else "none",
        window=settings["omega_window"],
        gated=settings["use_omega_gate"],
        momentum=settings["use_momentum"],
        phi="off" if off else settings["poly_mode"],
        degree=settings["poly_degree"],
        reference="call_start",
        boundary="carry",
        clamp=100.0,
        scan_chunk=settings.get("scan_chunk_len"),
    )


def of_sequence(states: Arrays, b: int, r: Any, d: int) -> Any:
    """The state of sequence b, from arrays (B H, ..) or none."""
    state = loops.start(r.heads, d)
    if not states:
        return state
    own = slice(b * r.heads, (b + 1) * r.heads)
    past = ()
    if "omega_buffer" in states:
        buffer = states["omega_buffer"][own]
        past = tuple((buffer[:, i], None) for i in range(buffer.shape[1]))
    Z = states["Z"][own] if "Z" in states else state.Z
    return state._replace(S=states["S"][own], Z=Z, past=past)


def as_arrays(states: list[Any], r: Any) -> Arrays:
    """States of all sequences, as the files store them."""
    result = {"S": np.concatenate([each.S for each in states])}
    if r.momentum:
        result["Z"] = np.concatenate([each.Z for each in states])
    if r.window > 1:
        buffers = [np.moveaxis(loops.buffer(each, r), 0, 1) for each in states]
        result["omega_buffer"] = np.concatenate(buffers)
    return result


def memory(file: Recorded, at: Arrays) -> tuple[Any, list[Arrays]]:
    """Results (B, T, D) of all calls of a memory layer, and the state after each."""
    r, x = reading(file.settings), at["x"]
    p = below(at, "param/cell.")
    B = len(x)
    states = [of_sequence(below(at, "state/"), b, r, file.settings["dim_head"]) for b in range(B)]
    y, after, first = [], [], 0
    for length in file.settings["calls"]:
        calls = [loops.memory(x[b, first : first + length], p, r, states[b]) for b in range(B)]
        y.append(np.array([each for each, _ in calls]))
        states = [state for _, state in calls]
        after.append(as_arrays(states, r))
        first += length
    return np.concatenate(y, axis=1), after


def stepped(loss: Callable[[Arrays], Any], at: Arrays, name: str, direction: Any) -> float:
    """The derivative of a loss along a direction of one array, by the complex step."""
    moved = at | {name: at[name] + 1e-30j * direction}
    return float(np.imag(loss(moved)) / 1e-30)


def compared(
    loss: Callable[[Arrays], Any], at: Arrays, want: Arrays, entries: bool, draws: int = 2
) -> float:
    """The worst relative error of recorded gradients, at every entry or along drawn directions."""
    draw, worst = np.random.default_rng(11), 0.0
    for name, gradient in want.items():
        shape = at[name].shape
        if entries:
            ways = list(np.eye(at[name].size).reshape(-1, *shape))
        else:
            ways = list(draw.standard_normal((draws, *shape)))
        got = np.array([stepped(loss, at, name, way) for way in ways])
        along = np.array([np.sum(gradient * way) for way in ways])
        scale = np.linalg.norm(gradient) * (1.0 if entries else np.sqrt(draws)) or 1.0
        worst = max(worst, float(np.linalg.norm(got - along) / scale))
    return worst
