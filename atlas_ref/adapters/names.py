"""Names by which kernels of the linear family are known, and the arguments that each has.

NumPy alone, and nothing of atlas_ref.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Signature(NamedTuple):
    """What functions of one name take.

    Attributes:
        member: of specs/dplr_cases.md, what they compute.
        tensors: of a case, that every one of them takes beside q, k and v.
        called: tensor -> names of its argument, where they are not those of the layout.
        channels: whether a gate has one number for each key channel.
        settings: parameters of a case that they compute where the member has another.
        options: further arguments, handed over where a function has them.
        source: where the name comes from.
    """

    member: str
    tensors: tuple[str, ...] = ()
    called: Mapping[str, tuple[str, ...]] = {}
    channels: bool = True
    settings: Mapping[str, Any] = {}
    options: Mapping[str, Any] = {}
    source: str = "fla"


class Layout(NamedTuple):
    """How a library calls its tensors, and how they lie.

    Attributes:
        called: tensor -> names of its argument; `retain` and `log_retain` are one gate.
        state: axes of a state behind (B, H).
        flat: whether tensors of tokens are (B, T, H D).
        unscaled: whether a function without an argument for it has no scale of reads.
    """

    called: Mapping[str, tuple[str, ...]]
    state: str = "(d_in, d_out)"
    flat: bool = False
    unscaled: bool = False


GATES = ("log_retain", "retain")

#: Tensors and parameters that a function may do without.
OPTIONAL = ("M0", "cu_seqlens", "query_scale")

_PAIRS = {"alpha": ("a", "alpha"), "beta": ("b", "beta")}
_OF_W = {"log_retain": ("w",), "retain": ("w",)}
_GATED = Signature("gated_delta", ("gate", "beta"), channels=False)
_NORMED = {"use_qk_l2norm_in_kernel": True}
_COMBA = Signature("comba_decay_after_erase", ("gate", "beta", "erase_key"), channels=False)
_RWKV7 = Signature("rwkv7", ("gate", "kk", "a"), _OF_W)

#: Name -> what functions of it take; where there are several, their arguments decide.
SIGNATURES: dict[str, tuple[Signature, ...]] = {
    "gated_delta": (_GATED,),
    "kda": (_GATED._replace(member="kda", channels=True),),
    "delta": (Signature("delta", ("beta",)),),
    "gla": (Signature("gla", ("gate",)),),
    "simple_gla": (Signature("simple_gla", ("gate",), channels=False),),
    "retention": (Signature("retention"),),
    "linear_attn": (Signature("linear_attn"),),
    "rwkv6": (Signature("rwkv6", ("gate", "bonus"), _OF_W),),
    "rwkv7": (
        _RWKV7,
        Signature(
            "dplr", ("gate", "alpha", "beta"), {**_OF_W, **_PAIRS}, settings={"query_scale": 1}
        ),
    ),
    "gdn2": (Signature("gdn2", ("gate", "erase_gate", "write_gate")),),
    "gated_delta_product": (
        _GATED._replace(member="gated_delta_product", tensors=("gate", "beta", "steps")),
    ),
    "comba": (_COMBA,),
    "comba_decay_after_erase": (_COMBA,),
    "comba_decay_before_erase": (_COMBA._replace(member="comba_decay_before_erase"),),
    "iplr": (Signature("iplr", ("alpha", "beta"), _PAIRS),),
    "dplr": (Signature("dplr", ("gate", "alpha", "beta"), _PAIRS),),
    "qwen3_next": (_GATED._replace(member="qwen3_next", options=_NORMED),),
    "kimi_linear": (_GATED._replace(member="kimi_linear", channels=True, options=_NORMED),),
}

#: Name -> others for it.
ALIASES: dict[str, tuple[str, ...]] = {
    "gated_delta": ("gdn", "gated_delta_rule", "gated_delta_net", "gated_deltanet"),
    "kda": ("kimi_delta_attention",),
    "delta": ("deltanet", "delta_net", "delta_rule"),
    "gla": ("gated_linear_attention",),
    "simple_gla": ("simple_gated_linear_attention",),
    "retention": ("retnet",),
    "linear_attn": ("linear_attention",),
    "rwkv6": ("wkv6", "rwkv_6"),
    "rwkv7": ("wkv7", "rwkv_7"),
    "gdn2": ("gated_deltanet_2", "gated_delta_2"),
    "gated_delta_product": ("gated_deltaproduct", "gdp"),
    "comba": ("comba_rule",),
    "qwen3_next": ("qwen3next",),
    "kimi_linear": ("kimilinear",),
}

#: Names that people look for, and what to write, where there is no member of that name.
ELSEWHERE: dict[str, str] = dict.fromkeys(
    ("mamba", "mamba2", "mamba_2", "ssd"),
    "Mamba-2 is gated linear attention with q = C, k = B, v = dt x and the log gate dt A of a "
    "head, without a scale: write simple_gla",
)

_QKV = {"q": ("q",), "k": ("k",), "v": ("v",), "beta": ("beta",)}
_MORE = {
    "erase_key": ("p",),
    "erase_gate": ("b",),
    "write_gate": ("w",),
    "bonus": ("u",),
    "kk": ("kk",),
    "a": ("a",),
    "alpha": ("a", "alpha"),
    "steps": ("num_householder",),
    "query_scale": ("scale",),
    "cu_seqlens": ("cu_seqlens",),
}
_LOG, _STATE = {"log_retain": ("g", "gk")}, {"M0": ("state", "initial_state", "S0", "h0")}
_WORDS = {"q": ("query",), "k": ("key",), "v": ("value",), "beta": ("beta",)}

#: Library -> its layout; the first that knows all arguments of a function is taken.
LAYOUTS: dict[str, Layout] = {
    "fla": Layout({**_QKV, **_LOG, **_MORE, "q": ("q", "r"), "M0": ("initial_state", "h0")}),
    "transformers": Layout({**_WORDS, **_LOG, **_MORE, "M0": ("initial_state",)}),
    "mlx": Layout(
        {**_QKV, **_MORE, **_STATE, "retain": ("g", "gate", "decay")},
        state="(d_out, d_in)",
        unscaled=True,  # mlx-lm scales queries in front of its functions
    ),
    "ggml": Layout({**_QKV, **_LOG, **_MORE, **_STATE}, state="(d_out, d_in)"),
    "rwkv": Layout(
        {**_QKV, **_MORE, **_STATE, "q": ("r", "q"), "retain": ("g",)}, state="(d_out, d_in)"
    ),
    "onnx": Layout(
        {
            **_WORDS,
            "log_retain": ("decay",),
            "M0": ("past_state",),
            "query_scale": ("scale",),
        },
        flat=True,
    ),
}

#: Arguments that say how a function is called, handed over where it has them.
OPTIONS: dict[str, Any] = {
    "output_final_state": True,
    "use_qk_l2norm_in_kernel": False,
    "normalize": False,
    "head_first": False,
}

#: The same, where a function does not do without them.
NEEDED: dict[str, Any] = {"chunk_size": 16, "cu_seqlens": None, "BT": 16}


def plain(name: str) -> str:
    """A name or an alias as the name itself; what is neither stays, with _ for - and blanks."""
    written = name.lower().replace("-", "_").replace(" ", "_")
    joined = written.replace("_", "")
    for own in SIGNATURES:
        if any(joined == each.replace("_", "") for each in (own, *ALIASES.get(own, ()))):
            return own
    return written


def known() -> list[str]:
    """Every name and alias."""
    return sorted({*SIGNATURES, *(each for others in ALIASES.values() for each in others)})
