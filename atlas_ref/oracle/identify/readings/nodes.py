"""Readings of a case as nodes of a search, and the results that they are compared with.

Source: IDENT-1, DEEPCASE-14.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.cases.case import Case, CaseError, differentiable
from atlas_ref.oracle.cases.inputs import convert
from atlas_ref.oracle.cases.tensor_spec import last_of
from atlas_ref.oracle.cases.tensors import main_cotangent, main_result
from atlas_ref.oracle.family.arithmetic import PLAIN
from atlas_ref.oracle.identify.answer import Fit
from atlas_ref.oracle.identify.observation import Observation
from atlas_ref.oracle.judge.arrays import TOLERANCE, relative_error
from atlas_ref.oracle.judge.tolerance import PASS
from atlas_ref.oracle.norms import FORMATS
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.subjects.subject import Rounding, Subject
from atlas_ref.types import Array

#: What a node changes, each setting with its value in words.
Key = frozenset[tuple[str, str]]


class Node(NamedTuple):
    """A reading of the case: settings that are changed, from its own or from a preset.

    Attributes:
        base: the preset from which it starts; "" for the case's own.
        chosen: every change, those of the preset first.
        steps: how many are not the preset's.
    """

    base: str
    chosen: tuple[Any, ...]
    steps: int

    @property
    def changes(self) -> dict[str, Any]:
        """Settings with their values, as a case states them."""
        return {axis: value for each in self.chosen for axis, value in each.change.items()}

    def beside(self, readings: Iterable[Any]) -> list[Node]:
        """Readings with one more setting changed, none of them twice."""
        own = self.changes.keys()
        return [
            Node(self.base, (*self.chosen, each), self.steps + 1)
            for each in readings
            if not own & each.change.keys()
        ]


def key_of(node: Node) -> Key:
    """What tells a node from others."""
    return frozenset((axis, repr(value)) for axis, value in node.changes.items())


def before(node: Node) -> dict[str, Any]:
    """Values of the case's own reading on the axes that a node changes."""
    return {axis: value for each in node.chosen for axis, value in each.before.items()}


def apart(best: Node, node: Node) -> dict[str, Any]:
    """Settings in which a node differs from the match, with the values of the node."""
    ours, theirs = best.changes, {**before(best), **node.changes}
    return {axis: value for axis, value in theirs.items() if ours.get(axis, ours) != value}


def undecided_by(best: Node, others: Sequence[Node]) -> dict[str, list[Any]]:
    """Axes on which several values fit, the match's first."""
    by_axis: dict[str, list[Any]] = {}
    for node in others:
        for axis, value in apart(best, node).items():
            own = best.changes.get(axis, before(node).get(axis))
            values = by_axis.setdefault(axis, [own])
            if value not in values:
                values.append(value)
    return by_axis


def _is_further(subject: Subject, name: str) -> bool:
    """Whether a plain run leaves this result out, as a window, which a case may have all the same."""
    if subject.results is None:
        return name.startswith("out/window_")
    return subject.results.fullmatch(name) is not None


def observe_case(case: Case, mine: Mapping[str, Any], dtype: str | None) -> Observation:
    """Check results under test against a case (IDENT-1).

    Raises:
        CaseError: nothing to compare, a name that is no result of the case, another shape, a dtype
            that is no float, gradients without their cotangent.
    """
    subject = SUBJECTS[case.header.rule]
    ours = subject.plain(convert(case, "float64"), case, Rounding(PLAIN, _same, _same, None))
    shapes = {name: tuple(value.shape) for name, value in ours.items()}
    whole = [name for name, value in ours.items() if value.dtype.kind in "biu"]
    shapes |= {
        "grad/" + name.removeprefix("in/"): case.inputs[name].shape for name in differentiable(case)
    }
    values: dict[str, Array] = {}
    gradients: dict[str, Array] = {}
    dtypes: dict[str, str] = {}
    unused: list[str] = []
    for name, given in mine.items():
        array = np.asarray(given)
        if name not in shapes and _is_further(subject, last_of(name)):
            unused.append(name)
            continue
        if name not in shapes:
            listed = ", ".join(shapes)
            raise CaseError(f"{case.name}: {name}: not a result of this case; it has {listed}")
        if name in whole:
            unused.append(name)
            continue
        if array.dtype.name not in FORMATS:
            known = ", ".join(FORMATS)
            raise CaseError(f"{case.name}: {name}: dtype {array.dtype.name}, one of {known} needed")
        strict = name.startswith("grad/") or name == main_result(case.header)
        if strict and array.shape != shapes[name]:  # another state is that of another reading
            raise CaseError(f"{case.name}: {name}: shape {array.shape}, expected {shapes[name]}")
        (gradients if name.startswith("grad/") else values)[name] = array.astype(np.float64)
        dtypes[name] = dtype or array.dtype.name
    if not dtypes:
        listed = ", ".join(name for name in shapes if name not in whole)
        raise CaseError(
            f"{case.name}: none of the results that readings are told apart by: {listed}"
        )
    if gradients and (bar := main_cotangent(case.header)) not in case.inputs:
        raise CaseError(f"{case.name}: {bar}: missing, gradients need it")
    return Observation(values, gradients, dtypes, tuple(unused))


