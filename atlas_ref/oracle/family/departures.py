"""Mistakes about a feature of a case, which programs ignore or take for another: departures.

No convention says them. Each is stated as the case that such a program computes instead. Specified
in specs/identify.md (IDENT-14).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from atlas_ref.conventions import effective
from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.family.facts import facts
from atlas_ref.oracle.family.mistake import Mistake, Seen
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.rules import FAMILY
from atlas_ref.rules.checks import KEY_CHANNEL
from atlas_ref.types import Array

#: Gates that may have one value per output dimension, and what a window starts from with its axis
#: of tokens.
GATES = ("retain", "log_retain", "momentum", "log_momentum", "step_size", "step_size_memory")
HISTORY = {
    "in/window_k": -2,
    "in/window_v": -2,
    "in/window_residual": -2,
    "in/window_gate_before": -1,
    "in/window_momentum": -3,
}
BEFORE = "the window from before"


def departure(
    feature: str, said: str, case: Callable[[Case], Case], *, columns: bool = False
) -> Mistake:
    """A departure about a feature of a case, or a habit of kernels."""
    return Mistake(said, said, _always, case=case, columns=columns, feature=feature, said=said)


def _always(at: Seen) -> bool:
    return True


def _left_out(*names: str) -> Callable[[Case], Case]:
    return lambda case: without(case, *names)


def _same(case: Case) -> Case:
    return case


def _without_phase(case: Case) -> Case:
    return case.replaced(header=case.header.replaced(phase=None))


#: Departures that are mutants of vector sets too, under a name and words of their own (VEC-16).
PULSES = Mistake(
    "pulses ignored",
    "inactive tokens write",
    lambda at: not bool(at.inputs.active.all()),
    case=_left_out("in/active"),
    feature="in/active",
    said="in/active were ignored",
)
PHASE = Mistake(
    "phase ignored",
    "a resumed span starts at its first token",
    lambda at: (
        at.structure.phase not in (None, 0)
        and (at.structure.frozen == "chunk_start" or at.structure.boundary != "recompute")
    ),
    case=_without_phase,
    feature="phase",
    said="phase were ignored",
)
REFERENCE = Mistake(
    "reference ignored",
    "a resumed span starts under M0",
    lambda at: at.inputs.reference is not None,
    case=_left_out("in/M_ref"),
    feature="in/M_ref",
    said="in/M_ref were ignored",
)
M0 = Mistake(
    "M0 ignored",
    "a call starts from a memory of zero",
    _always,
    case=_left_out("in/M0"),
    feature="in/M0",
    said="in/M0 were ignored",
)
S0 = Mistake(
    "S0 ignored",
    "a call starts from a momentum of zero",
    lambda at: at.momentum,
    case=_left_out("in/S0"),
    feature="in/S0",
    said="in/S0 were ignored",
)


def features(case: Case) -> dict[str, str]:
    """Names of what a case has beyond a plain sequence, each with its words (CASE-27)."""
    h, inputs = case.header, case.inputs
    named: dict[str, str] = {}
    silent, starts = _count(inputs, "in/active", 0), _count(inputs, "in/reset", 1)
    if silent:
        named["in/active"] = f"in/active ({silent} silent token{'s' if silent > 1 else ''})"
    if starts:
        named["in/reset"] = f"in/reset ({starts} start{'s' if starts > 1 else ''} of a sequence)"
    if _history(inputs):
        name = next(iter(_history(inputs)))
        named[name] = f"{name} (a window from before)"
    rows = _per_dimension(case)
    if rows:
        named[rows[0]] = f"{', '.join(rows)} (a gate per output dimension)"
    if _refreshes(case):
        named["span"] = f"span {h.span}"
    if h.phase is not None and "phase" not in case.void:
        named["phase"] = f"phase {h.phase}"
    return named | ({"in/M_ref": "in/M_ref"} if "in/M_ref" in inputs else {})


def missed_features(case: Case) -> tuple[str, ...]:
    """What kernels tend to miss of a case of one memory, in words (CASE-27)."""
    return tuple(features(case).values())


def ignore_features(case: Case) -> Iterator[Mistake]:
    """Departures about a feature of a case, which is ignored or taken for another (IDENT-14)."""
    if not SUBJECTS[case.header.rule].has_tokens:
        return
    named = features(case)
    if "in/active" in named:
        yield PULSES
        yield from _silent(case)
    if "in/reset" in named:
        yield departure("in/reset", "in/reset were ignored", _left_out("in/reset"))
    yield from _starts(case)
    yield from _together(case)
    yield from _rows(case)
    if "span" in named:
        yield departure("span", "the span were ignored and the reference ran", _with_span(1, None))
        phase = case.header.phase
        longer = facts(case).tokens + 2 + (phase or 0)
        words = "the span were ignored and the reference stayed"
        yield departure("span", words, _with_span(longer, phase))
    if "phase" in named:
        yield PHASE
    for each in (REFERENCE, M0, S0):
        if each.feature in case.inputs and np.any(case.inputs[each.feature]):
            yield each


def without(case: Case, *names: str) -> Case:
    """The case without some tensors."""
    return case.replaced(
        inputs={name: value for name, value in case.inputs.items() if name not in names},
        recorded={},
    )


def change(case: Case, inputs: Mapping[str, Any], **more: Any) -> Case:
    """The case with some tensors replaced or added, and other fields."""
    return case.replaced(inputs={**case.inputs, **inputs}, recorded={}, **more)


def numbers(case: Case, name: str) -> Array:
    """A tensor of a case in float64."""
    return np.asarray(case.inputs[name]).astype(np.float64)


def active(case: Case) -> Array:
    """Plain booleans (T,): which tokens write."""
    return np.asarray(case.inputs["in/active"]).astype(bool)


def _count(inputs: Mapping[str, Any], name: str, value: int) -> int:
    return int(np.sum(np.asarray(inputs[name]) == value)) if name in inputs else 0


def _history(inputs: Mapping[str, Any]) -> list[str]:
    return [n for n, axis in HISTORY.items() if n in inputs and inputs[n].shape[axis]]


def _per_dimension(case: Case) -> list[str]:
    """Gates with one value per output dimension, where there is more than one."""
    inputs = case.inputs
    if facts(case).d_out == 1:
        return []
    if case.header.level == "token":
        names = [f"in/param/W_{gate}" for gate in GATES]
        return [name for name in names if name in inputs and inputs[name].shape[-2] > 1]
    names = [f"in/{gate}" for gate in GATES]
    return [name for name in names if name in inputs and inputs[name].ndim == inputs["in/k"].ndim]


def _refreshes(case: Case) -> bool:
    """Whether a reference or a read is refreshed by spans of several tokens."""
    c, span = effective(case.convention, rule=case.header.rule), case.header.span
    wraps = c.reference != "call_start" and "chunk_start" in (c.reference, c.read)
    return wraps and span is not None and span > 1


def _silent(case: Case) -> Iterator[Mistake]:
    """Silent tokens that stay out of the window, and those that write nothing and still decay."""
    h, inputs, c = case.header, case.inputs, case.convention
    if h.level == "token":
        return
    weighed = "in/window_gate" in inputs or c.window_edge == "renormalise"
    if h.window > 1 and not weighed and c.window_at_boundary != "carry":
        words = "silent tokens did not enter the window"
        yield departure("in/active", words, _skipping)
    rates = ("in/step_size", "in/step_size_memory") if FAMILY[h.rule].has_error else ("in/v",)
    names = [name for name in rates if name in inputs]
    quiet: dict[str, Array] = {}
    for name in names:
        writes = active(case)[:, None] if inputs[name].ndim == inputs["in/k"].ndim else active(case)
        quiet[name] = np.where(writes, numbers(case, name), 0.0)
    if quiet:
        words = f"silent tokens had {'a value' if names == ['in/v'] else 'a step size'} of 0"
        yield departure(
            "in/active",
            f"{words} and still decayed",
            lambda each: change(without(each, "in/active"), quiet),
        )


def _skipping(case: Case) -> Case:
    """The case with a window that is longer by the silent tokens, which weigh nothing in it."""
    inputs, c = case.inputs, case.header.window
    lead, T = inputs["in/k"].shape[:-2], inputs["in/k"].shape[-2]
    weights = (
        numbers(case, "in/window_weights")
        if "in/window_weights" in inputs
        else np.full((*lead, T, c), 1.0 / c)
    )
    wide = np.zeros((*lead, T, c + int(np.sum(~active(case)))))
    for t in range(T):
        lags = [lag for lag in range(wide.shape[-1]) if lag > t or active(case)[t - lag]][:c]
        wide[..., t, lags] = weights[..., t, : len(lags)]
    header = case.header.replaced(window=wide.shape[-1])
    return change(case, {"in/window_weights": wide}, header=header)


def _starts(case: Case) -> Iterator[Mistake]:
    """A window from before that is ignored, or read from its other end."""
    names = _history(case.inputs)
    if not names:
        return
    yield departure(names[0], f"{BEFORE} were ignored", without_window)
    turned = {name: np.flip(case.inputs[name], HISTORY[name]) for name in names}
    if case.inputs[names[0]].shape[HISTORY[names[0]]] > 1:
        words = f"{BEFORE} were in reverse order"
        yield departure(names[0], words, lambda each: change(each, turned))


def without_window(case: Case) -> Case:
    """The case without a window from before."""
    return without(case, *_history(case.inputs))


def _together(case: Case) -> Iterator[Mistake]:
    """Two or three of masks and a window from before that are ignored at once."""
    masks = {"in/active": 0, "in/reset": 1}
    some = {name: [name] for name, value in masks.items() if _count(case.inputs, name, value)}
    some |= {BEFORE: _history(case.inputs)} if _history(case.inputs) else {}
    for count in range(2, len(some) + 1):
        for chosen in itertools.combinations(some, count):
            names = [name for each in chosen for name in some[each]]
            words = f"{', '.join(chosen[:-1])} and {chosen[-1]} were ignored"
            yield departure(names[0], words, _left_out(*names))


def _rows(case: Case) -> Iterator[Mistake]:
    """Gates per output dimension that are one gate, or gates per key channel."""
    names = _per_dimension(case)
    if not names:
        return
    if case.header.level == "token":
        biases = [name.replace("/W_", "/b_") for name in names]
        first = {name: case.inputs[name][:, :1] for name in (*names, *biases)}
    else:
        first = {name: case.inputs[name][..., 0] for name in names}
        mean = {name: numbers(case, name).mean(axis=-1) for name in names}
        words = "all output dimensions had their mean gate"
        yield departure(names[0], words, lambda each: change(each, mean))
    words = "all output dimensions had the gate of the first"
    yield departure(names[0], words, lambda each: change(each, first))
    if may_scale_columns(case):
        yield departure(names[0], f"{names[0]} were {KEY_CHANNEL}", _same, columns=True)


def may_scale_columns(case: Case) -> bool:
    """Whether a retain gate per output dimension may be meant as one per key channel (GATES-15)."""
    names, of = _per_dimension(case), facts(case)
    return bool(names) and "retain" in names[0] and of.d_out == of.d_phi


def _with_span(span: int, phase: int | None) -> Callable[[Case], Case]:
    return lambda case: case.replaced(header=case.header.replaced(span=span, phase=phase))
