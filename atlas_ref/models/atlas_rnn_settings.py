"""Settings of atlas-rnn's models from the shapes of their tensors, and from our settings.

Specified in specs/language_model.md (MODEL-12).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from pydantic import ValidationError

from atlas_ref.blocks import BLOCKS, module_of
from atlas_ref.layers import feed_forward, rotary
from atlas_ref.messages import first_problem, meant, shown
from atlas_ref.models import checkpoint, language_model
from atlas_ref.models.import_atlas_rnn import Settings, model_config
from atlas_ref.models.public.difference import difference

#: Names of arguments that are ours under another name, and of those that the public code ignores.
ALIASES = {"num_tokens": "vocab"}
IGNORED = ("mem_chunk_size", "chunk_size", "use_accelerated_scan", "use_cuda")

#: Settings of every model, and those of each kind of block besides.
_ALL = (
    *("vocab", "dim", "depth", "heads", "dim_head", "qkv_conv_kernel", "conv", "qk_norm"),
    *("use_momentum", "use_omega_gate", "omega_window", "poly_mode", "poly_degree"),
    "scan_chunk_len",
)
_OF_BLOCK: dict[str, tuple[str, ...]] = {
    "mag": ("block_type", "ff_mult", "num_persist_mem_tokens", "window_size"),
    "mal": ("block_type", "ff_mult", "num_persist_mem_tokens", "window_size"),
    "mac": (
        *("block_type", "ff_mult", "num_persist_mem_tokens"),
        *("segment_len", "num_longterm_mem_tokens"),
    ),
    "lmm": ("block_type", "ff_mult"),
}

#: Parts of our settings that change no result, or that a tensor holds.
_FREE = ("form", "chunk", "biases", "frequencies", "base")


class Told(NamedTuple):
    """Settings of a public model, and what told each of those that have an effect.

    Attributes:
        memory_only: a model of memories alone, without blocks around them.
        by: name -> shapes, given or default.
    """

    settings: Settings
    memory_only: bool
    by: dict[str, str]


# -- from tensors ----------------------------------------------------------------------------------


def told(tensors: Mapping[str, Any], given: Mapping[str, Any]) -> Told:
    """Settings from shapes, then from the arguments, then the public defaults (MODEL-12).

    Raises:
        ValueError: an unknown argument, one that contradicts the tensors, or one that must be
            stated.
    """
    given = _arguments(given)
    alone = _is_alone(tensors)
    of_shapes = _of_shapes(tensors, alone)
    kind = of_shapes.get("block_type", "")
    if alone and "block_type" in given:
        raise ValueError("block_type: the tensors are those of memories alone, which have no block")
    for name, value in given.items():
        if name in of_shapes and not _agrees(name, value, of_shapes):
            by = _teller(name, tensors)
            raise ValueError(
                f"{name}: {shown(value)}, but the tensors have {shown(of_shapes[name])}{by}"
            )
    for name, needs in (("omega_window", "use_omega_gate"), ("poly_degree", "poly_mode")):
        if of_shapes.get(needs) in (True, "tensor") and name not in given:
            raise ValueError(
                f"{name}: must be stated in the settings: no shape tells it, and {needs} is "
                f"{shown(of_shapes[needs])}"
            )
    try:
        # of the multiples with so many hidden units the one that was stated
        stated = {name: given[name] for name in ("ff_mult",) if name in given}
        settings = Settings(**{**given, **of_shapes, **stated})
    except ValidationError as error:
        raise ValueError(first_problem(error)) from None
    if settings.poly_mode == "tensor" and "poly_mode" not in of_shapes:
        raise ValueError("poly_mode: tensor, but the tensors have no phi.proj")
    if "rotary_base" in given:
        _check_base(settings, tensors)
    by = {
        name: "shapes" if name in of_shapes else "given" if name in given else "default"
        for name in (*_ALL, *_OF_BLOCK.get(kind, ()))
    }
    return Told(settings, alone, by)


#: Ends of the names of the tensors of the first layer whose shapes tell a setting.
_TELLERS = {
    "heads": ("to_lr.0.bias",),
    "dim_head": ("to_q.weight",),
    "qkv_conv_kernel": ("q_conv.weight",),
    "ff_mult": ("ff.1.bias", "ff_pre.1.bias"),
    "num_persist_mem_tokens": ("persist_mem",),
}


def _teller(name: str, tensors: Mapping[str, Any]) -> str:
    """Where a setting was read: its tensor may be the one that is misshapen."""
    ends = _TELLERS.get(name, ())
    own = ["embed.weight"] if name in ("vocab", "dim") else []
    own += [each for each in tensors if each.startswith("layers.0.") and each.endswith(ends)]
    return f", by {own[0]} {tuple(tensors[own[0]].shape)}" if own else ""


#: Relative difference of frequencies that were rounded to bfloat16 on their way, as `model.bfloat16()`
#: and `model.float()` leave them.
_ROUNDED = 2.0**-8


def _check_base(settings: Settings, tensors: Mapping[str, Any]) -> None:
    """Refuse a stated base of other frequencies than the tensors hold, which are those in force.

    Another shape or dtype, and what is not finite, is found by name afterwards.
    """
    d = settings.dim_head or settings.dim
    want = settings.rotary_base ** (-np.arange(0, d, 2) / d)
    for name, own in tensors.items():
        if not name.endswith("rotary_emb.freqs") or own.shape != want.shape:
            continue
        whole = own.dtype in (np.float32, np.float64) and np.isfinite(own).all()
        if whole and not np.allclose(own, want, rtol=_ROUNDED, atol=0.0):
            raise ValueError(
                f"rotary_base: {shown(settings.rotary_base)}, but {name} has frequencies of "
                "another base"
            )


def _arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by our names, without those that have no effect."""
    result: dict[str, Any] = {}
    for name, value in given.items():
        own = ALIASES.get(name, name)
        if own in IGNORED:
            continue
        if own not in Settings.model_fields:
            raise ValueError(f"{name}: unknown setting{meant(name, Settings.model_fields)}")
        if own in result:
            raise ValueError(f"{name}: given twice, as {' and as '.join(sorted({name, own}))}")
        result[own] = value
    return result


