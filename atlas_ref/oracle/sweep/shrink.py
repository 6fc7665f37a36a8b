"""Make a failing case smaller while it still fails: fewer settings, tensors, tokens and dimensions,
and rounder numbers.

Greedy and in a fixed order, so that the same failure always ends at the same case. Specified in
specs/sweep.md, SWEEP-7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from atlas_ref.conventions import AXES, NEWTON_SCHULZ_KEYS, effective, resolve
from atlas_ref.oracle.cases.case import Case, CaseError, make, parse_header
from atlas_ref.oracle.cases.tensors import legal
from atlas_ref.oracle.drawing import Arrays, Candidate, Move, smaller
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.sweep.cut import axis_sizes, cut, flatten, table_of
from atlas_ref.parts.newton_schulz import NewtonSchulz
from atlas_ref.rules import names_with


def shrunk(case: Case, fails: Callable[[Case], bool], most: int) -> tuple[Case, int]:
    """The smallest failing case of a search, and the number of its comparisons (SWEEP-7).

    Args:
        fails: whether a case still shows the mistake; called at most `most` times.
    """
    search = _Search(case, fails, most)
    moves: tuple[Callable[[_Search], None], ...]
    moves = (_tokens, _settings, _optional, _dimensions, _formats, _values)
    drawing = SUBJECTS[case.header.rule].drawing
    if drawing is not None and drawing.moves:
        moves = (*(_taking(each) for each in drawing.moves), _formats, _values)
    improved = True
    while improved and not search.spent:
        before = search.accepted
        for move in moves:
            move(search)
        improved = search.accepted > before
    return search.case, search.comparisons


def _taking(candidates: Move) -> Callable[[_Search], None]:
    """A move that takes candidates of a case, then of what they left, while one fails."""

    def move(search: _Search) -> None:
        while search.first(candidates(search.case)):
            pass

    return move


class _Search:
    """The present case, and the comparisons spent to get there."""

    def __init__(self, case: Case, fails: Callable[[Case], bool], most: int) -> None:
        self.case = case
        self.comparisons = self.accepted = 0
        self._fails, self._most = fails, most
        # cases that do not fail, or are behind: the search never returns
        self._digests: set[bytes] = {_digest(case)}

    @property
    def spent(self) -> bool:
        return self.comparisons >= self._most

    def attempt(self, candidate: Candidate | None) -> bool:
        """Take the candidate if it is a case and fails.

        An invalid candidate, or one compared before, costs nothing.
        """
        if candidate is None or self.spent:
            return False
        try:
            case = make(candidate.header, candidate.tensors, name=self.case.name)
        except CaseError:
            return False
        key = _digest(case)
        if key in self._digests:
            return False
        self._digests.add(key)
        self.comparisons += 1
        if not self._fails(case):
            return False
        self.case = case
        self.accepted += 1
        return True

    def first(self, candidates: Iterator[Candidate | None]) -> bool:
        """Take the first candidate that fails."""
        return any(self.attempt(candidate) for candidate in candidates)


def _digest(case: Case) -> bytes:
    parts = [repr(sorted(case.header.plain().items(), key=str)).encode()]
    for name, value in case.inputs.items():
        parts += [name.encode(), str((value.dtype, value.shape)).encode(), value.tobytes()]
    return b"\0".join(parts)


def _present(case: Case) -> Candidate:
    return Candidate(case.header.plain(), dict(case.inputs))


def _with(case: Case, **header: Any) -> Candidate | None:
    """The case with header keys changed, without the tensors that it then may not hold.

    A value of None drops a key.
    """
    fields = {
        key: value for key, value in {**case.header.plain(), **header}.items() if value is not None
    }
    try:
        parsed = parse_header(fields)
        convention = effective(
            resolve(parsed.convention, rule=parsed.rule, level=parsed.level), rule=parsed.rule
        )
    except (CaseError, ValueError):
        return None
    allowed, _ = legal(parsed, convention, set(case.inputs))
    return Candidate(
        fields, {name: value for name, value in case.inputs.items() if name in allowed}
    )


# -- settings --------------------------------------------------------------------------------------


def _settings(search: _Search) -> None:
    """Set header keys to their defaults and axes to those of `spec`, and shrink window and span."""
    for key in ("note", "form", "chunk", "phase", "feature_map", "window_weights", "span"):
        if key in search.case.header.plain():
            search.attempt(
                _without_map(search.case)
                if key == "feature_map"
                else _with(search.case, **{key: None})
            )
    _conventions(search)
    while search.case.header.window > 1 and search.first(
        cut(search.case, "c", range(n)) for n in smaller(search.case.header.window)
    ):
        pass
    while (h := search.case.header).span and search.first(
        _with(search.case, span=n) for n in smaller(h.span or 1)
    ):
        pass


def _conventions(search: _Search) -> None:
    """Set axes to those of `spec`, without Newton-Schulz: the smallest convention of omega."""
    if set(_changes(search.case)) - {"newton_schulz"}:
        search.attempt(_with(search.case, convention=None))
    for axis in _changes(search.case):
        changes = {name: value for name, value in _changes(search.case).items() if name != axis}
        if axis != "newton_schulz":
            search.attempt(_with(search.case, convention=_nest(changes)))
    plain = {
        axis: value
        for axis, value in _changes(search.case).items()
        if not axis.startswith("newton_schulz")
    }
    if search.case.convention.has_newton_schulz and search.case.header.rule in names_with(
        "has_newton_schulz"
    ):
        search.attempt(_with(search.case, convention=plain | {"newton_schulz": "none"}))
    if search.case.header.plain().get("convention", {}) != (
        smallest := _nest(_changes(search.case))
    ):
        search.attempt(_with(search.case, convention=smallest or None))


def _changes(case: Case) -> dict[str, Any]:
    """Axes of the convention in force that differ from `spec`; `newton_schulz.steps` for a key of
    the object.
    """
    h = case.header
    convention = case.convention
    plain_rule = h.rule in names_with("has_newton_schulz") and not convention.has_newton_schulz
    default = resolve(
        {"newton_schulz": "none"} if plain_rule else "spec", rule=h.rule, level=h.level
    )
    changes = {
        axis: getattr(convention, axis)
        for axis in AXES
        if axis != "newton_schulz" and getattr(convention, axis) != getattr(default, axis)
    }
    if isinstance(convention.newton_schulz, NewtonSchulz):
        plain = convention.newton_schulz.model_dump(mode="json")
        base = NewtonSchulz().model_dump(mode="json")
        changes |= {
            f"newton_schulz.{key}": plain[key]
            for key in NEWTON_SCHULZ_KEYS
            if plain[key] != base[key]
        }
    elif plain_rule:
        changes["newton_schulz"] = "none"
    return changes


def _nest(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Axes as a header holds them."""
    result: dict[str, Any] = {}
    for axis, value in changes.items():
        outer, dot, key = axis.partition(".")
        if dot:
            result.setdefault(outer, {})[key] = value
        else:
            result[axis] = value
    return result


