"""The nearest reading of a wrong value: the axis, the other parameters or the habit that give it.

Specified in specs/modules.md (MODULES-12, MODULES-13, MODULES-18).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from atlas_ref.oracle.judge.tolerance import PASS, Tolerance
from atlas_ref.oracle.modules import recipe as recipes
from atlas_ref.oracle.modules.graph import Graph, ancestry, evaluate
from atlas_ref.oracle.modules.habits.search import explain
from atlas_ref.oracle.modules.readings import Change, Readings
from atlas_ref.oracle.modules.recording import Recording
from atlas_ref.oracle.modules.tolerance import Graphs
from atlas_ref.oracle.modules.verdict import Verdict
from atlas_ref.oracle.norms import norms
from atlas_ref.types import Array
from tape.nested import flatten

#: Explanations that are named; more fit only where the value cannot tell them apart.
MOST = 3


def nearest_of(
    recording: Recording,
    graphs: Graphs,
    verdict: Verdict,
    known: frozenset[str],
    readings: Readings,
) -> str:
    """Readings that reproduce a wrong value, in words; "" where there is none (MODULES-12).

    Args:
        known: keys that were taken as recorded.
    """
    values, key = recording.values, verdict.key
    before = ancestry(graphs.wide, key, known)
    got = np.asarray(values[key], np.float64)
    inputs = {each: values[each] for each in before.known}
    own = graphs.truth(key, inputs, values[key].dtype.name)
    if got.shape != own.want.shape:
        return ""
    exact = exactly(inputs)
    words = [
        change.words(recording.recipe)
        for change in _fitting(readings, key, exact, got, own.tolerance)
    ]
    if not words:
        words = list(_other_parameters(recording, verdict.module, key, exact, got, own.tolerance))
    if not words:
        recorded = exactly({each: values[each] for each in known})
        words = explain(
            graphs.wide,
            key,
            recorded,
            lambda graph, its: ratio_of(graph, key, its, got, own.tolerance) <= PASS,
        )
    if len(words) > MOST:
        words = [*words[: MOST - 1], f"{len(words) - MOST + 1} more"]
    return " or ".join(words)


def exactly(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Values in float64; whole numbers stay."""
    return {
        name: value if value.dtype.kind in "iu" else np.asarray(value, np.float64)
        for name, value in inputs.items()
    }


def ratio_of(graph: Graph, key: str, exact: Any, got: Array, tolerance: Tolerance) -> float:
    """Error over tolerance of a recorded value under a graph; infinite where it has no such value."""
    if key not in graph.values:
        return np.inf
    before = ancestry(graph, key, frozenset(exact))
    if before.lacking:
        return np.inf
    with np.errstate(all="ignore"):
        try:
            want = np.asarray(evaluate(graph, key, exact))
        except ValueError:  # the rule refuses what it would receive
            return np.inf
        if want.shape != got.shape or not np.isfinite(want).all():
            return np.inf
        return norms(got - want).over(tolerance.norms)


def _fitting(
    readings: Readings, key: str, exact: Any, got: Array, tolerance: Tolerance
) -> list[Change]:
    """Changes of one axis under which a value is right, else of axes that belong together."""
    for pairs in readings.stages():
        fitting = [
            change for change, graph in pairs if ratio_of(graph, key, exact, got, tolerance) <= PASS
        ]
        if fitting:
            return fitting
    return []


def _other_parameters(
    recording: Recording, module: str, key: str, exact: Any, got: Array, tolerance: Tolerance
) -> Iterator[str]:
    """Modules with whose parameters a module would be right (MODULES-13)."""
    leaves, paths, build = flatten(recording.params, "params")
    places = {path: i for i, path in enumerate(paths)}
    names = {
        name: places[place]
        for name, place in recipes.names_of(recording.recipe).items()
        if place in places
    }
    owners = _owners(names, leaves)
    alone = module.removeprefix("layer.")
    target = next((each for each in owners if each in (alone, f"{alone}.0")), None)
    if target is None:
        return
    for other, own in owners.items():
        if other == target or _shapes(own, leaves) != _shapes(owners[target], leaves):
            continue
        moved = list(leaves)
        for suffix, i in owners[target].items():
            moved[i] = leaves[own[suffix]]
        graph = recording._replace(params=build(moved)).graph()
        if ratio_of(graph, key, exact, got, tolerance) <= PASS:
            yield f"computes with the parameters of {other}"


def _owners(names: Mapping[str, int], leaves: list[Any]) -> dict[str, dict[str, int]]:
    """By module the places of its parameters, by the last word of their names."""
    owners: dict[str, dict[str, int]] = {}
    for name, place in names.items():
        module, _, suffix = name.rpartition(".")
        owners.setdefault(module, {})[suffix] = place
    return owners


def _shapes(own: Mapping[str, int], leaves: list[Any]) -> dict[str, tuple[int, ...]]:
    return {suffix: leaves[i].shape for suffix, i in own.items()}