def _agrees(name: str, value: Any, of_shapes: Mapping[str, Any]) -> bool:
    """Whether an argument says what the shapes say; types are those of JSON."""
    found = of_shapes[name]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if name == "ff_mult" and number and 0 < value < 1e9:
        dim = of_shapes["dim"]
        return feed_forward.inner(dim, value) == feed_forward.inner(dim, found)
    if name == "dim_head" and value is None:
        return bool(of_shapes["dim"] == found)
    if name == "qkv_conv_kernel" and found is None:
        return value is None or (number and value == 1)
    return type(value) is type(found) and bool(value == found)


def _is_alone(tensors: Mapping[str, Any]) -> bool:
    if any(name.startswith("layers.0.memory.") for name in tensors):
        return False
    if "layers.0.pre_norm.weight" in tensors:
        return True
    first = "layers.0.memory.pre_norm.weight"
    for name in tensors:
        if name.endswith(f".{first}"):
            prefix = name.removesuffix(first)
            raise ValueError(
                f"{first}: missing, but {name} is there; names must not begin with {prefix}"
            )
    raise ValueError(f"{first}: missing; this is no state_dict of a language model of atlas-rnn")


def _of_shapes(tensors: Mapping[str, Any], alone: bool) -> dict[str, Any]:
    """All that shapes and names tell; what contradicts them is found by name afterwards."""
    cell = "layers.0." if alone else "layers.0.memory."
    vocab, dim = _shape(tensors, "embed.weight", 2)
    (heads,) = _shape(tensors, f"{cell}to_lr.0.bias", 1)
    rows, _ = _shape(tensors, f"{cell}to_q.weight", 2)
    if heads < 1 or rows % heads:
        raise ValueError(f"{cell}to_q.weight: {rows} rows, expected a multiple of {heads} heads")
    conv = f"{cell}q_conv.weight"
    result: dict[str, Any] = {
        "vocab": vocab,
        "dim": dim,
        "depth": len(
            {found[1] for name in tensors if (found := re.match(r"layers\.(\d+)\.", name))}
        ),
        "heads": heads,
        "dim_head": rows // heads,
        "qkv_conv_kernel": _shape(tensors, conv, 3)[2] if conv in tensors else None,
        "qk_norm": f"{cell}q_norm.gamma" in tensors,
        "use_momentum": f"{cell}to_momentum.0.bias" in tensors,
        "use_omega_gate": f"{cell}to_omega_gate.0.bias" in tensors,
    }
    if f"{cell}phi.proj" in tensors:
        result["poly_mode"] = "tensor"
    return result if alone else result | _of_block(tensors, dim)


