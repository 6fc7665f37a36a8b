"""The reading that explains a trace: the same recorded inputs under one other setting at a time, or
by one departure.

Specified in specs/replay.md (REPLAY-16).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, get_args

import numpy as np

from atlas_ref.conventions import Convention
from atlas_ref.messages import Progress, unwatched
from atlas_ref.oracle.cases.case import Case, CaseError
from atlas_ref.oracle.evaluate import under
from atlas_ref.oracle.family.departures import ignore_features
from atlas_ref.oracle.family.habits import habits
from atlas_ref.oracle.family.mistake import Mistake
from atlas_ref.oracle.judge.tolerance import PASS
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.replay.judge import Cells, cells, ratios
from atlas_ref.oracle.replay.ops import is_matrix
from atlas_ref.oracle.replay.passes import Passes
from atlas_ref.oracle.replay.recorded import Recorded, Unread
from atlas_ref.oracle.replay.sequence import leading
from atlas_ref.parts.newton_schulz import NewtonSchulz
from atlas_ref.rules import names_with
from atlas_ref.storage import faults
from atlas_ref.types import Array

#: Values to try on the axes that take numbers.
NUMBERS: dict[str, tuple[Any, ...]] = {
    "gradient_scale": (1, 2, 0.5, "2/d_out"),
    "query_scale": (1, "1/sqrt(d_in)"),
    "norm_eps": (1e-6, 1e-12, 1e-8, 1e-5, 1e-3),
    "retain_bounds": ("none",),
    "step_bounds": ("none",),
    "memory_ceiling": ("none",),
}

#: The same for the settings of Newton-Schulz.
SETTINGS: dict[str, tuple[Any, ...]] = {
    "coefficients": ("muon", "cubic", "polar_express"),
    "steps": (1, 2, 3, 4, 5, 6, 10),
    "eps": (0, 1e-7, 1e-5, 1e-3),
}

#: Settings that are named at most.
MOST = 4

#: Floors by which an op is so wrong that no rounding explains it.
FAR = 1e3


def candidates(case: Case) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every convention that differs from the case's in one setting: its name, and the change."""
    axes = Convention.model_fields
    for axis in axes:
        if axis == "newton_schulz":
            continue
        for value in NUMBERS.get(axis) or get_args(axes[axis].annotation):
            if value != getattr(case.convention, axis):
                yield f"{axis} {value}", {axis: value}
    if not case.convention.has_newton_schulz:
        return
    settings = case.convention.newton_schulz_settings
    for key, field in NewtonSchulz.model_fields.items():
        for value in SETTINGS.get(key) or (
            get_args(field.annotation) if key not in ("norm_factor", "lower_bound") else ()
        ):
            if value != getattr(settings, key):
                yield f"newton_schulz.{key} {value}", {"newton_schulz": {key: value}}
    if case.header.rule in names_with("has_newton_schulz"):
        yield "newton_schulz none", {"newton_schulz": "none"}


#: Whether every recorded op of some passes is right.
Fits = Callable[[Passes], bool]


def explanation(
    passes: Passes, op: str, spread: Array, fits: Fits, progress: Progress = unwatched
) -> str:
    """Settings under which every recorded op is right; "" where there is none (REPLAY-16).

    Args:
        op: the first wrong one. It is tried alone first, which is cheap.
        spread: errors of the ensemble at the op, `Judgement.spread`.
        fits: a replay of the whole trace. One op cannot tell enough: a residual whose older rows
            are wrong would be explained by whatever does not look at them.
        progress: called with "readings", those that were tried, and all.
    """
    own = _cells(passes, op)
    names: list[str] = []
    failed: list[str] = []

    def explains(read: Callable[[], Passes | None]) -> bool:
        other = read()
        try:
            return other is not None and _right(other, op, spread, own) and fits(other)
        except Unread:  # it computes other ops than those of the trace
            return False

    def note_unknown(words: str) -> bool:  # the others are tried all the same (CASE-38)
        failed.append(words)
        return False

    readings = _readings(passes)
    for done, (name, read) in enumerate(readings):
        progress("readings", done, len(readings))
        if faults.told(f"the reading {name}", partial(explains, read), note_unknown):
            names.append(name)
    if len(names) > MOST:
        names = [*names[: MOST - 1], f"{len(names) - MOST + 1} more"]
    return "; ".join([*([" or ".join(names)] if names else []), *failed[:1]])


