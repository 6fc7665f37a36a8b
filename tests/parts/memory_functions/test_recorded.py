"""What public code computed with its deep memories: values and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref.parts import memory_functions
from atlas_ref.parts.memory_functions import MemoryFunction
from tests.support.close import ANALYTIC, assert_close
from tests.support.memory_functions import Recorded, literal, names, polynomial, recorded
from tests.truth import memory_function_loops as loops

MEMORIES = names("mag_memory_")
LOSSES = names("mag_omega_loss_")
TITANS = names("titans_")


def test_every_file_is_read() -> None:
    assert (len(MEMORIES), len(LOSSES), len(TITANS)) == (6, 3, 13)


@pytest.mark.clause("MEMFUN-1", "MEMFUN-3", "MEMFUN-4", "MEMFUN-5")
@pytest.mark.parametrize("name", MEMORIES)
def test_the_polynomial_memory_has_the_values_of_atlas_mag(name: str) -> None:
    file = recorded(name)
    params, x = file.roles("in/param/"), file.tensors["in/x"]
    function = polynomial(file.config)
    memory_functions.check(function, params, x.shape[-1], x.shape[-1])
    y = memory_functions.apply(function, params, x)
    assert_close("y", y, file.tensors["out/y"], ANALYTIC)


@pytest.mark.clause("MEMFUN-6")
@pytest.mark.parametrize("name", MEMORIES)
def test_the_hand_gradient_is_that_of_atlas_mag(name: str) -> None:
    file = recorded(name)
    params, x = file.roles("in/param/"), file.tensors["in/x"]
    by_name, gx = memory_functions.gradient(
        polynomial(file.config), params, x, file.tensors["in/y_bar"]
    )
    want = file.roles("grad/param/")
    assert by_name.keys() == want.keys()
    for each, gradient in by_name.items():
        assert_close(each, np.sum(gradient, axis=0), want[each], ANALYTIC)
    assert_close("x", gx, file.tensors["grad/x"], ANALYTIC)


@pytest.mark.parametrize("name", MEMORIES)
def test_the_loops_are_atlas_mag_too(name: str) -> None:
    file = recorded(name)
    params, memory = file.roles("in/param/"), literal(polynomial(file.config))
    x, gy = file.tensors["in/x"], file.tensors["in/y_bar"]
    y = np.stack([loops.values(memory, params, row) for row in x])
    assert_close("y", y, file.tensors["out/y"], ANALYTIC)
    rows = [loops.cotangents(memory, params, *each) for each in zip(x, gy, strict=True)]
    for each, want in file.roles("grad/param/").items():
        assert_close(each, sum(by_name[each] for by_name, _ in rows), want, ANALYTIC)
    assert_close("x", np.stack([gx for _, gx in rows]), file.tensors["grad/x"], ANALYTIC)


def weights(file: Recorded, B: int, T: int) -> np.ndarray[Any, Any]:
    """Of the tokens of the window: gates, or powers of the decay where there is no gate."""
    if file.config["gamma"]:
        return file.tensors["in/gamma"][..., 0]
    return np.broadcast_to(file.config["decay_base"] ** np.arange(T - 1.0, -1.0, -1.0), (B, T))


@pytest.mark.clause("MEMFUN-1", "MEMFUN-6")
@pytest.mark.parametrize("name", LOSSES)
def test_a_weighted_loss_over_a_window_has_the_gradients_of_atlas_mag(name: str) -> None:
    file = recorded(name)
    keys, values = file.tensors["in/keys"], file.tensors["in/values"]
    B, T, _ = keys.shape
    lo = max(0, T - file.config["context_window"])
    params, function = file.roles("in/param/"), polynomial(file.config)
    w = weights(file, B, T)[:, lo:] / (B * (T - lo))
    residual = memory_functions.apply(function, params, keys[:, lo:]) - values[:, lo:]
    squares = np.sum(residual**2, axis=-1)
    assert_close("loss", np.sum(w * squares), file.tensors["out/loss"], ANALYTIC)
    gy = 2.0 * w[..., None] * residual
    by_name, gx = memory_functions.gradient(function, params, keys[:, lo:], gy)
    for each, want in file.roles("grad/param/").items():
        assert_close(each, np.sum(by_name[each], axis=0), want, ANALYTIC)
    unwritten = np.zeros((B, lo, keys.shape[-1]))
    for each, gradient in (("keys", gx), ("values", -gy)):
        got = np.concatenate([unwritten, gradient], axis=1)
        assert_close(each, got, file.tensors[f"grad/{each}"], ANALYTIC)
    if file.config["gamma"]:
        gamma = np.concatenate([unwritten[..., 0], squares / (B * (T - lo))], axis=1)
        assert_close("gamma", gamma[..., None], file.tensors["grad/gamma"], ANALYTIC)


def of_titans(name: str) -> str:
    return "norm/gain" if name.endswith("norm.gamma") else f"W_{int(name[-1]) + 1}"


def rms_norm(x: Any, gain: Any) -> Any:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.finfo(x.dtype).eps) * gain


@pytest.mark.clause("MEMFUN-3", "MEMFUN-7")
@pytest.mark.parametrize("name", TITANS)
def test_reads_with_the_recorded_fast_weights_are_those_of_titans_pytorch(name: str) -> None:
    """Token t reads the weights after floor((t + 1) / C) writes: one set per row, head and token."""
    file = recorded(name)
    t, c = file.tensors, file.config
    call = "call0/" if "in/call0/x" in t else ""
    x, H = t[f"in/{call}x"], c["heads"]
    B, T, _ = x.shape
    r = rms_norm(x, t["in/param/retrieve_norm.weight"])
    q = (r @ t["in/param/to_queries.weight"].T).reshape(B, T, H, -1).swapaxes(1, 2)
    after = (np.arange(T) + 1) // c["chunk_size"]
    params = {}
    for each in c["memory_names"]:
        fast = t[f"out/{call}updates/{each}"][:, after]  # (B H, T, ...)
        fast = fast if each.endswith("gamma") else fast.swapaxes(-1, -2)
        params[of_titans(each)] = fast.reshape(B, H, T, *fast.shape[2:])
    function = MemoryFunction(
        kind="mlp",
        depth=c["depth"],
        expansion=c["expansion_factor"],
        residual_norm=c["mem_model_norm_add_residual"],
    )
    memory_functions.check(function, params, q.shape[-1], q.shape[-1])
    y = memory_functions.apply(function, params, q[..., None, :])[..., 0, :]  # (B, H, T, d)
    if H > 1:
        gate = 1.0 / (1.0 + np.exp(-(r @ t["in/param/retrieve_gate.0.weight"].T)))
        y = (y * gate.swapaxes(1, 2)[..., None]).swapaxes(1, 2).reshape(B, T, -1)
        y = y @ t["in/param/combine_heads.weight"].T
    assert_close("y", y.reshape(B, T, -1), t[f"out/{call}y"], ANALYTIC)


@pytest.mark.clause("MEMFUN-6", "MEMFUN-7")
@pytest.mark.parametrize("name", [name for name in TITANS if "nomomentum" in name])
def test_the_first_write_of_titans_pytorch_is_the_hand_gradient(name: str) -> None:
    """Without momentum W_1 = (1 - decay_0) W_0 - g_0."""
    file = recorded(name)
    t, c = file.tensors, file.config
    x, C = t["in/x"], c["chunk_size"]
    s = rms_norm(x, t["in/param/store_norm.weight"])
    k, v = (s @ t[f"in/param/to_{each}.weight"].T for each in ("keys", "values"))

    def gate(kind: str, tokens: Any) -> Any:
        W, b = (t[f"in/param/to_{kind}.0.{each}"] for each in ("weight", "bias"))
        return 1.0 / (1.0 + np.exp(-(tokens @ W.T + b)))

    rate = c["max_lr"] * gate("adaptive_step", s[:, :C])  # (B, C, 1)
    retain = 1.0 - gate("decay_factor", np.mean(s[:, :C], axis=1))  # (B, 1)
    function = MemoryFunction(
        kind="mlp", depth=c["depth"], expansion=c["expansion_factor"], residual_norm=True
    )
    start, written = {}, {}
    for i, each in enumerate(c["memory_names"]):
        flat = each.endswith("gamma")
        at, after = t[f"in/param/memory_model_parameters.{i}"], t[f"out/updates/{each}"][:, 1]
        start[of_titans(each)] = at if flat else at.swapaxes(-1, -2)
        written[of_titans(each)] = after if flat else after.swapaxes(-1, -2)
    residual = memory_functions.apply(function, start, k[:, :C]) - v[:, :C]
    gy = 2.0 * rate * residual / k.shape[-1]
    by_name, gx = memory_functions.gradient(function, start, k[:, :C], gy, needs_input=False)
    assert gx is None
    for each, gradient in by_name.items():
        kept = retain.reshape(-1, *[1] * (gradient.ndim - 1)) * start[each]
        assert_close(each, kept - gradient, written[each], ANALYTIC)
