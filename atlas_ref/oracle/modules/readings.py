"""Other readings of a recording: each axis of layers and of the rule at its other values.

Specified in specs/modules.md (MODULES-12).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple, get_args

from pydantic import ValidationError

from atlas_ref.conventions import Convention
from atlas_ref.layers.convention import AXES, LayerConvention
from atlas_ref.oracle.modules import recipe as recipes
from atlas_ref.oracle.modules.graph import Graph
from atlas_ref.oracle.modules.graphs.models import graph_of
from atlas_ref.oracle.modules.recipe import Recipe
from atlas_ref.oracle.modules.recording import Recording, resolve_eps

EPS = (2.0**-52, 1e-12, 1e-8, 2.0**-23, 1e-6, 1e-5, 1e-3)

#: Values that are tried on axes whose values are numbers.
NUMBERS: dict[str, tuple[Any, ...]] = {
    "norm_eps": EPS,
    "model_norm_eps": EPS,
    "head_norm_eps": EPS,
    "rotary_base": (100.0, 1000.0, 10000.0, 100000.0, 500000.0, 1000000.0),
    "state_clamp": ("none", 1.0, 10.0, 100.0),
}

#: Axes of layers that concern no value of a recording, or have one value in all (MODULES-2).
VOID = ("sampling", "mac_state", "persistent_kind")

#: Axes whose values depend on each other, and are tried together.
TOGETHER = (
    ("conv_padding", "conv_state"),
    ("attention_window", "persistent_visible"),
    ("head_norm", "head_norm_guard", "head_norm_eps"),
    ("mag", "mag_gate_input"),
)

#: Axes on which it depends what parameters there are.
SHAPED = {
    "conv_place",
    "gate_input",
    "head_norm",
    "memory_input",
    "output_norm",
    "output_gate",
    "mag",
    "mag_gate_input",
    "mal_order",
    "mac_context",
    "model_norm",
    "rule gate",
    "rule rate",
    "rule window",
    "use_omega_gate",
    "use_momentum",
}

#: Settings that are counts of tokens, tried one off, and what a program may leave out.
COUNTS = ("window_size", "omega_window")
LEFT_OUT = ("use_omega_gate", "use_momentum")

#: Axes of the rule that are tried, and their other values.
RULE: dict[str, tuple[Any, ...]] = {
    "gate": ("retain", "forget", "none"),
    "decay": ("after_error", "before_error"),
    "gradient_scale": (1.0, 2.0, "2/d_out"),
    "rate": ("momentum", "memory", "both", "none"),
    "direction": ("descent", "ascent"),
    "value_sign": ("minus", "plus"),
    "read": ("after", "before", "call_end"),
    "reference": ("running", "call_start", "zero"),
    "window_at_boundary": ("recompute", "carry", "cut"),
    "window_edge": ("truncate", "renormalise"),
    "order": ("window_then_momentum", "momentum_then_window"),
    "query_scale": (1.0, "1/sqrt(d_in)"),
    "q_norm": ("none", "l2", "rms"),
    "k_norm": ("none", "l2", "rms"),
    "norm_place": ("before_phi", "after_phi"),
}


#: Axes of layers, by what has them.
OF_NORM = ("norm_eps",)
OF_FEED_FORWARD = ("ff_gate_half", "ff_activation")
OF_ATTENTION = (
    "attention_window",
    "window_counts_self",
    "persistent_visible",
    "rotary_pairs",
    "rotary_base",
    "rotary_frequencies",
    "rotary_position",
)
OF_MODEL = ("model_norm", "model_norm_eps")
OF_BLOCK = {"mag": ("mag", "mag_gate_input"), "mal": ("mal_order",), "mac": ("mac_context",)}
OF_MEMORY = tuple(
    axis
    for axis in AXES
    if axis not in (*OF_NORM, *OF_FEED_FORWARD, *OF_ATTENTION, *OF_MODEL, *VOID)
    and not axis.startswith(("mag", "mal", "mac"))
)


def axes_present(recipe: Recipe) -> tuple[str, ...]:
    """Axes and settings that what was recorded has; those of the rule follow `rule`."""
    counts = () if recipe.levels else ("omega_window",)
    of_memory = (*OF_MEMORY, *counts, *LEFT_OUT, "rule")
    of_attention = (*OF_ATTENTION, "window_size")
    match recipe.kind:
        case "memory":
            return (*OF_NORM, *of_memory)
        case "attention":
            return (*OF_NORM, *of_attention)
        case "feed_forward":
            return (*OF_NORM, *OF_FEED_FORWARD)
    block = recipe.settings.block_type
    axes = (*OF_NORM, *of_memory, *OF_FEED_FORWARD, *OF_BLOCK.get(block, ()))
    axes += of_attention if block != "lmm" else ()
    return (*axes, *OF_MODEL) if recipe.kind == "language_model" else axes


class Change(NamedTuple):
    """Other values of axes of layers, of axes of a rule, or of settings.

    Attributes:
        rule: of the rule Omega, or of levels: "level 1 gate", "level 1 window".
    """

    layer: dict[str, Any] = {}
    rule: dict[str, Any] = {}
    settings: dict[str, Any] = {}

    def of(self, recipe: Recipe) -> Recipe | None:
        """The recipe with these values; None where it allows none of them."""
        try:
            return recipe._replace(
                settings=type(recipe.settings)(**{**recipe.settings.__dict__, **self.settings}),
                convention=LayerConvention(**{**recipe.convention.__dict__, **self.layer}),
                **self._rules(recipe),
            )
        except ValidationError:
            return None

    def _rules(self, recipe: Recipe) -> dict[str, Any]:
        """The rule, or the levels, with other values."""
        if not recipe.levels:
            return {"rule": Convention(**{**recipe.rule.__dict__, **self.rule})}
        levels = list(recipe.levels)
        for name, value in self.rule.items():
            number, axis = _level_of(name)
            levels[number] = levels[number].change({axis: value})
        return {"levels": tuple(levels)}

    def join(self, other: Change) -> Change:
        layer = {**self.layer, **other.layer}
        return Change(
            {axis: layer[axis] for axis in AXES if axis in layer},
            {**self.rule, **other.rule},
            {**self.settings, **other.settings},
        )

    @property
    def axes(self) -> frozenset[str]:
        return frozenset((*self.layer, *(f"rule {axis}" for axis in self.rule), *self.settings))

    @property
    def sets_shapes(self) -> bool:
        """Whether it depends on these values what parameters there are."""
        of_rules = {f"rule {_level_of(axis)[1]}" for axis in self.rule}
        return not SHAPED.isdisjoint({*self.layer, *of_rules, *self.settings})

    def value_words(self) -> list[str]:
        """Each axis with its value."""
        named = [
            f"{axis} {show_value(value)}" for axis, value in (self.layer | self.settings).items()
        ]
        return named + [
            f"{axis} {show_value(value)} of the rule" for axis, value in self.rule.items()
        ]

    def words(self, recipe: Recipe, verb: str = "the recording says") -> str:
        """The change in words: computes norm_eps 1e-05; the recording says 1e-06."""
        if not self.axes:
            return "computes what was asked for"
        parts = [
            (axis, value, getattr(recipe.convention, axis)) for axis, value in self.layer.items()
        ]
        parts += [
            (f"{axis} of the rule" if axis in RULE else axis, value, value_of(recipe, axis))
            for axis, value in self.rule.items()
        ]
        parts += [
            (name, value, getattr(recipe.settings, name)) for name, value in self.settings.items()
        ]
        computes = ", ".join(f"{axis} {show_value(value)}" for axis, value, _ in parts)
        says = ", ".join(show_value(own) for _, _, own in parts)
        return f"computes {computes}; {verb} {says}"


def _level_of(name: str) -> tuple[int, str]:
    """Number of a level and axis, from "level 1 gate"; "gate" alone is of the first."""
    words = name.split()
    return (int(words[1]), words[2]) if len(words) == 3 else (0, name)


def value_of(recipe: Recipe, name: str) -> Any:
    """The value of an axis of a rule, or the window of a level."""
    number, axis = _level_of(name)
    own = recipe.memories[number]
    return own.window if axis == "window" else getattr(own.convention, axis)


def show_value(value: Any) -> str:
    """A value of an axis in words."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def values_of(axis: str) -> tuple[Any, ...]:
    """All values that are tried on an axis of layers."""
    if axis in NUMBERS:
        return NUMBERS[axis]
    annotation = LayerConvention.model_fields[axis].annotation
    return (True, False) if annotation is bool else get_args(annotation)


