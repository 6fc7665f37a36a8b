"""Kernels of codon-motif, sykra and rwkv7-hf, for members of rule dplr.

    atlas-ref new dplr -o one.safetensors --parameter member=rwkv7 --cotangent
    PYTHONPATH=examples/adapters:examples/adapters/public atlas-ref check one.safetensors --impl of_torch_packages:rwkv7 --dtype float32

The scale of reads stands outside of codon-motif's and sykra's functions, so it is applied to their
queries. A package is imported when its function is first called.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import torch_calls  # puts the folder of `kernels` on the path
from kernels import Kernel
from limits import one_width

#: Tokens of a chunk; cases are short, so that several chunks and a last one that is not full occur.
CHUNK = 4

GATED = {"q": "q", "k": "k", "v": "v", "beta": "beta", "g": "log_retain", "scale": "query_scale"}
RWKV7 = {"r": "q", "w": "retain", "k": "k", "v": "v", "kk": "kk", "a": "a", "initial_state": "M0"}

Function = Callable[..., Any]


def _scaled(function: Function) -> Function:
    """A function without a scale, given queries that have it."""

    def scaled(q: Any, scale: float | None = None, **given: Any) -> Any:
        return function(q=q * (q.shape[-1] ** -0.5 if scale is None else scale), **given)

    return scaled


def _codon(name: str, **options: Any) -> Function:
    """A function of codon-motif."""

    def call(**given: Any) -> Any:
        ops = importlib.import_module("motif.ops.gated_deltanet")
        return getattr(ops, name)(**given, **options)

    return call


def _sykra(q: Any, k: Any, v: Any, beta: Any, g: Any, initial_state: Any = None) -> Any:
    """The chunk form of sykra's layer."""
    model = importlib.import_module("sykra.modeling_sykra")
    settings = importlib.import_module("sykra.configuration_sykra").SykraConfig(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=4, num_hidden_layers=1
    )
    settings.chunk_size = CHUNK
    layer = model.SykraDeltaLayer(settings, 0)
    return layer._forward_chunkwise_parallel(q, k, v, beta[..., None], g[..., None], initial_state)


def _rwkv7(r: Any, w: Any, k: Any, v: Any, kk: Any, a: Any, initial_state: Any = None) -> Any:
    """RWKV-7 of rwkv7-hf, whose model keeps the state in float32 or wider."""
    torch = torch_calls.pytorch()
    wide = torch.promote_types(k.dtype, torch.float32)
    if initial_state is None:
        B, _, H, D = k.shape
        initial_state = torch.zeros(B, H, D, v.shape[-1], dtype=wide)
    ops = importlib.import_module("rwkv7_hf.ops_rwkv7")
    return ops.rwkv7_recurrent(r, w, k, v, -kk, kk * a, initial_state.to(wide))


def _answering(
    function: Function, arguments: Mapping[str, str], member: str, **how: Any
) -> Callable[..., Mapping[str, Any]]:
    """A function of a case, whose kernel is made at the first."""

    def answer(case: Mapping[str, Any], inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        torch_calls.pytorch()
        kernels = torch_calls.imported("torch_kernels")
        kernel: Kernel = kernels.of(function, arguments, member=member, **how)
        return kernel(case, inputs)

    return answer


_HEADS: dict[str, Any] = {"head_axis": 1, "channels": False}

codon = _answering(
    _scaled(_codon("recurrent_gated_delta_rule")), GATED | {"S": "M0"}, "gated_delta", **_HEADS
)
codon_chunk = _answering(
    _scaled(_codon("chunk_gated_delta_rule", chunk_size=CHUNK)),
    GATED | {"S": "M0"},
    "gated_delta",
    **_HEADS,
)
sykra = one_width(
    _answering(
        _scaled(_sykra),
        GATED | {"initial_state": "M0"},
        "gated_delta",
        state="(d_out, d_in)",
        **_HEADS,
    )
)
rwkv7 = _answering(_rwkv7, RWKV7, "rwkv7")
