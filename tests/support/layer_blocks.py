"""Memory layers and blocks of every kind and reading, for the properties of layers."""

from __future__ import annotations

from typing import Any

from atlas_ref.blocks import lmm, mac, mag, mal
from atlas_ref.layers import convention
from atlas_ref.levels.level import Level
from tests.support.layers import Layer
from tests.support.memories import MEMORIES, layer, levels, rule

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
    "mag tokens before": Layer(mag, block(mag, persistent_kind="prepended"), before=2),
    "mag tokens before, window": Layer(
        mag,
        block(mag, persistent_kind="prepended", persistent_visible="window", window=5),
        before=2,
    ),
    "mag tokens before, no memory": Layer(
        mag, block(mag, persistent_kind="prepended").replaced(memory=None)
    ),
    "mag without memory": Layer(mag, block(mag).replaced(memory=None)),
    "mal": Layer(mal, block(mal)),
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
    "lmm memory alone": Layer(lmm, block(lmm).replaced(feed_forward=None)),
    "lmm without memory": Layer(lmm, block(lmm).replaced(memory=None)),
    "mac": Layer(mac, block(mac)),
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
