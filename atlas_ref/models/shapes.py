"""Shapes of the parameters of models, blocks and layers, from settings alone: nothing is allocated.

A file that claims more than it holds is so refused before anything of that size is built. Specified
in specs/language_model.md (MODEL-11).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from atlas_ref.blocks import lmm, mac, mag, mal, mix
from atlas_ref.forms import tnt
from atlas_ref.layers import (
    attention,
    convolution,
    feed_forward,
    memory,
    memory_params,
    memory_tnt,
    norm,
    query_key,
    shared_memory,
)
from atlas_ref.layers.projection import Params as Projection
from atlas_ref.models import language_model
from atlas_ref.parts import window
from atlas_ref.parts.gates import GateParams, GateSet, HiddenGateParams


@dataclass(frozen=True)
class Needed:
    """A tensor that is needed, by its shape; a word is the name of an axis that tensors tell."""

    shape: tuple[int | str, ...]
    dtype: np.dtype[Any] = field(default=np.dtype(np.float64))

    def fits(self, shape: tuple[int, ...], told: dict[str, int]) -> bool:
        """Whether a tensor has this shape.

        Args:
            told: sizes of axes that tensors tell, to which new ones are added.
        """
        return len(shape) == len(self.shape) and all(
            found == (told.setdefault(size, found) if isinstance(size, str) else size)
            for size, found in zip(self.shape, shape, strict=True)
        )

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.shape))}{',' if len(self.shape) == 1 else ''})"


def check_tensors(needed: Mapping[str, Needed], tensors: Mapping[str, Any]) -> None:
    """Refuse tensors that are missing, unknown, misshapen, of mixed precision or not finite.

    Raises:
        ValueError: names the first five in one line, and the number of others (MODEL-11).
    """
    told: dict[str, dict[str, int]] = {}
    first = next((each.dtype.name for name, each in tensors.items() if name in needed), "")
    problems = [
        f"{name}: missing, shape {slot} is needed"
        for name, slot in needed.items()
        if name not in tensors
    ]
    problems += [f"{name}: unknown tensor" for name in tensors if name not in needed]
    for name, slot in needed.items():
        if name in tensors:
            sizes = told.setdefault(name.rpartition(".")[0], {})
            problems += _wrong(name, tensors[name], slot, sizes, first)
    refuse(problems)


def refuse(problems: Sequence[str]) -> None:
    """Refuse for reasons, of which the first five are told."""
    if problems:
        more = len(problems) - 5
        raise ValueError("; ".join(problems[:5]) + (f"; and {more} others" if more > 0 else ""))


def _wrong(name: str, array: Any, slot: Needed, told: dict[str, int], first: str) -> Iterator[str]:
    if array.dtype.name not in ("float32", "float64"):
        yield f"{name}: {array.dtype.name}, float32 or float64 is needed"
    elif array.dtype.name != first:
        yield f"{name}: {array.dtype.name}, but others are {first}"
    elif not slot.fits(tuple(array.shape), told):
        yield f"{name}: shape {tuple(array.shape)}, expected {slot}"
    elif not np.isfinite(array).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        yield f"{name}: every entry must be finite, found {array[where]} at {where}"


def params_of(config: Any) -> Any:
    """Parameters of a model, block or layer whose leaves are `Needed` (MODEL-11).

    Raises:
        KeyError: settings of none of them.
    """
    return _SHAPES[type(config)](config)


def template(layer: Any, config: Any) -> Any:
    """Parameters for their shapes alone; those that it draws of a layer that this file does not
    know.

    Args:
        layer: the module of the settings, with `init`.
    """
    return params_of(config) if type(config) in _SHAPES else layer.init(config)


def _model(config: language_model.Config) -> language_model.Params:
    shape = (config.vocabulary, config.d_model)
    return language_model.Params.trusted(
        embedding=Needed(shape),
        head=None if config.tied else Needed(shape),
        embedding_bias=Needed(shape[1:]) if config.embedding_bias else None,
        blocks=tuple(params_of(each) for each in config.blocks),
        embed_norm=_norm(config.embed_norm),
        norm=_norm(config.norm),
    )


def _norm(config: norm.Config) -> norm.Params:
    if not config.has_weight:
        return norm.Params()
    shape = (config.d,) if config.heads is None else (config.heads, config.d)
    bias = Needed(shape) if config.kind == "layer" else None
    return norm.Params.trusted(weight=Needed(shape), bias=bias)


def _convolution(config: convolution.Config | None) -> convolution.Params | None:
    if config is None:
        return None
    return convolution.Params.trusted(
        weight=Needed((config.d_model, config.kernel)),
        bias=Needed((config.d_model,)) if config.bias else None,
    )


def _attention(config: attention.Config) -> attention.Params:
    D, H, d, P = config.d_model, config.heads, config.d_head, config.persistent
    of_heads = None if config.head_norm is None else _norm(config.head_norm)
    return attention.Params.trusted(
        norm=_norm(config.norm),
        W_qkv=Needed((3, H, d, D)),
        W_out=Needed((D, H, d)),
        persistent=Needed((P, D) if config.prefixed else (H, P, d)) if P else None,
        q_norm=of_heads,
        k_norm=of_heads,
    )


def _feed_forward(config: feed_forward.Config | None) -> feed_forward.Params | None:
    if config is None:
        return None
    D, n = config.d_model, config.d_inner
    return feed_forward.Params.trusted(
        norm=_norm(config.norm),
        W_in=Needed((2 * n, D)),
        W_out=Needed((D, n)),
        b_in=Needed((2 * n,)) if config.bias else None,
        b_out=Needed((D,)) if config.bias else None,
    )


def _mix(config: mix.Config | None) -> mix.Params | None:
    if config is None:
        return None
    D, branches = config.d_model, config.kind == "product"
    return mix.Params.trusted(
        W=Needed((D, D)) if config.has_gate else None,
        b=Needed((D,)) if config.has_gate else None,
        norm=_norm(config.gate_norm) if config.has_gate else None,
        attention_norm=_norm(config.branch_norm) if branches else None,
        memory_norm=_norm(config.branch_norm) if branches else None,
    )


def _gate(heads: int, rows: int, inputs: int) -> GateParams:
    return GateParams.trusted(W=Needed((heads, rows, inputs)), b=Needed((heads, rows)))


def _memory(config: memory.Config | None) -> memory.Params | None:
    if config is None:
        return None
    levels, D, H = config.levels.levels, config.d_model, config.heads
    d_out, gated = levels[0].config.d_out, config.output_gate != "none"
    return memory.Params.trusted(
        norm=_norm(config.norm),
        levels=tuple(_branch(config, each) for each in levels),
        W_out=Needed((D, H, d_out)),
        output_norm=_norm(config.output_norm),
        logits=Needed((len(levels),)) if config.combined else None,
        W_gate=Needed((H * d_out, D)) if gated else None,
        b_gate=Needed((H * d_out,)) if gated else None,
        initial=_starts(config),
    )


def _starts(config: memory.Config) -> tuple[tnt.Initial, ...]:
    """Where the memories of a TNT start (MEMORY-14)."""
    if not isinstance(config.levels, memory_tnt.Config):
        return ()
    absent: dict[str, Any] = dict.fromkeys(tnt.Initial.model_fields)
    return tuple(
        tnt.Initial.trusted(
            **absent | {"phi": {}} | {name: Needed(shape) for name, shape in own.items()}
        )
        for own in memory_tnt.shapes(config.levels)
    )


def _branch(config: memory.Config, level: Any) -> memory.Branch:
    rule, D, H = level.config, config.d_model, config.heads
    inputs = D if config.gate_input == "normed" else rule.d_in + rule.d_out
    rows = rule.d_out if rule.per_dimension_gates else 1
    names = memory_params.gate_names(config, level)
    absent: dict[str, Any] = dict.fromkeys(GateSet.model_fields)
    gates = absent | {name: _gate(H, rows, inputs) for name in names}
    of_heads = None if config.head_norm.kind == "none" else _norm(config.head_norm)
    convs = {f"{name}_conv": _convolution(config.conv_of(level, name)) for name in "qkv"}
    tensors: dict[str, Any] = {"phi": {}, "window": {}, "surrogate": {}}
    if level.rule.has_window:
        sizes = {"H": H, "c": rule.window, "d_model": D}
        tensors["phi"] = {name: Needed(axes) for name, axes in level.rule.tensors(rule).items()}
        tensors["window"] = _named(window.tensors(rule.window_weights), sizes)
    own = Projection.trusted(
        W_K=Needed((H, rule.d_in, D)),
        W_V=Needed((H, rule.d_out, D)),
        W_Q=Needed((H, rule.d_in, D)),
        gates=GateSet.trusted(**gates),
        **tensors,
    )
    return memory.Branch.trusted(
        projection=own,
        q_norm=of_heads,
        k_norm=of_heads,
        window_gate=_gate(H, 1, inputs) if config.window_gate else None,
        **convs,
    )


def _named(axes: dict[str, str], sizes: dict[str, int]) -> dict[str, Needed]:
    return {
        name: Needed(tuple(sizes.get(axis, axis) for axis in words.split()))
        for name, words in axes.items()
    }


def _shared(config: shared_memory.Config) -> shared_memory.Params:
    rule, D, H, hidden = config.level.config, config.d_model, config.heads, config.gate_hidden
    rows, own = rule.d_out if rule.per_dimension_gates else 1, config.projection
    gates: dict[str, Any] = dict.fromkeys(GateSet.model_fields)
    gate = projection = None
    if hidden is not None:
        gate = HiddenGateParams.trusted(W_in=Needed((hidden, D)), W_out=Needed((1, hidden)))
    if own is not None:
        keys = Needed((own.rows, own.d)) if own.persistent == "learned" else None
        projection = query_key.Params.trusted(keys=keys)
    tensors = config.level.rule.tensors(rule) if config.level.rule.has_window else {}
    return shared_memory.Params.trusted(
        phi={name: Needed(axes) for name, axes in tensors.items()},
        gate=gate,
        projection=projection,
        gates=GateSet.trusted(**gates | {name: _gate(H, rows, D) for name in config.gate_names}),
    )


def _mag(config: mag.Config) -> mag.Params:
    own = config.memory
    return mag.Params.trusted(
        attention=_attention(config.attention),
        feed_forward=_feed_forward(config.feed_forward),
        memory=_shared(own) if isinstance(own, shared_memory.Config) else _memory(own),
        mix=None if own is None else _mix(config.mix),
    )


def _mal(config: mal.Config) -> mal.Params:
    return mal.Params.trusted(
        attention=_attention(config.attention),
        ff_post=_feed_forward(config.ff_post),
        memory=_memory(config.memory),
        ff_pre=_feed_forward(config.ff_pre),
    )


def _mac(config: mac.Config) -> mac.Params:
    D, pooled = config.d_model, config.context == "mean_of_call"
    return mac.Params.trusted(
        memory=_memory(config.memory),
        attention=_attention(config.attention),
        feed_forward=_feed_forward(config.feed_forward),
        mix=_mix(config.mix),
        pool_norm=None if config.pool_norm is None else _norm(config.pool_norm),
        W_pool=Needed((D, D)) if pooled else None,
    )


def _lmm(config: lmm.Config) -> lmm.Params:
    return lmm.Params.trusted(
        memory=_memory(config.memory), feed_forward=_feed_forward(config.feed_forward)
    )


#: Settings -> parameters by their shapes.
_SHAPES: dict[Any, Callable[[Any], Any]] = {
    language_model.Config: _model,
    mag.Config: _mag,
    mal.Config: _mal,
    mac.Config: _mac,
    lmm.Config: _lmm,
    memory.Config: _memory,
    shared_memory.Config: _shared,
    attention.Config: _attention,
    convolution.Config: _convolution,
    feed_forward.Config: _feed_forward,
    norm.Config: _norm,
}
