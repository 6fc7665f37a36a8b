"""Readings of layers, blocks and models: every point on which public code and papers part, as data.

Specified in specs/layers.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from atlas_ref.conventions import axes_of
from atlas_ref.layers.norm import Eps
from atlas_ref.messages import first_problem
from atlas_ref.types import Frozen

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class LayerConvention(Frozen):
    """One choice on every axis of layers; the defaults are the preset causal (LAYERS-1)."""

    conv_padding: Literal["causal", "centred"] = Field(
        "causal", description="taps of a convolution: the token and earlier ones, or around it"
    )
    conv_place: Literal["before_projection", "after_projection"] = Field(
        "before_projection", description="convolution of tokens, or of queries, keys and values"
    )
    conv_activation: Literal["none", "silu"] = Field("none", description="of the convolution's sum")
    conv_state: Literal["carried", "zero_per_call"] = Field(
        "carried", description="whether a call goes on with the last tokens of the one before"
    )
    gate_input: Literal["normed", "key_value"] = Field(
        "normed", description="gates of a memory from the normed token, or from [k; v]"
    )
    step_size: Literal["sigmoid", "softplus"] = Field(
        "sigmoid", description="function of the learning rate"
    )
    head_norm: Literal["rms", "l2", "none"] = Field(
        "rms", description="norm of queries and keys of a memory, for each head"
    )
    head_norm_eps: Positive = Field(1e-8, description="eps of head_norm")
    head_norm_guard: Literal["clamp", "add"] = Field(
        "clamp", description="how the eps of head_norm enters"
    )
    norm_eps: Eps = Field(1e-6, description="eps of RMSNorm; machine, the epsilon of the dtype")
    memory_input: Literal["normed", "x"] = Field(
        "normed", description="whether a memory norms its tokens"
    )
    reference_at_call: Literal["carried", "renewed"] = Field(
        "carried",
        description="whether a call goes on with the reference call_start of the one before",
    )
    state_clamp: Literal["none"] | Positive = Field(
        "none", description="bound of each entry of M at the end of a call"
    )
    output_norm: Literal["none", "rms"] = Field(
        "none", description="norm of a memory's reads, for each head"
    )
    output_gate: Literal["none", "sigmoid", "silu"] = Field(
        "none", description="gate of a memory's reads, from the normed token"
    )
    attention_window: Literal["causal", "last_keys_of_call"] = Field(
        "causal", description="a band, or the last keys of a call for all queries"
    )
    window_counts_self: bool = Field(True, description="whether the token is one of the window")
    persistent_kind: Literal["key_value", "prepended"] = Field(
        "key_value", description="rows of each head's keys, or tokens before each document"
    )
    persistent_visible: Literal["always", "right_aligned", "window"] = Field(
        "always", description="whether persistent rows fall under the mask"
    )
    rotary_pairs: Literal["interleaved", "halves"] = Field(
        "interleaved", description="entries that turn together"
    )
    rotary_base: Positive = Field(10000.0, description="base of the frequencies")
    rotary_frequencies: Literal["exact", "float32"] = Field(
        "exact", description="precision in which frequencies are computed"
    )
    rotary_position: Literal["carried", "restart"] = Field(
        "carried", description="positions go on from call to call, or restart at 0"
    )
    ff_gate_half: Literal["second", "first"] = Field(
        "second", description="half of a feed-forward that gates"
    )
    ff_activation: Literal["silu", "gelu"] = Field("silu", description="of that half")
    mag: Literal["attention_times_gate", "gate_mix", "product", "sum"] = Field(
        "attention_times_gate",
        description="a sigmoid(m), g a + (1 - g) m, norm(a) norm(m), or a + g m",
    )
    mag_gate_input: Literal["x", "norm"] = Field(
        "x", description="input of g: the token, or the normed token"
    )
    mal_order: Literal["memory_ff_attention_ff", "memory_attention_ff"] = Field(
        "memory_ff_attention_ff", description="parts of MAL in order"
    )
    mac_context: Literal["segments", "mean_of_call"] = Field(
        "segments",
        description="reads of the memory before the segment, or the mean of a call's reads",
    )
    mac_state: Literal["explicit", "committed"] = Field(
        "explicit", description="memory goes on at each call, or at multiples of the segment alone"
    )
    model_norm: Literal["layer", "rms", "none"] = Field(
        "layer", description="norm of embeddings and of the last tokens"
    )
    model_norm_eps: Eps = Field(1e-5, description="eps of model_norm")
    sampling: Literal["min_p_first", "temperature_first"] = Field(
        "min_p_first", description="whether filters see probabilities before the temperature"
    )


AXES: tuple[str, ...] = tuple(LayerConvention.model_fields)

#: Axes that each preset changes (LAYERS-2).
PRESETS: dict[str, dict[str, Any]] = {
    "causal": {},
    "atlas-rnn": {
        "conv_padding": "centred",
        "conv_state": "zero_per_call",
        "norm_eps": "machine",
        "reference_at_call": "renewed",
        "state_clamp": 100.0,
        "attention_window": "last_keys_of_call",
        "persistent_visible": "right_aligned",
        "rotary_frequencies": "float32",
        "rotary_position": "restart",
        "mag": "gate_mix",
        "mac_context": "mean_of_call",
        "mac_state": "committed",
    },
    "titans": {
        "conv_place": "after_projection",
        "conv_activation": "silu",
        "head_norm": "l2",
        "head_norm_eps": 1e-6,
        "head_norm_guard": "add",
        "output_norm": "rms",
        "output_gate": "silu",
        "persistent_kind": "prepended",
        "mag": "product",
        "mal_order": "memory_attention_ff",
    },
}

#: Sources of the presets.
SOURCES = {
    "causal": "the first reading of each axis, by which no token changes what comes before it",
    "atlas-rnn": "atlas-rnn 1a2cf8a",
    "titans": "Titans (2501.00663) sections 3 and 4.4",
}


def resolve(value: str | Mapping[str, Any] | LayerConvention) -> LayerConvention:
    """The convention of a preset's name, or of axes that change one (LAYERS-2).

    Args:
        value: a name, or axes with values, where the key "preset" (default causal) says what they
            change.

    Raises:
        ValueError: names the axis, what was found and its legal values.
    """
    if isinstance(value, LayerConvention):
        return value
    preset, changes = axes_of(
        value, LayerConvention, PRESETS, default="causal", what="layer convention"
    )
    try:
        return LayerConvention(**{**preset, **changes})
    except ValidationError as error:
        raise ValueError(f"layer convention: {first_problem(error)}") from None
