"""Models to train: kinds of blocks, their rules and readings, from a few sizes.

Specified in specs/train.md (TRAIN-8).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from atlas_ref import conventions
from atlas_ref.blocks import BLOCKS, lmm, mac
from atlas_ref.forms import support, tnt
from atlas_ref.layers import convention, feed_forward, memory, memory_tnt, shared_memory
from atlas_ref.layers.convention import LayerConvention
from atlas_ref.levels import block
from atlas_ref.levels.level import Level
from atlas_ref.messages import in_one_line, no_such
from atlas_ref.models import atlas_mag, checkpoint, language_model
from atlas_ref.parts.feature_maps import IDENTITY, Elementwise, FeatureMap, Sketch
from atlas_ref.rules import FAMILY, deep_memory, omega, titans_lmm
from atlas_ref.train.settings import Model

#: Readings of layers by name: those of `layers.convention`, and `unit`, causal with keys of length
#: 1, with which a running memory of long rows stays finite (TRAIN-8).
PRESETS: dict[str, dict[str, Any]] = {
    "unit": {
        "preset": "causal",
        "mag": "gate_mix",
        "head_norm": "l2",
        "head_norm_eps": 1e-6,
        "head_norm_guard": "add",
    },
    **{name: {"preset": name} for name in convention.PRESETS},
}


class Kind(NamedTuple):
    """A kind of model.

    Attributes:
        name: of the kind.
        block: name of the module of its blocks.
        rule: of its memories, where none is named.
        windowed: whether its rule needs a window.
    """

    name: str
    block: str
    rule: str
    windowed: bool = False


#: Kinds of models around memories of the family.
KINDS = (
    *(Kind(name, name, titans_lmm.RULE.name) for name in BLOCKS),
    Kind(omega.RULE.name, "lmm", omega.RULE.name, windowed=True),
)

#: Forms of a level in the order in which a rule takes the first that computes it.
FORMS = ("exact", "chunkwise", "sequential")

#: Most numbers of parameters: more is a slip, and no machine's.
LARGEST = 2**33

#: Settings of a TNT (TRAIN-22).
OF_TNT = ("tnt_global_span", "tnt_local_spans", "tnt_shards", "tnt_params", "tnt_preset")

#: Readings of a TNT that have no gates (TNT-3, TNT-5).
BARE = ("paper-literal",)

#: Settings that one kind of model has and the other has not.
OF_ATLAS_MAG = (
    *("poly_rank", "ns_steps", "ttl", "ttl_step", "ttl_adaptive", "ttl_momentum", "ttl_retain"),
    *("context_window", "memory_mlp"),
)
OF_BLOCKS = (
    *("rule", "d_head", "omega_window", "omega_gate", "persistent", "segment", "kernel"),
    *OF_TNT,
    "periods",
)


def model(settings: Model, vocabulary: int) -> language_model.Config:
    """The language model of settings (TRAIN-8).

    Raises:
        ValueError: names the setting that the kind of model does not have, or that is wrong.
    """
    make = _atlas_mag if settings.model == "atlas-mag" else _of_blocks
    with in_one_line():
        found = make(settings, vocabulary)
    if (count := numbers(found)) > LARGEST:
        raise ValueError(f"model: {count} numbers of parameters, at most {LARGEST} are trained")
    return found


def numbers(config: language_model.Config) -> int:
    """Numbers of all parameters, from their shapes alone."""
    shapes = [each.shape for each in checkpoint.needed_by(config).values()]
    return sum(math.prod(each for each in shape if isinstance(each, int)) for shape in shapes)


def takes_documents(config: language_model.Config) -> bool:
    """Whether memories can start anew at a token of some rows alone (TRAIN-8)."""
    return not any(
        shares_rows(each) or (isinstance(each, mac.Config) and each.context == "mean_of_call")
        for each in config.blocks
    )


def shares_rows(own: Any) -> bool:
    """Whether a block has one memory for all rows of a batch (TRAIN-6, TRAIN-8)."""
    if own.memory is None or not isinstance(own.memory, shared_memory.Config):
        return False
    rule = own.memory.level.config
    return isinstance(rule, deep_memory.Config) and rule.coupling == "batch_shared"


def of_locals(config: language_model.Config) -> tuple[str, ...]:
    """Patterns of the parameters that belong to local memories of a TNT alone (TRAIN-23).

    Raises:
        ValueError: no block has such a memory.
    """
    found = [
        f"blocks.{i}.memory.{name}"
        for i, block in enumerate(config.blocks)
        for name in _of_memory(block.memory)
    ]
    if not found:
        raise ValueError("learns: locals, but the model has no local memories of a TNT")
    return tuple(found)


def _of_memory(own: Any) -> list[str]:
    if not isinstance(own, memory.Config) or not isinstance(own.levels, memory_tnt.Config):
        return []
    settings = own.levels
    places = [i for i, each in enumerate(settings.tnt.memories) if isinstance(each, tnt.Local)]
    names = [f"initial.{i}.*" for i in places]
    # a set of projections that is shared is the global memory's too, unless there is none
    if settings.params == "per_memory":
        names += [f"levels.{i}.*" for i in places]
    elif settings.tnt.global_memory is None:
        names += ["levels.0.*"]
    return names


# -- Atlas-MAG -------------------------------------------------------------------------------------


def _atlas_mag(s: Model, vocabulary: int) -> language_model.Config:
    _refuse(s, OF_BLOCKS)
    if s.poly_mode != "off":
        raise ValueError("poly_mode: atlas-mag has degree 1 or 2 alone, by poly_degree")
    preset = s.preset or "atlas-mag"
    if preset not in shared_memory.PRESETS:
        raise ValueError(no_such("preset", preset, shared_memory.PRESETS))
    given: dict[str, Any] = {
        "poly_degree": s.poly_degree,
        "poly_rank": s.poly_rank,
        "ttl_ns_iters": s.ns_steps,
        "ttl_eta": s.ttl_step,
        "ttl_adaptive_eta": s.ttl_adaptive,
        "ttl_theta": s.ttl_momentum,
        "ttl_alpha": s.ttl_retain,
        "omega_context_window": s.context_window,
    }
    own = atlas_mag.Settings(
        vocab_size=vocabulary,
        dim=s.dim,
        n_layers=s.layers,
        n_heads=s.heads,
        memory_expansion=s.expansion,
        disable_memory=not s.memory,
        memory_mlp=s.memory_mlp,
        ttl_enabled=s.ttl,
        attn_window_size=s.window,
        training=True,
        **{name: value for name, value in given.items() if value is not None},
    )
    return atlas_mag.model(own, preset)


def _refuse(s: Model, names: tuple[str, ...]) -> None:
    for name in names:
        if getattr(s, name) != type(s).model_fields[name].default:
            without = "" if s.memory else " without memory"
            raise ValueError(f"{name}: model {s.model}{without} has no such setting")


# -- blocks of the family --------------------------------------------------------------------------


def _of_blocks(s: Model, vocabulary: int) -> language_model.Config:
    _refuse(s, OF_ATLAS_MAG)
    preset = s.preset or "unit"
    if preset not in PRESETS:
        raise ValueError(no_such("preset", preset, PRESETS))
    readings = convention.resolve(PRESETS[preset])
    kind = next(each for each in KINDS if each.name == s.model)
    rule = s.rule or kind.rule
    if rule not in FAMILY:
        raise ValueError(no_such("rule", rule, FAMILY))
    if kind.windowed and not FAMILY[rule].has_window:
        raise ValueError(
            f"rule: {rule} has no window, model {kind.name} needs one; model {kind.block} takes it"
        )
    if not s.memory:
        _refuse(s, (*OF_TNT, "periods"))
    own = _memory(s, readings, rule, preset) if s.memory else None
    each = _block(s, kind.block, readings, own)
    return language_model.configured(readings, [each] * s.layers, vocabulary=vocabulary)


def _d_head(s: Model) -> int:
    if s.d_head is None and s.dim % s.heads:
        raise ValueError(f"heads: {s.heads} do not divide dim {s.dim}; state d_head")
    return s.d_head or s.dim // s.heads


def _memory(s: Model, readings: LayerConvention, name: str, preset: str) -> memory.Config:
    """The memory of a block, its levels in the first form that computes their rule (TRAIN-24)."""
    rule = FAMILY[name]
    public = preset if preset in conventions.PRESETS else "spec"
    fields: dict[str, Any] = {}
    if rule.has_window:
        fields = {"window": s.omega_window or 2, "feature_map": _feature_map(s)}
    else:
        for setting in ("omega_window", "omega_gate", "poly_mode", "poly_degree"):
            value, default = getattr(s, setting), Model.model_fields[setting].default
            if value != default and (setting, value) != ("omega_window", 1):
                raise ValueError(f"{setting}: rule {name} has no window")
    convention = conventions.resolve(public, rule=name, level="token")
    bare = s.tnt_preset in BARE
    config = rule.Config(
        d_in=_d_head(s),
        d_out=_d_head(s),
        d_model=s.dim,
        heads=s.heads,
        convention=convention.replaced(gate="none") if bare else convention,
        **fields,
    )
    form = next(each for each in FORMS if support.refusal(name, config.convention, each) is None)
    levels: Any = _tnt(s, config)
    if levels is not None and s.periods:
        raise ValueError("periods: the memories of a TNT have chunks and shards, and no levels")
    if levels is None:
        periods = s.periods or (1,)
        levels = block.Config(
            levels=tuple(Level(config=config, period=each, form=form) for each in periods)
        )
    return memory.configured(
        readings, levels, kernel=s.kernel, window_gate=s.omega_gate, momentum=not bare
    )


def _tnt(s: Model, config: Any) -> memory_tnt.Config | None:
    """The TNT of settings, every memory under the same rule; None where there is none (TRAIN-22)."""
    spans, shards = s.tnt_local_spans, s.tnt_shards
    if s.tnt_global_span is None and not spans:
        for name in OF_TNT:
            if getattr(s, name) != Model.model_fields[name].default:
                raise ValueError(
                    f"{name}: has no effect without tnt_global_span or tnt_local_spans"
                )
        return None
    if len(shards) == 1:
        shards = shards * len(spans)
    if len(shards) != len(spans):
        raise ValueError(
            f"tnt_shards: {len(shards)}, expected one, or one for each of {len(spans)} local spans"
        )
    if s.tnt_preset not in tnt.PRESETS:
        raise ValueError(no_such("tnt_preset", s.tnt_preset, tnt.PRESETS))
    found = tnt.preset(s.tnt_preset, config, span=s.tnt_global_span, spans=spans, shards=shards)
    return memory_tnt.Config(tnt=found, params=s.tnt_params)


def _feature_map(s: Model) -> FeatureMap:
    """The map of keys and queries; a degree without a mode is refused, since it changes nothing."""
    if s.poly_mode == "off":
        if s.poly_degree not in (None, 1):
            raise ValueError("poly_degree: has no effect while poly_mode is off")
        return IDENTITY
    if s.poly_mode == "tensor":
        if s.poly_degree not in (None, 2):
            raise ValueError(f"poly_degree: {s.poly_degree}, poly_mode tensor has degree 2")
        return Sketch()
    if s.poly_degree in (None, 1):
        raise ValueError("poly_degree: poly_mode elementwise needs a degree of at least 2")
    return Elementwise(degree=s.poly_degree or 2)


def _block(s: Model, kind: str, readings: LayerConvention, own: Any) -> Any:
    inner = feed_forward.inner(s.dim, s.expansion)
    module = BLOCKS[kind]
    if module is lmm:
        return lmm.configured(readings, own, d_model=s.dim, d_inner=inner)
    sizes: dict[str, Any] = {
        "d_model": s.dim,
        "heads": s.heads,
        "d_head": _d_head(s),
        "persistent": s.persistent,
        "d_inner": inner,
    }
    if module is mac:
        if own is None:
            raise ValueError("memory: MAC attends over its memory, it has no block without one")
        return mac.configured(readings, own, segment=s.segment, **sizes)
    return module.configured(readings, own, window=s.window, **sizes)
