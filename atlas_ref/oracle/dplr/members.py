"""Members of the linear family by the tensors that their code has (DPLRCASE-3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from atlas_ref.types import Array
from tape import ops

#: One gate a head, (L, T), or one for each key channel, (L, T, d_in).
Gate = Literal["head", "channel"]

#: How the vectors of an erase come from tensors.
Erase = Literal["none", "given", "error", "gates", "alpha", "kk", "momentum"]


class Member(NamedTuple):
    """One member of the family (DPLRCASE-3).

    Attributes:
        source: code that it is taken from.
        decay, query_scale, norm: values of parameters that a case leaves out.
        erase: which formula gives erase and value; tensors of it are in `NEEDS`.
        read: tensor that the erase reads under `error` and `momentum`.
        gated: whether it has a gate; `heads` for one fixed number a head.
        gate: what its code has one for: each head, in logs, or each key channel (DPLR-8).
        bonus: whether it reads before the write.
        second: state beside the memory: z of DPLR-19, A of DPLR-20, S of DPLR-21.
        floor: least length that a norm divides by; 0 for eps under the root.
    """

    source: str
    decay: Literal["after_error", "before_error"] = "after_error"
    query_scale: Any = "1/sqrt(d_in)"
    norm: str = "none"
    erase: Erase = "none"
    read: str = "in/k"
    gated: bool | Literal["heads"] = False
    gate: Gate = "channel"
    bonus: bool = False
    second: Literal["", "z", "A", "S"] = ""
    floor: float = 0.0


_FLA = "fla-core 0.6.0, ops/"

#: No member: the tensors are those of the rule.
RULE = Member("DPLR-2", query_scale=1, erase="given", gated=True, bonus=True)

_KDA = Member(f"{_FLA}kda/naive.py", "before_error", erase="error", gated=True)
_GATED_DELTA = _KDA._replace(source=f"{_FLA}gated_delta_rule/naive.py", gate="head")

_ROWS: tuple[tuple[str, Member], ...] = (
    ("linear_attn", Member(f"{_FLA}linear_attn/naive.py")),
    ("retention", Member(f"{_FLA}retention/naive.py", gated="heads")),
    ("simple_gla", Member(f"{_FLA}simple_gla/naive.py", gated=True, gate="head")),
    ("gla", Member(f"{_FLA}gla/naive.py", gated=True)),
    ("rwkv6", Member(f"{_FLA}rwkv6/recurrent_naive.py", gated=True, bonus=True)),
    ("rwkv7", Member(f"{_FLA}rwkv7", query_scale=1, erase="kk", gated=True)),
    ("delta", Member(f"{_FLA}delta_rule/naive.py", erase="error")),
    ("gated_delta", _GATED_DELTA),
    ("kda", _KDA),
    ("gdn2", Member(f"{_FLA}gdn2/naive.py", "before_error", erase="gates", gated=True)),
    ("gated_delta_product", _GATED_DELTA._replace(source=f"{_FLA}gated_delta_product/naive.py")),
    (
        "comba_decay_after_erase",
        _GATED_DELTA._replace(
            source=f"{_FLA}comba/naive.py, chunk", decay="after_error", read="in/erase_key"
        ),
    ),
    (
        "comba_decay_before_erase",
        _GATED_DELTA._replace(source=f"{_FLA}comba/naive.py, recurrent", read="in/erase_key"),
    ),
    ("iplr", Member(f"{_FLA}generalized_delta_rule/iplr/naive.py", erase="alpha")),
    ("dplr", Member(f"{_FLA}generalized_delta_rule/dplr/naive.py", erase="alpha", gated=True)),
    ("qwen3_next", _GATED_DELTA._replace(source="transformers 5.23.0, qwen3_next", norm="l2")),
    ("kimi_linear", _KDA._replace(source="transformers 5.23.0, kimi_linear", norm="l2")),
    ("linear_attn_normalized", Member(f"{_FLA}linear_attn/naive.py, normalize", second="z")),
    ("precond_kda", _KDA._replace(source=f"{_FLA}precond_kda/naive.py", second="A")),
    (
        "precond_gated_delta",
        _GATED_DELTA._replace(
            source=f"{_FLA}precond_gated_delta_rule/naive.py", norm="l2", second="A", floor=1e-12
        ),
    ),
    (
        "momentum_delta",
        Member(
            f"{_FLA}momentum_delta_rule/naive.py",
            erase="momentum",
            read="in/erase_key",
            gated=True,
            gate="head",
            second="S",
        ),
    ),
)

#: Name of a member -> its row.
MEMBERS: dict[str, Member] = dict(_ROWS)

#: Tensors of each formula of an erase beside those of every case.
NEEDS: dict[str, tuple[str, ...]] = {
    "none": (),
    "given": (),
    "error": ("in/beta",),
    "gates": ("in/erase_gate", "in/write_gate"),
    "alpha": ("in/alpha", "in/beta"),
    "kk": ("in/kk", "in/a"),
    "momentum": ("in/beta", "in/eta", "in/log_momentum"),
}


#: Tensors that weigh an erase or a write, by the formula of the erase.
RATES: dict[str, tuple[str, ...]] = {
    "error": ("beta",),
    "gates": ("erase_gate", "write_gate"),
    "kk": ("a",),
    "momentum": ("beta", "eta"),
}

#: Tensors of a state beside the memory: before the first token, and the cotangent of the last.
SECOND: dict[str, tuple[str, ...]] = {
    "": (),
    "z": ("in/z0", "in/z_bar"),
    "A": ("in/A0", "in/A_bar"),
    "S": ("in/S0", "in/S_bar"),
}

#: Tensors that a state beside the memory is made of, which its members need.
MADE_OF: dict[str, tuple[str, ...]] = {"A": ("in/log_retain_precond", "in/beta_precond")}

#: States that are sums of what is positive.
POSITIVE = ("in/z0", "in/A0")

#: Name of the preconditioned keys, which are no tensor of a case (DPLR-20).
WRITTEN = "written key"


def of(name: str | None) -> Member:
    """The member of this name; the rule itself for None."""
    return RULE if name is None else MEMBERS[name]


def tokens(member: Member, x: Mapping[str, Array], wide: Any) -> dict[str, Array]:
    """Value and vectors of the erase, as fields of the rule's tokens (DPLRCASE-3).

    Args:
        x: tensors by name, normalised keys among them, and `WRITTEN` where a pair is written along
            another key.
        wide: an array of key heads -> that of value heads.
    """
    v = x["in/v"]
    if member.erase == "given":
        pair = {n: x[f"in/{n}"] for n in ("erase_read", "erase_write") if f"in/{n}" in x}
        if "in/erase_scale" in x:
            pair["erase_scale"] = x["in/erase_scale"]
        return {"v": v, **pair}
    if member.erase == "error":
        k, asked = wide(x.get(WRITTEN, x["in/k"])), wide(x["in/k"])
        read = asked if member.read == "in/k" else x[member.read]
        if by_row(member, x):
            rate = x["in/beta"]
            return {"v": rate * v, "erase_read": read, "erase_write": k, "erase_scale": rate}
        rate = ops.expand_dims(x["in/beta"], -1)
        return {"v": rate * v, "erase_read": read, "erase_write": rate * k}
    if member.erase == "gates":
        k = wide(x["in/k"])
        return {"v": x["in/write_gate"] * v, "erase_read": x["in/erase_gate"] * k, "erase_write": k}
    if member.erase == "alpha":
        return {"v": v, "erase_read": -x["in/alpha"], "erase_write": x["in/beta"]}
    if member.erase == "kk":
        return {"v": v, "erase_read": x["in/kk"], "erase_write": x["in/kk"] * x["in/a"]}
    return {"v": v}


def by_row(member: Member, x: Mapping[str, Array]) -> bool:
    """Whether the erase has a factor for each row of the memory (DPLR-18, DPLRCASE-3)."""
    if member.erase == "error":
        rate = x["in/beta"] if "in/beta" in x else x["in/beta_input"]
        return len(rate.shape) == len(x["in/v"].shape)
    return "in/erase_scale" in x


def of_heads(v: Array, T: int) -> Array:
    """Gates 1 - 2^(-5 - h) of retention, h the last leading axis, (L, T)."""
    heads = v.shape[-3] if len(v.shape) > 2 else 1
    gates = 1.0 - 2.0 ** (-5.0 - np.arange(heads))
    wide = gates[:, None] if len(v.shape) > 2 else gates
    return ops.zeros_like(v, shape=(*v.shape[:-2], T)) + wide.astype(v.dtype)
