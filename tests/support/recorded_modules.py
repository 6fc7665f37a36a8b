"""Recordings of the modules of the PyTorch model of tests, with one mistake or another right way."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import safetensors

from atlas_ref.oracle.modules.recording import Recording, load_recording

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "adapters"))

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


def of_torch(
    path: Path,
    how: tuple[str, ...] = (),
    *,
    calls: tuple[int, ...] = (5, 4),
    mag: str = "attention_times_gate",
    only: Any = None,
    without: tuple[str, ...] = (),
    float32: bool = False,
) -> Recording:
    """What the modules of the model receive and return in calls of these lengths.

    Args:
        how: mistakes, or other right ways.
        only: whether a module is recorded, by its name; None for all but those `without`.
    """
    import torch
    import torch_modules

    from tests.support import torch_mag

    dtype = torch.float32 if float32 else torch.float64
    model = torch_mag.drawn(how, dtype, mag=mag)
    ids = torch.randint(0, 11, (2, sum(calls) + 1), generator=torch.Generator().manual_seed(7))
    header = {"settings": SETTINGS, "convention": {"preset": "causal", "mag": mag}}
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
    with torch_modules.Recorder(model, header, names=names, parameters=parameters) as recorder:
        state, first, rows = None, 0, []
        for length in calls:
            logits, state = model(ids[:, first : first + length], state)
            rows.append(logits)
            first += length
    if only is None or only("loss"):
        targets = ids[:, 1 : first + 1]
        logits = torch.cat(rows, 1)
        recorder.put(
            "loss", {"logits": logits, "targets": targets}, {"y": model.loss(logits, targets)}
        )
    file = path / "mine.safetensors"
    recorder.save(file)
    return load_recording(file)


def header_of(path: Path) -> dict[str, Any]:
    """The JSON object of a recording."""
    with safetensors.safe_open(path, "np") as file:
        header: dict[str, Any] = json.loads(file.metadata()["atlas_ref"])
    return header