def singles(recipe: Recipe, dtype: str) -> Iterator[Change]:
    """Changes of one axis of layers or of the rule, or of a setting."""
    own, has = resolve_eps(recipe.convention, dtype), axes_present(recipe)
    for axis in AXES:
        for value in values_of(axis) if axis in has else ():
            if value != getattr(own, axis):
                yield Change(layer={axis: value})
    if "rule" in has:
        yield from _of_rules(recipe)
    for name in COUNTS:
        count = getattr(recipe.settings, name)
        for other in (count - 1, count + 1) if name in has else ():
            if other > 0:
                yield Change(settings={name: other})
    for name in LEFT_OUT:
        if name in has and getattr(recipe.settings, name):
            yield Change(settings={name: False})


def _of_rules(recipe: Recipe) -> Iterator[Change]:
    """Changes of one axis of a rule; of levels also their windows, one off."""
    for number, own in enumerate(recipe.memories):
        place = f"level {number} " if recipe.levels else ""
        for axis, values in RULE.items():
            for value in values:
                if value != getattr(own.convention, axis):
                    yield Change(rule={f"{place}{axis}": value})
        for other in (own.window - 1, own.window + 1) if place and "window" in own.settings else ():
            if other > 0:
                yield Change(rule={f"{place}window": other})


