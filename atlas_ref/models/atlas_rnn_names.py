"""Names of atlas-rnn's tensors and the places of our parameters, as data.

Every tensor of a state_dict is a parameter of ours in another shape. Specified in
specs/language_model.md (MODEL-10).
"""

from __future__ import annotations

from atlas_ref.models.import_atlas_rnn import Settings
from atlas_ref.models.public.names import Name, Table, repeated, rows, under

#: A gate of a memory for each head, by the public module and ours.
_GATE: Table = {"0.weight": Name("heads dim", ".W"), "0.bias": Name("heads", ".b")}
_GATES = ".levels[0].projection.gates"


def _where(setting: str, table: Table) -> Table:
    """A table that settings have as a whole or not at all."""
    return {name: each._replace(when=setting) for name, each in table.items()}


#: Tensors of a memory layer.
MEMORY: Table = {
    "pre_norm.weight": Name("dim", ".norm.weight"),
    "q_conv.weight": Name("dim 1 kernel", ".levels[0].q_conv.weight", when="has_convolution"),
    "to_q.weight": Name("heads*dim_head dim", ".levels[0].projection.W_Q"),
    "q_norm.gamma": Name("heads 1 dim_head", ".levels[0].q_norm.weight", when="qk_norm"),
    "k_conv.weight": Name("dim 1 kernel", ".levels[0].k_conv.weight", when="has_convolution"),
    "to_k.weight": Name("heads*dim_head dim", ".levels[0].projection.W_K"),
    "k_norm.gamma": Name("heads 1 dim_head", ".levels[0].k_norm.weight", when="qk_norm"),
    "v_conv.weight": Name("dim 1 kernel", ".levels[0].v_conv.weight", when="has_convolution"),
    "to_v.weight": Name("heads*dim_head dim", ".levels[0].projection.W_V"),
    "to_out.weight": Name("dim heads*dim_head", ".W_out"),
    **under(_GATE, "to_lr.", f"{_GATES}.step_size"),
    **under(_GATE, "to_decay.", f"{_GATES}.retain"),
    **_where("use_momentum", under(_GATE, "to_momentum.", f"{_GATES}.momentum")),
    **_where("use_omega_gate", under(_GATE, "to_omega_gate.", ".levels[0].window_gate")),
    "phi.proj": Name(
        "dim_head+dim_head^2 dim_head",
        ".levels[0].projection.phi['proj']",
        trained=False,
        when="has_sketch",
    ),
}

#: A projection of degree 1 or less is in the state_dict, and nothing reads it.
MEMORY_CONSTANTS: Table = {
    "phi.proj": Name(
        "dim_head+dim_head^2 dim_head", when="has_unread_sketch", trained=False, unread=True
    )
}

#: Tensors of attention, and the frequencies of its positions, which are settings of ours.
ATTENTION: Table = {
    "norm.weight": Name("dim", ".norm.weight"),
    "to_qkv.weight": Name("3*heads*dim_head dim", ".W_qkv"),
    "to_out.weight": Name("dim heads*dim_head", ".W_out"),
    "persist_mem": Name(
        "heads num_persist_mem_tokens dim_head", ".persistent", when="num_persist_mem_tokens"
    ),
}
ATTENTION_CONSTANTS: Table = {"rotary_emb.freqs": Name("dim_head/2", low=0.0)}

#: Tensors of a feed-forward.
FEED_FORWARD: Table = {
    "0.weight": Name("dim", ".norm.weight"),
    "1.weight": Name("2*inner dim", ".W_in"),
    "1.bias": Name("2*inner", ".b_in"),
    "3.weight": Name("dim inner", ".W_out"),
    "3.bias": Name("dim", ".b_out"),
}

_MEMORY = under(MEMORY, "memory.", ".memory")
_ATTENTION = under(ATTENTION, "attention.", ".attention")
_FF = under(FEED_FORWARD, "ff.", ".feed_forward")

#: Tensors of a block, by its kind.
BLOCKS: dict[str, Table] = {
    "mag": {
        **_MEMORY,
        **_ATTENTION,
        "gate.0.weight": Name("dim dim", ".mix.W"),
        "gate.0.bias": Name("dim", ".mix.b"),
        **_FF,
    },
    "mal": {
        **_MEMORY,
        **_ATTENTION,
        **under(FEED_FORWARD, "ff_pre.", ".ff_pre"),
        **under(FEED_FORWARD, "ff_post.", ".ff_post"),
    },
    "mac": {
        **_MEMORY,
        **_ATTENTION,
        "mem_pool_norm.weight": Name("dim", ".pool_norm.weight"),
        "to_mem_tokens.weight": Name("dim dim", ".W_pool"),
        **_FF,
    },
    "lmm": {**_MEMORY, **_FF},
}

#: Constants of a block: of its memory, and of its attention where it has one.
_OF_MEMORY = under(MEMORY_CONSTANTS, "memory.")
_OF_ATTENTION = under(ATTENTION_CONSTANTS, "attention.")

#: Tensors of a language model around its blocks.
MODEL: Table = {
    "embed.weight": Name("vocab dim", ".embedding"),
    "to_logits.weight": Name("vocab dim", ".head"),
    "embed_norm.weight": Name("dim", ".embed_norm.weight"),
    "embed_norm.bias": Name("dim", ".embed_norm.bias"),
    "norm.weight": Name("dim", ".norm.weight"),
    "norm.bias": Name("dim", ".norm.bias"),
}


def sizes(s: Settings) -> dict[str, int]:
    """The length of each axis of a public tensor, by the word for it (MODEL-10)."""
    D, H, d, n = s.dim, s.heads, s.d_head, s.d_inner
    return {
        "dim": D,
        "heads": H,
        "dim_head": d,
        "heads*dim_head": H * d,
        "3*heads*dim_head": 3 * H * d,
        "dim_head/2": d // 2,
        "dim_head+dim_head^2": d + d * d,
        "inner": n,
        "2*inner": 2 * n,
        "kernel": s.qkv_conv_kernel or 1,
        "num_persist_mem_tokens": s.num_persist_mem_tokens,
        "vocab": s.vocab or 1,
        "omega_window-1": s.omega_window - 1,
    }


def memory(s: Settings, name: str = "cell.") -> Table:
    """Tensors of a memory layer, then its constants (MODEL-10)."""
    return under(rows(MEMORY, s) | rows(MEMORY_CONSTANTS, s), name)


def attention(s: Settings) -> Table:
    """Tensors of attention, then its constants (MODEL-10)."""
    return rows(ATTENTION | ATTENTION_CONSTANTS, s)


def block(s: Settings) -> Table:
    """Tensors of a block, then its constants (MODEL-10)."""
    return rows(BLOCKS[s.block_type], s) | rows(_constants(s), s)


def _constants(s: Settings) -> Table:
    return _OF_MEMORY | ({} if s.block_type == "lmm" else _OF_ATTENTION)


def model(s: Settings, *, memory_only: bool = False) -> Table:
    """Tensors of a language model, then the constants of each kind in every layer (MODEL-10).

    Args:
        memory_only: layers are memories alone, as the public training script of memories has them.
    """
    layer, place = "layers.{i}.", ".blocks[{i}]"
    if memory_only:
        its, constants = under(MEMORY, layer, f"{place}.memory"), under(MEMORY_CONSTANTS, layer)
    else:
        its, constants = under(BLOCKS[s.block_type], layer, place), under(_constants(s), layer)
    depth = s.depth or 1
    table = MODEL | repeated(rows(its, s), depth)
    for name, each in rows(constants, s).items():
        table |= repeated({name: each}, depth)
    return table
