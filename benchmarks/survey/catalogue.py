"""The implementations that the survey asks, and the packages that it leaves out."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from pathlib import Path
from typing import Any, NamedTuple

ADAPTERS = Path(__file__).parents[2] / "examples" / "adapters" / "public"

#: Modules of examples/adapters/public, with their implementations in the order of the table.
MODULES = {
    "of_fla_core": (
        "delta",
        "delta_chunk",
        "gated_delta",
        "gated_delta_chunk",
        "momentum_delta",
        "momentum_delta_chunk",
        "simple_gla",
        "simple_gla_chunk",
    ),
    "of_gated_delta": ("qwen", "qwen_chunk", "opengdn", "opengdn_chunk"),
    "of_titans": (
        "titans_pytorch",
        "titans_pytorch_call",
        "titans_memory",
        "titans_memory_call",
        "titans_unofficial",
    ),
    "of_newton_schulz": (
        "torch_muon",
        "titans_muon",
        "miras_muon",
        "optax_muon",
        "heavyball_legacy",
        "heavyball_rows",
        "muon_optimizer",
        "gram_standard",
        "gram",
    ),
}

#: Packages that were looked at, and why nothing of them is asked.
OTHERS = {
    "fla-core, ops/titans": (
        "a LayerNorm with a bias stands in its loss, which no rule here has; see the lost bracket "
        "below"
    ),
    "fla-core, ops/ttt": (
        "one matrix with a bias that learns, under a LayerNorm with a bias; two faults are below"
    ),
    "fla-core, ops/rwkv7, gated_oja_rule": "there is no reference without Triton",
    "titans-pytorch, memory_models": (
        "its other memories - gated residual, factorised, SwiGLU with residual, attention - are "
        "functions that no clause here has; the write around them is that of its MemoryMLP"
    ),
    "nested-learning 0.2.0": (
        "its Titans memory is a deep network under a LayerNorm, with one write per call; it is not "
        "among the packages of the extra bench"
    ),
    "titans-trainer 0.1.1": (
        "its memory reproduces its own input, one step per chunk, without keys and values: no "
        "rule here"
    ),
    "titans-torch 0.1.2": (
        "its folder is called titans-torch, which Python cannot import; the memory in it is a "
        "deep network"
    ),
    "tf-titans 0.1.3": "its long-term memory is a trained parameter; nothing is learned at test time",
    "python-titans-miras 0.0.1, NeuralMemory": "its memory is that of titans-pytorch in other files",
    "fast-weight-attention 0.3.1": "its fast weights are the projections of an attention: no rule here",
    "open-titans 1.1.0": "needs Python 3.12",
    "test-time-training 0.9.0": "does not build from its archive",
}


class Entry(NamedTuple):
    """An implementation as the survey knows it: where its adapter is, and the installed version,
    empty where there is none.
    """

    function: str
    implementation: Any
    version: str


def helper(module: str) -> Any:
    """A module of the adapters."""
    for folder in (str(ADAPTERS.parent), str(ADAPTERS)):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    return importlib.import_module(module)


def entries(names: list[str] | None = None) -> list[Entry]:
    """Every implementation, or those whose function or package is named.

    Raises:
        ValueError: a name of none.
    """
    catalogue = []
    for module, functions in MODULES.items():
        for function in functions:
            implementation = getattr(helper(module), function)
            catalogue.append(
                Entry(f"{module}:{function}", implementation, version(implementation.package))
            )
    for name in names or []:
        if not any(name in _names(entry) for entry in catalogue):
            raise ValueError(
                f"{name}: no such implementation; there are "
                f"{', '.join(entry.function.split(':')[1] for entry in catalogue)}"
            )
    return [
        entry for entry in catalogue if not names or any(name in _names(entry) for name in names)
    ]


def _names(entry: Entry) -> tuple[str, str, str]:
    return entry.function, entry.function.split(":")[1], entry.implementation.package


def version(package: str) -> str:
    """The installed version of a package, without the name of a build; empty where it is not
    installed.
    """
    try:
        return importlib.metadata.version(package).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return ""
