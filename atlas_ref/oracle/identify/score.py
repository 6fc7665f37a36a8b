"""Distances of conventions from results under test, and tolerances for the near ones (IDENT-3,
IDENT-7).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.conventions import Convention, effective
from atlas_ref.oracle.cases.case import Case, CaseError, differentiable
from atlas_ref.oracle.cases.inputs import converted
from atlas_ref.oracle.cases.schema import result_names
from atlas_ref.oracle.cases.tensors import legal
from atlas_ref.oracle.evaluate import WEIGHED, evaluate
from atlas_ref.oracle.family import candidates
from atlas_ref.oracle.family.lattice import facts
from atlas_ref.oracle.judge.norms import FORMATS, Norms, norms
from atlas_ref.oracle.judge.tolerance import MARGINAL, Tolerance, tolerances
from atlas_ref.oracle.subjects import SUBJECTS
from atlas_ref.rules import RULES
from atlas_ref.types import Array

#: Results that conventions are ranked by.
RANKING = ("out/y", "out/M", "out/S", "out/M_ref", "out/X")

#: Step along a direction of the inputs, for derivatives by complex step.
STEP = 1e-30

#: Conventions whose distance is within this factor of the best are judged by their tolerance; at
#: most this many alone.
NEAR, MOST = 50.0, 6


class Observation(NamedTuple):
    """Results under test in float64, and the format that they were computed in.

    Attributes:
        values: what conventions are ranked by; gradients: those that a fit must explain as well.
        dtypes: the format of each.
        unused: results that no convention changes, or that are not compared here.
    """

    values: dict[str, Array]
    gradients: dict[str, Array]
    dtypes: dict[str, str]
    unused: tuple[str, ...]

    @property
    def dtype(self) -> str:
        """The narrowest format."""
        return min(self.dtypes.values(), key=lambda name: FORMATS[name][1])


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


def observe(case: Case, mine: Mapping[str, Any], dtype: str | None) -> Observation:
    """Check results under test against a case (IDENT-1).

    Raises:
        CaseError: nothing to compare, a name that is no result of the case, another shape, a dtype
            that is no float.
    """
    names = {*result_names()} | {
        "grad/" + name.removeprefix("in/") for name in differentiable(case)
    }
    shapes = _shapes(case)
    values: dict[str, Array] = {}
    gradients: dict[str, Array] = {}
    dtypes: dict[str, str] = {}
    unused: list[str] = []
    for name, array in mine.items():
        if name not in names:
            raise CaseError(
                f"{case.name}: {name}: not a result of this case; it has {', '.join(shapes)}"
            )
        array = np.asarray(array)
        if array.dtype.name not in FORMATS:
            raise CaseError(
                f"{case.name}: {name}: dtype {array.dtype.name}, one of {', '.join(FORMATS)} "
                "is needed"
            )
        if name not in shapes:
            unused.append(name)
            continue
        if array.shape not in shapes[name]:
            raise CaseError(
                f"{case.name}: {name}: shape {array.shape}, expected "
                f"{' or '.join(map(str, shapes[name]))}"
            )
        (gradients if name.startswith("grad/") else values)[name] = array.astype(np.float64)
        dtypes[name] = dtype or array.dtype.name
    if not dtypes:
        raise CaseError(
            f"{case.name}: none of the results that conventions are told apart by: "
            f"{', '.join(shapes)}"
        )
    if gradients and not any(name in case.inputs for name in ("in/y_bar", "in/X_bar")):
        raise CaseError(f"{case.name}: in/y_bar: missing, gradients need it")
    return Observation(values, gradients, dtypes, tuple(unused))


def _shapes(case: Case) -> dict[str, tuple[tuple[int, ...], ...]]:
    """The shapes that each result may have, matrices in either layout."""
    inputs, h, subject = case.inputs, case.header, SUBJECTS[case.header.rule]
    grads: dict[str, tuple[tuple[int, ...], ...]] = {
        "grad/" + name.removeprefix("in/"): (inputs[name].shape,) for name in differentiable(case)
    }
    if not subject.has_axes:
        raise CaseError(f"{case.name}: the rule {h.rule} has no axis to identify")
    if not subject.has_tokens:
        return {subject.result: (inputs[subject.argument].shape,)} | grads
    of = facts(case)
    if h.level == "token":
        lead: tuple[int, ...] = (inputs["in/x"].shape[0], inputs["in/param/W_K"].shape[0])
    else:
        lead = inputs["in/k"].shape[:-2]
    matrix = tuple(dict.fromkeys([(*lead, of.d_out, of.d_phi), (*lead, of.d_phi, of.d_out)]))
    shapes: dict[str, tuple[tuple[int, ...], ...]] = {
        "out/y": ((*lead, of.tokens, of.d_out),),
        "out/M": matrix,
    }
    if (
        of.names & {"in/momentum", "in/log_momentum", "in/param/W_momentum"}
        and RULES[h.rule].has_momentum
    ):
        shapes["out/S"] = matrix
    return shapes | {"out/M_ref": matrix} | grads


def scored(
    case: Case,
    inputs: Mapping[str, Array],
    conventions: Sequence[Convention],
    observation: Observation,
    *,
    columns: bool = False,
) -> Scored:
    """The distance of every convention (IDENT-3); `columns` is that of a `Departure`."""
    if not observation.values:
        return _by_directions(case, inputs, conventions, observation)
    errors = {name: np.full(len(conventions), np.inf) for name in observation.values}
    with np.errstate(all="ignore"):
        for numbers, results in candidates.evaluated(case, inputs, conventions, columns=columns):
            for name, mine in observation.values.items():
                if name in results and results[name].shape[1:] == mine.shape:
                    errors[name][numbers] = _relative(results[name], mine)
    return _worst(errors)


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
            for numbers, results in candidates.evaluated(case, moved, conventions):
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
    allowed = _allowed(case, conventions[first], observation)
    reach = max(
        float(scores.distance[first]) * NEAR,
        *(_reach(allowed[name], observation) for name in allowed),
    )
    near = [int(i) for i in order if scores.distance[i] <= reach]
    _by_values(case, inputs, conventions, observation, allowed, near, ratios, tensors)
    if observation.values and ratios[first] > MARGINAL:
        for i in near[1:MOST]:
            _by_values(
                case,
                inputs,
                conventions,
                observation,
                _allowed(case, conventions[i], observation),
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
        columns: that of a `Departure`.
    """
    inputs, allowed = converted(case, "float64"), _allowed(case, convention, observation)
    with np.errstate(all="ignore"):
        ((_, results),) = candidates.evaluated(case, inputs, [convention], columns=columns)
    worst = {
        name: _ratio(results, name, 0, mine, allowed) for name, mine in observation.values.items()
    }
    name = max(worst, key=lambda each: worst[each])
    return worst[name], name


def _reach(tolerance: Tolerance, observation: Observation) -> float:
    mine = observation.values.get(tolerance.name, observation.gradients.get(tolerance.name))
    size = norms(mine).rms if mine is not None else 0.0
    return 10.0 * MARGINAL * tolerance.rms / size if size else 0.0


def _allowed(case: Case, convention: Convention, observation: Observation) -> dict[str, Tolerance]:
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
        for numbers, results in candidates.evaluated(
            case, inputs, [conventions[i] for i in chosen]
        ):
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
        allowed = _allowed(case, conventions[i], observation)
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