def _of_block(tensors: Mapping[str, Any], dim: int) -> dict[str, Any]:
    """Kind, feed-forward and persistent rows of the first block."""
    kind = "lmm"
    for name, each in (("gate.", "mag"), ("ff_pre.", "mal"), ("to_mem_tokens.", "mac")):
        if any(tensor.startswith(f"layers.0.{name}") for tensor in tensors):
            kind = each
    (rows,) = _shape(tensors, f"layers.0.{'ff_pre' if kind == 'mal' else 'ff'}.1.bias", 1)
    result: dict[str, Any] = {"block_type": kind, "ff_mult": multiple(dim, rows // 2)}
    if kind != "lmm":
        rows_of = "layers.0.attention.persist_mem"
        result["num_persist_mem_tokens"] = (
            _shape(tensors, rows_of, 3)[1] if rows_of in tensors else 0
        )
    return result


def _shape(tensors: Mapping[str, Any], name: str, axes: int) -> tuple[int, ...]:
    if name not in tensors:
        raise ValueError(f"{name}: missing; its shape tells the settings")
    shape = tuple(int(size) for size in tensors[name].shape)
    if len(shape) != axes or 0 in shape:
        raise ValueError(f"{name}: shape {shape}, expected {axes} axes, none of them empty")
    return shape


def multiple(dim: int, inner: int) -> float:
    """An ff_mult of so many hidden units: the default, a quarter of a number, or any."""
    for each in (4.0, *(k / 4 for k in range(1, 65))):
        if feed_forward.inner(dim, each) == inner:
            return each
    return (inner + 0.5) * 1.5 / dim


# -- from our settings -----------------------------------------------------------------------------


def expressed(config: language_model.Config, hint: Settings | None = None) -> Told:
    """The public settings of a model of ours (MODEL-12).

    Args:
        hint: settings that it came from, which hold if they still say the same.

    Raises:
        ValueError: names the first setting that the public code does not have.
    """
    alone = isinstance(config.blocks[0], BLOCKS["lmm"].Config) and (
        config.blocks[0].feed_forward is None
    )
    problem = ""
    for settings in (hint, _derived(config, alone)):
        if settings is not None and None not in (settings.vocab, settings.depth):
            problem = _unlike(config, settings, alone)
            if not problem:
                return Told(settings, alone, {})
    raise ValueError(f"atlas-rnn has no such model: {problem}")


def _unlike(config: language_model.Config, settings: Settings, alone: bool) -> str:
    """The first point on which a model is not the one of public settings, or nothing."""
    frequencies = []
    for block in config.blocks:
        own = None if isinstance(block, BLOCKS["lmm"].Config) else block.attention.rotary
        frequencies.append(None if own is None else rotary.frequencies(own))
    try:
        want = model_config(settings, frequencies, memory_only=alone)
    except ValidationError as error:
        return first_problem(error)
    own, of = checkpoint.described(config), checkpoint.described(want)
    return difference(own, of, "atlas-rnn", free=_FREE)


def _derived(config: language_model.Config, alone: bool) -> Settings:
    """The settings that come nearest, read from the first block."""
    block, module = config.blocks[0], module_of(config.blocks[0])
    own = block.memory
    if own is None:
        raise ValueError("blocks.0.memory: none, atlas-rnn has one in each block")
    level = own.levels.levels[0]
    fields: dict[str, Any] = {}
    rule = level.config
    if level.rule.has_window:
        fields["omega_window"] = rule.window
        kind = rule.feature_map.kind
        if kind == "elementwise":
            fields |= {"poly_mode": "elementwise", "poly_degree": rule.feature_map.degree}
        elif kind == "sketch":
            fields |= {"poly_mode": "tensor", "poly_degree": 2}
    fields["block_type"] = next(name for name, each in BLOCKS.items() if each is module)
    if own.conv is not None:
        fields["conv"] = own.conv.padding
    if module is not BLOCKS["lmm"]:
        mac = module is BLOCKS["mac"]
        fields["segment_len" if mac else "window_size"] = block.attention.window
        fields["num_persist_mem_tokens"] = block.attention.persistent
        if mac and block.longterm is not None:
            fields["num_longterm_mem_tokens"] = block.longterm
    ff = block.ff_post if module is BLOCKS["mal"] else block.feed_forward
    if ff is not None:
        fields["ff_mult"] = multiple(config.d_model, ff.d_inner)
    return Settings(
        dim=config.d_model,
        dim_head=rule.d_in,
        heads=rule.heads,
        use_omega_gate=own.window_gate,
        use_momentum=own.momentum,
        qkv_conv_kernel=None if own.conv is None else own.conv.kernel,
        qk_norm=own.head_norm.kind != "none",
        scan_chunk_len=own.scan_chunk,
        vocab=config.vocabulary,
        depth=len(config.blocks),
        **fields,
    )
