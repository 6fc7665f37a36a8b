"""The option pytest --backend NAME: the same tests, computed on another backend.

Tests are written with NumPy arrays. Around every public function that computes, the bridge moves
what it is given to the backend and what it returns back, on the tape too: a move is an op whose
pullback moves the cotangent the other way. Inside the function nothing is moved, so it computes
there as it would for a caller whose arrays are there. `evaluate` and the commands above it choose
the backend themselves.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from atlas_ref import backend
from atlas_ref.optim import OPTIMISERS
from tape.core import defvjp, primitive
from tape.variable import plain

#: Module -> the functions that compute, as users call them.
COMPUTING = {
    "atlas_ref.parts.newton_schulz": ("newton_schulz", "plain_newton_schulz", "iterates"),
    "atlas_ref.parts.feature_maps": ("apply",),
    "atlas_ref.parts.memory_functions": ("apply", "gradient", "pieces"),
    "atlas_ref.parts.memory_functions.pairs": ("pairs", "gather", "spread"),
    "atlas_ref.parts.memory_functions.activations": ("share",),
    "atlas_ref.parts.window": (
        "by_lag",
        "by_token",
        "token_gates",
        "gate_by_lag",
        "slid",
        "renormalised",
    ),
    "atlas_ref.parts.norms": ("normalised",),
    "atlas_ref.parts.gates": ("compute", "multiplier", "as_column"),
    "atlas_ref.rules.sequence": (
        "run",
        "features",
        "mapped",
        "weights_by_lag",
    ),
    "atlas_ref.layers.projection": ("step", "run_tokens", "project"),
    "atlas_ref.rules.omega": ("restart", "write", "update", "rest", "read"),
    "atlas_ref.rules.titans_lmm": ("restart", "write", "update", "read"),
    "atlas_ref.rules.delta": ("restart", "write", "update", "read"),
    "atlas_ref.rules.hebbian": ("restart", "write", "read"),
    "atlas_ref.forms": ("run",),
    "atlas_ref.forms.kernel": ("inner", "exponential", "polynomial"),
    "atlas_ref.engine.associative_scan": ("scan", "affine_scan"),
    "atlas_ref.engine.group.coefficients": ("plain_coefficient_rows",),
    **{f"atlas_ref.optim.{each.file}": ("init", "update") for each in OPTIMISERS.values()},
    "atlas_ref.optim.groups": ("init", "update", "flush"),
    "atlas_ref.optim.clip": ("clipped", "norm_of"),
    "atlas_ref.optim.matrices": ("band",),
    "atlas_ref.levels.block": ("run", "step", "combining"),
}


def _moves(change: Callable[[Any], Any]) -> Any:
    return primitive(change, "move")


_there = _moves(lambda x: backend.named(_target[0]).from_host(np.array(x)))
_back = _moves(lambda x: _readable(backend.of(x).to_host(x)))
defvjp(_there, lambda y, x: lambda g: _back(g))
defvjp(_back, lambda y, x: lambda g: _there(g))
_target: list[str] = []


def _readable(x: np.ndarray[Any, Any]) -> Any:
    return x if x.shape else x[()]


def _held(nest: Any) -> list[Any]:
    leaves: list[Any] = []
    backend.changed(nest, lambda x: leaves.append(x) or x)
    return leaves


def bridged(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function computed on the backend, for a caller on the host."""

    @functools.wraps(function)
    def call(*args: Any, **settings: Any) -> Any:
        held = [plain(x) for x in _held((args, settings))]
        movable = [
            x for x in held if isinstance(x, np.ndarray | np.generic) and x.dtype.kind in "fc"
        ]
        if not movable or len(movable) < len(held):  # there already, or nothing that could go
            return function(*args, **settings)
        args, settings = backend.changed(args, _there), backend.changed(settings, _there)
        return _protected(backend.changed(function(*args, **settings), _back))

    return call


def _protected(result: Any) -> Any:
    """States with read-only arrays, as they are at every boundary."""
    for each in result if type(result) is tuple else (result,):
        if hasattr(type(each), "trusted"):
            for x in _held(each):
                if isinstance(x, np.ndarray):
                    x.flags.writeable = False
    return result


def build(name: str) -> None:
    """Replace the functions wherever they were imported by name."""
    _target[:] = [name]
    replaced = {}
    for module, names in COMPUTING.items():
        for each in names:
            original = getattr(importlib.import_module(module), each)
            replaced[id(original)] = (original, bridged(original))
    evaluate = importlib.import_module("atlas_ref.oracle.evaluate").evaluate
    replaced[id(evaluate)] = (evaluate, _chosen(evaluate, name))
    for module in list(sys.modules.values()):
        if module is None or getattr(module, "__name__", "").startswith("standin"):
            continue
        for key, value in list(vars(module).items()) if hasattr(module, "__dict__") else []:
            if id(value) in replaced and replaced[id(value)][0] is value:
                setattr(module, key, replaced[id(value)][1])


def _chosen(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **settings: Any) -> Any:
        with backend.used(name):
            return function(*args, **settings)

    return call
