"""Record what public optimisers compute: python -m benchmarks.optim_peers [FOLDER]

Each file of tests/data/peers_optim holds parameters, the gradients of some steps, and the
parameters after each of them, from PyTorch and optax in float64 unless the name says float32.
PyTorch's Muon rounds to bfloat16 before Newton-Schulz; one file has it so, the others were recorded
with that cast taken out. Tests compare them without either package.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy

FOLDER = Path("tests/data/peers_optim")
STEPS = 6
SHAPES = {"wide": (3, 5), "tall": (6, 2), "b": (4,)}
RATE = 0.05


class Run(NamedTuple):
    """An optimiser of a package with the arguments of its call."""

    name: str
    package: str
    call: str
    arguments: dict[str, Any]
    dtype: str = "float64"
    matrices: bool = False
    cast: bool = False


RUNS = (
    Run("torch_sgd", "torch", "SGD", {}),
    Run("torch_sgd_momentum", "torch", "SGD", {"momentum": 0.9, "weight_decay": 0.1}),
    Run("torch_sgd_nesterov", "torch", "SGD", {"momentum": 0.9, "nesterov": True}),
    Run("torch_adam", "torch", "Adam", {"weight_decay": 0.1}),
    Run("torch_adamw", "torch", "AdamW", {}),
    Run("torch_adamw_mag", "torch", "AdamW", {"betas": [0.9, 0.95], "weight_decay": 0.1}),
    Run("torch_adamw_float32", "torch", "AdamW", {}, dtype="float32"),
    Run("torch_muon", "torch", "Muon", {}, matrices=True),
    Run("torch_muon_plain", "torch", "Muon", {"nesterov": False}, matrices=True),
    Run("torch_muon_rms", "torch", "Muon", {"adjust_lr_fn": "match_rms_adamw"}, matrices=True),
    Run("torch_muon_bfloat16", "torch", "Muon", {}, matrices=True, cast=True),
    Run("optax_sgd_nesterov", "optax", "sgd", {"momentum": 0.9, "nesterov": True}),
    Run("optax_adam", "optax", "adam", {"b2": 0.99, "eps": 1e-6}),
    Run("optax_adamw", "optax", "adamw", {"weight_decay": 0.1}),
    Run("optax_adamw_float32", "optax", "adamw", {"weight_decay": 0.1}, dtype="float32"),
    Run("optax_muon", "optax", "contrib.muon", {"weight_decay": 0.1}, matrices=True),
    Run("optax_muon_plain", "optax", "contrib.muon", {"nesterov": False}, matrices=True),
    Run("optax_muon_rms", "optax", "contrib.muon", {"consistent_rms": 0.2}, matrices=True),
)
CLIPS = (("torch_clip", 1.0), ("torch_clip_not", 100.0), ("optax_clip", 1.0))


def drawn(run: Run, seed: int = 11) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters, and their gradients at each step along a first axis."""
    draw = np.random.default_rng(seed)
    names = [name for name in SHAPES if not run.matrices or len(SHAPES[name]) == 2]
    params = {name: draw.standard_normal(SHAPES[name]).astype(run.dtype) for name in names}
    grads = {name: draw.standard_normal((STEPS, *SHAPES[name])).astype(run.dtype) for name in names}
    return params, grads


def of_torch(run: Run, params: Any, grads: Any) -> Iterator[dict[str, Any]]:
    """Parameters after each step of an optimiser of PyTorch."""
    torch = importlib.import_module("torch")
    own = {name: torch.nn.Parameter(torch.tensor(p)) for name, p in params.items()}
    arguments = {k: tuple(v) if isinstance(v, list) else v for k, v in run.arguments.items()}
    rule = getattr(torch.optim, run.call)(list(own.values()), lr=RATE, **arguments)
    cast = torch.Tensor.bfloat16
    if not run.cast:
        torch.Tensor.bfloat16 = lambda tensor: tensor.clone()
    try:
        for step in range(STEPS):
            for name, p in own.items():
                p.grad = torch.tensor(grads[name][step])
            rule.step()
            yield {name: p.detach().numpy().copy() for name, p in own.items()}
    finally:
        torch.Tensor.bfloat16 = cast


def of_optax(run: Run, params: Any, grads: Any) -> Iterator[dict[str, Any]]:
    """Parameters after each step of an optimiser of optax."""
    optax, jax = importlib.import_module("optax"), importlib.import_module("jax")
    jax.config.update("jax_enable_x64", True)
    importlib.import_module("optax.contrib")
    call: Any = optax
    for part in run.call.split("."):
        call = getattr(call, part)
    rule = call(RATE, **run.arguments)
    own = {name: jax.numpy.asarray(p) for name, p in params.items()}
    state = rule.init(own)
    for step in range(STEPS):
        given = {name: jax.numpy.asarray(g[step]) for name, g in grads.items()}
        moves, state = rule.update(given, state, own)
        own = optax.apply_updates(own, moves)
        yield {name: np.array(p) for name, p in own.items()}


def clipped(name: str, limit: float, grads: dict[str, Any]) -> dict[str, Any]:
    """Gradients of the first step after clipping, and in PyTorch's case the norm before."""
    if name.startswith("torch"):
        torch = importlib.import_module("torch")
        own = {key: torch.nn.Parameter(torch.tensor(g)) for key, g in grads.items()}
        for key, p in own.items():
            p.grad = torch.tensor(grads[key])
        norm = torch.nn.utils.clip_grad_norm_(list(own.values()), limit)
        return {
            **{f"out/{key}": p.grad.numpy() for key, p in own.items()},
            "out/norm": norm.numpy(),
        }
    optax, jax = importlib.import_module("optax"), importlib.import_module("jax")
    jax.config.update("jax_enable_x64", True)
    rule = optax.clip_by_global_norm(limit)
    found, _ = rule.update({key: jax.numpy.asarray(g) for key, g in grads.items()}, rule.init({}))
    return {f"out/{key}": np.array(g) for key, g in found.items()}


def main(folder: Path) -> None:
    """Write every file anew."""
    folder.mkdir(parents=True, exist_ok=True)
    for run in RUNS:
        params, grads = drawn(run)
        by_step = list({"torch": of_torch, "optax": of_optax}[run.package](run, params, grads))
        tensors = {f"in/{name}": p for name, p in params.items()}
        tensors |= {f"in/grads/{name}": g for name, g in grads.items()}
        tensors |= {f"out/{name}": np.stack([each[name] for each in by_step]) for name in params}
        about = {"call": run.call, "rate": RATE, "arguments": run.arguments, "cast": run.cast}
        write(folder / f"{run.name}.safetensors", tensors, run.package, about)
    for name, limit in CLIPS:
        _, grads = drawn(RUNS[0])
        first = {key: g[0] for key, g in grads.items()}
        tensors = {f"in/{key}": g for key, g in first.items()} | clipped(name, limit, first)
        package = name.partition("_")[0]
        write(folder / f"{name}.safetensors", tensors, package, {"call": "clip", "limit": limit})


def write(path: Path, tensors: dict[str, Any], package: str, about: dict[str, Any]) -> None:
    """One file, with the package and its call in the metadata."""
    version = importlib.import_module(package).__version__
    header = {"package": package, "version": version, **about}
    whole = {name: np.ascontiguousarray(x) for name, x in tensors.items()}
    safetensors.numpy.save_file(whole, path, {"optimiser": json.dumps(header)})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
