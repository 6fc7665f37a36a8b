"""Readings of a model as they are found in its settings, and the preset that each is nearest to.

Specified in specs/language_model.md (MODEL-13).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from atlas_ref import conventions
from atlas_ref.blocks import mac, mal, module_of
from atlas_ref.layers import (
    attention,
    convention,
    feed_forward,
    memory,
    norm,
    rotary,
    shared_memory,
)
from atlas_ref.models import language_model
from atlas_ref.rules import deep_memory


class Nearest(NamedTuple):
    """A preset, and the axes on which a reading is not its own."""

    preset: str
    changes: dict[str, Any]


def of_rule(config: Any, rule: str) -> Nearest:
    """The convention of a rule (MODEL-13)."""
    own = config.convention.model_dump(mode="json")
    presets = {
        name: conventions.resolve(name, rule=rule, level="token").model_dump(mode="json")
        for name in conventions.PRESETS
    }
    return nearest(own, presets)


def of_block(config: language_model.Config, block: Any) -> Nearest:
    """The readings of a block, and of the model around it (MODEL-13)."""
    presets = {name: convention.resolve(name).model_dump() for name in convention.PRESETS}
    return nearest(found(config, block), presets)


def of_shared(config: Any) -> Nearest | None:
    """The axes of a deep memory that shares attention, None of any other (MODEL-13, SHARED-9)."""
    if not isinstance(config, shared_memory.Config):
        return None
    if not isinstance(config.level.config, deep_memory.Config):
        return None
    return nearest(shared_memory.axes_of(config), shared_memory.PRESETS)


def nearest(own: Mapping[str, Any], presets: Mapping[str, Mapping[str, Any]]) -> Nearest:
    """The first of the presets from which the fewest axes differ."""
    every = [
        Nearest(name, {axis: value for axis, value in own.items() if value != preset[axis]})
        for name, preset in presets.items()
    ]
    return min(every, key=lambda each: len(each.changes))


def found(config: language_model.Config, block: Any) -> dict[str, Any]:
    """The axes of layers that the settings of a block and of the model around it have."""
    module = module_of(block)
    axes: dict[str, Any] = {}
    if isinstance(block.memory, memory.Config):
        axes |= _of_memory(block.memory)
    if module is mal:
        short = block.ff_pre is None
        axes |= _of_attention(block.attention) | _of_feed_forward(block.ff_post)
        axes["mal_order"] = "memory_attention_ff" if short else "memory_ff_attention_ff"
    else:
        axes |= {} if block.feed_forward is None else _of_feed_forward(block.feed_forward)
        fields = type(block).model_fields
        axes |= _of_attention(block.attention) if "attention" in fields else {}
        if "mix" in fields and block.mix is not None and block.memory is not None:
            gate = "x" if block.mix.gate_norm.kind == "none" else "norm"
            axes |= {"mag": block.mix.kind}
            axes |= {"mag_gate_input": gate} if block.mix.has_gate else {}
    if module is mac:
        axes |= {"mac_context": block.context, "mac_state": block.state}
    axes |= _eps("model_norm_eps", config.norm) | {"model_norm": config.norm.kind}
    return axes | {"sampling": config.sampling}


def _of_memory(own: memory.Config) -> dict[str, Any]:
    axes: dict[str, Any] = {
        "gate_input": own.gate_input,
        "step_size": own.step_size,
        "head_norm": own.head_norm.kind,
        "memory_input": "x" if own.norm.kind == "none" else "normed",
        "reference_at_call": own.reference_at_call,
        "state_clamp": "none" if own.state_clamp is None else own.state_clamp,
        "output_norm": own.output_norm.kind,
        "output_gate": own.output_gate,
    }
    if own.head_norm.kind != "none":
        axes |= {"head_norm_eps": own.head_norm.eps, "head_norm_guard": own.head_norm.guard}
    if own.conv is not None:
        axes |= {
            "conv_padding": own.conv.padding,
            "conv_place": own.conv_place,
            "conv_activation": own.conv.activation,
            "conv_state": own.conv.state,
        }
    return axes | _eps("norm_eps", own.norm)


def _of_attention(own: attention.Config) -> dict[str, Any]:
    axes: dict[str, Any] = {
        "attention_window": own.attention_window,
        "window_counts_self": own.window_counts_self,
    }
    if own.persistent:
        axes["persistent_kind"] = own.persistent_kind
        axes["persistent_visible"] = own.persistent_visible
    if own.rotary is not None:
        axes |= {"rotary_pairs": own.rotary.pairs, "rotary_position": own.rotary.position}
        axes |= {"rotary_base": own.rotary.base, "rotary_frequencies": _frequencies(own.rotary)}
    return axes | _eps("norm_eps", own.norm)


def _frequencies(own: rotary.Config) -> str:
    """The precision of frequencies; numbers of the file's own may be those of a precision."""
    if isinstance(own.frequencies, str):
        return own.frequencies
    for word in ("float32", "exact"):
        if tuple(rotary.frequencies(own.replaced(frequencies=word))) == own.frequencies:
            return word
    return "of the file"


def _of_feed_forward(own: feed_forward.Config) -> dict[str, Any]:
    axes = {"ff_gate_half": own.gate_half, "ff_activation": own.activation}
    return axes | _eps("norm_eps", own.norm)


def _eps(axis: str, own: norm.Config) -> dict[str, Any]:
    return {} if own.eps is None else {axis: own.eps}
