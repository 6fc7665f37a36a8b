"""Newton-Schulz of PyTorch's Muon, optax's Muon, muon-optimizer and titans-pytorch.

    atlas-ref check cases/ --impl of_newton_schulz:optax_muon

Coefficients, steps and eps are arguments where the function has them; what a function fixes is part
of its convention.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from reading import Implementation
from torch_calls import imported, pytorch

from atlas_ref.conventions import resolve
from atlas_ref.parts.newton_schulz import coefficient_table

SOURCE = "Newton-Schulz of Muon, NS-1"
Settings = tuple[tuple[tuple[float, ...], ...], float]


def _settings(case: Mapping[str, Any]) -> Settings:
    """(rows of coefficients, eps) that a case asks for."""
    chosen = resolve(case.get("convention", "spec"), rule="newton_schulz").newton_schulz_settings
    return tuple(tuple(row) for row in coefficient_table(chosen)), chosen.eps


def _one_row(rows: tuple[tuple[float, ...], ...]) -> tuple[float, ...]:
    if len(set(rows)) != 1:
        raise NotImplementedError("newton_schulz.coefficients: one row for every step")
    return rows[0]


def _torch(
    call: Callable[[Any, Settings], Any], *, gradients: bool = True
) -> Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]:
    """Matrix after matrix, with autograd's gradient."""

    def results(case: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
        torch = pytorch()
        G = _tensor(inputs["G"]).requires_grad_(gradients)
        X = torch.stack(
            [call(each, _settings(case)) for each in G.reshape(-1, *G.shape[-2:])]
        ).reshape(G.shape)
        outputs = {"X": X.detach()}
        if "X_bar" in inputs and gradients:
            outputs["grad/G"] = torch.autograd.grad((X * _tensor(inputs["X_bar"])).sum(), G)[0]
        return outputs

    return results


def _tensor(x: Any) -> Any:
    torch = pytorch()
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(np.array(x, np.float32)).bfloat16()
    return torch.from_numpy(np.array(x))


def _muon(G: Any, settings: Settings) -> Any:
    from torch.optim._muon import _zeropower_via_newtonschulz

    rows, eps = settings
    return _zeropower_via_newtonschulz(G, _one_row(rows), len(rows), eps)


def _titans(G: Any, settings: Settings) -> Any:
    rows, eps = settings
    return imported("titans_pytorch.neural_memory").newtonschulz5(
        G[None, None], steps=len(rows), eps=eps, coefs=_one_row(rows)
    )[0, 0]


def _optax(case: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    import jax

    jax.config.update("jax_enable_x64", True)
    from optax.contrib._muon import orthogonalize_via_newton_schulz

    rows, eps = _settings(case)
    table = jax.numpy.asarray(rows)
    one = functools.partial(orthogonalize_via_newton_schulz, ns_coeffs=table, eps=eps)

    def each(G: Any) -> Any:
        return jax.vmap(one)(G.reshape(-1, *G.shape[-2:])).reshape(G.shape)

    X, pull = jax.vjp(jax.jit(each), jax.numpy.asarray(inputs["G"]))
    outputs = {"X": np.asarray(X)}
    if "X_bar" in inputs:
        outputs["grad/G"] = np.asarray(pull(jax.numpy.asarray(inputs["X_bar"]))[0])
    return outputs


torch_muon = Implementation(
    "torch.optim.Muon, Newton-Schulz",
    "torch",
    "newton_schulz",
    {"newton_schulz": {"guard": "clamp"}},
    SOURCE,
    _torch(_muon, gradients=False),
    dtypes=("bfloat16",),
    note="arithmetic in bfloat16 throughout; it divides in place, so there is no gradient",
)
titans_muon = Implementation(
    "newtonschulz5",
    "titans-pytorch",
    "newton_schulz",
    {"newton_schulz": {"guard": "clamp"}},
    SOURCE,
    _torch(_titans),
    dtypes=("float32", "float64"),
)
optax_muon = Implementation(
    "optax.contrib Muon, Newton-Schulz",
    "optax",
    "newton_schulz",
    {"newton_schulz": {"guard": "add"}},
    SOURCE,
    _optax,
    dtypes=("float32", "float64"),
)
