"""What a recording of modules says of its model: sizes, readings, and the calls it was made in.

Specified in specs/modules.md (MODULES-2).
"""

from __future__ import annotations

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
from atlas_ref.types import Array
from tape.nested import flatten

Kind = Literal["language_model", "block", "memory", "attention", "feed_forward"]
KINDS: tuple[Kind, ...] = ("language_model", "block", "memory", "attention", "feed_forward")
KEYS = ("schema", "recording", "layer", "settings", "convention", "rule", "tied", "calls", "note")

#: Axes that the rule of public code takes, but for its reference, which no call cuts.
RULE: dict[str, Any] = {"preset": "atlas-rnn", "reference": "running"}


class Recipe(NamedTuple):
    """The header of a recording (MODULES-2).

    Attributes:
        kind: what was recorded: a whole model, a block, or one layer.
        settings: sizes, by the names of the public constructors.
        convention: readings of layers. rule: those of the rule of a memory.
        calls: lengths of the calls in which tokens came; empty for one call.
        tied: whether the head is the embedding.
    """

    kind: Kind
    settings: Settings
    convention: LayerConvention
    rule: Convention
    calls: tuple[int, ...] = ()
    tied: bool = False


def parse(header: Mapping[str, Any], name: str) -> Recipe:
    """The header of a recording, validated (MODULES-2).

    Raises:
        CaseError: an unknown key, or a value that does not exist.
    """
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
    return Recipe(kind, settings, convention, rule, tuple(calls), bool(header.get("tied", False)))


def memory_config(recipe: Recipe) -> memory.Config:
    """The memory layer of a recipe."""
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
    if recipe.kind == "block":
        return block
    return language_model.configured(
        c, [block] * (s.depth or 1), vocabulary=s.vocab or 1, tied=recipe.tied
    )


def names_of(recipe: Recipe) -> dict[str, str]:
    """Public name -> place of each parameter of a recipe."""
    tables: dict[Kind, Callable[[Settings], Table]] = {
        "memory": lambda s: atlas_rnn_names.memory(s, ""),
        "attention": atlas_rnn_names.attention,
        "feed_forward": lambda s: atlas_rnn_names.FEED_FORWARD,
        "block": atlas_rnn_names.block,
        "language_model": atlas_rnn_names.model,
    }
    table = tables[recipe.kind](recipe.settings)
    return {name: each.field for name, each in table.items() if each.field}


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
