"""Memory layers of every rule, form, schedule and reading, for the properties of layers."""

from __future__ import annotations

from typing import Any

from atlas_ref.forms import tnt
from atlas_ref.layers import convention, memory, memory_tnt
from atlas_ref.levels import block
from atlas_ref.levels.level import Level
from atlas_ref.parts.feature_maps import Elementwise
from atlas_ref.parts.window import Decay, Gate, Ones, Product
from atlas_ref.rules import RULES, omega
from tests.support.layers import Layer

SIZES: dict[str, Any] = {"d_model": 6, "d_in": 3, "d_out": 3, "heads": 2}


PLAIN = {"newton_schulz": "none"}
#: Memory functions that the complex step can pass.
TANH = {"kind": "mlp", "activation": "gelu_tanh", "residual_norm": True}
POLYNOMIAL = {"kind": "polynomial", "key_width": 2, "activation": "gelu_tanh", "gated": True}


def rule(name: str, **settings: Any) -> Any:
    """Settings of a rule by name, small and without Newton-Schulz unless stated."""
    if name == "omega":
        settings = {"window": 3, "convention": {"newton_schulz": "none"}} | settings
    if name == "deep_memory":
        settings = {"memory": TANH, "chunk": 2, "window": 3, "convention": PLAIN} | settings
    return RULES[name].Config(**SIZES | settings)


def layer(levels: Any, readings: Any = "causal", *, kernel: int | None = 3, **settings: Any) -> Any:
    """Settings of a memory layer under readings."""
    own = {
        name: settings.pop(name)
        for name in ("momentum", "window_gate", "scan_chunk")
        if name in settings
    }
    c = convention.resolve({"preset": readings, **settings})
    return memory.configured(c, levels, kernel=kernel, **own)


def levels(*each: Level, **settings: Any) -> block.Config:
    """A schedule of levels."""
    return block.Config(levels=each, **settings)


FROZEN = {"newton_schulz": "none", "reference": "chunk_start"}
SCHEDULE = levels(
    Level(config=rule("delta"), period=1, form="exact"),
    Level(config=rule("titans_lmm"), period=2),
    Level(config=rule("omega", convention=FROZEN, span=3), period=4, form="chunkwise"),
)


def tnt_of(
    name: str,
    *,
    span: int | None = 5,
    spans: Any = (3, 1),
    shards: Any = (6, 4),
    params: Any = "shared",
    of_local: Any = None,
    of_global: Any = None,
    origin: Any = 0,
    **settings: Any,
) -> memory_tnt.Config:
    """Settings of a TNT of one rule in a layer; `span` None for no global memory."""
    own = rule(name, **settings)
    found = tnt.Config(
        global_memory=None
        if span is None
        else tnt.Global(config=own, span=span, **(of_global or {})),
        local_memories=tuple(
            tnt.Local(config=own, span=C, shard=S, **(of_local or {}))
            for C, S in zip(spans, shards, strict=True)
        ),
        origin=origin,
    )
    return memory_tnt.Config(tnt=found, params=params)


def projection(**axes: Any) -> dict[str, Any]:
    """Settings of local memories under a projection of their queries."""
    return {"projection": tnt.Projection(**axes)}


LEARNED = {"reset_momentum": "learned", **projection(kind="learned")}
NO_GATE = {"gate": "none"}
TNTS: dict[str, Layer] = {
    "memory tnt": Layer(memory, layer(tnt_of("titans_lmm"))),
    "memory tnt per memory": Layer(memory, layer(tnt_of("delta", params="per_memory"))),
    "memory tnt learned": Layer(
        memory, layer(tnt_of("titans_lmm", of_local=LEARNED, shards=(6, 3)), "titans")
    ),
    "memory tnt omega": Layer(
        memory,
        layer(
            tnt_of(
                "omega",
                of_local=projection(range="window", window=3, norm="sum_of_norms"),
                window_weights=Product(of=(Decay(), Gate())),
            ),
            window_gate=True,
        ),
    ),
    "memory tnt locals": Layer(
        memory,
        layer(
            tnt_of("delta", span=None, spans=(2,), shards=(4,), origin=1), gate_input="key_value"
        ),
    ),
    "memory tnt orthogonal": Layer(
        memory,
        layer(tnt_of("hebbian", of_local=projection(kind="orthogonal", range="shard"), span=2)),
    ),
    "memory tnt printed": Layer(
        memory,
        layer(
            tnt_of(
                "titans_lmm",
                of_global={"sum": "inclusive"},
                of_local={"base": "previous", "reset": "instead_of_write"},
                convention=NO_GATE,
            ),
            momentum=False,
        ),
    ),
    "memory tnt deep": Layer(
        memory, layer(tnt_of("deep_memory", spans=(2,), shards=(6,), span=4, params="per_memory"))
    ),
}

MEMORIES: dict[str, Layer] = TNTS | {
    **{f"memory {name}": Layer(memory, layer(rule(name))) for name in RULES},
    "memory titans exact": Layer(
        memory, layer(levels(Level(config=rule("titans_lmm"), form="exact")), step_size="softplus")
    ),
    "memory omega chunkwise": Layer(
        memory,
        layer(levels(Level(config=rule("omega", convention=FROZEN, span=4), form="chunkwise"))),
    ),
    "memory omega gate": Layer(
        memory,
        layer(
            rule("omega", window_weights=Product(of=(Decay(), Gate()))),
            window_gate=True,
            gate_input="key_value",
        ),
    ),
    "memory newton schulz": Layer(
        memory, layer(rule("omega", convention={"newton_schulz": {"steps": 2}}), kernel=None)
    ),
    "memory per dimension": Layer(
        memory, layer(rule("titans_lmm", per_dimension_gates=True), momentum=False)
    ),
    "memory feature map": Layer(
        memory, layer(rule("omega", feature_map=Elementwise(degree=2), window_weights=Ones()))
    ),
    "memory titans paper": Layer(memory, layer(rule("titans_lmm"), "titans", norm_eps=1e-5)),
    "memory deep gate": Layer(
        memory,
        layer(
            rule(
                "deep_memory",
                memory=POLYNOMIAL,
                fast="all",
                vectors="unit",
                window_weights=Product(of=(Decay(), Gate())),
            ),
            window_gate=True,
        ),
    ),
    "memory deep levels": Layer(
        memory,
        layer(
            levels(
                Level(config=rule("titans_lmm")),
                Level(config=rule("deep_memory", span=4, convention=FROZEN), period=2),
            )
        ),
    ),
    "memory levels": Layer(memory, layer(SCHEDULE)),
    "memory levels masked": Layer(
        memory,
        layer(
            levels(
                Level(config=rule("delta")), Level(config=rule("delta"), period=3), combine="masked"
            ),
            memory_input="x",
            head_norm="none",
        ),
    ),
    "memory centred": Layer(
        memory,
        layer(rule("delta"), kernel=4, conv_padding="centred", conv_state="zero_per_call"),
        causal=False,
        splits=False,
    ),
    "memory public": Layer(
        memory,
        layer(
            omega.Config(**SIZES, window=3, window_weights=Ones(), convention="atlas-rnn"),
            "atlas-rnn",
            kernel=4,
            window_gate=True,
            norm_eps=1e-6,
        ),
        causal=False,
        splits=False,
    ),
    "memory clamped": Layer(
        memory,
        layer(rule("delta"), state_clamp=0.05, scan_chunk=2),
        splits=False,
        documents=False,
    ),
}
