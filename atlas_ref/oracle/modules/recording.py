"""A recording of modules: a model's parameters, and what its modules received and returned.

Specified in specs/modules.md (MODULES-1 to MODULES-4).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.messages import meant
from atlas_ref.oracle.cases import files
from atlas_ref.oracle.cases.case import CaseError
from atlas_ref.oracle.cases.json_text import decoded
from atlas_ref.oracle.judge.norms import FORMATS
from atlas_ref.oracle.modules import recipe as recipes
from atlas_ref.oracle.modules.graph import Graph
from atlas_ref.oracle.modules.graphs.models import graph_of
from atlas_ref.oracle.modules.recipe import Recipe
from atlas_ref.oracle.modules.verdict import refusal
from atlas_ref.types import Array, bind_dims
from tape.nested import flatten

PARAMETER, MODULE = "in/param/", "modules/"


class Recording(NamedTuple):
    """A recording that was checked (MODULES-1).

    Attributes:
        name: of the file.
        recipe: its header.
        params: of the model, float64. parameters: as in the file, by name.
        values: what was recorded, by the key of the graph.
        traces: steps of the rule of a memory, by the cell's name: op -> array.
        dtype: of most values, in which an eps of the machine counts.
    """

    name: str
    recipe: Recipe
    params: Any
    parameters: dict[str, Array]
    values: dict[str, Array]
    traces: dict[str, dict[str, Array]]
    dtype: str

    def graph(self, dtype: str = "float64", recipe: Recipe | None = None) -> Graph:
        """The graph that evaluates in a dtype, under the recording's readings or others."""
        chosen = self.recipe if recipe is None else recipe
        chosen = chosen._replace(convention=resolved(chosen.convention, self.dtype))
        return graph_of(chosen, recipes.config_of(chosen), cast(self.params, dtype))


def resolved(convention: Any, dtype: str) -> Any:
    """The convention with an eps of the machine as the number that it is in a dtype."""
    bits = FORMATS[dtype][1]
    axes = [
        axis for axis in ("norm_eps", "model_norm_eps") if getattr(convention, axis) == "machine"
    ]
    return convention.replaced(**dict.fromkeys(axes, 2.0**-bits))


def cast(params: Any, dtype: str) -> Any:
    """Parameters in another dtype."""
    leaves, _, build = flatten(params, "params")
    return build([np.asarray(leaf).astype(FORMATS[dtype][0]) for leaf in leaves])


def load_recording(path: str | os.PathLike[str]) -> Recording:
    """Read a recording (MODULES-1).

    Raises:
        CaseError: not such a file, or anything that `make_recording` refuses.
    """
    name = os.fspath(path)
    try:
        text, tensors = files.read(name)
        header = decoded(text)
    except ValueError as error:
        raise CaseError(f"{name}: {error}") from None
    if not isinstance(header, dict):
        raise CaseError(f"{name}: the header is no JSON object")
    return make_recording(header, tensors, name=name)


def make_recording(
    header: Mapping[str, Any], tensors: Mapping[str, Array], *, name: str = "recording"
) -> Recording:
    """A recording from a header and tensors in memory (MODULES-1 to MODULES-4).

    Raises:
        CaseError: names the key or tensor, what was found, and what is needed.
    """
    recipe = recipes.parse(header, name)
    try:
        config = recipes.config_of(recipe)
    except ValueError as error:
        raise CaseError(f"{name}: {refusal(error)}") from None
    parameters, values, traces = _sorted(tensors, name)
    params = recipes.params_of(recipe, config, parameters, name)
    recording = Recording(name, recipe, params, parameters, values, traces, _dtype(values))
    _check(recording)
    return recording


def _sorted(tensors: Mapping[str, Array], name: str) -> tuple[Any, Any, Any]:
    """Parameters, values and traces of a file."""
    parameters: dict[str, Array] = {}
    values: dict[str, Array] = {}
    traces: dict[str, dict[str, Array]] = {}
    for key, array in tensors.items():
        if key.startswith(PARAMETER):
            parameters[key.removeprefix(PARAMETER)] = array
        elif not key.startswith(MODULE):
            raise CaseError(
                f"{name}: {key}: unknown name, expected {PARAMETER}NAME or {MODULE}NAME/in/X"
            )
        elif "/trace/" in key:
            module, _, op = key.removeprefix(MODULE).partition("/trace/")
            traces.setdefault(module, {})[op] = array
        else:
            values[key.removeprefix(MODULE)] = array
    return parameters, values, traces


def _dtype(values: Mapping[str, Array]) -> str:
    """The dtype of most recorded values."""
    names = [each.dtype.name for each in values.values() if each.dtype.name in FORMATS]
    return max(sorted(set(names)), key=names.count, default="float64")


def _check(recording: Recording) -> None:
    """Refuse unknown values, other shapes, and calls that do not fit (MODULES-4)."""
    graph, name, sizes = recording.graph(), recording.name, dict[str, Any]()
    for key, array in recording.values.items():
        value = graph.values.get(key)
        if value is None:
            raise CaseError(
                f"{name}: {MODULE}{key}: the model has no such value{meant(key, tuple(graph.values))}"
            )
        whole = array.dtype.kind in "iu"
        if not whole and array.dtype.name not in FORMATS:
            raise CaseError(f"{name}: {MODULE}{key}: {array.dtype}, a floating format is needed")
        if whole != (value.axes in ("B T", "B N") and value.kind == "free"):
            raise CaseError(
                f"{name}: {MODULE}{key}: {array.dtype}, expected "
                f"{'floating numbers' if whole else 'whole numbers'}"
            )
        words = " ".join(each.partition("=")[2] or each for each in value.axes.split())
        try:
            if array.shape != () or words:
                bind_dims(f"{MODULE}{key}", array.shape, words, sizes)
        except ValueError as error:
            raise CaseError(f"{name}: {error}") from None
    tokens = sizes.get("T", (sum(recording.recipe.calls), ""))[0]
    if recording.recipe.calls and sum(recording.recipe.calls) != tokens:
        raise CaseError(
            f"{name}: calls: {sum(recording.recipe.calls)} tokens together, found {tokens} in the "
            "values"
        )
    if not recording.values:
        raise CaseError(f"{name}: no {MODULE}NAME/... tensor, so there is nothing to judge")
