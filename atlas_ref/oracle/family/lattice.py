"""The lattice of conventions: every preset, and the points one or two changes away from one
(IDENT-2).

A point is a tuple of values, one per axis of `POINT`. Those points alone that a case can tell apart
become conventions.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Literal, NamedTuple, get_args, get_origin

from atlas_ref.conventions import (
    AXES,
    NEWTON_SCHULZ_KEYS,
    PRESETS,
    Convention,
    resolve,
)
from atlas_ref.oracle.family.facts import Facts, always_the_same, refusal, void_in
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.parts.newton_schulz import NewtonSchulz
from atlas_ref.rules import names_with

PREFIX = "newton_schulz."

#: Names of bases that are no presets: the case's own convention, and the end of a preset's name
#: where its rate is that of the rule without Newton-Schulz (CONV-2).
OWN, WITHOUT = "the case's own", " without Newton-Schulz"

#: Axes of a point: those of a convention, then the keys of Newton-Schulz, which are None without
#: it.
POINT: tuple[str, ...] = (*AXES, *(PREFIX + key for key in NEWTON_SCHULZ_KEYS))

#: Values tried on the axes that take any number, or any rows of coefficients; a case's own values
#: are tried as well.
NUMBERS: dict[str, tuple[Any, ...]] = {
    "gradient_scale": (1.0, 2.0, "2/d_out", 0.5),
    "query_scale": (1.0, "1/sqrt(d_in)"),
    "norm_eps": (1e-6, 1e-12, 1e-10, 1e-8, 1e-7, 1e-5, 1e-4, 1e-3),
    "retain_bounds": ("none",),
    "step_bounds": ("none",),
    "memory_ceiling": ("none",),
    "newton_schulz": ("object", "none"),
    "newton_schulz.coefficients": ("muon", "cubic", "polar_express"),
    "newton_schulz.steps": (5, 1, 2, 3, 4, 6, 7, 8, 9, 10),
    "newton_schulz.eps": (1e-7, 0.0, 1e-12, 1e-10, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2),
    "newton_schulz.norm_factor": (1.0, 1.01, 1.02, 1.05, 1.1, 1.2),
    "newton_schulz.lower_bound": (1e-3, 1e-4, 1e-2),
}

#: One value per axis of `POINT`.
Point = tuple[Any, ...]
PLACE = {axis: place for place, axis in enumerate(POINT)}


@functools.lru_cache(maxsize=1)
def values() -> dict[str, tuple[Any, ...]]:
    """The values tried on every axis of a point, the default first."""
    by_axis = dict(NUMBERS)
    for model, prefix in ((Convention, ""), (NewtonSchulz, PREFIX)):
        for name, field in model.model_fields.items():
            if prefix + name not in by_axis and get_origin(field.annotation) is Literal:
                by_axis[prefix + name] = get_args(field.annotation)
    return by_axis


def point(convention: Convention) -> Point:
    """A convention as a point."""
    settings = convention.newton_schulz
    inner = (
        [None] * len(NEWTON_SCHULZ_KEYS)
        if isinstance(settings, str)
        else [getattr(settings, key) for key in NEWTON_SCHULZ_KEYS]
    )
    outer = [
        "object"
        if axis == "newton_schulz" and convention.has_newton_schulz
        else getattr(convention, axis)
        for axis in AXES
    ]
    return (*outer, *inner)


def convention(at: Point) -> Convention:
    """The convention of a point."""
    fields = dict(zip(AXES, at, strict=False))
    if fields["newton_schulz"] == "object":
        fields["newton_schulz"] = _settings(at[len(AXES) :])
    return Convention.trusted(**fields)


@functools.lru_cache(maxsize=4096)
def _settings(values: tuple[Any, ...]) -> NewtonSchulz:
    """Settings of Newton-Schulz, which most points share: one object for each, quick to compare."""
    return NewtonSchulz.trusted(**dict(zip(NEWTON_SCHULZ_KEYS, values, strict=True)))


def changes(base: Point, other: Point) -> dict[str, Any]:
    """The axes on which another point differs, with its values there; Newton-Schulz as a whole
    where one has none.
    """
    if base[PLACE["newton_schulz"]] != other[PLACE["newton_schulz"]]:
        inner = (
            {}
            if other[PLACE["newton_schulz"]] == "none"
            else {a: other[PLACE[a]] for a in POINT if a.startswith(PREFIX)}
        )
        inner = {axis: value for axis, value in inner.items() if value != _DEFAULTS[axis]}
        outer = {
            axis: other[PLACE[axis]] for axis in AXES if base[PLACE[axis]] != other[PLACE[axis]]
        }
        return outer | inner
    return {
        axis: theirs
        for axis, ours, theirs in zip(POINT, base, other, strict=True)
        if ours != theirs
    }


_DEFAULTS = {PREFIX + key: getattr(NewtonSchulz(), key) for key in NEWTON_SCHULZ_KEYS}


def fold(of: Facts, at: Point) -> Point:
    """The same function as a point whose settings of no consequence have their first values
    (IDENT-4).
    """
    c = convention(at)
    hidden = set(void_in(of, c)) | always_the_same(of, c)
    if not hidden:
        return at
    fields = list(at)
    for axis in hidden:
        if at[PLACE[axis]] is not None:
            fields[PLACE[axis]] = _DEFAULTS.get(axis, _first(axis))
    return tuple(fields)


@functools.lru_cache(maxsize=64)
def _first(axis: str) -> Any:
    return values()[axis][0]


def bases(of: Facts, own: Convention) -> dict[str, Point]:
    """The points that changes start from: the case's own convention, every preset, and for omega
    each without Newton-Schulz.
    """
    rule, level = of.rule, of.level
    points = {OWN: point(own)}
    for name, changed in PRESETS.items():
        if SUBJECTS[rule].needs_newton_schulz and changed.get("newton_schulz") == "none":
            continue
        points[name] = point(resolve(name, rule=rule, level=level))
        if (
            rule in names_with("has_newton_schulz")
            and points[name][PLACE["newton_schulz"]] == "object"
        ):
            points[name + WITHOUT] = point(
                resolve({"preset": name, "newton_schulz": "none"}, rule=rule, level=level)
            )
    return points


def tried_values(
    own: Convention, rule: str, names: Collection[str] = ()
) -> dict[str, tuple[Any, ...]]:
    """The values tried on every axis that a rule has, the case's own among them.

    Args:
        names: of the tensors of the case; reference surrogate is tried where W is one of them
            (SURROGATE-7).
    """
    by_axis = {}
    mine, subject = point(own), SUBJECTS[rule]
    for axis, listed in values().items():
        if axis.startswith("newton_schulz") and not subject.has_newton_schulz:
            continue
        if subject.needs_newton_schulz and not axis.startswith(PREFIX):
            continue
        if axis == "reference" and "in/param/W_surrogate" not in names:
            listed = tuple(each for each in listed if each != "surrogate")
        extra = () if mine[PLACE[axis]] in (None, *listed) else (mine[PLACE[axis]],)
        by_axis[axis] = (*listed, *extra)
    return by_axis


def around(base: Point, axes: dict[str, tuple[Any, ...]], depth: int) -> Iterator[Point]:
    """The point, and every point up to `depth` changes away from it on different axes."""
    steps = [
        (axis, value)
        for axis, listed in axes.items()
        for value in listed
        if _is_change(base, axis, value)
    ]
    for count in range(depth + 1):
        for chosen in itertools.combinations(steps, count):
            if len({axis for axis, _ in chosen}) == count:
                other = _change(base, chosen)
                if other is not None:
                    yield other


def _is_change(base: Point, axis: str, value: Any) -> bool:
    return bool(base[PLACE[axis]] != value)


def _change(base: Point, chosen: Iterable[tuple[str, Any]]) -> Point | None:
    fields = list(base)
    chosen = list(chosen)
    for axis, value in chosen:
        if axis == "newton_schulz":
            inner = (
                [None] * len(NEWTON_SCHULZ_KEYS) if value == "none" else list(_DEFAULTS.values())
            )
            fields[len(AXES) :] = inner
        fields[PLACE[axis]] = value
    has = fields[PLACE["newton_schulz"]] == "object"
    for axis, value in chosen:
        if axis.startswith(PREFIX):
            if not has:
                return None
            fields[PLACE[axis]] = value
    return tuple(fields)


class Enumerated(NamedTuple):
    """The points of a search on a case.

    Attributes:
        points: one per function of the case, up to some changes away from a base, the bases first.
        conventions: of the points.
        untried: values that cannot be tried, each with the reason.
    """

    points: tuple[Point, ...]
    conventions: tuple[Convention, ...]
    untried: tuple[tuple[str, str], ...]


@functools.lru_cache(maxsize=2)  # some ten megabytes each
def enumerate_points(of: Facts, at: Point, depth: int) -> Enumerated:
    """The points of a search (IDENT-2, IDENT-4, IDENT-5); cases that are alike share them.

    Args:
        at: the case's own convention.
    """
    own = convention(at)
    axes = tried_values(own, of.rule, of.names)
    visited: set[Point] = set()
    points: dict[Point, None] = {}
    untried: dict[str, str] = {}
    for base in bases(of, own).values():
        possible = refusal(of, convention(base)) is None
        for each in around(base, axes, depth):
            if each in visited:
                continue
            visited.add(each)
            same = fold(of, each)
            if same in points:
                continue
            why = refusal(of, convention(same))
            if why is None:
                points[same] = None
            elif possible:
                changed = changes(base, each)
                if len(changed) == 1:
                    axis, value = next(iter(changed.items()))
                    untried.setdefault(f"{axis} {value}", why)
    return Enumerated(tuple(points), tuple(map(convention, points)), tuple(untried.items()))
