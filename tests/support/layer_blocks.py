"""Memory layers and blocks of every kind and reading, for the properties of layers."""

from __future__ import annotations

from typing import Any

from atlas_ref.blocks import lmm, mac, mag, mal
from atlas_ref.layers import convention, norm, query_key, rotary, shared_memory
from atlas_ref.levels.level import Level
from atlas_ref.parts.memory_functions import MemoryFunction
from tests.support.layers import Layer
from tests.support.memories import MEMORIES, POLYNOMIAL, layer, levels, rule, tnt_of

SIZES: dict[str, Any] = {"d_model": 6, "heads": 2, "d_head": 4, "persistent": 2, "d_inner": 5}


def block(module: Any, readings: Any = "causal", own: Any = None, **settings: Any) -> Any:
    """Settings of a block around a memory layer of the delta rule, unless another is given."""
    sizes = {name: settings.pop(name, size) for name, size in SIZES.items()}
    extra = {
        name: settings.pop(name) for name in ("window", "segment", "longterm") if name in settings
    }
    c = convention.resolve({"preset": readings, **settings})
    if own is None:
        own = layer(rule("delta"), readings if readings != "atlas-rnn" else "causal")
    if module is lmm:
        return lmm.configured(c, own, d_model=sizes["d_model"], d_inner=sizes["d_inner"])
    if module is mac:
        return mac.configured(c, own, **sizes, **{"segment": 4} | extra)
    return module.configured(c, own, **sizes, **{"window": 3} | extra)


def shared(preset: str = "causal", **changes: Any) -> shared_memory.Config:
    """A memory that shares attention, of a deep memory that the complex step can pass."""
    settings: dict[str, Any] = {"memory": MemoryFunction(**POLYNOMIAL), "window": 3}
    settings |= {"gate_hidden": 3} if preset == "atlas-mag" else {"gate_hidden": 3, "chunk": 2}
    return shared_memory.configured(preset, d_model=6, **settings | changes)


def of_rule(name: str, projection: Any, *, d_model: int = 6, **settings: Any) -> Any:
    """A memory of another rule that shares attention, with gates from tokens."""
    own = rule(name, d_model=d_model, **settings.pop("rule", {}))
    return shared_memory.Config(
        levels=levels(Level(config=own, period=settings.pop("period", 1))),
        projection=projection,
        **settings,
    )


def beside(memory: Any, **settings: Any) -> Any:
    """Settings of a MAG block whose memory shares its attention."""
    own = block(mag, mag=settings.pop("mag", "attention_times_gate"), d_head=2, heads=3)
    head_norm = norm.Config(kind="rms", d=2, eps=1e-6)
    attention = own.attention.replaced(head_norm=head_norm, rotary=rotary.Config(d=2))
    return mag.Config(**own.__dict__ | {"memory": memory, "attention": attention} | settings)


PROJECTION = query_key.Config(d=6, window=3, rows=2)
SHARED: dict[str, Layer] = {
    "mag shared": Layer(mag, beside(shared())),
    "mag shared heads": Layer(
        mag,
        beside(
            shared(
                heads=2,
                memory=MemoryFunction(kind="mlp", activation="gelu_tanh"),
                newton_schulz="none",
                loss_output="with_residual",
                window_weights="gate",
                keys_seen="inclusive",
                persistent="identity",
            ),
            mag="sum",
        ),
    ),
    "mag shared unprojected": Layer(
        mag,
        beside(
            shared(
                memory_input="q",
                write_key="h",
                projection_frame="unrotated",
                window_weights="decay",
                newton_schulz={"steps": 2},
                read="before",
            )
        ),
    ),
    "mag shared omega": Layer(
        mag,
        beside(
            of_rule("omega", PROJECTION, gate_hidden=2, write_key="q_projected", memory_input="h")
        ),
    ),
    "mag shared titans": Layer(
        mag,
        beside(
            of_rule(
                "titans_lmm",
                None,
                memory_input="q",
                gate_hidden=None,
                window_gate=False,
                momentum=False,
                step_size="softplus",
                period=2,
            )
        ),
    ),
}


def _mean_of_call() -> Layer:
    config = block(
        mac,
        mac_context="mean_of_call",
        attention_window="last_keys_of_call",
        persistent_visible="right_aligned",
        longterm=2,
    )
    return Layer(mac, config, causal=False, splits=False, documents=False)


BLOCKS: dict[str, Layer] = MEMORIES | {
    **{
        f"mag {kind}": Layer(mag, block(mag, mag=kind, mag_gate_input=of))
        for kind, of in (
            ("attention_times_gate", "x"),
            ("gate_mix", "norm"),
            ("product", "x"),
            ("sum", "x"),
        )
    },
    "mag titans": Layer(mag, block(mag, "titans", layer(rule("titans_lmm"), "titans")), before=2),
    "mag tnt": Layer(mag, block(mag, own=layer(tnt_of("delta")))),
    "mag tokens before": Layer(mag, block(mag, persistent_kind="prepended"), before=2),
    "mag tokens before, window": Layer(
        mag,
        block(mag, persistent_kind="prepended", persistent_visible="window", window=5),
        before=2,
    ),
    "mag tokens before, no memory": Layer(
        mag, block(mag, persistent_kind="prepended").replaced(memory=None)
    ),
    **SHARED,
    "mag without memory": Layer(mag, block(mag).replaced(memory=None)),
    "mal": Layer(mal, block(mal)),
    "mal tnt": Layer(mal, block(mal, own=layer(tnt_of("delta")))),
    "mal short": Layer(mal, block(mal, mal_order="memory_attention_ff", window=9)),
    "mal tokens before": Layer(
        mal, block(mal, persistent_kind="prepended", persistent=3), before=3
    ),
    "mal tokens before, window": Layer(
        mal,
        block(mal, persistent_kind="prepended", persistent_visible="window", window=4),
        before=2,
    ),
    "mal without memory": Layer(mal, block(mal).replaced(memory=None)),
    "lmm": Layer(lmm, block(lmm)),
    "lmm tnt": Layer(lmm, block(lmm, own=layer(tnt_of("titans_lmm")))),
    "lmm memory alone": Layer(lmm, block(lmm).replaced(feed_forward=None)),
    "lmm without memory": Layer(lmm, block(lmm).replaced(memory=None)),
    "mac": Layer(mac, block(mac)),
    "mac tnt": Layer(mac, block(mac, own=layer(tnt_of("delta")))),
    "mac tokens before": Layer(mac, block(mac, persistent_kind="prepended")),
    "mac product": Layer(mac, block(mac, mag="product", segment=3, persistent=0)),
    "mac levels masked": Layer(
        mac,
        block(
            mac,
            own=layer(
                levels(
                    Level(config=rule("delta")),
                    Level(config=rule("delta"), period=3),
                    combine="masked",
                )
            ),
        ),
    ),
    "mac mean of call": _mean_of_call(),
}
