"""Members of the linear family as settings of the rule dplr (DPLR-8), in ops that carry gradients."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from atlas_ref.parts.norms import normalised
from atlas_ref.rules import dplr, normalised_reads, preconditioned_keys
from tape import ops

RECORDED = Path(__file__).parents[1] / "data" / "peers_family"
Inputs = dict[str, Any]
Tokens = dict[str, Any]

#: Settings that every member has but those that say otherwise.
SCALED = {"query_scale": "1/sqrt(d_in)"}
BEFORE = {**SCALED, "decay": "before_error"}


def rows(x: Any) -> Any:
    """A number per token as a column beside its vector."""
    return ops.expand_dims(x, -1)


def wide(x: Inputs, name: str) -> Any:
    """An array of key heads for value heads."""
    return dplr.of_groups(x[name], x["v"].shape[1] // x[name].shape[1])


def plain(x: Inputs) -> Tokens:
    return {name: x[name] for name in ("k", "v", "q")}


def gated(x: Inputs) -> Tokens:
    return plain(x) | {"retain": ops.exp(x["log_decay"])}


def corrected(x: Inputs, read: str = "k") -> Tokens:
    """The delta step: erase what `read` finds along beta k, write beta v."""
    if len(x["beta"].shape) == len(x["v"].shape):  # one for each value
        erase = {"erase_read": wide(x, read), "erase_write": wide(x, "k")}
        return {"v": x["beta"] * x["v"], **erase, "erase_scale": x["beta"]}
    beta = rows(x["beta"])
    return {
        "v": beta * x["v"],
        "erase_read": wide(x, read),
        "erase_write": beta * wide(x, "k"),
    }


def normed(x: Inputs) -> Inputs:
    def unit(z: Any) -> Any:
        return z / ops.sqrt(ops.sum(z * z, axis=-1, keepdims=True) + 1e-6)

    return {**x, "k": unit(x["k"]), "q": unit(x["q"])}


def gdn2(x: Inputs) -> Tokens:
    erase = {"erase_read": x["erase_gate"] * x["k"], "erase_write": x["k"]}
    return gated(x) | erase | {"v": x["write_gate"] * x["v"]}


def iplr(x: Inputs) -> Tokens:
    return plain(x) | {"erase_read": -x["alpha"], "erase_write": x["beta"]}


def floored(x: Inputs) -> Inputs:
    return x | {n: normalised(x[n], "l2", eps=1e-12, guard="clamp") for n in ("k", "q")}


def with_squares(x: Inputs) -> preconditioned_keys.Keys:
    tokens = preconditioned_keys.Tokens(
        k=x["k"], log_retain=x["log_decay_precond"], step_size=x["beta_precond"]
    )
    return preconditioned_keys.run(tokens, preconditioned_keys.State(A=x["A0"]))


def preconditioned(x: Inputs) -> Tokens:
    """The delta step whose erase reads with k, and which writes along the preconditioned key."""
    key = with_squares(x).p
    along = rows(x["beta"]) * wide(x | {"k": key}, "k")
    return gated(x) | corrected(x) | {"k": key, "erase_write": along}


#: Member -> settings, tokens from inputs as the recorded files have them.
MEMBERS: dict[str, tuple[dict[str, Any], Callable[[Inputs], Tokens]]] = {
    "linear_attn": (SCALED, plain),
    "simple_gla": (SCALED, gated),
    "gla": (SCALED, gated),
    "rwkv6": (SCALED, lambda x: gated(x) | {"bonus": x["bonus"]}),
    "delta": (SCALED, lambda x: plain(x) | corrected(x)),
    "gated_delta": (BEFORE, lambda x: gated(x) | corrected(x)),
    "kda": (BEFORE, lambda x: gated(x) | corrected(x)),
    "kimi_linear": (BEFORE, lambda x: gated(normed(x)) | corrected(normed(x))),
    "gdn2": (BEFORE, gdn2),
    "gated_delta_product": (BEFORE, lambda x: gated(x) | corrected(x)),
    "comba_decay_before_erase": (BEFORE, lambda x: gated(x) | corrected(x, "erase_key")),
    "comba_decay_after_erase": (SCALED, lambda x: gated(x) | corrected(x, "erase_key")),
    "iplr": (SCALED, iplr),
    "dplr": (SCALED, lambda x: gated(x) | iplr(x)),
    "rwkv7": (
        {},
        lambda x: gated(x) | {"erase_read": x["kk"], "erase_write": x["kk"] * x["a"]},
    ),
    "linear_attn_normalized": (SCALED, plain),
    "precond_kda": (BEFORE, preconditioned),
    "precond_gated_delta": (BEFORE, lambda x: preconditioned(floored(x))),
}


def computed(
    member: str, x: Inputs, run: Callable[..., Any] = dplr.run, **settings: Any
) -> dict[str, Any]:
    """Results of a member, by the rule or one of its forms.

    They are y (B, HV, T, V), state (B, HV, K, V) and its other states.
    """
    axes, tokens = MEMBERS[member]
    k, v, q = x["k"], x["v"], x["q"]
    sizes = {
        "d_in": k.shape[-1],
        "d_out": v.shape[-1],
        "steps": v.shape[-2] // q.shape[-2],
        "groups": v.shape[1] // k.shape[1],
    }
    config, own = dplr.Config(**{**sizes, **axes, **settings}), dplr.Tokens(**tokens(x))
    M = ops.transpose(x["state0"])
    if "z0" in x:
        first = normalised_reads.State(M=M, z=x["z0"][..., 0, :])
        after, y = normalised_reads.run(config, own, first, run=run)
        return {"y": y, "state": ops.transpose(after.M), "z": after.z[..., None, :]}
    state, y = run(config, own, dplr.State(M=M))
    found = {"y": y, "state": ops.transpose(state.M)}
    if "A0" in x:
        keys = floored(x) if member == "precond_gated_delta" else x
        found["A"] = with_squares(keys).state.A
    return found


def recorded(file: Path) -> tuple[str, Inputs, Inputs, Inputs, Inputs]:
    """Member, inputs, cotangents, results and gradients of a recorded file, without their prefixes."""
    with safe_open(file, "np") as opened:
        member = json.loads(opened.metadata()["atlas_ref"])["parameters"]["member"]
        tensors = {name: np.asarray(opened.get_tensor(name)) for name in opened.keys()}  # noqa: SIM118
    parts: dict[str, Inputs] = {"in": {}, "out": {}, "grad": {}, "bar": {}}
    for name, value in tensors.items():
        kind, own = name.split("/")
        bar = own.endswith("_bar")
        parts["bar" if bar else kind][own.removesuffix("_bar")] = value
    return member, parts["in"], parts["bar"], parts["out"], parts["grad"]


def drawn(
    member: str, seed: int = 0, sizes: tuple[int, int, int] = (5, 4, 3), **changes: Any
) -> Inputs:
    """Inputs of a member as the recorded files have them: 2 sequences, 2 heads, and sizes T, K, V."""
    draw = np.random.default_rng(seed)
    lead, (T, K, V) = (2, 2), sizes
    n = 2 if member == "gated_delta_product" else 1
    channels = member in ("gla", "rwkv6", "kda", "kimi_linear", "gdn2", "dplr", "rwkv7")
    channels = channels or member == "precond_kda"
    vectors = member in ("iplr", "dplr")
    shapes = {
        "k": (*lead, T * n, K),
        "v": (*lead, T * n, V),
        "q": (*lead, T, K),
        "log_decay": (*lead, T, K) if channels else (*lead, T),
        "beta": (*lead, T * n, K) if vectors else (*lead, T * n),
        "bonus": (lead[1], K),
        "state0": (*lead, K, V),
        "z0": (*lead, 1, K),
        "A0": (*lead, K),
        **dict.fromkeys(("log_decay_precond", "beta_precond"), (*lead, T)),
        **dict.fromkeys(("erase_key", "erase_gate", "alpha", "kk", "a"), (*lead, T, K)),
        "write_gate": (*lead, T, V),
    }
    x = {name: 0.5 * draw.standard_normal(shape) for name, shape in shapes.items()}
    for name in ("log_decay", "log_decay_precond"):
        x[name] = -np.log1p(np.exp(2.0 * x[name]))
    x |= {name: np.abs(x[name]) for name in ("A0", "beta_precond")}
    if member == "linear_attn_normalized":  # features are positive, and so is what divides
        x |= {name: np.abs(x[name]) for name in ("k", "q", "z0")}
    return {name: x[name] for name in NEEDED[member]} | changes


_BASE = ("k", "v", "q", "state0")
_DELTA = (*_BASE, "log_decay", "beta")

_SQUARES = ("log_decay_precond", "beta_precond", "A0")

#: Inputs of each member.
NEEDED: dict[str, tuple[str, ...]] = {
    "linear_attn": _BASE,
    "simple_gla": (*_BASE, "log_decay"),
    "gla": (*_BASE, "log_decay"),
    "rwkv6": (*_BASE, "log_decay", "bonus"),
    "delta": (*_BASE, "beta"),
    "gated_delta": _DELTA,
    "kda": _DELTA,
    "kimi_linear": _DELTA,
    "gdn2": (*_BASE, "log_decay", "erase_gate", "write_gate"),
    "gated_delta_product": _DELTA,
    "comba_decay_before_erase": (*_DELTA, "erase_key"),
    "comba_decay_after_erase": (*_DELTA, "erase_key"),
    "iplr": (*_BASE, "alpha", "beta"),
    "dplr": (*_DELTA, "alpha"),
    "rwkv7": (*_BASE, "log_decay", "kk", "a"),
    "linear_attn_normalized": (*_BASE, "z0"),
    **dict.fromkeys(("precond_kda", "precond_gated_delta"), (*_DELTA, *_SQUARES)),
}


#: Every recorded file.
EVERY = sorted(RECORDED.glob("*.safetensors"))
#: qwen3_next and retention have no loop here; tests/oracle/subjects/test_dplr.py compares them.
#: Those of which the erase has a factor for each row, which the form sequential alone computes.
BY_ROW = [file for file in EVERY if "per_value" in file.stem]
NO_LOOP = ("qwen3_next", "retention")
#: momentum_delta is no setting of the rule dplr; tests/rules/test_momentum_delta.py computes it.
MOMENTUM = [file for file in EVERY if recorded(file)[0] == "momentum_delta"]
FILES = [f for f in EVERY if f not in MOMENTUM and recorded(f)[0] not in NO_LOOP]
