"""Public PyTorch implementations of the same rules, and JAX, as calls of one shape.

Runs in a process of its own (`benchmarks.process`), and nothing else imports it: PyTorch and the
packages are loaded when a call is made, from where they are installed. fla-core's references are
loaded by file, since the package itself imports Triton. The cell of atlas-rnn computes projections
and gates from tokens; here these modules hand it slices of its input, so that it does the same work
as our forms: keys, values, queries and gates go in, reads come out.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks import jitted
from benchmarks.survey.catalogue import helper

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]

HOW = {
    "jax": "JAX is not installed (extra bench)",
    "torch": "PyTorch is not installed (extra bench)",
    "fla": "fla-core is not installed (extra bench)",
    "titans_pytorch": "titans-pytorch is not installed (extra bench)",
    "atlas_pytorch": "atlas_pytorch is not installed: clone engineerA314/atlas-rnn from GitHub and name the "
    "clone in PYTHONPATH"
    " (do not install it: its package calls itself titans-pytorch)",
    "src": "Atlas-MAG is not there: clone toddwbucy/Atlas-MAG_OmegaRule from GitHub and name the clone "
    "in PYTHONPATH",
}


class Missing(Exception):
    """A package that is not there; the message says how to get it."""


class Call(NamedTuple):
    """A public implementation on given inputs, which are PyTorch tensors by now.

    Attributes:
        leaves: its inputs.
        reads: leaves -> reads, in its own layout.
        bar: cotangent of the reads, in that layout.
        plain: reads in that layout -> (heads, T, d).
        gradients: gradients by leaf, in its layout -> gradients by name, in ours.
    """

    leaves: dict[str, Any]
    reads: Callable[[dict[str, Any]], Any]
    bar: Any
    plain: Callable[[Array], Array]
    gradients: Callable[[Arrays], Arrays]

    def forward(self) -> Any:
        """Reads, without a graph."""
        with module("torch").no_grad():
            return self.reads(self.leaves)

    def both(self) -> tuple[Any, dict[str, Any]]:
        """Reads, and the gradient of their product with `bar` by every leaf."""
        y = self.reads(self.leaves)
        return y, dict(
            zip(
                self.leaves,
                module("torch").autograd.grad(y, list(self.leaves.values()), self.bar),
                strict=True,
            )
        )


def module(name: str) -> Any:
    """A module by name, where it is installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        installed = importlib.util.find_spec(package) is not None
        raise Missing(
            f"{package} does not import: {error}" if installed else HOW[package]
        ) from None


def call(name: str, arrays: Arrays, bar: Array, options: dict[str, Any]) -> Any:
    """The call of a public implementation, by name."""
    return CALLS[name](arrays, bar, **options)


# -- fla-core --------------------------------------------------------------------------------------


def _references(operation: str) -> Any:
    """The PyTorch references of an operation of fla-core, loaded by file."""
    module("torch")
    if importlib.util.find_spec("fla") is None:
        raise Missing(HOW["fla"])
    try:
        return helper("torch_calls").by_file(f"fla.ops.{operation}.naive")
    except ImportError as error:
        raise Missing(f"fla-core's ops/{operation}/naive.py does not import: {error}") from None


def _fla(
    arrays: Arrays, bar: Array, reads: Callable[[dict[str, Any]], Any], *, heads_first: bool
) -> Call:
    """A call in the layout (1, T, heads, ...) or (1, heads, T, ...)."""

    def theirs(array: Array) -> Array:
        return array[None] if heads_first else np.ascontiguousarray(array.swapaxes(0, 1)[None])

    def ours(array: Array) -> Array:
        alone: Array = array[0]
        return alone if heads_first else alone.swapaxes(0, 1)

    tensor = module("torch").tensor
    return Call(
        {name: tensor(theirs(array), requires_grad=True) for name, array in arrays.items()},
        reads,
        tensor(theirs(bar)),
        ours,
        lambda gradients: {name: ours(array) for name, array in gradients.items()},
    )


def _fla_delta(arrays: Arrays, bar: Array, *, chunk: int | None) -> Call:
    naive = _references("delta_rule")

    def reads(x: dict[str, Any]) -> Any:
        if chunk is None:
            return naive.delta_rule_recurrence(x["q"], x["k"], x["v"], x["step_size"])[0]
        return naive.delta_rule_chunkwise(x["q"], x["k"], x["v"], x["step_size"], chunk_size=chunk)[
            0
        ]

    return _fla(arrays, bar, reads, heads_first=True)


