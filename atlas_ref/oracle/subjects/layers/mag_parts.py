"""Modules of Atlas-MAG as layers of cases, with the values between of its attention block.

Specified in specs/layer_cases.md (LAYER-17).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from atlas_ref import backend
from atlas_ref.layers import attention, feed_forward, norm, rotary
from atlas_ref.layers.projection import linear
from atlas_ref.models import MODULES
from atlas_ref.models.atlas_mag.parts import FREQUENCIES
from atlas_ref.oracle.cases.tensor_spec import Tensor
from atlas_ref.oracle.subjects.layers import (
    GRADIENTS,
    Call,
    Entry,
    few,
    idle,
    in_calls,
    sequence,
    with_zero,
)
from atlas_ref.types import Array
from tape import ops

#: Queries, keys and values of the heads, the reads of all heads, and these projected back.
HEADS, ROWS = ("q", "k", "v"), ("attn", "attn_projected")


def _rotary_tensors(settings: Any) -> dict[str, Tensor]:
    rows = Tensor("B heads T dim")
    bars = {f"in/{each}_bar": rows._replace(need="no gradients") for each in "qk"}
    return {"in/q": rows, "in/k": rows, **bars, FREQUENCIES: Tensor("dim/2", low=0)}


def _turn(call: Call) -> dict[str, Array]:
    """Queries and keys turned by positions from seq_offset on."""
    first = rotary.State(position=call.settings.seq_offset)
    return {
        f"out/{each}": rotary.apply(call.config, call.params, first, call.inputs[f"in/{each}"])[1]
        for each in "qk"
    }


def _between(settings: Any, inputs: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    B, T, D = inputs["in/x"].shape
    H = settings.n_heads
    return dict.fromkeys(HEADS, (B, H, T, D // H)) | dict.fromkeys(ROWS, (B, T, D))


def _block(call: Call) -> dict[str, Array]:
    """Attention and feed-forward with their residuals, and what lies between.

    A value between has a gradient where `call.inputs` has a zero of its name, which is added to it.
    """
    own, params, x = call.config.attention, call.params.attention, call.inputs["in/x"]
    results: dict[str, Array] = {}

    def result(name: str, value: Array) -> Array:
        results[f"out/{name}"] = with_zero(call, name, value)
        return results[f"out/{name}"]

    (B, T, D), H, d = x.shape, own.heads, own.d_head
    rows = linear(norm.normed(own.norm, params.norm, x), ops.reshape(params.W_qkv, (3 * H * d, D)))
    heads = ops.swapaxes(ops.reshape(rows, (B, T, 3, H, d)), 1, 2)
    heads = ops.swapaxes(heads, 2, 3)  # (B, 3, H, T, d)
    heads = attention.heads_normed(own, params, heads)
    at, _ = rotary.positions(own.rotary, rotary.State(), T, None)
    tables = rotary.tables(own.rotary, at, x)
    q, k = (rotary.rotated(own.rotary, heads[:, i], *tables) for i in range(2))
    values = zip(HEADS, (q, k, heads[:, 2]), strict=True)
    heads = ops.stack([result(name, value) for name, value in values], axis=1)
    reads = _reads(call, heads)
    merged = result("attn", ops.reshape(ops.swapaxes(reads, 1, 2), (B, T, D)))
    a = result("attn_projected", linear(merged, ops.reshape(params.W_out, (D, D))))
    x, expansion = x + a, (call.config.feed_forward, call.params.feed_forward)
    results["out/y"] = x + feed_forward.apply(*expansion, feed_forward.State(), x)[1]
    return results


def _reads(call: Call, heads: Array) -> Array:
    """The reads (B, H, T, d) of turned queries, keys and values, without tokens that none sees."""
    own = call.config.attention
    if "in/attention_mask" not in call.inputs:
        alone = own.replaced(rotary=None, head_norm=None)
        start = attention.start(alone, heads.shape[0], dtype=heads.dtype)
        return attention.attended(alone, call.params.attention, start, heads, None)[0]
    q, k, v = (heads[:, i] for i in range(3))
    T = heads.shape[-2]
    lag = np.arange(T)[:, None] - np.arange(T)
    seen = (lag >= 0) & (lag < own.reach) & (np.asarray(call.inputs["in/attention_mask"]) != 0)
    scores = (q @ ops.transpose(k)) * (1.0 / math.sqrt(own.d_head))
    return ops.softmax(ops.where(backend.of(heads).from_host(seen), scores, -math.inf)) @ v


def _refuse_blind_tokens(settings: Any, inputs: Mapping[str, Any]) -> None:
    """Refuse a token whose window has no token that it sees: its softmax is of nothing (LAYER-17)."""
    if "in/attention_mask" not in inputs:
        return
    mask = np.asarray(inputs["in/attention_mask"])[:, 0, 0] != 0
    for t in range(mask.shape[1]):
        seen = mask[:, max(0, t - settings.attn_window_size + 1) : t + 1].any(axis=1)
        if not seen.all():
            row = int(np.argmin(seen))
            raise ValueError(
                f"in/attention_mask: row {row} leaves token {t} no token of its window"
            )


def _block_tensors(settings: Any) -> dict[str, Tensor]:
    tensors = sequence("B T dim")(settings)
    if settings is None or settings.attention_mask:
        tensors["in/attention_mask"] = Tensor("B 1 1 T", mask=True)
    return tensors


def _of_float32(settings: Any) -> tuple[float, str] | None:
    """Error of a norm in float32, d / 2 + 3 roundings of half of an epsilon (LAYER-19)."""
    if not settings.float32_inside:
        return None
    return (settings.dim / 2 + 3) * 2.0**-24, "of a norm in float32 (LAYER-19)"


def _scores(settings: Any, inputs: Mapping[str, Any]) -> int:
    """Scores of all pairs of tokens, of all heads."""
    B, T, _ = inputs["in/x"].shape
    return max(few(settings, inputs), int(B * settings.n_heads * T * T))


#: Name in the header -> module.
PARTS: dict[str, Entry] = {
    "atlas_mag_rms_norm": Entry(
        MODULES["atlas_mag_rms_norm"],
        sequence("... T dim"),
        in_calls,
        {"out/y": "NORM-4", **GRADIENTS},
        tolerance=_of_float32,
    ),
    "atlas_mag_rotary": Entry(
        MODULES["atlas_mag_rotary"],
        _rotary_tensors,
        _turn,
        {"out": "ROTARY-1", **GRADIENTS},
        result="out/q",
        void=lambda settings, inputs: idle(
            settings, {"base": f"{FREQUENCIES} holds the frequencies"}
        ),
    ),
    "atlas_mag_causal_conv": Entry(
        MODULES["atlas_mag_causal_conv"],
        sequence("B T dim"),
        in_calls,
        {"out/y": "CONVOLUTION-1", **GRADIENTS},
    ),
    "atlas_mag_swiglu": Entry(
        MODULES["atlas_mag_swiglu"],
        sequence("B T dim"),
        in_calls,
        {"out/y": "FEED-1", **GRADIENTS},
    ),
    "atlas_mag_attention_block": Entry(
        MODULES["atlas_mag_attention_block"],
        _block_tensors,
        _block,
        {
            "out/y": "BLOCKS-4",
            "out/attn": "ATTENTION-3",
            "out/attn_projected": "ATTENTION-1",
            "out/v": "ATTENTION-1",
            "out": "ROTARY-1",
            **GRADIENTS,
        },
        fits=_refuse_blind_tokens,
        numbers=_scores,
        between=_between,
    ),
}
