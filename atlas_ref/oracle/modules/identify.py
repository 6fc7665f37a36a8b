"""Identification of a layer, block or model: the readings under which its results are right.

Specified in specs/modules.md (MODULES-15).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.layers.convention import AXES, PRESETS, resolve
from atlas_ref.messages import Progress, unwatched
from atlas_ref.oracle.cases.case import CaseError
from atlas_ref.oracle.judge.tolerance import PASS, Tolerance
from atlas_ref.oracle.modules.graph import Graph, ancestry
from atlas_ref.oracle.modules.graphs.models import ALONE
from atlas_ref.oracle.modules.nearest import exactly, ratio_of
from atlas_ref.oracle.modules.readings import Change, axes_present, graph_under, groups, singles
from atlas_ref.oracle.modules.recording import MODULE, Recording, make_recording, resolve_eps
from atlas_ref.oracle.modules.tolerance import Graphs
from atlas_ref.types import Array

#: Results of a layer, block or model as a whole, and what it receives.
RESULTS = (f"{ALONE}/out/y", "to_logits/out/y")
FIRST = (f"{ALONE}/in/", "embed/in/")
#: Pairs of changes that are tried, those with the smallest errors first.
PAIRS = 600


class Identification(NamedTuple):
    """Readings under which all results are right (MODULES-15).

    Attributes:
        changes: what differs from the readings that were asked for; several where the results
            cannot tell them apart; none where no reading was found.
        ratio: error over tolerance of the first, or of the best that was tried.
        alike: axes whose other values give these results too, "norm_eps 1e-05".
        runner_up: of the changes that do not fit, the nearest, and its ratio.
        words: all of it in a line.
    """

    changes: tuple[Change, ...]
    ratio: float
    alike: tuple[str, ...]
    runner_up: tuple[str, float] | None
    words: str

    @property
    def has_fit(self) -> bool:
        return bool(self.changes)


def identify_layer(
    header: Mapping[str, Any],
    parameters: Mapping[str, Array],
    inputs: Mapping[str, Array],
    outputs: Mapping[str, Array],
    *,
    progress: Progress = unwatched,
) -> Identification:
    """Name the readings under which a layer, block or model gives these results (MODULES-15).

    Args:
        header: of a recording; its convention and rule are where the search starts.
        parameters: by public names, or by ours.
        inputs, outputs: of the whole, by port (x, y), or by key (embed/in/ids, to_logits/out/y).
        progress: called with "readings", those that were tried, and all.

    Raises:
        CaseError: anything that a recording may not say, or no result.
    """
    recording = _recording(header, parameters, inputs, outputs)
    return _search(recording, [_key(port, "out") for port in outputs], progress)


def identify_recording(recording: Recording, *, progress: Progress = unwatched) -> Identification:
    """Name the readings under which the whole of a recording gives its results (MODULES-15).

    What modules inside received and returned is left out.

    Raises:
        CaseError: no result of the whole was recorded.
    """
    values = recording.values
    keys = [key for key in RESULTS if key in values]
    if not keys:
        names = " or ".join(f"{MODULE}{key}" for key in RESULTS)
        raise CaseError(f"{recording.name}: no result of the whole: {names} is needed")
    first = {key: each for key, each in values.items() if key.startswith(FIRST)}
    ends = {**first, **{key: values[key] for key in keys}}
    return _search(recording._replace(values=ends), keys, progress)


def _search(recording: Recording, keys: Sequence[str], progress: Progress) -> Identification:
    """The first readings that fit: those asked for, presets, one change, two."""
    search = _Search(recording, keys, progress)
    tried: list[tuple[Change, float]] = []
    for stage in (search.starts, search.singles, search.pairs):
        results = [(change, search.ratio(change)) for change in stage(tried)]
        tried += results
        fitting = [change for change, ratio in results if ratio <= PASS]
        if fitting:
            return _identification(search, fitting, tried)
    return _identification(search, [], tried)


def _key(port: str, way: str) -> str:
    return port if "/" in port and not port.startswith("state/") else f"{ALONE}/{way}/{port}"


def _recording(header: Mapping[str, Any], parameters: Any, inputs: Any, outputs: Any) -> Recording:
    if not outputs:
        raise CaseError("outputs: empty, at least one result is needed")
    tensors = {f"in/param/{name}": each for name, each in parameters.items()}
    for way, ports in (("in", inputs), ("out", outputs)):
        tensors |= {f"{MODULE}{_key(port, way)}": each for port, each in ports.items()}
    return make_recording({"schema": 1, "recording": "modules", **header}, tensors, name="layer")


class _Search:
    """Ratios of a recording under readings, each computed once."""

    def __init__(self, recording: Recording, keys: Sequence[str], progress: Progress) -> None:
        self.recording, self.keys, self.progress = recording, keys, progress
        self.count, self.graphs = 0, Graphs(recording.graph)
        values = recording.values
        self.exact = exactly({k: v for k, v in values.items() if k not in keys})
        self.got = {key: np.asarray(values[key], np.float64) for key in keys}
        self.tolerances = {key: self._tolerance(key) for key in keys}

    def _tolerance(self, key: str) -> Tolerance:
        values = self.recording.values
        before = ancestry(self.graphs.wide, key, frozenset(self.exact))
        if before.lacking:
            lacks = ", ".join(f"{MODULE}{each}" for each in before.lacking)
            raise CaseError(f"layer: {MODULE}{key}: nothing before it was recorded: {lacks}")
        inputs = {each: values[each] for each in before.known}
        return self.graphs.truth(key, inputs, values[key].dtype.name).tolerance

    def ratio(self, change: Change) -> float:
        """The worst ratio of all results under a change."""
        self.count += 1
        self.progress("readings", self.count, self.count)
        graph: Graph | None = graph_under(self.recording, change)
        if graph is None:
            return float("inf")
        return max(
            ratio_of(graph, key, self.exact, self.got[key], self.tolerances[key])
            for key in self.keys
        )

    def starts(self, _: Any) -> Iterator[Change]:
        """The readings that were asked for, then every preset's."""
        yield Change()
        recipe = self.recording.recipe
        own, has = resolve_eps(recipe.convention, self.recording.dtype), axes_present(recipe)
        for name in PRESETS:
            axes = resolve_eps(resolve(name), self.recording.dtype)
            changed = {
                axis: getattr(axes, axis)
                for axis in AXES
                if axis in has and getattr(axes, axis) != getattr(own, axis)
            }
            if changed:
                yield Change(layer=changed)

    def singles(self, tried: list[tuple[Change, float]]) -> Iterator[Change]:
        """One more change of each start that fits the parameters."""
        dtype = self.recording.dtype
        for start, ratio in list(tried):
            if np.isfinite(ratio):
                recipe = start.of(self.recording.recipe) or self.recording.recipe
                for change in itertools.chain(singles(recipe, dtype), groups(recipe, dtype)):
                    yield start.join(change)

    def pairs(self, tried: list[tuple[Change, float]]) -> Iterator[Change]:
        """Two changes that each matter, nearest first."""
        base = tried[0][1]
        near = [(change, ratio) for change, ratio in tried[1:] if np.isfinite(ratio)]
        near = sorted((each for each in near if each[1] != base), key=lambda each: each[1])
        pairs = (
            a.join(b) for (a, _), (b, _) in itertools.combinations(near, 2) if not a.axes & b.axes
        )
        return itertools.islice(pairs, PAIRS)