def _without_map(case: Case) -> Candidate | None:
    """The case with the identity in place of its feature map.

    Tensors with d_phi columns are cut to d_in, or dropped where they are narrower.
    """
    candidate, subject = _with(case, feature_map=None), SUBJECTS[case.header.rule]
    if candidate is None or (subject.has_feature_map and not subject.has_tokens):
        return candidate
    d_in, d_phi = (axis_sizes(case).get(axis, 0) for axis in ("d_in", "d_phi"))
    if d_phi == d_in:
        return candidate
    table = table_of(case)
    tensors: Arrays = {}
    for name, value in candidate.tensors.items():
        words = table[name].axes.split()
        if "d_phi" in words:
            if d_phi < d_in:
                continue
            value = np.take(value, range(d_in), axis=words.index("d_phi") - len(words))
        tensors[name] = value
    return candidate._replace(tensors=tensors)


# -- tensors and their axes ------------------------------------------------------------------------


def _optional(search: _Search) -> None:
    """Drop each tensor that a case may lack, and together those that need each other."""
    together = [
        [name for name in search.case.inputs if name.startswith("in/window_")],
        ["in/momentum", "in/S0", "in/S_bar"],
    ]
    for names in [*together, *([name] for name in search.case.inputs)]:
        tensors = {name: value for name, value in search.case.inputs.items() if name not in names}
        if len(tensors) < len(search.case.inputs):
            search.attempt(_present(search.case)._replace(tensors=tensors))


