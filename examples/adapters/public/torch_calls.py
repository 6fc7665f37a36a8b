"""A function of PyTorch tensors as an answer to a case: arrays in, values and autograd's gradients
out.

A `core` gets the inputs as leaves in the layout (B, T, H, D) of `layouts`, states as (B, H, ...,
...), and returns y and the final states that it has, in the same layout. PyTorch is imported when a
core is first called.
"""

from __future__ import annotations

import functools
import importlib
import sys
import types
import warnings
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
import layouts

Tensors = dict[str, Any]
Core = Callable[[Tensors, Mapping[str, Any]], Mapping[str, Any]]

#: Cotangents, by the result they belong to.
BARS = {"y_bar": "y", "M_bar": "M", "S_bar": "S"}


def answer(
    core: Core,
    *,
    no_slope: Callable[[Mapping[str, Any]], bool] | None = None,
    without: tuple[str, ...] = (),
) -> Callable[[dict[str, Any], dict[str, Any]], Tensors]:
    """(header, inputs) -> results of a core.

    Args:
        no_slope: whether its gates are at a bound where what it computes them from has no
            derivative; then values alone are answered.
        without: inputs whose gradient it does not have.
    """

    def results(case: dict[str, Any], inputs: dict[str, Any]) -> Tensors:
        torch = pytorch()
        view = layouts.Leading.of(inputs)
        names = [name for name in inputs if name not in (*layouts.MASKS, *BARS)]
        leaves = {
            name: torch.from_numpy(np.array(view.to_kernel(name, inputs[name]))).requires_grad_()
            for name in names
        }
        outputs = {name: value for name, value in core(leaves, case).items() if value is not None}
        if "y_bar" in inputs and not (no_slope is not None and no_slope(inputs)):
            bars = [
                (outputs[result], inputs[bar], result)
                for bar, result in BARS.items()
                if bar in inputs and result in outputs
            ]
            loss = sum(
                (value * torch.from_numpy(np.array(view.to_kernel(name, bar)))).sum()
                for value, bar, name in bars
            )
            gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
            outputs |= {
                f"grad/{name}": each
                for name, each in zip(leaves, gradients, strict=True)
                if each is not None and name not in without
            }
        return {name: view.to_case(name, value.detach().numpy()) for name, value in outputs.items()}

    return results


def logarithm(x: Tensors, name: str) -> Any:
    """A gate as its logarithm, which a case may hold in its place."""
    return x[f"log_{name}"] if f"log_{name}" in x else x[name].log()


def at_zero(*names: str) -> Callable[[Mapping[str, Any]], bool]:
    """Whether a gate that is handed over as a logarithm is 0 somewhere."""
    return lambda inputs: any(
        bool((np.asarray(inputs[name]) == 0).any()) for name in names if name in inputs
    )


def pytorch() -> Any:
    """PyTorch, on one thread: the matrices are small, and threads would only wait for each
    other.
    """
    torch = imported("torch")
    torch.set_num_threads(1)
    return torch


def imported(module: str) -> Any:
    """A module of an installed package, imported without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(module)


@functools.cache
def by_file(module: str) -> Any:
    """A module of an installed package, without what the package itself imports (fla-core imports
    Triton).

    Every package on the way stands as an empty one that knows its folder, so that modules find
    their neighbours; when the module is loaded, the empty ones go.

    Raises:
        ImportError: it is not installed.
    """
    parts, before = module.split("."), set(sys.modules)
    try:
        for place in range(1, len(parts)):
            name = ".".join(parts[:place])
            if name not in sys.modules:
                stub = types.ModuleType(name)
                stub.__path__ = _folders(name)
                sys.modules[name] = stub
        return imported(module)
    finally:
        for name in [
            name for name in sys.modules if name not in before and name.split(".")[0] == parts[0]
        ]:
            del sys.modules[name]


def _folders(name: str) -> list[str]:
    parent, _, last = name.rpartition(".")
    if parent:
        return [str(Path(each) / last) for each in sys.modules[parent].__path__]
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f"{name} is not installed")
    return list(spec.submodule_search_locations)


def column(start: int, stop: int) -> Any:
    """A PyTorch module that returns columns of its input, in place of a projection that would
    compute them.
    """
    torch = pytorch()

    class Columns(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x[..., start:stop]

    return Columns()
