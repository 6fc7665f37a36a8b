"""Memory functions for tests: what public code recorded of them, and one of each kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.numpy

from atlas_ref.parts.memory_functions import MemoryFunction, tensors
from tests.truth.memory_function_loops import Memory

FOLDER = Path(__file__).parents[1] / "data" / "peers_atlas_mag"

#: Parameters of the polynomial memory: Atlas-MAG's name -> ours.
ROLES = {
    "proj_down.weight": "W_down",
    "poly_norm.weight": "feature_norm/gain",
    "poly_norm.bias": "feature_norm/bias",
    "poly_compress.weight": "W_compress",
    "w2.weight": "W_in",
    "w3.weight": "W_value",
    "w1.weight": "W_out",
    "proj_up.weight": "W_up",
    "output_norm.weight": "read_norm/gain",
    "output_norm.bias": "read_norm/bias",
    "output_scale": "read_scale",
}


class Recorded(NamedTuple):
    """A file of public code: its settings, and its tensors by name."""

    config: dict[str, Any]
    tensors: dict[str, np.ndarray[Any, Any]]

    def roles(self, start: str) -> dict[str, np.ndarray[Any, Any]]:
        """Parameters of a polynomial memory whose names begin so, by our names."""
        return {
            ROLES[name.removeprefix(start)]: array
            for name, array in self.tensors.items()
            if name.startswith(start)
        }


def names(start: str) -> list[str]:
    """Names of the recorded files that begin so."""
    return [
        path.name.removesuffix("_11.safetensors")
        for path in sorted(FOLDER.glob(f"{start}*.safetensors"))
    ]


def recorded(name: str) -> Recorded:
    """The file <name>_11.safetensors."""
    path = FOLDER / f"{name}_11.safetensors"
    with safetensors.safe_open(path, "np") as file:
        config = json.loads(file.metadata()["atlas_ref"])["config"]
    return Recorded(config, safetensors.numpy.load_file(path))


def polynomial(config: dict[str, Any]) -> MemoryFunction:
    """The function of the settings that Atlas-MAG recorded."""
    return MemoryFunction(
        kind="polynomial",
        key_width=config["key_dim"],
        expansion=config["expansion"],
        degree=config["poly_degree"],
        compress=config["poly_rank"] or None,
        gated=config["mlp"] == "geglu",
        norm_eps=config.get("layer_norm_eps", 1e-5),
        with_input=not config.get("return_contribution", True),
    )


#: One function of each kind and of each setting that changes what is computed.
FUNCTIONS: dict[str, MemoryFunction] = {
    name: MemoryFunction(**settings)
    for name, settings in {
        "linear": {"kind": "linear"},
        "linear with input": {"kind": "linear", "with_input": True},
        "mlp 1": {"kind": "mlp", "depth": 1, "residual_norm": True},
        "mlp 1 plain": {"kind": "mlp", "depth": 1},
        "mlp 2": {"kind": "mlp", "expansion": 1.5, "residual_norm": True},
        "mlp 2 tanh": {"kind": "mlp", "activation": "gelu_tanh", "residual_norm": True},
        "mlp 3 silu": {"kind": "mlp", "depth": 3, "expansion": 0.75, "activation": "silu"},
        "mlp with input": {"kind": "mlp", "with_input": True, "norm_eps": 0.1},
        "gelu": {"kind": "polynomial", "key_width": 3, "expansion": 2},
        "gelu tanh": {"kind": "polynomial", "key_width": 3, "activation": "gelu_tanh"},
        "geglu": {"kind": "polynomial", "key_width": 3, "gated": True, "expansion": 1.5},
        "geglu compress": {"kind": "polynomial", "key_width": 3, "gated": True, "compress": 4},
        "swiglu": {
            "kind": "polynomial",
            "key_width": 3,
            "gated": True,
            "activation": "silu",
            "compress": 5,
            "with_input": True,
        },
        "degree 1": {"kind": "polynomial", "key_width": 3, "degree": 1, "activation": "silu"},
        "one entry": {
            "kind": "polynomial",
            "key_width": 1,
            "activation": "gelu_tanh",
            "norm_eps": 0.3,  # a norm of two features is nearly a sign, whose slope is lost
        },
        "rank above": {"kind": "polynomial", "key_width": 2, "compress": 5, "norm_eps": 1e-3},
    }.items()
}

#: Leading axes of x, and of the parameters by turns.
LEADING: dict[str, tuple[tuple[int, ...], list[tuple[int, ...]]]] = {
    "shared": ((2, 3), [()]),
    "no leading axis": ((), [()]),
    "fast": ((2, 3), [(2, 3)]),
    "mixed": ((2, 3), [(), (2, 3), (2, 1), (3,), (1, 3)]),
    "mixed otherwise": ((2, 3), [(2, 3), (), (1, 1)]),
    "one row of x": ((1, 3), [(2, 1), (3,), ()]),
    "no axis of x": ((), [(2,), ()]),
}


class Drawn(NamedTuple):
    """Arguments of a memory function: parameters, tokens and a cotangent of the result."""

    params: dict[str, Any]
    x: Any
    gy: Any


def drawn(
    function: MemoryFunction,
    leading: str = "shared",
    *,
    d_in: int = 4,
    d_out: int | None = None,
    n: int = 3,
    seed: int = 0,
) -> Drawn:
    """Random arguments, with gains near 1 (near 0 under residual_norm) and leading axes by turns."""
    draw = np.random.default_rng(seed)
    of_x, of_params = LEADING[leading]
    d_out = d_in if d_out is None else d_out
    params = {}
    for i, (name, shape) in enumerate(tensors(function, d_in, d_out).items()):
        axes = of_params[i % len(of_params)]
        scale = 0.5 if len(shape) == 2 else 0.3
        middle = 1.0 if name in ("feature_norm/gain", "read_norm/gain") else 0.0
        params[name] = np.asarray(middle + scale * draw.standard_normal((*axes, *shape)))
    used = [of_params[i % len(of_params)] for i in range(len(params))]
    full = np.broadcast_shapes(of_x, *used)
    x = draw.standard_normal((*of_x, n, d_in))
    return Drawn(params, x, draw.standard_normal((*full, n, d_out)))


def literal(function: MemoryFunction) -> Memory:
    """The same settings, as the loops take them."""
    return Memory(
        kind=function.kind,
        activation=function.activation,
        gated=function.gated,
        degree=function.degree,
        depth=function.depth,
        residual_norm=function.residual_norm,
        with_input=function.with_input,
        eps=function.norm_eps,
    )


def one_row(params: dict[str, Any], full: tuple[int, ...], row: tuple[int, ...]) -> dict[str, Any]:
    """The parameters of one row, broadcast to the leading axes `full`."""
    shapes = own_shapes(params)
    return {
        name: np.broadcast_to(array, (*full, *shapes[name]))[row] for name, array in params.items()
    }


def own_shapes(params: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter without its leading axes."""
    axes = {
        name: 0 if name == "read_scale" else 2 if name.startswith("W") else 1 for name in params
    }
    return {name: np.shape(params[name])[np.ndim(params[name]) - axes[name] :] for name in params}