def groups(recipe: Recipe, dtype: str) -> Iterator[Change]:
    """Changes of several axes that depend on each other."""
    own, has = resolve_eps(recipe.convention, dtype), axes_present(recipe)
    for axes in TOGETHER:
        if not set(axes) <= set(has):
            continue
        for values in itertools.product(*(values_of(axis) for axis in axes)):
            changed = {
                axis: value
                for axis, value in zip(axes, values, strict=True)
                if value != getattr(own, axis)
            }
            if len(changed) > 1:
                yield Change(layer=changed)


class Readings:
    """Graphs in float64 of a recording under other readings, each built once."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._graphs: dict[str, list[tuple[Change, Graph]]] = {}

    def stages(self) -> Iterator[list[tuple[Change, Graph]]]:
        """Changes of one axis, then those of axes that depend on each other."""
        for name, changes in (("singles", singles), ("groups", groups)):
            if name not in self._graphs:
                recipe, dtype = self.recording.recipe, self.recording.dtype
                pairs = [
                    (each, graph_under(self.recording, each)) for each in changes(recipe, dtype)
                ]
                self._graphs[name] = [(each, graph) for each, graph in pairs if graph is not None]
            yield self._graphs[name]


def graph_under(recording: Recording, change: Change) -> Graph | None:
    """The graph in float64 under other readings; None where they do not fit the parameters.

    A norm's weight that the recording lacks is 1; parameters that the reading has no use for are
    left out.
    """
    recipe = change.of(recording.recipe)
    if recipe is None:
        return None
    recipe = recipe._replace(convention=resolve_eps(recipe.convention, recording.dtype))
    own, name = recording.params, recording.name
    try:
        config = recipes.config_of(recipe)
        if change.sets_shapes:
            tensors = recording.parameters
            own = recipes.params_of(recipe, config, tensors, name, weights_are_one=True)
    except ValueError:
        return None
    return graph_of(recipe, config, own)
