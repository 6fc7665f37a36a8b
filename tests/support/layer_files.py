"""Recorded layers as plain loops take them: one sequence at a time, parameters by their names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.support.layers import Recorded
from tests.truth import block_loops, layer_loops, model_loops
from tests.truth import memory_layer_loops as loops

Arrays = dict[str, Any]
EPS = float(np.finfo(np.float64).eps)


def inputs(file: Recorded) -> Arrays:
    """Everything that has a gradient, by the name that follows grad/."""
    named = {f"param/{name}": a for name, a in file.named("in/param/").items()}
    named |= {f"state/{name}": a for name, a in file.named("in/state/").items()}
    return named | ({"x": file.tensors["in/x"]} if "in/x" in file.tensors else {})


def below(at: Arrays, start: str) -> Arrays:
    """Arrays whose names begin so, by the rest of their names."""
    return {name.removeprefix(start): a for name, a in at.items() if name.startswith(start)}


def reading(settings: dict[str, Any], eps: float = EPS) -> Any:
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
    assert want
    for name, gradient in want.items():
        shape = at[name].shape
        every = np.eye(at[name].size).reshape(-1, *shape)
        ways = list(every if entries else draw.standard_normal((draws, *shape)))
        got = np.array([stepped(loss, at, name, way) for way in ways])
        along = np.array([np.sum(gradient * way) for way in ways])
        scale = np.linalg.norm(gradient) * (1.0 if entries else np.sqrt(draws)) or 1.0
        worst = max(worst, float(np.linalg.norm(got - along) / scale))
    return worst


def block_settings(settings: dict[str, Any], kind: str, eps: float = EPS) -> Any:
    """A block of public code with these settings."""
    return block_loops.Block(
        kind=kind,
        memory=reading(settings, eps),
        window=settings["segment_len" if kind == "mac" else "window_size"],
        extra=settings.get("num_longterm_mem_tokens", 0),
        eps=eps,
    )


def block(file: Recorded, at: Arrays, kind: str) -> tuple[Any, Arrays]:
    """Results (B, T, D) of a block's one call, and the memory after it."""
    b, p = block_settings(file.settings, kind), below(at, "param/")
    (length,) = file.settings["calls"]
    assert at["x"].shape[1] == length
    each = [block_loops.block(x, p, b, block_loops.start(b, p)) for x in at["x"]]
    return np.array([y for y, _ in each]), as_arrays([s.memory for _, s in each], b.memory)


def model_settings(settings: dict[str, Any], eps: float = EPS) -> Any:
    """A model of public code with these settings."""
    b = block_settings({"window_size": 0} | settings, settings.get("block_type", "lmm"), eps)
    return model_loops.Model((b,) * settings["depth"], memory_only="block_type" not in settings)


def attention(file: Recorded, at: Arrays, calls: Any, prefix: bool) -> tuple[Any, list[Any]]:
    """Results (B, T, D) of calls of an attention, as public code or as its causal reading."""
    s, p = file.settings, below(at, "param/")
    b = block_loops.Block("mag", loops.Reading(s["heads"]), window=s["window_size"])
    if prefix:
        b = b._replace(mode="causal", visible="always", position="absolute")
    results, caches = [], []
    for x in at["x"]:
        y, cache, first = [], None, 0
        for length in calls:
            part, cache = block_loops.attention(x[first : first + length], p, b, cache)
            y.append(part)
            first += length
        results.append(np.concatenate(y))
        caches.append(cache)
    return np.array(results), caches


def norm(file: Recorded, at: Arrays, layer: str) -> Any:
    """Results of a norm of tokens or of heads."""
    if layer == "rms_norm":
        return layer_loops.norms(at["x"], "rms", EPS, "add", at["param/weight"])
    gamma, x = at["param/gamma"], at["x"]
    each = [
        layer_loops.norms(x[:, h], "rms", 1e-8, "clamp", gamma[h, 0]) for h in range(len(gamma))
    ]
    return np.stack(each, axis=1)


def feed_forward(file: Recorded, at: Arrays) -> Any:
    """Results of a feed-forward."""
    b = block_loops.Block("lmm", loops.Reading(1))
    return np.array([block_loops.feed_forward(x, below(at, "param/"), b) for x in at["x"]])


def drawn_memory(r: Any, D: int, d: int, seed: int, kernel: int = 3) -> Arrays:
    """Parameters of a memory layer in any reading."""
    draw, H = np.random.default_rng(seed), r.heads
    channels = D if r.conv_place == "before_projection" else H * d
    shapes = {f"to_{name}.weight": (H * d, D) for name in "qkv"}
    shapes |= {f"{name}_conv.weight": (channels, 1, kernel) for name in "qkv"}
    shapes |= {f"{name}_norm.gamma": (H, 1, d) for name in "qk"}
    for name in ("lr", "decay", "momentum", "omega_gate"):
        shapes[f"to_{name}.0.weight"] = (H, D if r.gate_input == "normed_x" else 2 * d)
        shapes[f"to_{name}.0.bias"] = (H,)
    shapes |= {"pre_norm.weight": (D,), "to_out.weight": (D, H * d), "phi.proj": (d + d * d, d)}
    return {name: 0.5 * draw.standard_normal(shape) for name, shape in shapes.items()}


def drawn_block(b: Any, D: int, d: int, seed: int, persistent: int = 2) -> Arrays:
    """Parameters of a block of any kind."""
    draw, H, n = np.random.default_rng(seed + 1), b.memory.heads, 3
    shapes: dict[str, Any] = {
        "attention.norm.weight": (D,),
        "attention.to_qkv.weight": (3 * H * d, D),
        "attention.to_out.weight": (D, H * d),
        "attention.persist_mem": (H, persistent, d),
        "gate.0.weight": (D, D),
        "gate.0.bias": (D,),
        "mem_pool_norm.weight": (D,),
        "to_mem_tokens.weight": (D, D),
    }
    shapes |= {f"{name}_norm.weight": (D,) for name in ("gate", "attention", "memory")}
    for ff in ("ff", "ff_pre", "ff_post"):
        shapes |= {f"{ff}.0.weight": (D,), f"{ff}.1.weight": (2 * n, D), f"{ff}.1.bias": (2 * n,)}
        shapes |= {f"{ff}.3.weight": (D, n), f"{ff}.3.bias": (D,)}
    p = {name: 0.5 * draw.standard_normal(shape) for name, shape in shapes.items()}
    p["attention.rotary_emb.freqs"] = 100.0 ** (-np.arange(d // 2) * 2 / d)
    own = drawn_memory(b.memory, D, d, seed)
    return p | {f"memory.{name}": a for name, a in own.items()}
