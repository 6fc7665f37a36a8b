"""Configurations of TNT with random inputs, for the package and for the loops; no truth of its own."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from atlas_ref import forms
from atlas_ref.forms import tnt
from atlas_ref.rules import delta, hebbian, omega, titans_lmm
from atlas_ref.rules.sequence import Tokens
from tape import ops
from tests.truth import tnt_loops as loops

Arrays = dict[str, Any]

T, C_G, SPANS, SHARDS = 23, 5, (3, 4, 1), (7, 10, 6)
D_IN, D_OUT = 5, 4
MODULES: dict[str, Any] = {
    "titans_lmm": titans_lmm,
    "delta": delta,
    "omega": omega,
    "hebbian": hebbian,
}
GATES = {
    "titans_lmm": ("retain", "momentum", "step_size"),
    "delta": ("retain", "step_size"),
    "omega": ("retain", "momentum", "step_size", "window_weights"),
    "hebbian": ("retain",),
}
WINDOW = 3


class Setup(NamedTuple):
    """A TNT with its inputs as one nest of arrays, so that gradients are taken of all of them.

    Attributes:
        leaves: {"tokens": [by name, one of all memories or one each], "first": [V_0, W_init, ...]};
            "gates", of all memories or one each, "S" and "W_QK" of local ones where they are needed.
    """

    config: tnt.Config
    leaves: Arrays

    def params(self, leaves: Arrays | None = None) -> tnt.Params:
        leaves = self.leaves if leaves is None else leaves
        made = [{"M": M} for M in leaves["first"]]
        for name in ("S", "W_QK"):
            for place, value in zip(self.local_places, leaves.get(name, []), strict=False):
                made[place][name] = value
        if "global_W_QK" in leaves:
            made[0]["W_QK"] = leaves["global_W_QK"]
        return tnt.Params(memories=tuple(tnt.Initial(**each) for each in made))

    @property
    def local_places(self) -> range:
        """Numbers of the local memories."""
        count = len(self.config.memories)
        return range(count - len(self.config.local_memories), count)

    def tokens(self, leaves: Arrays | None = None) -> Any:
        each = (self.leaves if leaves is None else leaves)["tokens"]
        made = tuple(Tokens(**named) for named in each)
        return made[0] if len(made) == 1 else made

    def gates(self, leaves: Arrays | None = None) -> Any:
        each = (self.leaves if leaves is None else leaves).get("gates", [])
        made = tuple(tnt.Gates(**named) for named in each)
        return None if not made else made[0] if len(made) == 1 else made

    def run(self, leaves: Arrays | None = None) -> tuple[tnt.State, Any]:
        leaves = self.leaves if leaves is None else leaves
        params = self.params(leaves)
        leading = leaves["tokens"][0]["k"].shape[:-2]
        start = tnt.start(self.config, params, leading, dtype=leaves["tokens"][0]["k"].dtype)
        return tnt.run(self.config, params, self.tokens(leaves), start, self.gates(leaves))

    def memories(self, leaves: Arrays | None = None) -> list[loops.Memory]:
        """The same for the loops."""
        leaves = self.leaves if leaves is None else leaves
        found = []
        for i, memory in enumerate(self.config.memories):
            named = dict(leaves["tokens"][i if len(leaves["tokens"]) > 1 else 0])
            named["weights"] = named.pop("window_weights", None)
            gates = leaves.get("gates", [])
            if gates:
                own = gates[i if len(gates) > 1 else 0]
                named |= {f"{name}_gate": value for name, value in own.items()}
            shard = None if isinstance(memory, tnt.Global) else memory.shard
            S0 = leaves["S"][i - self.local_places[0]] if shard and "S" in leaves else None
            found.append(
                loops.Memory(loops.Inputs(**named), leaves["first"][i], memory.span, shard, S0)
            )
        return found


def rule_config(rule: str, *, d_in: int = D_IN, **convention: Any) -> Any:
    """Settings of a rule with given gates."""
    sizes: dict[str, Any] = {"d_in": d_in, "d_out": D_OUT}
    if rule == "omega":
        sizes["window"] = WINDOW
        convention = {"newton_schulz": "none", **convention}
    return MODULES[rule].Config(**sizes, convention={"gate": "retain", **convention})


def drawn_tokens(
    rule: str, random: Any, *, tokens: int = T, gated: bool = True, d_in: int = D_IN
) -> Arrays:
    """Keys, values, queries and gates of a rule."""
    named: Arrays = {
        "k": random.standard_normal((tokens, d_in)) / np.sqrt(d_in),
        "v": random.standard_normal((tokens, D_OUT)),
        "q": random.standard_normal((tokens, d_in)),
    }
    ranges = {"retain": (0.7, 0.99), "momentum": (0.2, 0.8), "step_size": (0.1, 0.5)}
    for gate in GATES[rule]:
        if gate == "window_weights":
            named[gate] = random.uniform(0.5, 1.5, (tokens, WINDOW)) / WINDOW
        elif gated or gate == "step_size":
            named[gate] = random.uniform(*ranges[gate], tokens)
    return named


def setup(
    rule: str = "titans_lmm",
    locals_: int = 3,
    *,
    seed: int = 0,
    tokens: int = T,
    each: bool = False,
    has_global: bool = True,
    span: int = C_G,
    spans: tuple[int, ...] = SPANS,
    shards: tuple[int, ...] = SHARDS,
    of_global: Arrays | None = None,
    of_local: Arrays | None = None,
    gated: bool = True,
    origin: Any = 0,
    combine: Any = "sum",
    **convention: Any,
) -> Setup:
    """A TNT of one rule, with random inputs; `each` gives every memory inputs of its own."""
    random = np.random.default_rng(seed)
    config = rule_config(rule, **({} if gated else {"gate": "none"}), **convention)
    made = tnt.Config(
        global_memory=tnt.Global(config=config, span=span, **(of_global or {}))
        if has_global
        else None,
        local_memories=tuple(
            tnt.Local(config=config, span=C, shard=S, **(of_local or {}))
            for C, S in zip(spans[:locals_], shards[:locals_], strict=True)
        ),
        origin=origin,
        combine=combine,
    )
    count = len(made.memories)
    leaves = {
        "tokens": [
            drawn_tokens(rule, random, tokens=tokens, gated=gated)
            for _ in range(count if each else 1)
        ],
        "first": [0.5 * random.standard_normal((D_OUT, D_IN)) for _ in range(count)],
    }
    return Setup(made, leaves)


def cut(leaves: Arrays, first: int, last: int) -> Arrays:
    """The same with tokens first to last."""
    gates = [
        {name: x[first:last] for name, x in named.items()} for named in leaves.get("gates", [])
    ]
    return {
        **leaves,
        **({"gates": gates} if gates else {}),
        "tokens": [
            {name: x[first:last] for name, x in named.items()} for named in leaves["tokens"]
        ],
    }


# -- the sum of ordinary runs ----------------------------------------------------------------------


def ordinary(
    setting: Setup,
    leaves: Arrays | None = None,
    *,
    of_global: Arrays | None = None,
    of_local: Arrays | None = None,
    longer_global: int = 0,
    longer_local: int = 0,
    resets: bool = True,
    form: str = "sequential",
) -> Any:
    """Reads of N + 1 runs of the rule over the whole sequence, resets by mask, added.

    Args:
        of_global, of_local: axes of the convention that differ from the table of the spec.
        longer_global, longer_local: tokens added to their spans.
    """
    leaves = setting.leaves if leaves is None else leaves
    total: Any = 0
    for i, memory in enumerate(setting.config.memories):
        named = dict(leaves["tokens"][i if len(leaves["tokens"]) > 1 else 0])
        count, axes = named["k"].shape[-2], {"reference": "chunk_start"}
        if isinstance(memory, tnt.Global):
            span, reset = memory.span + longer_global, None
            axes |= {"read": "chunk_start"} | (of_global or {})
        else:
            span = memory.span + longer_local
            reset = np.arange(count) % memory.shard == 0 if resets else None
            axes |= {"read": "after"} | (of_local or {})
            named["q"] = projected_rows(named["k"], named["q"], memory.span, memory.shard)
        config = memory.config
        fields = {name: getattr(config, name) for name in type(config).model_fields}
        fields |= {"span": span, "convention": config.convention.replaced(**axes)}
        config = type(config)(**fields)
        rule = memory.rule
        state = rule.start(config, (), dtype=named["k"].dtype, M=leaves["first"][i])
        total = total + forms.run(rule, config, Tokens(**named, reset=reset), state, form=form)[1]
    return total


def projected_rows(k: Any, q: Any, span: int, shard: int) -> Any:
    """P q of every token by range chunk, key by key, in ops of the tape."""
    rows = []
    for t in range(k.shape[0]):
        first = t - t % shard % span
        K = k[first : t + 1]
        scores = ops.sum(K * q[t], axis=-1) / ops.sum(K * K, axis=-1)
        rows.append(ops.sum(ops.expand_dims(scores, -1) * K, axis=0))
    return ops.stack(rows, axis=0)
