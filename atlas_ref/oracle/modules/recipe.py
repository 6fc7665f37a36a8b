"""What a recording of modules says of its model: sizes, readings, and the calls it was made in.

Specified in specs/modules.md (MODULES-2).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import ValidationError

from atlas_ref import conventions
from atlas_ref.conventions import Convention
from atlas_ref.layers import attention, feed_forward, memory
from atlas_ref.layers import convention as readings
from atlas_ref.layers.convention import LayerConvention
from atlas_ref.messages import first_problem, meant
from atlas_ref.models import atlas_rnn_names, import_atlas_rnn, language_model, shapes
from atlas_ref.models.import_atlas_rnn import Settings
from atlas_ref.models.public.names import Table
from atlas_ref.oracle.cases.case import CaseError
from atlas_ref.oracle.modules.memories import Combined, Memory, levels_of
from atlas_ref.oracle.modules.memories import parse as parse_levels
from atlas_ref.parts.window import Ones
from atlas_ref.types import Array
from tape.nested import flatten

Kind = Literal["language_model", "block", "memory", "attention", "feed_forward"]
KINDS: tuple[Kind, ...] = ("language_model", "block", "memory", "attention", "feed_forward")
KEYS = (
    *("schema", "recording", "layer", "settings", "convention", "rule", "levels", "combine"),
    *("first_step", "tied", "calls", "detached", "note"),
)

#: Settings of the rule Omega, which each of several levels has for itself.
OF_LEVEL = ("omega_window", "poly_degree", "poly_mode")

#: The first level in the path of a parameter.
LEVEL = ".levels[0]"

#: Axes that the rule of public code takes, but for its reference, which no call cuts.
RULE: dict[str, Any] = {"preset": "atlas-rnn", "reference": "running"}


class Recipe(NamedTuple):
    """The header of a recording (MODULES-2).

    Attributes:
        kind: what was recorded: a whole model, a block, or one layer.
        settings: sizes, by the names of the public constructors.
        convention: readings of layers. rule: those of the rule of a memory without `levels`.
        calls: lengths of the calls in which tokens came; empty for one call.
        tied: whether the head is the embedding.
        levels: of every memory layer, where the header has them. combined: their reads.
        detached: whether no gradient goes back from a call to the one before.
    """

    kind: Kind
    settings: Settings
    convention: LayerConvention
    rule: Convention
    calls: tuple[int, ...] = ()
    tied: bool = False
    levels: tuple[Memory, ...] = ()
    combined: Combined = Combined()
    detached: bool = False

    @property
    def memories(self) -> tuple[Memory, ...]:
        """The levels of a memory layer: those of the header, or one of the rule Omega."""
        if self.levels:
            return self.levels
        own: dict[str, Any] = {
            "window": self.settings.omega_window,
            "feature_map": self.settings.feature_map,
            "window_weights": Ones(),
        }
        return (Memory("omega", self.rule, 1, own),)


def parse(header: Mapping[str, Any], name: str) -> Recipe:
    """The header of a recording, validated (MODULES-2).

    Raises:
        CaseError: an unknown key, or a value that does not exist.
    """
    if "recording" not in header and "rule" in header:
        raise CaseError(
            f'{name}: recording: missing, "modules" is needed; a case is judged by atlas-ref check'
        )
    for key in header:
        if key not in KEYS:
            raise CaseError(f"{name}: {key}: unknown key, keys are {', '.join(KEYS)}")
    if header.get("recording") != "modules" or header.get("schema") != 1:
        raise CaseError(
            f'{name}: schema 1 and recording "modules" are needed, found '
            f"{header.get('schema')!r} and {header.get('recording')!r}"
        )
    kind = header.get("layer", "language_model")
    if kind not in KINDS:
        raise CaseError(
            f"{name}: layer: {kind!r}, expected one of {', '.join(KINDS)}{meant(str(kind), KINDS)}"
        )
    calls = header.get("calls", [])
    if not isinstance(calls, list) or not all(type(n) is int and n > 0 for n in calls):
        raise CaseError(f"{name}: calls: {calls!r}, expected lengths of at least 1 token")
    try:
        settings = Settings(**header.get("settings", {}))
        convention = readings.resolve(header.get("convention", "causal"))
        rule = conventions.resolve(header.get("rule", RULE), rule="omega", level="token")
    except ValidationError as error:
        raise CaseError(f"{name}: settings: {first_problem(error)}") from None
    except (ValueError, TypeError) as error:
        raise CaseError(f"{name}: {error}") from None
    attends = kind not in ("memory", "feed_forward") and settings.block_type != "lmm"
    rows = settings.num_persist_mem_tokens if attends or kind == "attention" else 0
    if convention.persistent_kind == "prepended" and rows:
        raise CaseError(
            f"{name}: convention: persistent_kind prepended, but num_persist_mem_tokens is {rows}, "
            "and persist_mem are rows of each head's keys"
        )
    levels, combined = _levels(header, name)
    tied, detached = (header.get(key, False) for key in ("tied", "detached"))
    for key, value in (("tied", tied), ("detached", detached)):
        if not isinstance(value, bool):
            raise CaseError(f"{name}: {key}: true or false is needed, found {value!r}")
    return Recipe(kind, settings, convention, rule, tuple(calls), tied, levels, combined, detached)


def _levels(header: Mapping[str, Any], name: str) -> tuple[tuple[Memory, ...], Combined]:
    """Levels of the memories, and how their reads are combined (MODULES-19)."""
    ways = {key: header[key] for key in Combined.model_fields if key in header}
    if "levels" not in header:
        for key in ways:
            raise CaseError(f"{name}: {key}: belongs to levels, and there are none")
        return (), Combined()
    if "rule" in header:
        raise CaseError(f"{name}: rule: each of levels has its own convention")
    for key in OF_LEVEL:
        if key in header.get("settings", {}):
            raise CaseError(f"{name}: settings: {key}: each of levels has its own")
    try:
        combined = Combined.model_validate_json(json.dumps(ways))
    except (ValueError, TypeError) as error:
        text = first_problem(error) if isinstance(error, ValidationError) else str(error)
        raise CaseError(f"{name}: {text}") from None
    return parse_levels(header["levels"], name), combined


def memory_config(recipe: Recipe) -> memory.Config:
    """The memory layer of a recipe."""
    if recipe.levels:
        s, c = recipe.settings, recipe.convention
        sizes = {"d_in": s.d_head, "d_out": s.d_head, "d_model": s.dim, "heads": s.heads}
        return memory.configured(
            c,
            levels_of(recipe.levels, recipe.combined, **sizes),
            kernel=s.qkv_conv_kernel,
            momentum=s.use_momentum,
            window_gate=s.use_omega_gate,
            scan_chunk=None if c.state_clamp == "none" else s.scan_chunk_len,
        )
    return import_atlas_rnn.memory_config(recipe.settings, recipe.convention, recipe.rule)


def config_of(recipe: Recipe) -> Any:
    """Settings of the layer, block or model that was recorded."""
    s, c = recipe.settings, recipe.convention
    if recipe.kind == "memory":
        return memory_config(recipe)
    if recipe.kind == "attention":
        return attention.configured(
            c,
            d_model=s.dim,
            heads=s.heads,
            d_head=s.d_head,
            window=s.window_size,
            persistent=s.num_persist_mem_tokens,
        )
    if recipe.kind == "feed_forward":
        return feed_forward.configured(c, d_model=s.dim, d_inner=s.d_inner)
    block = import_atlas_rnn.block_config(s, readings=c, rule_convention=recipe.rule)
    if recipe.levels:
        block = block.replaced(memory=memory_config(recipe))
    if recipe.kind == "block":
        return block
    return language_model.configured(
        c, [block] * (s.depth or 1), vocabulary=s.vocab or 1, tied=recipe.tied
    )


def names_of(recipe: Recipe) -> dict[str, str]:
    """Public name -> place of each parameter of a recipe (MODULES-3, MODULES-19)."""
    tables: dict[Kind, Callable[[Settings], Table]] = {
        "memory": lambda s: atlas_rnn_names.memory(s, ""),
        "attention": atlas_rnn_names.attention,
        "feed_forward": lambda s: atlas_rnn_names.FEED_FORWARD,
        "block": atlas_rnn_names.block,
        "language_model": atlas_rnn_names.model,
    }
    table = tables[recipe.kind](recipe.settings)
    places = {name: each.field for name, each in table.items() if each.field}
    return places if len(recipe.levels) < 2 else _by_level(places, len(recipe.levels))


def _by_level(places: Mapping[str, str], count: int) -> dict[str, str]:
    """Names of the parameters of every level, memory.levels.1.to_q.weight, and of their weights."""
    names: dict[str, str] = {}
    for name, place in places.items():
        if LEVEL not in place:
            names[name] = place
            continue
        before, memory, own = name.rpartition("memory.")
        for i in range(count):
            names[f"{before}{memory}levels.{i}.{own}"] = place.replace(LEVEL, f".levels[{i}]")
        names[f"{before}{memory}logits"] = f"{place.partition(LEVEL)[0]}.logits"
    return names


def params_of(
    recipe: Recipe,
    config: Any,
    tensors: Mapping[str, Array],
    name: str,
    *,
    weights_are_one: bool = False,
) -> Any:
    """Parameters (float64) from tensors by public names, or by ours (MODULES-3).

    Args:
        weights_are_one: whether the weight of a norm may be absent, and then is 1.

    Raises:
        CaseError: a tensor that is missing, or of another size.
    """
    leaves, paths, build = flatten(shapes.params_of(config), "params")
    public = {place: each for each, place in names_of(recipe).items()}
    found = []
    for leaf, path in zip(leaves, paths, strict=True):
        names = [each for each in (public.get(path), path, path.lstrip(".")) if each]
        given = next((each for each in names if each in tensors), None)
        if given is None and weights_are_one and path.endswith("norm.weight"):
            found.append(np.ones(leaf.shape))
            continue
        if given is None:
            raise CaseError(f"{name}: in/param/{names[0]}: missing, shape {leaf.shape} is needed")
        tensor = np.asarray(tensors[given], np.float64)
        if tensor.size != (count := math.prod(leaf.shape)):
            raise CaseError(
                f"{name}: in/param/{given}: shape {tensor.shape}, expected {count} numbers for "
                f"{leaf.shape}"
            )
        found.append(tensor.reshape(leaf.shape))
    return build(found)


def tensors_of(recipe: Recipe, params: Any) -> dict[str, Array]:
    """Parameters by public names, by our paths where public code has none: `in/param/...`."""
    leaves, paths, _ = flatten(params, "params")
    public = {place: each for each, place in names_of(recipe).items()}
    return {
        f"in/param/{public.get(path, path.lstrip('.'))}": np.asarray(leaf)
        for leaf, path in zip(leaves, paths, strict=True)
    }
