"""Files of atlas-rnn as tables: what tells each argument of its constructors, both ways.

Specified in specs/language_model.md (MODEL-12).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from atlas_ref.blocks import BLOCKS
from atlas_ref.layers import feed_forward, rotary
from atlas_ref.messages import shown
from atlas_ref.models import atlas_rnn_names, language_model
from atlas_ref.models.import_atlas_rnn import Settings, model_config
from atlas_ref.models.initial import Initial
from atlas_ref.models.public.importer import MEMORY_ONLY, Importer, Told
from atlas_ref.models.public.names import Name, Table
from atlas_ref.models.public.tells import (
    UNTOLD,
    Fact,
    Near,
    Tell,
    Tells,
    facts,
    layers,
    present,
    read_off,
)

Tensors = Mapping[str, Any]

#: End of the name of the frequencies of a layer's positions, which are settings of ours.
FREQUENCIES = ".rotary_emb.freqs"

#: Arguments of the constructors of public models: of memories alone, of blocks.
OF_MEMORIES = (
    *("vocab", "dim", "depth", "dim_head", "heads", "omega_window", "use_omega_gate"),
    *("use_momentum", "poly_degree", "poly_mode"),
)
OF_MODELS = (
    *OF_MEMORIES,
    *("block_type", "window_size", "ff_mult", "num_persist_mem_tokens", "qkv_conv_kernel"),
)

#: Settings that have an effect on every model, and on each kind of block besides.
EFFECTIVE = (
    *("vocab", "dim", "depth", "heads", "dim_head", "qkv_conv_kernel", "conv", "qk_norm"),
    *("use_momentum", "use_omega_gate", "omega_window", "poly_mode", "poly_degree"),
    "scan_chunk_len",
)
_LMM = ("block_type", "ff_mult")
_MAG = (*_LMM, "num_persist_mem_tokens", "window_size")
_MAC = (*_LMM, "num_persist_mem_tokens", "segment_len", "num_longterm_mem_tokens")
OF_BLOCK = {"mag": _MAG, "mal": _MAG, "mac": _MAC, "lmm": _LMM}

# -- what tensors tell -----------------------------------------------------------------------------


def _of_a_head(rows: int, known: Mapping[str, Any], name: str) -> int:
    heads: int = known["heads"]
    if rows % heads:
        raise ValueError(f"{name}: {rows} rows, expected a multiple of {heads} heads")
    return rows // heads


def multiple(dim: int, inner: int) -> float:
    """An ff_mult of so many hidden units: the default, a quarter of a number, or any."""
    for each in (4.0, *(k / 4 for k in range(1, 65))):
        if feed_forward.inner(dim, each) == inner:
            return each
    return (inner + 0.5) * 1.5 / dim


#: What tells the arguments of every model, `{cell}` the place of the first memory.
MEMORY: Tells = {
    "vocab": Tell("embed.weight", 2),
    "dim": Tell("embed.weight", 2, axis=1),
    "heads": Tell("{cell}to_lr.0.bias", 1),
    "dim_head": Tell("{cell}to_q.weight", 2, setting=_of_a_head),
    "depth": layers("layers."),
    "qkv_conv_kernel": Tell("{cell}q_conv.weight", 3, axis=2, absent=None),
    "qk_norm": Tell("{cell}q_norm.gamma"),
    "use_momentum": Tell("{cell}to_momentum.0.bias"),
    "use_omega_gate": Tell("{cell}to_omega_gate.0.bias"),
    "poly_mode": Tell("{cell}phi.proj", setting=lambda there, *_: "tensor" if there else UNTOLD),
}

#: What the first block has, by its kind; a block of none of these is lmm.
MARKS = {"mac": "to_mem_tokens.", "mal": "ff_pre.", "mag": "gate."}

#: What tells the arguments of blocks, `{ff}` the place of the first feed-forward.
BLOCK: Tells = {
    "block_type": lambda tensors, known: next(
        (kind for kind, mark in MARKS.items() if present(f"layers.0.{mark}", tensors)), "lmm"
    ),
    "ff_mult": Tell(
        "layers.0.{ff}.1.bias",
        1,
        setting=lambda rows, known, name: multiple(known["dim"], rows // 2),
    ),
}
ATTENTION: Tells = {
    "num_persist_mem_tokens": Tell("layers.0.attention.persist_mem", 3, axis=1, absent=0)
}


def tells(tensors: Tensors) -> dict[str, Fact]:
    """All that shapes and names tell (MODEL-12)."""
    alone = _is_alone(tensors)
    found = facts(MEMORY, tensors, cell="layers.0." if alone else "layers.0.memory.")
    if alone:
        return found | {MEMORY_ONLY: Fact(True)}
    mal = present(f"layers.0.{MARKS['mal']}", tensors)
    found = facts(BLOCK, tensors, found, ff="ff_pre" if mal else "ff")
    return found if found["block_type"].value == "lmm" else facts(ATTENTION, tensors, found)


def _is_alone(tensors: Tensors) -> bool:
    if present("layers.0.memory.", tensors):
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


# -- what arguments say beside tensors -------------------------------------------------------------


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same_inner(value: Any, told: float, found: Mapping[str, Any]) -> bool:
    dim = found["dim"]
    return (
        _is_number(value)
        and 0 < value < 1e9
        and feed_forward.inner(dim, value) == feed_forward.inner(dim, told)
    )


#: Where an argument says otherwise what the tensors say.
AGREES = {
    "ff_mult": _same_inner,
    "dim_head": lambda value, told, found: value is None and found["dim"] == told,
    "qkv_conv_kernel": lambda value, told, found: told is None and _is_number(value) and value == 1,
}

#: What no shape tells, and the setting under which it must be stated.
STATED = {"omega_window": "use_omega_gate", "poly_degree": "poly_mode"}


#: Relative difference of frequencies that were rounded to bfloat16 on their way, as `model.bfloat16()`
#: and `model.float()` leave them.
_ROUNDED = 2.0**-8


def _refuse(settings: Settings | None, given: Tensors, found: Tensors, tensors: Tensors) -> None:
    """Refuse arguments that are missing, of another model, or of other positions than the tensors.

    Frequencies of another shape or dtype, or that are not finite, are found by name afterwards.
    """
    if MEMORY_ONLY in found and "block_type" in given:
        raise ValueError("block_type: the tensors are those of memories alone, which have no block")
    for name, needs in STATED.items():
        if found.get(needs) in (True, "tensor") and name not in given:
            raise ValueError(
                f"{name}: must be stated in the settings: no shape tells it, and {needs} is "
                f"{shown(found[needs])}"
            )
    if settings is None:
        return
    if settings.poly_mode == "tensor" and "poly_mode" not in found:
        raise ValueError("poly_mode: tensor, but the tensors have no phi.proj")
    if "rotary_base" not in given:
        return
    want = settings.rotary_base ** (-np.arange(0, settings.d_head, 2) / settings.d_head)
    for name, own in tensors.items():
        if not name.endswith("rotary_emb.freqs") or own.shape != want.shape:
            continue
        whole = own.dtype in (np.float32, np.float64) and np.isfinite(own).all()
        if whole and not np.allclose(own, want, rtol=_ROUNDED, atol=0.0):
            raise ValueError(
                f"rotary_base: {shown(settings.rotary_base)}, but {name} has frequencies of "
                "another base"
            )


# -- what our settings tell ------------------------------------------------------------------------

_MEMORY, _RULE = "blocks.0.memory", "blocks.0.memory.levels.levels.0.config"


def _where(*kinds: str) -> Any:
    """A value of blocks of some kinds alone."""
    return lambda value, described: value if described["blocks"][0]["kind"] in kinds else UNTOLD


#: Kind of a feature map -> poly_mode, and the poly_degree of one that has no degree.
_MODES = {"elementwise": "elementwise", "sketch": "tensor"}
_DEGREES = {"sketch": 2}

#: Where our settings keep each argument.
NEAREST: dict[str, Near] = {
    "vocab": Near("vocabulary"),
    "dim": Near("embed_norm.d"),
    "depth": Near("blocks", lambda blocks, _: len(blocks)),
    "block_type": Near("blocks.0.kind"),
    "heads": Near(f"blocks.0.attention.heads {_RULE}.heads"),
    "dim_head": Near(f"blocks.0.attention.d_head {_RULE}.d_in"),
    "omega_window": Near(f"{_RULE}.window"),
    "poly_mode": Near(f"{_RULE}.feature_map.kind", lambda kind, _: _MODES.get(kind, UNTOLD)),
    "poly_degree": Near(
        f"{_RULE}.feature_map", lambda phi, _: phi.get("degree", _DEGREES.get(phi["kind"], UNTOLD))
    ),
    "use_omega_gate": Near(f"{_MEMORY}.window_gate"),
    "use_momentum": Near(f"{_MEMORY}.momentum"),
    "qkv_conv_kernel": Near(f"{_MEMORY}.conv.kernel", absent=None),
    "conv": Near(f"{_MEMORY}.conv.padding"),
    "qk_norm": Near(f"{_MEMORY}.head_norm.kind", lambda kind, _: kind != "none"),
    "scan_chunk_len": Near(f"{_MEMORY}.scan_chunk"),
    "window_size": Near("blocks.0.attention.window", _where("mag", "mal")),
    "segment_len": Near("blocks.0.attention.window", _where("mac")),
    "num_persist_mem_tokens": Near("blocks.0.attention.persistent"),
    "num_longterm_mem_tokens": Near(
        "blocks.0.longterm", lambda rows, _: UNTOLD if rows is None else rows
    ),
    "ff_mult": Near(
        "blocks.0.ff_post.d_inner blocks.0.feed_forward.d_inner",
        lambda inner, described: multiple(described["embed_norm"]["d"], inner),
    ),
    MEMORY_ONLY: Near("blocks.0.feed_forward", lambda layer, _: layer is None),
}


def nearest(described: Any) -> dict[str, Any]:
    """The arguments that come nearest, read from the first block (MODEL-12)."""
    if described["blocks"][0]["memory"] is None:
        raise ValueError("blocks.0.memory: none, atlas-rnn has one in each block")
    return read_off(NEAREST, described)


# -- tensors ---------------------------------------------------------------------------------------


def table(told: Told) -> Table:
    """Every tensor that a state_dict may have, the flag of each memory's device among them."""
    flags = {
        f"layers.{i}.{'' if told.memory_only else 'memory.'}_dummy": Name("1", unread=True)
        for i in range(told.settings.depth or 1)
    }
    return atlas_rnn_names.model(told.settings, memory_only=told.memory_only) | flags