def _readings(passes: Passes) -> list[tuple[str, Callable[[], Passes | None]]]:
    """Other readings of the trace, each with its name."""
    search = SUBJECTS[passes.case.header.rule].search
    return [] if search is None else search.readings(passes)


def by_conventions(passes: Passes) -> list[tuple[str, Callable[[], Passes | None]]]:
    """Features that were ignored come first, then conventions, then habits of kernels."""
    case = passes.case
    departures = [
        [(f"as if {each.as_if}", partial(_departing, passes, each)) for each in kind]
        for kind in (ignore_features(case), habits(case))
    ]
    conventions = [(name, partial(_under, passes, change)) for name, change in candidates(case)]
    return [*departures[0], *conventions, *departures[1]]


def by_readings(passes: Passes) -> list[tuple[str, Callable[[], Passes | None]]]:
    """Readings of a subject that has its own, which keep the ops of the case (DEEPCASE-13)."""
    case, graded = passes.case, any(op.startswith("trace_grad/") for op in passes.trace)
    searched = SUBJECTS[case.header.rule].searched
    assert searched is not None
    some = [(each.name, each) for each in searched.settings(case)]
    some += [
        (f"as if {each.words}", each)
        for each in searched.departures(case)
        if graded or not each.grad
    ]

    def replay_reading(each: Any) -> Passes | None:
        if not searched.keeps(case, each):
            return None
        return Passes(case, passes.trace, None, (each,))

    return [(name, partial(replay_reading, each)) for name, each in some]


def _departing(passes: Passes, each: Mistake) -> Passes | None:
    """The same trace as that of a program that departs; None where its rows cannot be told."""
    if each.case is None or each.columns or passes.cut is not None:
        return None
    case = each.case(passes.case)
    c, own = case.header.window, passes.case.header.window
    if c == own:
        return Passes(case, passes.trace, None)
    cropped = {}
    for name, one in passes.trace.items():
        rows = one.values[..., c:, :] if name.endswith("residual") else np.zeros(0)
        if rows.any() or (c > own and name.endswith("residual")):
            return None
        cropped[name] = one._replace(values=one.values[..., :c, :]) if rows.size else one
    return Passes(case, cropped, None)


def _under(passes: Passes, change: Mapping[str, Any]) -> Passes | None:
    """The same trace read under a change of the case's convention; None where that cannot be."""
    if "layout" in change:
        transposed = _transpose(passes.trace)
        return None if transposed is None else Passes(passes.case, transposed, passes.cut)
    try:
        return Passes(under(passes.case, change), passes.trace, passes.cut)
    except CaseError:
        return None


def _cells(passes: Passes, op: str) -> Cells | None:
    one, lead = passes.trace[op], leading(passes.case)
    tokens = one.labels or range(one.values.shape[lead])
    return cells(
        one,
        lead,
        passes.truth({op: tokens} if passes.chosen else None),  # where many readings are tried
        sequence=SUBJECTS[passes.case.header.rule].has_tokens,
    )


def _right(passes: Passes, op: str, spread: Array, own: Cells | None) -> bool:
    """Whether the op alone is right at every token, and 0 where it would no longer be looked at.

    The errors of the ensemble are those under the case's own convention. Where its tokens or rows
    are others, there are none, and only what is far away is left out.
    """
    op_cells = _cells(passes, op)
    if op_cells is None or own is None:
        return False
    if op_cells.got.shape != own.got.shape:
        floor_alone = np.zeros((3, *op_cells.got.shape[:-1]))
        return bool((ratios(op_cells, floor_alone) <= FAR).all())
    unseen = np.where(own.counts & ~op_cells.counts, own.got, 0.0)
    return bool((ratios(op_cells, spread) <= PASS).all() and not unseen.any())


def _transpose(trace: Mapping[str, Recorded]) -> dict[str, Recorded] | None:
    """The trace with its matrices transposed; None where they are not square."""
    matrices = [each for op, each in trace.items() if is_matrix(op)]
    if not matrices or any(each.values.shape[-1] != each.values.shape[-2] for each in matrices):
        return None
    return {
        op: each._replace(values=each.values.swapaxes(-1, -2)) if is_matrix(op) else each
        for op, each in trace.items()
    }
