"""Cases of deep memories for tests: drawn settings as files, and what implementations answer."""

from __future__ import annotations

from typing import Any

import numpy as np

from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.deep.parameters import Parameters
from tests.support import deep_memories as deep
from tests.support.casefiles import parts

#: A case with every kind of tensor: a call within a document, of two rows.
FULL: dict[str, Any] = {
    "tokens": 7,
    "d_in": 3,
    "d_out": 3,
    "history": 2,
    "reset": 4,
    "pulse": 2,
    "window_gate": True,
    "cotangent": True,
    "convention": {"reference": "chunk_start", "newton_schulz": {"steps": 3}},
    "parameters": {
        "memory": {"kind": "mlp", "residual_norm": True, "activation": "gelu_tanh"},
        "chunk": 2,
        "window": 3,
        "span": 4,
        "fast": "all",
        "vectors": "unit",
        "clip": "hard",
        "adaptive": True,
    },
}


def some(**request: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and inputs of a small valid case."""
    return parts(made(**request))


def made(**request: Any) -> Any:
    """A small valid case."""
    sizes = {"tokens": 5, "d_in": 4, "d_out": 3, "heads": 2, "cotangent": True}
    return new(Request(rule="deep_memory", draw=1, **(sizes | request)))


def with_window_weights(header: Any, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors with a weight by lag for each token."""
    own = header["parameters"]
    c = own.get("window", own.get("chunk", 1))
    shape = (*tensors["in/k"].shape[:-1], c)
    return {
        **tensors,
        "in/window_weights": np.random.default_rng(1).uniform(0.2, 1.0, shape),
    }


def of_choice(
    choice: dict[str, Any], given: deep.Inputs, **more: Any
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and tensors of a drawn choice, of all its tokens."""
    settings = deep.config(choice, **more)
    own = settings.model_dump(mode="json")
    header = {
        "schema": 1,
        "rule": "deep_memory",
        "convention": own["convention"],
        "parameters": {name: own[name] for name in Parameters.model_fields},
    }
    tensors = {"in/k": given.k, "in/v": given.v, "in/q": given.q}
    tensors |= {f"in/{name}": gate for name, gate in given.gates.items()}
    tensors |= {f"in/memory/{name}": np.asarray(x) for name, x in given.tensors.items()}
    if given.reset is not None:
        tensors["in/reset"] = given.reset.astype(np.uint8)
    return header, tensors


def cut(tensors: dict[str, np.ndarray], first: int, last: int) -> dict[str, np.ndarray]:
    """The tensors of some tokens."""
    T = tensors["in/k"].shape[-2]
    axes = {"in/k": -2, "in/v": -2, "in/q": -2, "in/y_bar": -2, "in/window_weights": -2}
    axes |= dict.fromkeys(("in/active", "in/reset"), 0)
    return {
        name: np.take(x, range(first, last), axis=axes.get(name, -1))
        if not name.startswith(("in/memory", "in/state")) and x.shape[axes.get(name, -1)] == T
        else x
        for name, x in tensors.items()
    }


def resumed(results: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The state of results as inputs of the next call (DEEPCASE-6)."""
    return {
        name.replace("out/", "in/", 1): x
        for name, x in results.items()
        if name.startswith("out/state/")
    }
