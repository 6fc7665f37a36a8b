"""Nested levels for tests, and their definition in loops: each context is a level by itself.

The loops import nothing from the package (tests/truth/literal.py evaluates each context).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from atlas_ref.levels import block as cms
from tests.support.blocks import COUNTING, countdown, tensors_of
from tests.truth import literal

Array = np.ndarray[Any, Any]

#: Levels of one shape of memory, in no order of their periods; 3 divides neither 4 nor 8.
NESTED: tuple[dict[str, Any], ...] = (
    {
        "rule": "delta",
        "period": 3,
        "d_in": 3,
        "convention": {"decay": "before_error", "read": "before"},
    },
    {"rule": "titans_lmm", "period": 1, "d_in": 3},
    {"rule": "omega", "period": 8, "d_in": 3, "window": 3},
    {"rule": "hebbian", "period": 4, "d_in": 3},
)
#: The same with what counts tokens: spans, and averages of momenta.
SPANS: tuple[dict[str, Any], ...] = (
    {**COUNTING[0], "period": 5, "d_in": 3},
    {**COUNTING[1], "period": 1, "d_in": 3},
    {**COUNTING[2], "period": 2, "d_in": 3},
)


def evaluated(spec: dict[str, Any], tensors: dict[str, Any]) -> dict[str, Any]:
    """A level over some tokens, by plain loops."""
    own = {key: value for key, value in spec.items() if key not in ("period", "d_in")}
    found: dict[str, Any] = literal.evaluate({"schema": 1, "level": "token", **own}, tensors)
    return found


def in_loops(
    specs: Sequence[dict[str, Any]],
    params: cms.Params,
    x: Array,
    context: cms.Context,
    *,
    first: int = 0,
    reset: Array | None = None,
) -> tuple[Array, list[dict[str, Any]]]:
    """Reads (B, H, T, d_out) and the results of each level: its loops over each of its contexts."""
    tensors: dict[str, Any] = {"in/x": x, "in/logits": params.logits}
    for i, state in enumerate(context.origins):
        own = {**tensors_of(params.levels[i]), "in/M0": state.M}
        if hasattr(state, "S"):
            own["in/S0"] = state.S
        tensors |= {f"in/level{i}/{name[3:]}": value for name, value in own.items()}
    return by_name(specs, tensors, first=first, reset=reset)


def by_name(
    specs: Sequence[dict[str, Any]],
    tensors: Mapping[str, Any],
    *,
    first: int = 0,
    reset: Array | None = None,
    masked: bool = False,
) -> tuple[Array, list[dict[str, Any]]]:
    """The same from tensors named as in a case, real or complex."""
    x, periods = tensors["in/x"], [spec["period"] for spec in specs]
    T = x.shape[1]
    active = countdown(periods, first, T)
    order = sorted(range(len(specs)), key=lambda i: -periods[i])
    reads: dict[int, Array] = {}
    memory: dict[int, Any] = {}  # level -> for each token, and after the last, M at its start
    results: dict[int, dict[str, Any]] = {}
    for slower, i in zip([None, *order], order, strict=False):
        prefix = f"in/level{i}/"
        own = {
            "in/" + name.removeprefix(prefix): value
            for name, value in tensors.items()
            if name.startswith(prefix)
        }
        starts = {0: own["in/M0"]}
        if slower is not None:
            starts |= {t: memory[slower][t] for t in range(1, T) if active[t - 1, slower]}
        if reset is not None:
            starts |= {int(t): own["in/M0"] for t in np.flatnonzero(reset)}
        places = [*sorted(starts), T]
        memory[i], pieces = [None] * (T + 1), []
        for begin, end in itertools.pairwise(places):
            memory[i][begin] = starts[begin]
            for stop in range(begin + 1, end + 1):
                at = {"in/x": x[:, begin:stop], "in/active": active[begin:stop, i]}
                found = evaluated(specs[i], {**own, **at, "in/M0": starts[begin]})
                memory[i][stop] = found["out/M"]
            pieces.append(found["out/y"])
        results[i] = found
        reads[i] = np.concatenate(pieces, axis=2)
    y = np.zeros(reads[0].shape, np.result_type(tensors["in/logits"], *reads.values()))
    for t in range(T):
        counted = [i for i in range(len(specs)) if active[t, i] or not masked]
        total = sum(np.exp(tensors["in/logits"][i]) for i in counted)
        for i in counted:
            y[:, :, t] += np.exp(tensors["in/logits"][i]) / total * reads[i][:, :, t]
    return y, [results[i] for i in range(len(specs))]