def _same(x: Array) -> Array:
    return x


def relative(own: Any, value: Array) -> float:
    """The relative distance of a result; infinite for another shape, or what is not finite."""
    if own is None or own.shape != value.shape or not np.isfinite(own).all():
        return float("inf")
    return relative_error(np.asarray(own, np.float64), np.asarray(value, np.float64))


def redrawn(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Other numbers in the place of all tensors that are neither masks nor whole.

    What lies between 0 and 1 stays there, as gates do.
    """
    draw = np.random.Generator(np.random.Philox(1))
    others = {}
    for name, x in inputs.items():
        if x.dtype.kind in "biu":
            others[name] = x
        elif x.size and x.min() >= 0.0 and x.max() <= 1.0:
            others[name] = draw.uniform(0.2, 0.8, x.shape)
        else:
            others[name] = 0.7 * draw.standard_normal(x.shape)
    return others


def void_by(best: Node, same: Sequence[Node]) -> dict[str, str]:
    """Values that are the match's function on every case of this shape, one axis at a time.

    They differ from the match, or in its place from the case.
    """
    single = [each for node in same for each in (apart(best, node), node.changes) if len(each) == 1]
    return {
        f"{axis}={value}": "the same function on every case of this shape"
        for each in single
        for axis, value in each.items()
    }


def not_finite(observation: Observation) -> str:
    """The first result that holds a NaN or infinity, in words; "" where none does."""
    for name, array in {**observation.values, **observation.gradients}.items():
        if not np.isfinite(array).all():
            at = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
            return f"{name}: {array[at]} at {at}: no reading is compared with what is not finite"
    return ""


def fitting_of(ratios: Mapping[Any, tuple[float, str]]) -> list[Any]:
    """What is within PASS of the results."""
    return [key for key, (ratio, _) in ratios.items() if ratio <= PASS]


def passing(
    ratios: Mapping[Key, tuple[float, str]],
    observation: Observation,
    near: Sequence[Node],
    far: Mapping[Key, tuple[float, str]],
    by_gradients: Callable[[Node], tuple[float, str]] | None,
) -> dict[Key, tuple[float, str]]:
    """Quotients of what passes by the fixed tolerance of float64, where nothing fits (DEEPCASE-14).

    Where a case happens to round little, all members of its ensemble do, and a correct program that
    rounds elsewhere is beyond the measured tolerance. `check` lets it pass.

    Args:
        far: distance of each node by its values, and the tensor that is worst.
        by_gradients: the same of a node's gradients, where there are some beside values.
    """
    if fitting_of(ratios) or set(observation.dtypes.values()) != {"float64"}:
        return {}
    found = {}
    for node in (each for each in near if far[key_of(each)][0] <= TOLERANCE):
        worst = far[key_of(node)]
        distance, tensor = worst if by_gradients is None else max(worst, by_gradients(node))
        if distance <= TOLERANCE:
            found[key_of(node)] = (distance / TOLERANCE, tensor)
    return found


def times_worse(match: Fit, runner_up: Fit | None) -> float | None:
    """How much further the runner-up is than the match."""
    if runner_up is None:
        return None
    return runner_up.distance / match.distance if match.distance > 0.0 else float("inf")
