"""Every reading and habit of modules, and pairs of them, run on recordings of every kind."""

from __future__ import annotations

import functools
import itertools
import random
from typing import Any

import numpy as np
import pytest

from atlas_ref.oracle.modules.graph import Graph
from atlas_ref.oracle.modules.habits import of_work, wires
from atlas_ref.oracle.modules.nearest import exactly, ratio_of
from atlas_ref.oracle.modules.readings import graph_under, groups, singles
from atlas_ref.oracle.modules.recording import Recording, make_recording
from atlas_ref.oracle.modules.tolerance import truth
from tests.support.recorded_modules import end_of, header_of, of_ours

HEADERS: dict[str, dict[str, Any]] = {
    block: header_of(calls=[5, 4], settings={"depth": 1, "block_type": block})
    for block in ("lmm", "mag", "mal", "mac")
}

#: Pairs of habits of each recording: of some 20,000, since each computes a model.
PAIRS = 400


@functools.cache
def recorded(block: str) -> tuple[Recording, Graph, Any]:
    """A recording with every value, its graph, and the error at the end of another graph."""
    recording = make_recording(HEADERS[block], of_ours(HEADERS[block]))
    own = recording.graph()
    end = end_of(own)
    first = {key: x for key, x in recording.values.items() if own.values[key].kind == "free"}
    exact, tolerance = exactly(first), truth(end, first, own, own, "float64").tolerance
    got = np.asarray(recording.values[end], np.float64)
    return recording, own, lambda graph: ratio_of(graph, end, exact, got, tolerance)


@pytest.mark.sample(1)
@pytest.mark.clause("CASE-38", "MODULES-12", "MODULES-15")
@pytest.mark.parametrize("block", HEADERS)
def test_every_pair_of_axes_runs(block: str, request: Any) -> None:
    """With `make test` some of them."""
    recording, own, error_of = recorded(block)
    recipe, dtype = recording.recipe, recording.dtype
    one = [*singles(recipe, dtype), *groups(recipe, dtype)]
    two = [a.join(b) for a, b in itertools.combinations(one, 2) if not a.axes & b.axes]
    random.Random(0).shuffle(two)
    some = [*one, *two] if "slow" in request.node.keywords else [*one[::3], *two[:20]]
    found = [graph_under(recording, each) for each in some]
    errors = [error_of(graph) for graph in found if graph is not None]
    assert max(each for each in errors if np.isfinite(each)) > 1.0
    assert error_of(own) <= 1.0


@pytest.mark.sample(1)
@pytest.mark.clause("CASE-38", "MODULES-18")
@pytest.mark.parametrize("block", HEADERS)
def test_every_pair_of_habits_runs(block: str, request: Any) -> None:
    """With `make test` some of them."""
    _, graph, error_of = recorded(block)
    ways = [
        (key, way)
        for key, value in graph.values.items()
        if value.work is not None
        for way in (*of_work(value), *wires.factors(value))
    ]
    two = [(a, b) for a, b in itertools.combinations(ways, 2) if a[0] != b[0]]
    random.Random(0).shuffle(two)
    pairs: list[Any] = [*((each,) for each in ways), *two[:PAIRS]]
    random.Random(1).shuffle(pairs)
    for pair in pairs if "slow" in request.node.keywords else pairs[:60]:
        other = graph
        for key, way in pair:
            other = other.otherwise(key, way.sources, way.function)
        error_of(other)
    assert ways
