"""Kernels of mlx-lm in plain MLX on the CPU, for members of rule dplr.

    atlas-ref new dplr -o one.safetensors --parameter member=kda --cotangent
    PYTHONPATH=examples/adapters:examples/adapters/public atlas-ref check one.safetensors --impl of_mlx_lm:kda --dtype float32

They are what mlx-lm takes where no Metal is. States are (d_out, d_in) and gates no logs; the scale
of reads stands outside, so it is applied to queries. `qwen3_next` and `kimi_linear` have the norm of
keys and queries of those layers in front. A package is imported when its function is first called.
"""

from __future__ import annotations

import importlib
from typing import Any

import mlx_kernels

QKV = {"q": "q", "k": "k", "v": "v", "state": "M0"}
NORMED = QKV | {"g": "retain", "beta": "beta"}
GATED = NORMED | {"scale": "query_scale"}
RWKV7 = {"r": "q", "w": "retain", "k": "k", "v": "v", "kk": "kk", "a": "a", "state": "M0"}
TURNED = "(d_out, d_in)"


def _gated_delta(q: Any, scale: float | None = None, **given: Any) -> Any:
    ops = importlib.import_module("mlx_lm.models.gated_delta")
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return ops.gated_delta_ops(q=q * scale, **given)


def _normed(q: Any, k: Any, **given: Any) -> Any:
    ops = importlib.import_module("mlx_lm.models.gated_delta")
    q, k = ops.normalize_qk(q, k, inv_scale=k.shape[-1] ** -0.5, eps=1e-6)
    return ops.gated_delta_ops(q=q, k=k, **given)


def _rwkv7(r: Any, w: Any, k: Any, v: Any, kk: Any, a: Any, state: Any = None) -> tuple[Any, Any]:
    import mlx.core as mx

    step = importlib.import_module("mlx_lm.models.rwkv7")._wkv7_step_ops
    B, T, H, D = r.shape
    state = mx.zeros((B, H, v.shape[-1], D)) if state is None else state
    reads = []
    for t in range(T):
        y, state = step(r[:, t], w[:, t], k[:, t], v[:, t], -kk[:, t], kk[:, t] * a[:, t], state)
        reads.append(y[..., 0])
    return mx.stack(reads, axis=1), state


gated_delta = mlx_kernels.of(
    _gated_delta, GATED, member="gated_delta", state=TURNED, grouped=True, channels=False
)
kda = mlx_kernels.of(_gated_delta, GATED, member="kda", state=TURNED, grouped=True)
qwen3_next = mlx_kernels.of(
    _normed, NORMED, member="qwen3_next", state=TURNED, grouped=True, channels=False
)
kimi_linear = mlx_kernels.of(_normed, NORMED, member="kimi_linear", state=TURNED, grouped=True)
rwkv7 = mlx_kernels.of(_rwkv7, RWKV7, member="rwkv7", state=TURNED)
