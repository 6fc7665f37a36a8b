"""Settings of a memory that shares the projections of attention, and what public code has.

Specified in specs/shared_memory.md (SHARED-1 to SHARED-6).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from atlas_ref.conventions import resolve
from atlas_ref.layers import checks, query_key
from atlas_ref.layers.projection import gate_names
from atlas_ref.levels import block
from atlas_ref.levels.level import Level
from atlas_ref.parts import window
from atlas_ref.parts.memory_functions import MemoryFunction
from atlas_ref.parts.window import Decay, Ones
from atlas_ref.rules import deep_memory
from atlas_ref.types import Count, Frozen

Share = Annotated[float, Field(ge=0, le=1)]
Weights = Literal["decay_times_gate", "gate", "decay"]


class Rates(Frozen):
    """Gates of the rule that are numbers, the same for every token (SHARED-5).

    Attributes:
        retain, momentum: within [0, 1]; None where the rule has no such gate.
        step_size: at least 0.
    """

    retain: Share | None = None
    momentum: Share | None = None
    step_size: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None


class Config(Frozen):
    """Settings of a memory that shares attention's queries, keys and values (SHARED-1).

    Attributes:
        levels: the memory as a block of one level, whose rule has heads of d_model / heads numbers.
        memory_input: what the memory is read with: q_projected, by `projection`; q; or h, the normed
            token.
        write_key: what it is written with, in the same words; k is the key.
        loss_output: contribution, the error M(key) - value; with_residual, M(key) + key - value.
        projection: of queries onto keys; None where nothing is projected.
        projection_frame: rotated, queries and keys after their positions; unrotated, before them.
        gate_hidden: hidden length of the gate of keys; None for none.
        window_gate: whether the gate is a weight of tokens in the window of a write.
        rates: the rule's gates as numbers; None where they come from the normed token.
        momentum: of gates from tokens, whether momentum is among them.
        step_size: of gates from tokens, the function of the rate.
    """

    levels: block.Config
    memory_input: Literal["q_projected", "q", "h"] = "q_projected"
    write_key: Literal["k", "q_projected", "h"] = "k"
    loss_output: Literal["contribution", "with_residual"] = "contribution"
    projection: query_key.Config | None
    projection_frame: Literal["rotated", "unrotated"] = "rotated"
    gate_hidden: Count | None = 64
    window_gate: bool = True
    rates: Rates | None = None
    momentum: bool = True
    step_size: Literal["sigmoid", "softplus"] = "sigmoid"

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if len(self.levels.levels) != 1:
            raise ValueError(f"levels: {len(self.levels.levels)}, a shared memory has one")
        checks.check_residual(self.level)
        rule, D = self.level.config, self.d_model
        for name in ("d_in", "d_out"):
            if rule.heads * getattr(rule, name) != D:
                raise ValueError(
                    f"levels: {name} {getattr(rule, name)} of {rule.heads} heads, expected "
                    f"d_model {D} in all"
                )
        if self.level.rule.has_window and (names := window.tensors(rule.window_weights)):
            raise ValueError(
                f"levels: window_weights need {', '.join(names)}, a shared memory learns its gate "
                "alone"
            )
        self._agree_on_projection()
        self._agree_on_gate()
        self._agree_on_rates()
        return self

    def _agree_on_projection(self) -> None:
        projects = "q_projected" in (self.memory_input, self.write_key)
        if (self.projection is not None) != projects:
            word = "missing" if projects else "present"
            raise ValueError(
                f"projection: {word}, but memory_input is {self.memory_input} and write_key "
                f"{self.write_key}"
            )
        if self.projection is not None and self.projection.d != self.d_model:
            raise ValueError(f"projection: d {self.projection.d}, expected d_model {self.d_model}")
        if self.loss_output == "with_residual" and not self.level.rule.has_error:
            raise ValueError(f"loss_output: {self.level.rule.name} has no error")

    def _agree_on_gate(self) -> None:
        if self.window_gate and not self.level.rule.has_window:
            raise ValueError("window_gate: a rule without a window has no weights")
        needed = self.window_gate or (self.projection is not None and self.projection.gated)
        if (self.gate_hidden is not None) != needed:
            word, what = ("missing", "some") if needed else ("present", "none")
            raise ValueError(f"gate_hidden: {word}, but {what} of the weights take the gate")

    def _agree_on_rates(self) -> None:
        if self.rates is None:
            return
        names = gate_names(self.level.rule.gates, self.level.config.convention)
        for name, value in self.rates:
            if name == "momentum" and name in names:
                continue
            if (value is not None) != (name in names):
                word = "missing" if name in names else "present"
                raise ValueError(
                    f"rates.{name}: {word}, gates of {self.level.rule.name} are "
                    f"{', '.join(names) or 'none'}"
                )

    @property
    def level(self) -> Level:
        return self.levels.levels[0]

    @property
    def d_model(self) -> int:
        return int(self.level.config.d_model)

    @property
    def heads(self) -> int:
        """Of the memory; those of attention may be others."""
        return self.levels.heads

    @property
    def causal(self) -> bool:
        """Whether no token changes a read before it (SHARED-8)."""
        rule = self.level.config
        written = not isinstance(rule, deep_memory.Config) or rule.writes
        return bool(rule.convention.read != "call_end") or not written

    @property
    def gate_names(self) -> tuple[str, ...]:
        """Gates of the rule that come from tokens."""
        if self.rates is not None:
            return ()
        names = gate_names(self.level.rule.gates, self.level.config.convention)
        return tuple(name for name in names if name != "momentum" or self.momentum)


#: The reading of this project, and that of public code: settings of `configured` (SHARED-9).
PRESETS: dict[str, dict[str, Any]] = {
    "causal": {
        "memory_input": "q_projected",
        "write_key": "k",
        "loss_output": "contribution",
        "window_weights": "decay_times_gate",
        "projection_frame": "rotated",
        "keys_seen": "strict",
        "persistent": "learned",
        "chunk": 64,
        "reduction": "sum",
        "coupling": "per_sample",
        "fast": "matrices",
        "vectors": "frozen",
        "clip": "none",
        "adaptive": False,
        "outer_gradient": "full",
        "phase": "both",
        "unfinished": "wait",
        "memory_reset": "sequence",
        "momentum_reset": "sequence",
        "read": "after",
        "rate": "memory",
        "newton_schulz": {"guard": "add", "transpose": "tall", "steps": 5},
    },
    "atlas-mag": {
        "memory_input": "q_projected",
        "write_key": "q_projected",
        "loss_output": "contribution",
        "window_weights": "gate",
        "projection_frame": "rotated",
        "keys_seen": "strict",
        "persistent": "identity",
        "chunk": "call",
        "reduction": "mean",
        "coupling": "batch_shared",
        "fast": "all",
        "vectors": "unit",
        "clip": "none",
        "adaptive": False,
        "outer_gradient": "straight_through",
        "phase": "train",
        "unfinished": "flush",
        "memory_reset": "never",
        "momentum_reset": "never",
        "read": "call_end",
        "rate": "memory",
        "newton_schulz": {"guard": "return", "transpose": "never", "steps": 5},
    },
}

#: Axes of a preset by what takes them: the layer, its projection, the convention of its rule; the
#: rule takes the others.
OF_LAYER = ("memory_input", "write_key", "loss_output", "projection_frame")
OF_PROJECTION = ("keys_seen", "persistent")
OF_CONVENTION = ("read", "rate", "newton_schulz")


def axes_of(config: Config) -> dict[str, Any]:
    """The values of a layer around a deep memory on the axes of the presets (SHARED-9)."""
    rule, own = config.level.config, config.projection
    kind = rule.window_weights.kind
    weights = {(True, "ones"): "gate", (False, "decay"): "decay"}
    axes = {name: getattr(config, name) for name in OF_LAYER}
    axes["window_weights"] = weights.get((config.window_gate, kind), "decay_times_gate")
    axes |= {name: None if own is None else getattr(own, name) for name in OF_PROJECTION}
    for name in PRESETS["causal"]:
        if name in OF_CONVENTION:
            axes[name] = getattr(rule.convention, name)
        elif name not in axes:
            axes[name] = getattr(rule, name)
    if rule.convention.has_newton_schulz:
        settings = rule.convention.newton_schulz_settings
        axes["newton_schulz"] = {
            name: getattr(settings, name) for name in ("guard", "transpose", "steps")
        }
    return axes


def configured(
    preset: str,
    *,
    d_model: int,
    memory: MemoryFunction,
    window: int = 256,
    decay: float = 0.95,
    rates: Rates | None = None,
    gate_hidden: int = 64,
    training: bool = True,
    heads: int = 1,
    **changes: Any,
) -> Config:
    """The layer of a preset around a deep memory (SHARED-9).

    Args:
        memory: the memory function.
        window: keys that a query is projected onto, and tokens that a write looks at.
        decay: of both windows, for each token further back.
        rates: gates of the rule as numbers; None for .999, .9 and .01.
        gate_hidden: hidden length of the gate, where the axes need one.
        training: whether calls are those of training, for phase train or infer.
        heads: of the memory.
        changes: other values of the axes of the preset, by name.

    Raises:
        ValueError: an unknown preset or axis, or values that contradict each other.
    """
    if preset not in PRESETS:
        raise ValueError(f"preset: {preset!r}, presets are {', '.join(PRESETS)}")
    axes = dict(PRESETS[preset])
    for name in changes:
        if name not in axes:
            raise ValueError(f"{name}: no axis of a preset, axes are {', '.join(axes)}")
    if isinstance(ns := changes.get("newton_schulz"), dict) and axes["newton_schulz"] != "none":
        changes["newton_schulz"] = axes["newton_schulz"] | ns
    axes |= changes
    weights: Weights = axes.pop("window_weights")
    of_layer = {name: axes.pop(name) for name in OF_LAYER}
    of_projection = {name: axes.pop(name) for name in OF_PROJECTION}
    convention = {name: axes.pop(name) for name in OF_CONVENTION}
    rule = deep_memory.Config(
        d_in=d_model // heads,
        d_out=d_model // heads,
        d_model=d_model,
        heads=heads,
        memory=memory,
        window=window,
        window_weights=Ones() if weights == "gate" else Decay(base=decay),
        convention=resolve(convention, rule="deep_memory", level="token"),
        training=training,
        **axes,
    )
    own = None
    if "q_projected" in (of_layer["memory_input"], of_layer["write_key"]):
        own = query_key.Config(d=d_model, window=window, decay=decay, **of_projection)
    gated = own is not None or weights != "decay"
    return Config(
        levels=block.Config(levels=(Level(config=rule),)),
        projection=own,
        gate_hidden=gate_hidden if gated else None,
        window_gate=weights != "decay",
        rates=rates or Rates(retain=0.999, momentum=0.9, step_size=0.01),
        **of_layer,
    )