def _tokens(search: _Search) -> None:
    _shorter(search, "T")


def _dimensions(search: _Search) -> None:
    """Cut to one sequence, then cut every other axis."""
    while search.first(flatten(search.case)):
        pass
    for axis in (
        "T",
        "B",
        "H",
        "n",
        "m",
        "d_out",
        "d_in",
        "d_phi",
        "d_model",
        "hidden",
        "gate_hidden",
    ):
        _shorter(search, axis)


def _shorter(search: _Search, axis: str) -> None:
    """Halve an axis while that fails, then drop single places, the last first."""
    while (size := axis_sizes(search.case).get(axis, 0)) > 1:
        half = size // 2
        if not search.first(
            cut(search.case, axis, keep) for keep in (range(1), range(half), range(half, size))
        ):
            break
    for place in reversed(range(axis_sizes(search.case).get(axis, 0))):
        size = axis_sizes(search.case)[axis]
        if size > 1 and place < size:
            search.attempt(cut(search.case, axis, [i for i in range(size) if i != place]))


# -- numbers ---------------------------------------------------------------------------------------


def _formats(search: _Search) -> None:
    """Convert inputs to float64 if the mistake is not one of precision, else to float32."""
    for kind in (np.float64, np.float32):
        narrow = [
            name
            for name, value in search.case.inputs.items()
            if value.dtype.kind not in "biu" and value.dtype.itemsize < np.dtype(kind).itemsize
        ]
        tensors = {
            name: value.astype(kind) if name in narrow else value
            for name, value in search.case.inputs.items()
        }
        if narrow and search.attempt(_present(search.case)._replace(tensors=tensors)):
            return


def _values(search: _Search) -> None:
    """Make each tensor one round number, or rounder numbers, then single entries 0."""
    for name, value in list(search.case.inputs.items()):
        if value.dtype.kind in "biu":
            continue
        plain = value.astype(np.float64)
        for rounder in _rounder(plain):
            if _bits(rounder) < _bits(plain) and search.attempt(
                _replace(search.case, name, rounder)
            ):
                break
        if search.case.inputs[name].size <= 16:
            _zeros(search, name)


def _rounder(x: np.ndarray[Any, Any]) -> Iterator[np.ndarray[Any, Any]]:
    for constant in (0.0, 1.0, 0.5):
        yield np.full(x.shape, constant)
    for step in (0.5, 0.125, 2.0**-6):
        yield np.round(x / step) * step
    with np.errstate(divide="ignore"):
        scale = 2.0 ** np.floor(np.log2(np.abs(x)))
    # powers of two, for what is tiny
    yield np.where(x == 0, 0.0, np.copysign(np.where(x == 0, 1.0, scale), x))


def _zeros(search: _Search, name: str) -> None:
    for place in np.ndindex(search.case.inputs[name].shape):
        values = search.case.inputs[name].astype(np.float64)
        if values[place] != 0.0:
            values[place] = 0.0
            search.attempt(_replace(search.case, name, values))


def _replace(case: Case, name: str, values: np.ndarray[Any, Any]) -> Candidate:
    header, tensors = _present(case)
    return Candidate(header, {**tensors, name: values.astype(case.inputs[name].dtype)})


def _bits(x: np.ndarray[Any, Any]) -> int:
    """Significant bits of all entries together: 0 has none, a power of two and infinity have one."""
    mantissa, _ = np.frexp(np.where(np.isinf(x), 1.0, np.atleast_1d(x)))
    whole = np.abs(np.ldexp(mantissa, 53)).astype(np.uint64)
    lowest = np.where(whole == 0, 1, whole & (~whole + np.uint64(1)))
    return int(np.sum(np.where(whole == 0, 0.0, 53.0 - np.log2(lowest.astype(np.float64)))))
