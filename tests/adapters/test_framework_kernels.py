"""Kernels of JAX and MLX as kernels of arrays: the conversions with NumPy in place of the package,
and the package where it is installed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import atlas_ref
from tests.support import fla_kernel
from tests.support.linear_attention import KINDS, Array, asked, verdicts

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "adapters"))
import jax_kernels
import kernels
import mlx_kernels

TWINS = {"jax": jax_kernels, "mlx": mlx_kernels}
GRADIENTS = {f"grad/{name}" for name in ("q", "k", "v", "retain", "beta", "M0")}


def derivative(function: Callable[..., Any], leaves: dict[str, Any]) -> dict[str, Array]:
    """Of a sum, by each entry of each array, with complex numbers."""
    found = {}
    for name, x in leaves.items():
        found[name] = np.zeros(x.shape, np.float32)
        for place in np.ndindex(x.shape):
            moved = x.astype(complex)
            moved[place] += 1e-30j
            found[name][place] = function({**leaves, name: moved}).imag / 1e-30
    return found


def numpy_as_jax() -> dict[str, Any]:
    def vjp(function: Callable[..., Any], leaves: dict[str, Any]) -> Any:
        def back(bars: Any) -> tuple[dict[str, Array]]:
            def total(floats: dict[str, Any]) -> Any:
                results = function(floats)
                return sum((x * bar).sum() for x, bar in zip(results, bars, strict=True))

            return (derivative(total, leaves),)

        return function(leaves), back

    jnp = SimpleNamespace(asarray=np.asarray, zeros_like=np.zeros_like)
    return {"jax": SimpleNamespace(numpy=jnp, vjp=vjp)}


def numpy_as_mlx() -> dict[str, Any]:
    core = SimpleNamespace(
        array=np.array,
        stream=lambda device: contextlib.nullcontext(),
        cpu="cpu",
        float32=np.float32,
        bfloat16=ml_dtypes.bfloat16,
        grad=lambda loss: lambda leaves: derivative(loss, leaves),
    )
    return {"mlx": SimpleNamespace(core=core), "mlx.core": core}


@pytest.fixture(params=TWINS)
def twin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name, module in {"jax": numpy_as_jax, "mlx": numpy_as_mlx}[request.param]().items():
        monkeypatch.setitem(sys.modules, name, module)
    return TWINS[request.param]


def of(twin: Any, function: Any = fla_kernel.kda, **how: Any) -> kernels.Kernel:
    return twin.of(function, kernels.KDA, member="kda", **how)


def passed(case: Any, kernel: Any, dtype: str = "float32") -> set[str]:
    """The tensors that were compared, all of them right."""
    found = verdicts(case, kernel, dtype)
    assert set(found.values()) == {("PASS", "")}, found
    return set(found)


@pytest.mark.clause("SRC-6")
@pytest.mark.parametrize("kind", KINDS)
def test_results_and_gradients_go_through_the_arrays_of_the_package(twin: Any, kind: str) -> None:
    case = asked("kda", kind, channels=True, cotangent=True, tokens=3)
    names = {f"grad/{name[3:]}" for name in case.inputs if not name.endswith("bar")}
    assert passed(case, of(twin)) == {"out/y", "out/M"} | names


def test_packed_sequences_have_no_gradient_by_their_starts(twin: Any) -> None:
    seen = []

    def looked(**given: Any) -> Any:
        seen.append({name for name, x in given.items() if np.iscomplexobj(x)})
        return fla_kernel.kda(**given)

    case = asked("kda", channels=True, cotangent=True, tokens=4, reset=2)
    assert passed(case, of(twin, looked)) >= GRADIENTS
    moved = set().union(*seen)
    assert moved == {"q", "k", "v", "g", "beta", "initial_state"}


def test_without_a_cotangent_of_the_memory_reads_alone_count(twin: Any) -> None:
    case = asked("kda", channels=True, cotangent=True, tokens=3)
    inputs = {name: x for name, x in case.inputs.items() if name != "in/M_bar"}
    one = atlas_ref.make(case.header.plain(), inputs, name="reads alone")
    assert passed(one, of(twin)) >= GRADIENTS


def test_a_kernel_without_a_backward_answers_values_alone(twin: Any) -> None:
    case = asked("kda", channels=True, cotangent=True, tokens=3)
    answer = of(twin, backward=False)(case.header.plain(), stripped(case))
    assert set(answer) == {"y", "M"}


def stripped(case: Any) -> dict[str, Array]:
    return {name[3:]: x for name, x in case.inputs.items()}


def test_bfloat16_reaches_the_kernel(twin: Any) -> None:
    seen = {}

    def looked(**given: Any) -> Any:
        seen.update({name: x.dtype.name for name, x in given.items()})
        wide = {name: np.asarray(x, np.float32) for name, x in given.items()}
        y, M = fla_kernel.kda(**wide)
        return y.astype(ml_dtypes.bfloat16), M

    passed(asked("kda", channels=True), of(twin, looked), "bfloat16")
    assert seen.pop("g") == "float32"  # the log of a gate, which 16 bits would round
    assert set(seen.values()) == {"bfloat16"}


def test_a_factor_on_the_reads_is_wrong_in_values_and_gradients(twin: Any) -> None:
    def twice(**given: Any) -> Any:
        y, M = fla_kernel.kda(**given)
        return 2 * y, M

    found = verdicts(asked("kda", channels=True, cotangent=True, tokens=3), of(twin, twice))
    wrong = {name for name, (verdict, _) in found.items() if verdict == "WRONG"}
    assert wrong == {"out/y", *GRADIENTS}


def by_loop(xp: Any, q: Any, k: Any, v: Any, g: Any, beta: Any, initial_state: Any = None) -> Any:
    """Kimi Delta Attention with the arrays of JAX or MLX."""
    B, T, H, K = k.shape
    S = xp.zeros((B, H, K, v.shape[-1])) if initial_state is None else initial_state
    reads = []
    for t in range(T):
        S = S * xp.exp(g[:, t])[..., None]
        error = v[:, t] - (k[:, t][..., None] * S).sum(-2)
        S = S + k[:, t][..., None] * (beta[:, t][..., None] * error)[..., None, :]
        reads.append((q[:, t][..., None] * S).sum(-2) * K**-0.5)
    return xp.stack(reads, 1), S


@pytest.mark.clause("SRC-6")
@pytest.mark.parametrize("package", ["jax.numpy", "mlx.core"])
def test_the_package_differentiates_a_kernel_where_it_is_installed(package: str) -> None:
    name = package.partition(".")[0]
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    xp = importlib.import_module(package)
    takes = {n: tensor for n, tensor in kernels.KDA.items() if n != "cu_seqlens"}
    one = TWINS[name].of(lambda **given: by_loop(xp, **given), takes, member="kda")
    for kind in KINDS:
        case = asked("kda", kind, channels=True, cotangent=True)
        assert passed(case, one) == {"out/y", "out/M"} | GRADIENTS, kind