def _config(told: Told, tensors: Tensors) -> language_model.Config:
    rows = [tensors[name] for name in table(told) if name.endswith(FREQUENCIES)]
    return model_config(told.settings, rows, memory_only=told.memory_only)


def _like(told: Told, config: language_model.Config) -> language_model.Config:
    frequencies = []
    for block in config.blocks:
        own = None if isinstance(block, BLOCKS["lmm"].Config) else block.attention.rotary
        frequencies.append(None if own is None else rotary.frequencies(own))
    return model_config(told.settings, frequencies, memory_only=told.memory_only)


def _buffers(told: Told, config: Any, initial: Initial, dtype: Any) -> dict[str, Any]:
    """The frequencies of positions; flags and a projection that nothing reads are 0."""
    return {
        name: rotary.frequencies(config.blocks[int(name.split(".")[1])].attention.rotary).astype(
            dtype
        )
        for name in table(told)
        if name.endswith(FREQUENCIES)
    }


#: Files of atlas-rnn, read and written.
IMPORTER = Importer(
    program="atlas-rnn",
    arguments=Settings,
    tells=tells,
    nearest=nearest,
    table=table,
    sizes=atlas_rnn_names.sizes,
    config=_config,
    like=_like,
    effective=lambda told: (
        EFFECTIVE if told.memory_only else (*EFFECTIVE, *OF_BLOCK[told.settings.block_type])
    ),
    always=lambda told: OF_MEMORIES if told.memory_only else OF_MODELS,
    never=("block_type",),
    aliases={"num_tokens": "vocab"},
    ignored=("mem_chunk_size", "chunk_size", "use_accelerated_scan", "use_cuda"),
    agrees=AGREES,
    stated=("ff_mult",),  # of the multiples with so many hidden units the one that was stated
    refuse=_refuse,
    free=("form", "chunk", "biases", "frequencies", "base"),
    buffers=_buffers,
)
