"""Kernels of rwkv-ops in plain JAX, for members of rule dplr.

    KERAS_BACKEND=jax PYTHONPATH=examples/adapters:examples/adapters/public \\
        atlas-ref check one.safetensors --impl of_rwkv_ops:rwkv7 --dtype float32

Its Gated DeltaNet normalises keys and queries inside. States are (K, V) there and
(V, K) in RWKV-7, whose op takes w with the gate exp(-exp(w)). The package is imported when a
function is first called.
"""

from __future__ import annotations

import functools
import importlib
import os
from typing import Any

import jax_kernels
from limits import one_width

QKV = {"q": "q", "k": "k", "v": "v", "initial_state": "M0"}
GATED = QKV | {"beta": "beta", "g": "log_retain"}
RWKV7 = {
    "r": "q",
    "g": "log_retain",
    "k": "k",
    "v": "v",
    "kk": "kk",
    "a": "a",
    "initial_state": "M0",
}


@functools.cache
def _package() -> Any:
    os.environ.setdefault("KERAS_BACKEND", "jax")
    os.environ.setdefault("KERNEL_TYPE", "native")
    return importlib.import_module("rwkv_ops")


def _named(name: str) -> Any:
    return lambda **given: getattr(_package(), name)(**given, output_final_state=True)


def _rwkv7(r: Any, g: Any, k: Any, v: Any, kk: Any, a: Any, initial_state: Any = None) -> Any:
    import jax.numpy as jnp

    return _package().rwkv7_op(
        r,
        jnp.log(-g),
        k,
        v,
        -kk,
        kk * a,
        initial_state=initial_state,
        output_final_state=True,
    )


gated_delta = jax_kernels.of(
    _named("gated_delta_net_recurrent"), GATED, member="qwen3_next", channels=False
)
gated_delta_chunk = jax_kernels.of(
    _named("gated_delta_net_chunk"), GATED, member="qwen3_next", channels=False
)
rwkv7 = one_width(jax_kernels.of(_rwkv7, RWKV7, member="rwkv7", state="(d_out, d_in)"))
