"""Settings of a run from options: those that were given, over those of a run or the defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Name of an option's parameter -> its place among the settings of a run.
PLACES: dict[str, tuple[str, ...]] = {
    **{
        name: ("model", name)
        for name in (
            *("model", "rule", "preset", "dim", "layers", "heads", "d_head", "window"),
            *("persistent", "segment", "kernel", "omega_window", "omega_gate", "poly_mode"),
            *("poly_degree", "poly_rank", "expansion", "memory", "ns_steps", "ttl_step"),
            *("ttl_adaptive", "tnt_global_span", "tnt_local_spans", "tnt_shards", "tnt_params"),
            *("tnt_preset", "periods", "memory_mlp", "ttl", "ttl_momentum", "ttl_retain"),
            "context_window",
        )
    },
    **{
        name: ("text", name)
        for name in (
            *("paths", "only", "skip", "limit", "held_out", "share", "split_seed", "tokenizer"),
            *("mixture", "subsets", "weights"),
        )
    },
    "optimiser": ("optimiser", "name"),
    **{
        name: ("optimiser", name)
        for name in (
            *("rate", "hidden_rate", "decay", "clip", "schedule", "warmup", "floor"),
            "by_level",
        )
    },
    **{
        name: (name,)
        for name in (
            *("rows", "tokens", "accumulation", "steps", "seed", "state", "documents"),
            *("evaluate_every", "evaluate_batches", "save_every", "keep", "log_every"),
            *("begins_from", "learns"),
        )
    },
}

#: Defaults of public training scripts, by their names (TRAIN-16); what they leave to ours is not here.
DEFAULTS: dict[str, dict[str, Any]] = {
    "atlas-mag": {
        **{"model": "atlas-mag", "dim": 768, "layers": 12, "heads": 12, "window": 512},
        **{"poly_degree": 2, "poly_rank": 512, "ns_steps": 10, "ttl_step": 0.01},
        **{"ttl_adaptive": True, "rows": 8, "tokens": 2048, "accumulation": 1},
        **{"rate": 3e-4, "decay": 0.1, "clip": 1.0, "schedule": "cosine"},
        **{"save_every": 500, "log_every": 10},
    },
    "atlas-rnn": {
        **{"dim": 256, "layers": 4, "heads": 4, "d_head": 64, "window": 64},
        **{"rows": 16, "tokens": 256, "rate": 1e-3, "decay": 0.01, "clip": 1.0},
        **{"limit": 95_000_000, "share": 0.05},
    },
}

#: Least steps of warm-up under the defaults of Atlas-MAG's script, which takes a hundredth above them.
WARM = 100


def defaults(name: str | None, steps: int | None) -> dict[str, Any]:
    """Settings of a public script, which options stand before.

    Raises:
        ValueError: no such script.
    """
    from atlas_ref.messages import no_such
    from atlas_ref.train.settings import Settings

    if name is None:
        return {}
    if name not in DEFAULTS:
        raise ValueError(no_such("script", name, DEFAULTS))
    if name != "atlas-mag":
        return dict(DEFAULTS[name])
    whole = Settings.model_fields["steps"].default if steps is None else steps
    return DEFAULTS[name] | {"warmup": min(max(WARM, whole // 100), whole - 1)}


def configuration(name: str | None) -> dict[str, Any]:
    """Sizes of a model that the text of Atlas-MAG counts, small or base (MODEL-14).

    Raises:
        ValueError: no such model.
    """
    from atlas_ref.messages import no_such
    from atlas_ref.models.atlas_mag.settings import CONFIGURATIONS

    if name is None:
        return {}
    if name not in CONFIGURATIONS:
        raise ValueError(no_such("configuration", name, CONFIGURATIONS))
    own = CONFIGURATIONS[name]
    return {
        **{"model": "atlas-mag", "dim": own.dim, "layers": own.n_layers, "heads": own.n_heads},
        **{"window": own.attn_window_size, "memory_mlp": own.memory_mlp},
        **{"poly_degree": own.poly_degree, "poly_rank": own.poly_rank},
    }


def settings(given: Mapping[str, Any], before: Any = None, base: Any = None) -> Any:
    """Settings of a new run, or of one that goes on (TRAIN-7).

    Args:
        given: options by their parameters, without those that were left out.
        before: settings of the run that goes on; an option may repeat them and not change them, but
            for more steps.
        base: settings of the run from which a new one begins; an option changes them (TRAIN-23).

    Raises:
        ValueError: names the setting that is wrong, or differs.
    """
    import json

    from atlas_ref.messages import in_one_line, shown
    from atlas_ref.train.settings import Settings

    if before is not None:
        old = before.model_dump(mode="json")
        for name, value in given.items():
            *outer, last = PLACES[name]
            held = (old[outer[0]] if outer else old)[last]
            if name == "steps" and value > held:
                continue
            if json.loads(json.dumps(value)) != held:
                may = "more of them would go on" if name == "steps" else "--resume keeps it"
                raise ValueError(
                    f"{'.'.join(PLACES[name])}: {shown(value)}, but the run has {shown(held)}; {may}"
                )
        steps = max(before.steps, given.get("steps", 0))
        return before if steps == before.steps else before.model_copy(update={"steps": steps})
    nested: dict[str, Any] = {} if base is None else base.model_dump(mode="json")
    nested.pop("learns", None)
    for name, value in given.items():
        *outer, last = PLACES[name]
        (nested.setdefault(outer[0], {}) if outer else nested)[last] = value
    if "text" not in nested or not nested["text"].get("paths"):
        raise ValueError("--data: files or folders of text are needed")
    for name, value in given.items():
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            place = ".".join(PLACES[name])
            raise ValueError(f"{place}: {shown(value)}, a name in UTF-8 is needed") from None
    with in_one_line():
        return Settings.model_validate_json(json.dumps(nested))
