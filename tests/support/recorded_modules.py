"""Recordings of modules for tests: by our own functions, and of a PyTorch model with one mistake or
another right way to compute.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from atlas_ref.blocks import module_of
from atlas_ref.layers import attention, feed_forward, memory
from atlas_ref.models import language_model
from atlas_ref.oracle.modules import recipe as recipes
from atlas_ref.oracle.modules.backward import Pullbacks, is_state
from atlas_ref.oracle.modules.graph import Graph, evaluate
from atlas_ref.oracle.modules.recording import (
    Recording,
    grad_name,
    load_recording,
    make_recording,
)
from atlas_ref.oracle.modules.tolerance import arithmetic_of
from tape.nested import flatten

Tensors = dict[str, np.ndarray[Any, Any]]

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "adapters"))

#: Modules that draw parameters, by what was recorded; a block tells its own.
LAYERS: dict[str, Any] = {
    "memory": memory,
    "attention": attention,
    "feed_forward": feed_forward,
    "language_model": language_model,
}

#: Sizes of the model, by the names of the public constructors.
SETTINGS: dict[str, Any] = {
    "dim": 6,
    "dim_head": 4,
    "heads": 2,
    "omega_window": 2,
    "use_omega_gate": True,
    "window_size": 4,
    "num_persist_mem_tokens": 2,
    "ff_mult": 1.25,
    "vocab": 11,
    "depth": 2,
}


def header_of(layer: str = "language_model", **header: Any) -> dict[str, Any]:
    """The header of a recording; a settings key changes SETTINGS."""
    settings = {**SETTINGS, **header.pop("settings", {})}
    return {"schema": 1, "recording": "modules", "layer": layer, "settings": settings, **header}


def drawn(header: dict[str, Any], seed: int = 0) -> Tensors:
    """Parameters away from their start, as tensors of a recording."""
    recipe = recipes.parse(header, "drawn")
    draw, config = np.random.default_rng(seed), recipes.config_of(recipe)
    module = LAYERS.get(recipe.kind) or module_of(config)
    leaves, _, build = flatten(module.init(config), "params")
    moved = build([leaf + 0.3 * draw.standard_normal(leaf.shape) for leaf in leaves])
    return recipes.tensors_of(recipe, moved)


def tokens(header: dict[str, Any], count: int = 9, batch: int = 2) -> Tensors:
    """Ids of a model, or tokens of a layer."""
    draw = np.random.default_rng(1)
    if header["layer"] == "language_model":
        return {"modules/embed/in/ids": draw.integers(0, 11, (batch, count))}
    return {"modules/layer/in/x": draw.standard_normal((batch, count, 6))}


def graph_of(header: dict[str, Any], dtype: str = "float64") -> Graph:
    """The graph of a header with drawn parameters."""
    return make_recording(header, drawn(header) | tokens(header)).graph(dtype)


def of_ours(header: dict[str, Any], *, truth: Any = None, dtype: str = "float64") -> Tensors:
    """Tensors of a recording with every value, as computed under the readings of a header.

    Args:
        truth: the header whose parameters they are, where it has more than this one.
    """
    own = drawn(header if truth is None else truth)
    first = tokens(header)
    kind = np.dtype(arithmetic_of(dtype))
    graph = make_recording(header, own | first).graph(dtype)
    known = {
        key.removeprefix("modules/"): each if each.dtype.kind == "i" else each.astype(kind)
        for key, each in first.items()
    }
    for key, value in graph.values.items():
        if key not in known and value.kind != "free" and (value.sources or value.function):
            known[key] = np.asarray(evaluate(graph, key, known))
    return own | {f"modules/{key}": each for key, each in known.items() if not key.startswith("/")}


def end_of(graph: Graph) -> str:
    """The value that a loss weighs."""
    return "loss/out/y" if "loss/out/y" in graph.values else "layer/out/y"


def with_gradients(header: dict[str, Any]) -> Tensors:
    """Tensors of a recording with every value and every cotangent, of a drawn one at the end."""
    tensors = of_ours(header)
    recording = make_recording(header, tensors)
    graph = recording.graph()
    end = end_of(graph)
    bar = np.random.default_rng(3).standard_normal(recording.values[end].shape)
    back = Pullbacks(graph, recording.values, {end: bar})
    bars = {end: bar}
    for key, value in graph.values.items():
        floating = key in recording.values and recording.values[key].dtype.kind == "f"
        if floating and value.kind != "free" and key != end and not is_state(key):
            bars[key] = back.cotangent(key)
    return tensors | {f"modules/{grad_name(key)}": each for key, each in bars.items()}


def of_torch(
    path: Path,
    how: tuple[str, ...] = (),
    *,
    calls: tuple[int, ...] = (5, 4),
    mag: str = "attention_times_gate",
    only: Any = None,
    without: tuple[str, ...] = (),
    float32: bool = False,
    depth: int = 2,
    titans: bool = False,
    gradients: bool = False,
) -> Recording:
    """What the modules of the model receive and return in calls of these lengths.

    Args:
        how: mistakes, or other right ways.
        only: whether a module is recorded, by its name; None for all but those `without`.
        titans: a window of one token without a gate, recorded as rule titans_lmm.
        gradients: also record cotangents, those of the loss.
    """
    import torch
    import torch_modules

    from tests.support import torch_mag

    dtype = torch.float32 if float32 else torch.float64
    if titans:
        how, without = (*how, "no window gate"), (*without, "to_omega_gate")
    model = torch_mag.drawn(how, dtype, mag=mag, depth=depth, **({"omega": 1} if titans else {}))
    ids = torch.randint(0, 11, (2, sum(calls) + 1), generator=torch.Generator().manual_seed(7))
    header: dict[str, Any] = {
        "settings": {**SETTINGS, "depth": depth},
        "convention": {"preset": "causal", "mag": mag},
    }
    ports = {}
    if titans:
        own = {key: header["settings"].pop(key) for key in ("omega_window", "use_omega_gate")}
        assert own == {"omega_window": 2, "use_omega_gate": True}
        rule = {"preset": "atlas-rnn", "reference": "running"}
        header["levels"] = [{"rule": "titans_lmm", "convention": rule}]
        ports["cell"] = (torch_modules.PORTS["cell"][0][:-1], torch_modules.PORTS["cell"][1])
    kept = [
        name
        for name, _ in model.named_modules()
        if name
        and not name.endswith("layers")
        and name.rpartition(".")[2] not in without
        and not (name.rpartition(".")[2] == "0" and ".to_" in name)
        and not (name.endswith("gate.0"))
        and (only is None or only(name))
    ]
    names = {name: name for name in kept}
    parameters = {name: name for name in model.state_dict()}
    recorder = torch_modules.Recorder(
        model, header, names=names, ports=ports, parameters=parameters, gradients=gradients
    )
    with recorder:
        state, first, rows = None, 0, []
        for length in calls:
            logits, state = model(ids[:, first : first + length], state)
            rows.append(logits)
            first += length
    if only is None or only("loss"):
        targets = ids[:, 1 : first + 1]
        logits = torch.cat(rows, 1)
        loss = model.loss(logits, targets)
        recorder.put("loss", {"logits": logits, "targets": targets}, {"y": loss})
        if gradients:
            loss.backward()
    file = path / "mine.safetensors"
    recorder.save(file)
    return load_recording(file)