def _fla_gated_delta(arrays: Arrays, bar: Array, *, chunk: int | None) -> Call:
    naive = _references("gated_delta_rule")

    def reads(x: dict[str, Any]) -> Any:
        settings = {"beta": x["step_size"], "g": x["retain"].log(), "output_final_state": True}
        if chunk is None:
            return naive.naive_recurrent_gated_delta_rule(x["q"], x["k"], x["v"], **settings)[0]
        return naive.naive_chunk_gated_delta_rule(
            x["q"], x["k"], x["v"], chunk_size=chunk, **settings
        )[0]

    return _fla(arrays, bar, reads, heads_first=False)


def _fla_momentum_delta(arrays: Arrays, bar: Array, *, chunk: int | None) -> Call:
    naive = _references("momentum_delta_rule")

    def reads(x: dict[str, Any]) -> Any:
        arguments = {name: x[name] for name in ("q", "k", "v")} | {
            "p": x["k"],
            "log_alpha": x["retain"].log(),
            "log_mu": x["momentum"].log(),
            "eta": x["step_size"],
            "beta": x["step_size_memory"],
            "output_final_state": True,
        }
        if chunk is None:
            return naive.recurrent_momentum_delta_rule_ref(**arguments)[0]
        return naive.chunk_momentum_delta_rule_ref(**arguments, chunk_size=chunk)[0]

    return _fla(arrays, bar, reads, heads_first=False)


def _fla_kda(arrays: Arrays, bar: Array, *, chunk: int | None) -> Call:
    """KDA from keys, and values and keys that are times the step size already."""
    naive = _references("kda")
    step = _step_sizes(arrays)
    arrays = {name: arrays[name] for name in ("q", "k", "retain")} | {
        "v": arrays["v"] / step[..., None],
        "step_size": step,
    }

    def reads(x: dict[str, Any]) -> Any:
        inputs = (x["q"], x["k"], x["v"], x["retain"].log(), x["step_size"])
        if chunk is None:
            return naive.naive_recurrent_kda(*inputs)[0]
        return naive.naive_chunk_kda(*inputs, chunk_size=chunk)[0]

    return _fla(arrays, bar, reads, heads_first=False)


def _fla_gla(arrays: Arrays, bar: Array, *, chunk: int | None) -> Call:
    """GLA token by token, or with one gate for all channels in chunks."""
    simple = chunk is not None
    naive = _references("simple_gla" if simple else "gla")

    def reads(x: dict[str, Any]) -> Any:
        inputs = (x["q"], x["k"], x["v"], x["retain"].log())
        if simple:
            return naive.naive_chunk_simple_gla(*inputs, chunk_size=chunk)[0]
        return naive.naive_recurrent_gla(*inputs)[0]

    return _fla(arrays, bar, reads, heads_first=False)


def _step_sizes(arrays: Arrays) -> Array:
    """Step sizes from vectors of erases, which are those times keys of norm 1."""
    step: Array = np.linalg.norm(arrays["erase_write"], axis=-1)
    return step


# -- atlas-rnn -------------------------------------------------------------------------------------


def _columns(start: int, stop: int) -> Any:
    """A module that returns some columns of its input, in place of what the cell would compute from
    it.
    """

    class Columns(module("torch").nn.Module):  # type: ignore[misc]  # a class of a library that may not be there
        def forward(self, x: Any) -> Any:
            return x[..., start:stop]

    return Columns()


