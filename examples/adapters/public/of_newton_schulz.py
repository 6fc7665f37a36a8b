"""Newton-Schulz of PyTorch's Muon, optax's Muon, muon-optimizer, heavyball, titans-pytorch,
python-titans-miras and gram-newton-schulz.

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

#: Rows of coefficients that a function of heavyball has in place of an argument.
ROWS = [
    [4.0848, -6.8946, 2.9270],
    [3.9505, -6.3029, 2.6377],
    [3.7418, -5.5913, 2.3037],
    [2.8769, -3.1427, 1.2046],
    [2.8366, -3.0525, 1.2012],
]
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


def _titans(module: str) -> Callable[[Any, Settings], Any]:
    """The function of titans-pytorch, and of its copy in other files."""

    def call(G: Any, settings: Settings) -> Any:
        rows, eps = settings
        return imported(module).newtonschulz5(
            G[None, None], steps=len(rows), eps=eps, coefs=_one_row(rows)
        )[0, 0]

    return call


def _muon_optimizer(G: Any, settings: Settings) -> Any:
    rows, _ = settings
    return imported("muon").zeropower_via_newtonschulz5(G, len(rows))


def _gram(name: str) -> Callable[[Any, Settings], Any]:
    """A class of gram-newton-schulz, without its kernels for CUDA and torch.compile."""

    def call(G: Any, settings: Settings) -> Any:
        rows, eps = settings
        options = {"ns_epsilon": eps, "ns_use_kernels": False, "compile_kwargs": None}
        coefficients = [list(row) for row in rows]
        package = imported("gram_newton_schulz.gram_newton_schulz")
        return getattr(package, name)(ns_coefficients=coefficients, **options)(G)

    return call


def _heavyball(name: str) -> Callable[[Any, Settings], Any]:
    """A function of heavyball, without torch.compile."""

    def call(G: Any, settings: Settings) -> Any:
        utils = imported("heavyball.utils")
        utils.compile_mode = None
        rows, eps = settings
        return getattr(utils, name)(G, len(rows), eps)

    return call


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
    _torch(_titans("titans_pytorch.neural_memory")),
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
miras_muon = titans_muon._replace(
    label="newtonschulz5 of the copy",
    package="python-titans-miras",
    answer=_torch(_titans("titans_miras.neural_memory")),
)
heavyball_legacy = Implementation(
    "legacy_zeropower_via_newtonschulz5",
    "heavyball",
    "newton_schulz",
    {"newton_schulz": {"guard": "clamp", "coefficients": "muon", "steps": 5}},
    SOURCE,
    _torch(_heavyball("legacy_zeropower_via_newtonschulz5"), gradients=False),
    dtypes=("float64",),
    note="all but float64 is rounded to bfloat16 by chance; a comment adds eps to the norm, the code takes the larger",
)
heavyball_rows = heavyball_legacy._replace(
    label="zeropower_via_newtonschulz5",
    convention={"newton_schulz": {"guard": "clamp", "coefficients": ROWS, "steps": 5}},
    answer=_torch(_heavyball("zeropower_via_newtonschulz5"), gradients=False),
)
muon_optimizer = Implementation(
    "zeropower_via_newtonschulz5",
    "muon-optimizer",
    "newton_schulz",
    {"newton_schulz": {"guard": "add", "coefficients": "muon", "eps": 1e-7}},
    SOURCE,
    _torch(_muon_optimizer, gradients=False),
    dtypes=("bfloat16",),
    note="arithmetic in bfloat16 throughout",
)
gram_standard = Implementation(
    "StandardNewtonSchulz, without kernels",
    "gram-newton-schulz",
    "newton_schulz",
    {"newton_schulz": {"guard": "add"}},
    SOURCE,
    _torch(_gram("StandardNewtonSchulz"), gradients=False),
    dtypes=("float16",),
    note="iterates in float16, whatever it gets",
)
gram = gram_standard._replace(
    label="GramNewtonSchulz, without kernels",
    answer=_torch(_gram("GramNewtonSchulz"), gradients=False),
)
