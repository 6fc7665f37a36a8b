"""Kernels of jax-linear-attention, deltanet-tpu and mamba2-jax, for members of rule dplr.

    atlas-ref new dplr -o one.safetensors --parameter member=kda --cotangent
    PYTHONPATH=examples/adapters:examples/adapters/public atlas-ref check one.safetensors --impl of_jax_packages:jla_kda --dtype float32

`jla_*` are the token-by-token references of jax-linear-attention and `jla_*_chunk` its chunk forms,
`tpu_*` the references of deltanet-tpu and `tpu_*_scan` its chunk forms in plain JAX, which it takes
where no TPU is, on keys and values filled up to 128. A package is imported when its function is first called.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import jax_kernels
from kernels import Kernel
from limits import never_full, one_width

QKV = {"q": "q", "k": "k", "v": "v", "initial_state": "M0"}
DELTA = QKV | {"beta": "beta"}
GLA = QKV | {"g": "log_retain"}
GATED = GLA | {"beta": "beta"}
GDN2 = GLA | {"b": "erase_gate", "w": "write_gate"}
LAST = {"output_final_state": True}

#: Members whose gate is one number a head.
OF_HEADS = ("simple_gla", "gated_delta")


def _later(module: str, function: str) -> Callable[..., Any]:
    """A function whose module is imported when it is called."""
    return lambda **given: getattr(importlib.import_module(module), function)(**given)


def _kernel(
    module: str, function: str, arguments: Mapping[str, str], member: str, **how: Any
) -> Kernel:
    options = {**LAST, **how.pop("options", {})}
    found: Kernel = jax_kernels.of(
        _later(module, function),
        arguments,
        member=member,
        options=options,
        channels=member not in OF_HEADS,
        **how,
    )
    return found


# -- jax-linear-attention --------------------------------------------------------------------------

_jla = functools.partial(_kernel, "jla.ops.reference")
_jla_chunk = functools.partial(_kernel, "jla.ops.chunked")

jla_gla = _jla("gla", GLA, "gla")
jla_simple_gla_chunk = _jla_chunk("simple_gla", GLA, "simple_gla")
jla_delta_chunk = _jla_chunk("delta_rule", DELTA, "delta")
jla_gated_delta = _jla("gated_delta_rule", GATED, "gated_delta")
jla_gated_delta_chunk = _jla_chunk("gated_delta_rule", GATED, "gated_delta")
jla_kda = _jla("kda", GATED, "kda")
jla_kda_chunk = _jla_chunk("kda", GATED, "kda")
jla_gdn2_chunk = _jla_chunk("gdn2", GDN2, "gdn2")

# -- deltanet-tpu ----------------------------------------------------------------------------------

_tpu = functools.partial(_kernel, "deltanet_tpu.reference", grouped=True)
_tpu_scan = functools.partial(
    _kernel,
    "deltanet_tpu",
    grouped=True,
    options={"precision": "fp32", "fallback_scan": True},
    pad=128,
)

tpu_gated_delta = one_width(_tpu("reference_gdn", GATED, "gated_delta"))
tpu_gdn2_scan = _tpu_scan("chunk_gdn2", GDN2, "gdn2")
tpu_gated_delta_scan = _tpu_scan("chunk_gdn", GATED, "gated_delta")
tpu_kda_scan = _tpu_scan("chunk_kda", GATED, "kda")
tpu_delta_scan = _tpu_scan("chunk_delta_rule", DELTA, "delta")

# -- mamba2-jax ------------------------------------------------------------------------------------


def _mamba2(
    q: Any, k: Any, v: Any, g: Any, initial_state: Any = None, scale: float | None = None
) -> tuple[Any, Any]:
    """Its state-space duality as a gate and a write: dt = -g, A = -1, x = v / dt.

    A gate of 1 has dt = 0, at which it writes nothing; it bounds dt from below and above, here by
    numbers that no gate reaches.
    """
    import jax.numpy as jnp

    modeling = importlib.import_module("mamba2_jax.modeling")
    heads, dt = v.shape[2], -g
    raw = dt + jnp.log(-jnp.expm1(-dt))  # the inverse of softplus
    none = jnp.zeros(heads, v.dtype)
    reads = q * (q.shape[-1] ** -0.5 if scale is None else scale)
    start = None if initial_state is None else initial_state[:, None]
    inputs = (v / dt[..., None], raw, none - 1, k, reads)
    y, M = modeling.ssd_forward(*inputs, 4, none, none, 0.0, 1e9, start, True)
    return y, M


mamba2 = never_full(
    jax_kernels.of(
        _mamba2,
        GLA | {"scale": "query_scale"},
        member="simple_gla",
        channels=False,
        state="(d_out, d_in)",
    )
)
