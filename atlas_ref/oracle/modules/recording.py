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
from atlas_ref.oracle.cases.inputs import LARGEST
from atlas_ref.oracle.cases.json_text import decode
from atlas_ref.oracle.modules import recipe as recipes
from atlas_ref.oracle.modules.graph import Graph
from atlas_ref.oracle.modules.graphs.models import ALONE, graph_of
from atlas_ref.oracle.modules.recipe import Recipe
from atlas_ref.oracle.modules.verdict import GRAD, grad_name, refusal
from atlas_ref.oracle.norms import FORMATS
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
        cotangents: gradients of the loss by values, by the key of the graph.
        dtype: of most values, in which an eps of the machine counts.
    """

    name: str
    recipe: Recipe
    params: Any
    parameters: dict[str, Array]
    values: dict[str, Array]
    traces: dict[str, dict[str, Array]]
    dtype: str
    cotangents: dict[str, Array] = {}

    def graph(self, dtype: str = "float64") -> Graph:
        """The graph that evaluates in a dtype, under the recording's readings."""
        convention = resolve_eps(self.recipe.convention, self.dtype)
        recipe = self.recipe._replace(convention=convention)
        return graph_of(recipe, recipes.config_of(recipe), cast(self.params, dtype))


def resolve_eps(convention: Any, dtype: str) -> Any:
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
        header = decode(text)
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
    parameters, values, traces, cotangents = _sort(tensors, name)
    params = recipes.params_of(recipe, config, parameters, name)
    recording = Recording(
        name, recipe, params, parameters, values, traces, _dtype(values), cotangents
    )
    _check(recording)
    return recording


def _sort(tensors: Mapping[str, Array], name: str) -> tuple[Any, Any, Any, Any]:
    """Parameters, values, traces and cotangents of a file."""
    parameters: dict[str, Array] = {}
    values: dict[str, Array] = {}
    traces: dict[str, dict[str, Array]] = {}
    cotangents: dict[str, Array] = {}
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
        elif GRAD in key:
            cotangents[key.removeprefix(MODULE).replace(GRAD, "/", 1)] = array
        else:
            values[key.removeprefix(MODULE)] = array
    return parameters, values, traces, cotangents


def _dtype(values: Mapping[str, Array]) -> str:
    """The dtype of most recorded values."""
    names = [each.dtype.name for each in values.values() if each.dtype.name in FORMATS]
    return max(sorted(set(names)), key=names.count, default="float64")


def _check(recording: Recording) -> None:
    """Refuse unknown values, other shapes, ids of no row, and calls that do not fit (MODULES-4)."""
    graph, name, sizes = recording.graph(), recording.name, dict[str, Any]()
    for key, array in recording.values.items():
        _check_one(graph, key, array, name, f"{MODULE}{key}", sizes)
        if array.dtype.kind in "iu":
            _check_ids(f"{name}: {MODULE}{key}", array, len(recording.params.embedding))
    for key, array in recording.cotangents.items():
        tensor = f"{MODULE}{grad_name(key)}"
        _check_one(graph, key, array, name, tensor, sizes)
        if array.dtype.kind in "iu":
            raise CaseError(f"{name}: {tensor}: whole numbers have no gradient")
    count = {axis: sizes.get(axis, (1, "")) for axis in "BT"}
    for size, tensor in count.values():
        if size == 0:
            raise CaseError(f"{name}: {tensor}: no entry, at least one token is needed")
    _check_size(recording, count["B"][0], count["T"][0])
    tokens = sizes.get("T", (sum(recording.recipe.calls), ""))[0]
    if recording.recipe.calls and sum(recording.recipe.calls) != tokens:
        raise CaseError(
            f"{name}: calls: {sum(recording.recipe.calls)} tokens together, found {tokens} in the "
            "values"
        )
    if not recording.values:
        raise CaseError(f"{name}: no {MODULE}NAME/... tensor, so there is nothing to judge")


def _check_size(recording: Recording, rows: int, tokens: int) -> None:
    """Refuse windows that no machine holds, before any work (CASE-2)."""
    s = recording.recipe.settings
    for each in recording.recipe.memories:
        most = rows * s.heads * each.window * max(tokens, s.d_head)
        if each.window > 1 and most > LARGEST:
            raise CaseError(
                f"{recording.name}: a window of {each.window} needs an array of {most} numbers, at "
                f"most {LARGEST} are evaluated"
            )


def _check_ids(where: str, ids: Array, rows: int) -> None:
    outside = np.argwhere((ids < 0) | (ids >= rows))
    if len(outside):
        at = tuple(int(i) for i in outside[0])
        raise CaseError(f"{where}: ids must lie in 0 to {rows - 1}, found {ids[at]} at {at}")


def tensor_name(key: str) -> str:
    """The name of a value in a file; the tokens of a layer alone are what it receives."""
    return f"{MODULE}{ALONE}{key}" if key.startswith("/") else f"{MODULE}{key}"


def _check_one(
    graph: Graph, key: str, array: Array, name: str, tensor: str, sizes: dict[str, Any]
) -> None:
    """Refuse an unknown value, another shape, or a format that it cannot have."""
    value, where = graph.values.get(key), f"{name}: {tensor}"
    if value is None:
        raise CaseError(f"{where}: the model has no such value{meant(key, tuple(graph.values))}")
    whole = array.dtype.kind in "iu"
    if not whole and array.dtype.name not in FORMATS:
        raise CaseError(f"{where}: {array.dtype}, a floating format is needed")
    if whole != (value.axes in ("B T", "B N") and value.kind == "free"):
        raise CaseError(
            f"{where}: {array.dtype}, expected {'floating numbers' if whole else 'whole numbers'}"
        )
    words = " ".join(each.partition("=")[2] or each for each in value.axes.split())
    try:
        if array.shape != () or words:
            bind_dims(tensor, array.shape, words, sizes)
    except ValueError as error:
        raise CaseError(f"{name}: {error}") from None
