"""Names of Atlas-MAG's tensors and the places of our parameters, as data.

Specified in specs/language_model.md (MODEL-14) and specs/atlas_mag.md (MAG-6).
"""

from __future__ import annotations

import math

from atlas_ref.layers import feed_forward
from atlas_ref.models.atlas_mag.settings import Settings
from atlas_ref.models.public.names import Name, Table, repeated, rows, shape, under

#: Tensors of the memory function: public name -> axes, our name, setting that it needs.
_OF_MEMORY: dict[str, tuple[str, str, str]] = {
    "output_scale": ("", "read_scale", ""),
    "proj_down.weight": ("dim_head dim", "W_down", ""),
    "poly_norm.weight": ("features", "feature_norm/gain", ""),
    "poly_norm.bias": ("features", "feature_norm/bias", ""),
    "poly_compress.weight": ("rank features", "W_compress", "compressed"),
    "w1.weight": ("dim_head hidden", "W_out", ""),
    "w2.weight": ("hidden inputs", "W_in", ""),
    "w3.weight": ("hidden inputs", "W_value", "gated"),
    "proj_up.weight": ("dim dim_head", "W_up", ""),
    "output_norm.weight": ("dim", "read_norm/gain", ""),
    "output_norm.bias": ("dim", "read_norm/bias", ""),
}

#: Public name of a tensor of the memory -> ours.
MEMORY_NAMES: dict[str, str] = {name: ours for name, (_, ours, _) in _OF_MEMORY.items()}

#: Tensors of the memory function, as parameters of a shared memory.
MEMORY: Table = {
    name: Name(axes, f".phi['{ours}']", when=when)
    for name, (axes, ours, when) in _OF_MEMORY.items()
}


def momentum_of(name: str) -> str:
    """Public name of the momentum of a tensor of the memory."""
    return f"momentum_{name.replace('.', '_')}"


#: Momenta of the memory, which are a state of ours.
MOMENTA: Table = {
    momentum_of(name): Name(axes, when=when) for name, (axes, _, when) in _OF_MEMORY.items()
}

#: The gate of keys, and the constants of the projection of queries, which are settings of ours.
GATE: Table = {
    "gate.0.weight": Name("gate_hidden dim", ".gate.W_in"),
    "gate.2.weight": Name("1 gate_hidden", ".gate.W_out"),
}
PROJECTION: Table = {
    "decay_weights": Name("context"),
    "m_persistent": Name("dim dim"),
    "norm_persistent": Name(""),
}


def halves(prefix: str, field: str) -> Table:
    """The matrices of a feed-forward: w1, then w2 are the rows of one."""
    return {
        f"{prefix}w1.weight": Name("inner dim", f"{field}.W_in"),
        f"{prefix}w2.weight": Name("inner dim", f"{field}.W_in"),
        f"{prefix}w3.weight": Name("dim inner", f"{field}.W_out"),
    }


#: Queries, keys and values of attention, which its memory shares.
QKV: Table = {
    **{f"w_{each}.weight": Name("dim dim", ".W_qkv") for each in "qkv"},
    **{f"{each}_norm.weight": Name("dim_head", f".{each}_norm.weight") for each in "qk"},
}

#: A block of attention and feed-forward.
ATTENTION_BLOCK: Table = {
    "norm1.weight": Name("dim", ".attention.norm.weight"),
    "norm2.weight": Name("dim", ".feed_forward.norm.weight"),
    **under(QKV, "qkv.", ".attention"),
    "w_o.weight": Name("dim dim", ".attention.W_out"),
    **halves("ffn.", ".feed_forward"),
}


def _with_memory(table: Table) -> Table:
    """A table that blocks with a memory have."""
    return {name: each._replace(when=each.when or "has_memory") for name, each in table.items()}


#: A block, with a memory where the settings have one.
BLOCK: Table = {
    **ATTENTION_BLOCK,
    **_with_memory(under(GATE, "gamma_gate.", ".memory")),
    **_with_memory(under(MEMORY, "memory.", ".memory")),
}
BUFFERS: Table = {
    **_with_memory(under(PROJECTION, "qk_memory.")),
    **_with_memory(under(MOMENTA, "memory.")),
}

#: Tensors of a language model around its blocks; the head is the embedding.
MODEL: Table = {
    "tok_emb.weight": Name("vocab dim", ".embedding"),
    "w_init": Name("dim", ".embedding_bias"),
    "norm_f.weight": Name("dim", ".norm.weight"),
}
HEAD: Table = {"lm_head.weight": Name("vocab dim", copy_of="tok_emb.weight")}


def sizes(s: Settings) -> dict[str, int]:
    """The length of each axis of a public tensor, by the word for it (MODEL-14)."""
    return {
        "vocab": s.vocab_size,
        "dim": s.dim,
        "dim_head": s.d_head,
        "inner": feed_forward.inner(s.dim, s.memory_expansion),
        "hidden": s.d_head * s.memory_expansion,
        "features": s.features,
        "rank": s.rank or 0,
        "inputs": s.features if s.rank is None else s.rank,
        "gate_hidden": s.gate_hidden,
        "context": s.omega_context_window,
    }


def block(s: Settings) -> Table:
    """Parameters of a block (MODEL-14)."""
    return _present(BLOCK, s)


def buffers(s: Settings) -> Table:
    """Buffers of a block: constants of the projection, momenta of the memory (MAG-6)."""
    return _present(BUFFERS, s)


def _present(table: Table, s: Settings) -> Table:
    """Rows that settings have; those of a part of the memory need the memory too."""
    own = rows(table, s)
    if s.has_memory:
        return own
    return {name: each for name, each in own.items() if name in ATTENTION_BLOCK}


def model(s: Settings) -> Table:
    """Parameters of a language model (MODEL-14)."""
    return MODEL | repeated(under(block(s), "blocks.{i}.", ".blocks[{i}]"), s.n_layers)


def state_dict(s: Settings) -> Table:
    """Every tensor of a state_dict: parameters, buffers, and the head, which may be missing."""
    return model(s) | repeated(under(buffers(s), "blocks.{i}."), s.n_layers) | HEAD


def shapes(settings: Settings) -> dict[str, tuple[int, ...]]:
    """Every parameter of the public state_dict, by its name (MODEL-14).

    The head is the embedding and stands here once; constants and momenta are no parameters.
    """
    own = sizes(settings)
    return {name: shape(each.axes, own) for name, each in model(settings).items()}


def count(settings: Settings) -> int:
    """Number of trained parameters (MODEL-14)."""
    return sum(map(math.prod, shapes(settings).values()))