def _identification(
    search: _Search, fitting: list[Change], tried: list[tuple[Change, float]]
) -> Identification:
    """The result of a search, with what it cannot tell apart and the runner-up."""
    recipe, dtype = search.recording.recipe, search.recording.dtype
    others = [(change, ratio) for change, ratio in tried if ratio > PASS]
    best = min(others, key=lambda each: each[1], default=None)
    runner_up = None
    if best is not None and np.isfinite(best[1]):
        runner_up = (best[0].words(recipe, "asked for"), best[1])
    if not fitting:
        ratio = best[1] if best is not None else float("inf")
        return Identification((), ratio, (), runner_up, "no reading that was tried gives these")
    least = min(len(change.axes) for change in fitting)
    named = {tuple(change.value_words()): change for change in fitting if len(change.axes) == least}
    chosen = tuple(named.values())
    under = chosen[0].of(recipe) or recipe
    under = under._replace(convention=resolve_eps(under.convention, dtype))
    alike = dict.fromkeys(
        name
        for change in singles(under, dtype)
        if search.ratio(chosen[0].join(change)) <= PASS
        for name in change.value_words()
    )
    words = " or ".join(change.words(recipe, "asked for") for change in chosen)
    if alike:
        words += f"; these results cannot tell {', '.join(alike)}"
    return Identification(chosen, search.ratio(chosen[0]), tuple(alike), runner_up, words)
