"""Distances of conventions from results under test, and tolerances for the near ones (IDENT-3,
IDENT-7).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.conventions import Convention, effective
from atlas_ref.messages import Progress, unwatched
from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.inputs import convert
from atlas_ref.oracle.cases.tensors import legal
from atlas_ref.oracle.evaluate import WEIGHED, evaluate
from atlas_ref.oracle.family import candidates
from atlas_ref.oracle.identify.observation import Observation
from atlas_ref.oracle.judge import ensemble
from atlas_ref.oracle.judge.tolerance import FLOOR, MARGINAL, Tolerance, tolerances
from atlas_ref.oracle.norms import Norms, norms, ulp
from atlas_ref.types import Array

#: Step along a direction of the inputs, for derivatives by complex step.
STEP = 1e-30

#: Conventions whose distance is within this factor of the best are judged by their tolerance; at
#: most this many alone.
NEAR, MOST = 50.0, 6

#: Floors of a tolerance, with the amplification of Newton-Schulz, beyond which nothing fits: the
#: ensemble adds a few of them at most.
REACH = 100.0


class Scored(NamedTuple):
    """Distances (conventions,), the worst over tensors; errors by tensor."""

    distance: Array
    errors: dict[str, Array]

    def followed_by(self, other: Scored) -> Scored:
        """The scores of more conventions behind these."""
        errors = {
            name: np.concatenate([each, other.errors[name]]) for name, each in self.errors.items()
        }
        return Scored(np.concatenate([self.distance, other.distance]), errors)

    def tensor(self, i: int) -> str:
        """The tensor that is worst under a convention."""
        return max(self.errors, key=lambda name: float(self.errors[name][i]))


def score(
    case: Case,
    inputs: Mapping[str, Array],
    conventions: Sequence[Convention],
    observation: Observation,
    *,
    columns: bool = False,
    progress: Progress = unwatched,
) -> Scored:
    """The distance of every convention (IDENT-3); `columns` is that of a `Mistake`."""
    if not observation.values:
        return _by_directions(case, inputs, conventions, observation, progress)
    errors = {name: np.full(len(conventions), np.inf) for name in observation.values}
    with np.errstate(all="ignore"):
        groups = candidates.evaluate(case, inputs, conventions, columns=columns)
        for numbers, results in _count(groups, len(conventions), progress):
            for name, mine in observation.values.items():
                if name in results and results[name].shape[1:] == mine.shape:
                    errors[name][numbers] = _relative(results[name], mine)
    return _worst(errors)


def _count(
    groups: Iterable[tuple[list[int], candidates.Results]], of: int, progress: Progress
) -> Iterator[tuple[list[int], candidates.Results]]:
    """The groups of conventions with the progress of their evaluation (SRC-23)."""
    done = 0
    progress("conventions", done, of)
    for numbers, results in groups:
        yield numbers, results
        done += len(numbers)
        progress("conventions", done, of)


def _worst(errors: dict[str, Array]) -> Scored:
    worst = np.max(np.stack(list(errors.values())), axis=0)
    return Scored(np.where(np.isnan(worst), np.inf, worst), errors)


def _relative(results: Array, mine: Array) -> Array:
    """||results - mine|| / ||mine|| of each convention."""
    size = float(np.linalg.norm(mine))
    gap = (results - mine[None]).reshape(len(results), -1)
    return np.sqrt(np.einsum("ij,ij->i", gap, gap)) / (size or 1.0)


def _by_directions(
    case: Case,
    inputs: Mapping[str, Array],
    conventions: Sequence[Convention],
    observation: Observation,
    progress: Progress,
) -> Scored:
    """Distances from gradients alone: the derivative of <y, y_bar> + ... along a random direction
    of each input.

    By complex step on the values, it costs one evaluation per gradient; its truth is <gradient,
    direction>.
    """
    errors = {}
    for seed, (name, mine) in enumerate(observation.gradients.items()):
        source = "in/" + name.removeprefix("grad/")
        direction = np.random.Generator(np.random.Philox(seed)).choice(
            [-1.0, 1.0], inputs[source].shape
        )
        moved = {**inputs, source: inputs[source] + 1j * STEP * direction}
        along, size = float(np.sum(mine * direction)), float(np.linalg.norm(mine)) or 1.0
        slopes = np.full(len(conventions), np.inf)
        with np.errstate(all="ignore"):
            groups = candidates.evaluate(case, moved, conventions)
            for numbers, results in _count(groups, len(conventions), progress):
                slopes[numbers] = _slope(results, inputs)
        errors[name] = np.abs(slopes - along) / size
    return _worst(errors)


def _slope(results: Mapping[str, Array], inputs: Mapping[str, Array]) -> Array:
    total: Any = 0.0
    for name, bar in WEIGHED.items():
        if name in results and bar in inputs and results[name].shape[1:] == inputs[bar].shape:
            part = results[name].imag * inputs[bar][None]
            total = total + part.reshape(len(part), -1).sum(axis=1)
    return total / STEP


def seen_as(case: Case, convention: Convention) -> Case:
    """The case under a convention, without the tensors that it does not read."""
    allowed, _ = legal(case.header, effective(convention, rule=case.header.rule), set(case.inputs))
    inputs = {name: value for name, value in case.inputs.items() if name in allowed}
    return case.replaced(convention=convention, inputs=inputs, recorded={})


def judge(
    case: Case,
    inputs: Mapping[str, Array],
    conventions: Sequence[Convention],
    observation: Observation,
    scores: Scored,
    order: Array,
) -> tuple[dict[int, float], dict[int, str]]:
    """Error over tolerance of the conventions that are near, and the tensor that decides it
    (IDENT-7).

    The tolerance is that of the nearest convention; where that one is wrong by it, others that are
    as near are judged by their own.
    """
    ratios: dict[int, float] = {}
    tensors: dict[int, str] = {}
    first = int(order[0])
    allowed = _tolerances(case, conventions[first], observation)
    reach = max(_reach(allowed[name], observation) for name in allowed)
    wide = max(float(scores.distance[first]) * NEAR, reach)
    near = [int(i) for i in order if scores.distance[i] <= wide]
    if observation.values:  # beyond reach nothing fits; the next ones are named at most
        near = near[: int(np.sum(scores.distance[near] <= reach)) + MOST]
    _by_values(case, inputs, conventions, observation, allowed, near, ratios, tensors)
    if observation.values and ratios[first] > MARGINAL:
        for i in near[1:MOST]:
            how_far = (scores.tensor(i), float(scores.distance[i]))
            if beyond_reach(case, conventions[i], observation, *how_far):
                continue
            _by_values(
                case,
                inputs,
                conventions,
                observation,
                _tolerances(case, conventions[i], observation),
                [i],
                ratios,
                tensors,
            )
    if observation.gradients:
        open_ = [i for i in near if ratios.get(i, 0.0) <= MARGINAL]
        _by_gradients(case, conventions, observation, open_, ratios, tensors)
    return ratios, tensors


def judged_alone(
    case: Case, convention: Convention, observation: Observation, *, columns: bool = False
) -> tuple[float, str]:
    """Error over tolerance of the values under one convention, and the tensor that decides it.

    Args:
        columns: that of a `Mistake`.
    """
    inputs, allowed = convert(case, "float64"), _tolerances(case, convention, observation)
    with np.errstate(all="ignore"):
        ((_, results),) = candidates.evaluate(case, inputs, [convention], columns=columns)
    worst = {
        name: _ratio(results, name, 0, mine, allowed) for name, mine in observation.values.items()
    }
    name = max(worst, key=lambda each: worst[each])
    return worst[name], name


def beyond_reach(
    case: Case, convention: Convention, observation: Observation, tensor: str, distance: float
) -> bool:
    """Whether results are so far from a convention that it need not be judged by its tolerance.

    Three plain evaluations tell it under Newton-Schulz, where the ensemble takes most of the time.

    Args:
        tensor: that decides the distance.
    """
    if not convention.has_newton_schulz or tensor not in observation.values:
        return False
    view = seen_as(case, convention)
    factor = ensemble.amplification(view, ensemble.exact(view)).get(tensor, 1.0)
    dtype, size = observation.dtypes[tensor], norms(observation.values[tensor]).rms
    arithmetic = "float64" if dtype == "float64" else "float32"
    unit = factor * ulp(size, arithmetic) + (ulp(size, dtype) if dtype != arithmetic else 0.0)
    return distance * size > REACH * FLOOR * unit


def _reach(tolerance: Tolerance, observation: Observation) -> float:
    mine = observation.values.get(tolerance.name, observation.gradients.get(tolerance.name))
    size = norms(mine).rms if mine is not None else 0.0
    return 10.0 * MARGINAL * tolerance.rms / size if size else 0.0


def _tolerances(
    case: Case, convention: Convention, observation: Observation
) -> dict[str, Tolerance]:
    view = seen_as(case, convention)
    by_name: dict[str, Tolerance] = {}
    for dtype in dict.fromkeys(observation.dtypes.values()):
        names = [
            name
            for name in (*observation.values, *observation.gradients)
            if observation.dtypes[name] == dtype
        ]
        only = [name for name in names if not name.startswith("grad/")]
        only += [
            name
            for name in names
            if name.startswith("grad/") and "in/" + name.removeprefix("grad/") in view.inputs
        ]
        if "out/M_ref" in only and not _resumes(convention):
            only.remove("out/M_ref")
        by_name |= tolerances(view, dtype=dtype, only=only, alternatives=False)
    return by_name


def _resumes(c: Convention) -> bool:
    return c.frozen_reference or c.read == "chunk_start"


def _by_values(
    case: Case,
    inputs: Mapping[str, Array],
    conventions: Sequence[Convention],
    observation: Observation,
    allowed: Mapping[str, Tolerance],
    chosen: Sequence[int],
    ratios: dict[int, float],
    tensors: dict[int, str],
) -> None:
    if not observation.values:
        return
    with np.errstate(all="ignore"):
        for numbers, results in candidates.evaluate(case, inputs, [conventions[i] for i in chosen]):
            for place, number in enumerate(numbers):
                worst = {
                    name: _ratio(results, name, place, mine, allowed)
                    for name, mine in observation.values.items()
                }
                name = max(worst, key=lambda each: worst[each])
                ratios[chosen[number]], tensors[chosen[number]] = worst[name], name


def _ratio(
    results: Mapping[str, Array],
    name: str,
    place: int,
    mine: Array,
    allowed: Mapping[str, Tolerance],
) -> float:
    if name not in results or results[name].shape[1:] != mine.shape or name not in allowed:
        return float("inf")
    gap = results[name][place] - mine
    return norms(gap).over(allowed[name].norms) if np.isfinite(gap).all() else float("inf")


def _by_gradients(
    case: Case,
    conventions: Sequence[Convention],
    observation: Observation,
    chosen: Sequence[int],
    ratios: dict[int, float],
    tensors: dict[int, str],
) -> None:
    """Gradients of the conventions whose values fit, by the rules themselves."""
    for i in chosen:
        view = seen_as(case, conventions[i])
        if any(
            "in/" + name.removeprefix("grad/") not in view.inputs for name in observation.gradients
        ):
            ratios[i] = float("inf")
            continue
        allowed = _tolerances(case, conventions[i], observation)
        ours = evaluate(view, grad=True).tensors
        worst = {
            name: _gradient_ratio(ours[name], mine, allowed[name].norms)
            for name, mine in observation.gradients.items()
        }
        name = max(worst, key=lambda each: worst[each])
        if worst[name] > ratios.get(i, -1.0):
            ratios[i], tensors[i] = worst[name], name


def _gradient_ratio(ours: Array, mine: Array, allowed: Norms) -> float:
    gap = np.asarray(ours, np.float64) - mine
    return norms(gap).over(allowed) if np.isfinite(gap).all() else float("inf")
