"""Ranking of conventions on large cases, in two stages (IDENT-12).

The first tokens of one sequence rank all of them; the whole case ranks those that stay near.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from atlas_ref.conventions import Convention
from atlas_ref.messages import Progress, unwatched
from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.family.facts import facts
from atlas_ref.oracle.identify.observation import Observation
from atlas_ref.oracle.identify.score import Scored, score
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.types import Array

#: Multiplications, conventions included, above which a case is large; tokens that a large case is
#: ranked by.
LARGE, FIRST = 3e9, 12

#: Of the conventions within this factor of the nearest, or this near, at most so many are compared
#: in full.
NEAR, LEAST, MOST = 30.0, 1e-2, 200

#: Tensors without leading axes; those with a time axis, which is the first after the leading ones.
BARE = ("in/active", "in/reset", "in/phi/", "in/proj", "in/param/")
TIMED: tuple[str, ...] = (
    "in/k",
    "in/v",
    "in/q",
    "in/x",
    "in/retain",
    "in/log_retain",
    "in/momentum",
    "in/log_momentum",
    "in/step_size",
)
TIMED += ("in/step_size_memory", "in/window_weights", "in/window_gate")


def is_large(case: Case, count: int) -> bool:
    """Whether that many conventions take more than seconds on a case."""
    if not SUBJECTS[case.header.rule].has_tokens:
        return False
    of, lead = facts(case), _leading(case)
    return (
        count * float(np.prod(lead)) * of.tokens * of.d_out * of.d_phi * (case.header.window + 30)
        > LARGE
    )


def score_in_stages(
    case: Case,
    inputs: Mapping[str, Array],
    conventions: Sequence[Convention],
    observation: Observation,
    *,
    progress: Progress = unwatched,
) -> Scored:
    """Distances of a large case.

    Exact for the conventions that are near on its first tokens, those of the first tokens for the
    rest.

    A read at the end of the call is ranked by its memory where the results have one. Otherwise it
    is left out, since no prefix shows it.
    """
    if "out/y" not in observation.values:
        return score(case, inputs, conventions, observation, progress=progress)
    lead = len(_leading(case))
    small = {name: _crop(name, value, lead) for name, value in inputs.items()}
    mine = {
        "out/y": observation.values["out/y"][
            (slice(1),) * (observation.values["out/y"].ndim - 2) + (slice(FIRST),)
        ]
    }
    if case.header.level == "token":
        mine["out/y"] = observation.values["out/y"][:1, :, :FIRST]
    part = case.replaced(
        inputs={name: _crop(name, value, lead) for name, value in case.inputs.items()},
        recorded={},
    )
    causal = [i for i, each in enumerate(conventions) if each.read != "call_end"]
    first = score(
        part,
        small,
        [conventions[i] for i in causal],
        Observation(mine, {}, {"out/y": observation.dtypes["out/y"]}, ()),
        progress=progress,
    )
    distance = np.full(len(conventions), np.inf)
    distance[causal] = first.distance
    limit = max(NEAR * float(first.distance.min(initial=np.inf)), LEAST)
    near = [int(i) for i in np.argsort(distance, kind="stable")[:MOST] if distance[i] <= limit]
    if not near:
        near = [int(i) for i in np.argsort(distance, kind="stable")[:MOST]]
    chosen = [conventions[i] for i in near]
    whole = score(case, inputs, chosen, observation, progress=progress)
    errors = {name: distance.copy() for name in whole.errors}
    for name, error in whole.errors.items():
        errors[name][near] = error
    distance[near] = whole.distance
    return Scored(distance, errors)


def _leading(case: Case) -> tuple[int, ...]:
    name = "in/k" if "in/k" in case.inputs else "in/x"
    return tuple(case.inputs[name].shape[:-2])


def _crop(name: str, value: Array, lead: int) -> Array:
    """The first sequence, and of it the first tokens."""
    if name in ("in/active", "in/reset"):
        return value[:FIRST]
    if name.startswith(BARE):
        return value
    key: tuple[slice, ...] = (slice(1),) * lead
    if name in TIMED:
        key = (*key, slice(FIRST))
    elif name == "in/y_bar":
        key = (*(slice(1),) * (value.ndim - 2), slice(FIRST))
    return value[key]