def _atlas_rnn(
    arrays: Arrays, bar: Array, *, scan_chunk_len: int | None, window: int, device: str = "cpu"
) -> Call:
    torch, cell_module = module("torch"), module("atlas_pytorch.rnn_memory")
    heads, tokens, d = arrays["k"].shape
    cell = cell_module.OmegaRNNMemoryCell(
        dim=heads * d,
        dim_head=d,
        heads=heads,
        omega_window=window,
        qk_norm=False,
        qkv_conv_kernel=None,
        scan_chunk_len=scan_chunk_len,
    )

    places = {"q": "to_q", "k": "to_k", "v": "to_v", "step_size": "to_lr", "retain": "to_decay"}
    places |= {"momentum": "to_momentum", "window_gate": "to_omega_gate"}
    widths = [arrays[name].size // tokens for name in places]
    bounds = np.cumsum([0, *widths])
    for place, start, stop in zip(places.values(), bounds[:-1], bounds[1:], strict=True):
        setattr(cell, place, _columns(int(start), int(stop)))
    cell.pre_norm = cell.to_out = torch.nn.Identity()
    cell.to(device)

    def joined(array: Array) -> Array:
        return array.swapaxes(0, 1).reshape(tokens, -1)

    def split(array: Array) -> Array:
        parted: Array = array[0].reshape(tokens, heads, -1).swapaxes(0, 1)
        return parted

    def gradients(by_leaf: Arrays) -> Arrays:
        parts = dict(zip(places, np.split(by_leaf["x"], bounds[1:-1], axis=-1), strict=True))
        return {name: split(part).reshape(arrays[name].shape) for name, part in parts.items()}

    x = torch.tensor(
        np.concatenate([joined(arrays[name]) for name in places], axis=-1)[None],
        device=device,
        requires_grad=True,
    )
    return Call(
        {"x": x},
        lambda leaves: cell(leaves["x"])[0],
        torch.tensor(joined(bar)[None], device=device),
        split,
        gradients,
    )


# -- titans-pytorch --------------------------------------------------------------------------------


def _titans(arrays: Arrays, bar: Array, *, chunk: int, double: bool = False) -> Call:
    """Its neural memory with a linear model and momentum, from tokens drawn here: projections,
    norms and gates are its own.
    """
    torch, package = module("torch"), module("titans_pytorch")
    heads, tokens, d = arrays["k"].shape
    torch.manual_seed(0)
    model = package.MemoryMLP(d, depth=1)
    memory = package.NeuralMemory(
        dim=heads * d, dim_head=d, heads=heads, chunk_size=chunk, model=model
    )
    dtype = torch.float64 if double else torch.float32
    memory.to(dtype)

    def joined(array: Array) -> Array:
        return array.swapaxes(0, 1).reshape(1, tokens, -1)

    leaves = {"x": torch.tensor(joined(arrays["v"]), dtype=dtype, requires_grad=True)}
    leaves |= {
        f"parameter {n}": each for n, each in enumerate(memory.parameters()) if each.requires_grad
    }
    used = torch.autograd.grad(
        memory(leaves["x"])[0].sum(), list(leaves.values()), allow_unused=True
    )
    leaves = {
        name: leaf
        for (name, leaf), grad in zip(leaves.items(), used, strict=True)
        if grad is not None
    }
    bars = torch.tensor(joined(bar), dtype=dtype)
    return Call(
        leaves,
        lambda inputs: memory(inputs["x"])[0],
        bars,
        lambda y: y,
        lambda gradients: gradients,
    )


# -- JAX -------------------------------------------------------------------------------------------


def _jitted(arrays: Arrays, bar: Array, *, chunk: int, before_error: bool = False) -> Any:
    module("jax")
    return jitted.call(arrays, bar, chunk=chunk, before_error=before_error)


# -- deep memories and language models --------------------------------------------------------------


def _of(file: str, name: str) -> Callable[..., Any]:
    """A call of a module of this package, which is loaded when it is asked for."""

    def load(arrays: Arrays, bar: Array, **options: Any) -> Any:
        return getattr(importlib.import_module(f"benchmarks.{file}"), name)(arrays, bar, **options)

    return load


CALLS: dict[str, Callable[..., Any]] = {
    "fla delta": _fla_delta,
    "fla gated delta": _fla_gated_delta,
    "fla momentum delta": _fla_momentum_delta,
    "atlas-rnn": _atlas_rnn,
    "fla kda": _fla_kda,
    "fla gla": _fla_gla,
    "fla simple gla": _fla_gla,
    "JAX": _jitted,
    "titans-pytorch": _titans,
    "titans-pytorch MLP": _of("deep_peers", "titans_memory"),
    "token loop": _of("deep_peers", "token_loop"),
    "plain transformer": _of("transformers", "plain_transformer"),
    "atlas-rnn MAG": _of("transformers", "atlas_rnn_mag"),
    "Atlas-MAG": _of("transformers", "atlas_mag"),
}
