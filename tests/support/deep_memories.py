"""Deep memories for tests: drawn settings, the same for the package and for plain loops."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.parts import memory_functions
from atlas_ref.rules import deep_memory, sequence
from atlas_ref.rules.sequence import Tokens
from tape import ops
from tests.support.close import Tolerance

D = 3

CLIPPED = Tolerance("CLIPPED", 1e-3)  # tanh of a small norm is that norm, not 0

#: Memory functions by name: settings of the package.
FUNCTIONS: dict[str, dict[str, Any]] = {
    "linear": {"kind": "linear"},
    "mlp": {"kind": "mlp", "activation": "gelu_tanh", "expansion": 1.5},
    "mlp_residual": {"kind": "mlp", "residual_norm": True, "activation": "silu", "depth": 3},
    "mlp_erf": {"kind": "mlp", "depth": 2, "residual_norm": True, "expansion": 2.0},
    "polynomial": {
        "kind": "polynomial",
        "key_width": 2,
        "activation": "gelu_tanh",
        "expansion": 2.0,
    },
    "geglu": {
        "kind": "polynomial",
        "key_width": 2,
        "gated": True,
        "compress": 3,
        "activation": "gelu_tanh",
        "with_input": True,
        "expansion": 1.0,
    },
    "degree_1": {"kind": "polynomial", "key_width": 3, "degree": 1, "activation": "silu"},
}

#: Every value of every axis that the loops know.
AXES: dict[str, tuple[Any, ...]] = {
    "memory": tuple(FUNCTIONS),
    "chunk": (1, 2, 3, 5),
    "window": (None, 1, 2, 4, 7),
    "window_decay": (1.0, 0.8),
    "span": ("chunk", "twice", "once"),
    "reduction": ("sum", "mean", "features"),
    "coupling": ("per_sample", "batch_shared"),
    "fast": ("matrices", "all", "mlp"),
    "vectors": ("frozen", "raw", "unit"),
    "clip": ("none", "hard", "soft"),
    "adaptive": (False, True),
    "rate": ("memory", "momentum", "both"),
    "newton_schulz": (0, 3),
    "read": ("after", "before", "call_end"),
    "unfinished": ("wait", "flush"),
    "memory_reset": ("sequence", "batch", "never"),
    "momentum_reset": ("sequence", "batch", "never"),
    "phase": ("both", "both", "train", "infer", "off"),
    "gate": ("retain", "forget", "none"),
    "momentum": (True, False),
    "window_gate": (True, False),
    "documents": (True, False),
    "calls": (True, False),
}


def drawn(number: int, **fixed: Any) -> dict[str, Any]:
    """A value of every axis, by number; axes that cannot meet are settled."""
    rng = np.random.default_rng((7, number))
    choice = {axis: values[rng.integers(len(values))] for axis, values in AXES.items()} | fixed
    if "batch" in (choice["memory_reset"], choice["momentum_reset"]):
        choice["documents"] = False  # a document of a call starts a batch here, not in the loops
    if choice["phase"] != "both":
        choice["calls"] = False
    return choice


class Inputs(NamedTuple):
    """Tokens and tensors of a memory: (B, T, D), gates (B, T) by the names of `Tokens`."""

    k: Any
    v: Any
    q: Any
    gates: dict[str, Any]
    tensors: dict[str, Any]
    reset: Any
    calls: list[int]


def inputs(choice: dict[str, Any], *, batch: int = 2, tokens: int = 13, seed: int = 0) -> Inputs:
    """Random tokens, gates and tensors away from their start."""
    rng = np.random.default_rng((seed, 11))
    B, T = batch, tokens
    k, v, q = rng.standard_normal((3, B, T, D))
    shape = (1, T) if choice["coupling"] == "batch_shared" else (B, T)

    def gate(low: float, high: float) -> Any:
        return np.broadcast_to(rng.uniform(low, high, shape), (B, T)).copy()

    gates = {"step_size": gate(0.02, 0.1), "retain": gate(0.85, 1.0), "momentum": gate(0.2, 0.9)}
    gates["window_gate"] = rng.uniform(0.3, 1.0, (B, T))
    if choice["gate"] == "none":
        del gates["retain"]
    for name in ("momentum", "window_gate"):
        if not choice[name]:
            del gates[name]
    function = memory_functions.MemoryFunction(**FUNCTIONS[choice["memory"]])
    shapes = memory_functions.tensors(function, D, D)
    tensors = {name: 0.6 * rng.standard_normal(size) for name, size in shapes.items()}
    reset = None
    if choice["documents"]:
        reset = np.zeros(T, bool)
        reset[[T // 2 - 1, 2 * T // 3 + 1]] = True
    calls = [4, 1, T - 5] if choice["calls"] else [T]
    return Inputs(k, v, q, gates, tensors, reset, calls)


def config(choice: dict[str, Any], **more: Any) -> deep_memory.Config:
    """The settings of a choice."""
    span, convention = (
        None,
        {"gate": choice["gate"], "rate": choice["rate"], "read": choice["read"]},
    )
    convention["newton_schulz"] = (
        {"steps": choice["newton_schulz"], "eps": 1e-7, "guard": "add", "transpose": "tall"}
        if choice["newton_schulz"]
        else "none"
    )
    if choice["reduction"] == "features":
        convention["gradient_scale"] = "2/d_out"
    if choice["span"] == "twice":
        span, convention["reference"] = 2 * choice["chunk"], "chunk_start"
    if choice["span"] == "once":
        convention["reference"] = "call_start"
    names = ("chunk", "coupling", "fast", "vectors", "clip", "adaptive", "unfinished", "phase")
    own = {name: choice[name] for name in (*names, "memory_reset", "momentum_reset")}
    if choice["window"] is not None:
        own["window"] = choice["window"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a window below the chunk, which is tried on purpose
        return deep_memory.Config(
            d_in=D,
            d_out=D,
            memory=FUNCTIONS[choice["memory"]],
            window_weights={"kind": "decay", "base": choice["window_decay"]},
            span=span,
            reduction="mean" if choice["reduction"] == "mean" else "sum",
            clip_norm=0.5,
            convention=convention,
            **own | more,
        )


def run(settings: deep_memory.Config, given: Inputs) -> tuple[Any, Any]:
    """State and reads of all calls."""
    state, reads, first = deep_memory.start(settings, given.k.shape[:1]), [], 0
    for length in given.calls:
        of = slice(first, first + length)
        tokens = Tokens.trusted(
            **{
                "retain": None,
                "momentum": None,
                "step_size_memory": None,
                "window_weights": None,
                "window_gate": None,
                "surrogate": None,
                "threshold": None,
                "active": None,
                "reset": None if given.reset is None else given.reset[of],
            }
            | {name: each[:, of] for name, each in given.gates.items()},
            k=given.k[:, of],
            v=given.v[:, of],
            q=given.q[:, of],
        )
        state, y = sequence.run(deep_memory.RULE, settings, tokens, state, phi=given.tensors)
        reads.append(y)
        first += length
    return state, reads[0] if len(reads) == 1 else ops.concatenate(reads, axis=-2)


def of_loops(choice: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The same choice in the words of the plain loops."""
    function = dict(FUNCTIONS[choice["memory"]])
    if function.get("activation", "gelu") == "gelu" and function["kind"] != "linear":
        function["activation"] = "gelu_erf"
    function["compress"] = bool(function.get("compress"))
    function.pop("expansion", None)
    names = ("chunk", "window", "window_decay", "reduction", "coupling", "fast", "vectors")
    names += ("adaptive", "rate", "newton_schulz", "unfinished", "phase")
    chunk = choice["chunk"]
    return {
        "memory": function,
        "span": {"chunk": chunk, "twice": 2 * chunk, "once": None}[choice["span"]],
        "clip": {"soft": "softclamp"}.get(choice["clip"], choice["clip"]),
        "clip_norm": 0.5,
        "ns_eps": 1e-7,
        "read": {"after": "completed", "before": "chunk_start"}.get(choice["read"], "call_end"),
        "memory_reset": choice["memory_reset"],
        "momentum_reset": choice["momentum_reset"],
        **{name: choice[name] for name in names},
        **more,
    }


def kept(choice: dict[str, Any], given: Inputs) -> dict[str, Any]:
    """Gates in the words of the loops, where retain is the share that is kept."""
    gates = dict(given.gates)
    if choice["gate"] == "forget":
        gates["retain"] = 1.0 - gates["retain"]
    if choice["coupling"] == "batch_shared":
        gates = {n: a if n in ("window_gate", "threshold") else a[0] for n, a in gates.items()}
    return gates
