"""Passes over a case in which every op reads what somebody recorded: the truth, and each member of the ensemble.

Specified in specs/replay.md (REPLAY-11, REPLAY-12).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.cases.case import Case, CaseError
from atlas_ref.oracle.cases.inputs import converted, rounded
from atlas_ref.oracle.family.arithmetic import MEMBERS, PLAIN, Arithmetic
from atlas_ref.oracle.judge.norms import FORMATS
from atlas_ref.oracle.replay import loop as trace_loop
from atlas_ref.oracle.replay.adjoints import PREFIX, expected
from atlas_ref.oracle.replay.chunks import Chunks, initial, system
from atlas_ref.oracle.replay.recorded import Recorded
from atlas_ref.types import Array

#: Members whose recorded inputs are moved within the rounding that recording them may have hidden (REPLAY-12).
DRAWS = 16

#: Inputs that maps, norms and gates are computed from.
NUDGED = ("in/k", "in/v", "in/q", "in/x", "in/G", "in/param/", "in/phi/", "in/proj")


class Pass(NamedTuple):
    """One pass: op -> token (None for all tokens at once) -> value.

    Attributes:
        values: what was computed. taken: what the loop went on with.
        counts: which entries have an influence, where not all have.
    """

    name: str
    values: dict[str, dict[int | None, Any]]
    taken: dict[str, dict[int | None, Any]]
    counts: dict[str, dict[int | None, Any]]


class Reader:
    """The hooks of a pass: keep what an op computed, and go on with what was recorded for it."""

    def __init__(self, name: str, lead: int, found: Sequence[Recorded], wanted: Wanted | None) -> None:
        self.lead, self.wanted = lead, wanted
        self.given: dict[str, Recorded] = {}
        self.states: dict[str, Recorded] = {}
        for each in found:
            if each.labels is not None:
                self.states[each.into] = each
            elif each.into and not (each.tensor.startswith("chunk/") and each.into in self.given):
                self.given[each.into] = each
        self.made = Pass(name, {}, {}, {})

    def __call__(self, op: str, t: int | None, compute: Callable[..., Array], *args: Any, counts: Any = None) -> Array:
        given = self.given.get(op)
        taken = None if given is None else given.values if t is None else given.of(t, self.lead)
        if taken is None or self.wanted is None or (op in self.wanted and (t is None or t in self.wanted[op])):
            value = compute(*args)
            self.made.values.setdefault(op, {})[t] = value
            taken = value if taken is None else taken
        if counts is not None:
            self.made.counts.setdefault(op, {})[t] = counts
        self.made.taken.setdefault(op, {})[t] = taken
        return taken

    def begin(self, t: int, held: trace_loop.Held) -> None:
        """At the start of a chunk the loop goes on with the states recorded there, unless the trace has them (REPLAY-20)."""
        for op, each in self.states.items():
            if each.labels is not None and t in each.labels and op not in self.given:
                setattr(held, op, each.of(each.labels.index(t), self.lead))


#: Tokens at which a recorded op is to be evaluated, by op.
Wanted = Mapping[str, Collection[int | None]]


class Passes:
    """Passes over one case with what was recorded of it.

    Args:
        found: by name, as `recorded` gives them.
        cut: how chunk tensors are cut; None without any.
    """

    def __init__(self, case: Case, found: Mapping[str, Recorded], cut: Chunks | None) -> None:
        self.case, self.found, self.cut = case, found, cut

    def truth(self) -> Pass:
        """Every op in float64 on recorded inputs (REPLAY-11)."""
        return self._pass("truth", converted(self.case, "float64"), list(self.found.values()), PLAIN)

    def members(self, dtype: str, wanted: Wanted) -> list[Pass]:
        """The same in every legal arithmetic of a format, on inputs that round to the recorded ones (REPLAY-12).

        Args:
            dtype: the narrowest format that was recorded, or the one that the implementation is said to work in.
            wanted: names of `found` with the tokens at which they are asked for; nothing else that was recorded is evaluated.
        """
        arithmetic = "float64" if dtype == "float64" else "float32"
        kind = FORMATS[arithmetic][0]
        inputs = converted(self.case, arithmetic)
        narrow = self._narrow(dtype, arithmetic)
        with np.errstate(over="ignore"):
            exact = [each._replace(values=each.values.astype(kind)) for each in self.found.values()]
        made = [self._pass(way.name, inputs, exact, way, wanted) for way in MEMBERS]
        for number in range(DRAWS):
            draw = np.random.Generator(np.random.Philox(number))
            moved = [each._replace(values=_moved(each, arithmetic, draw)) for each in self.found.values()]
            name = f"inputs within their rounding, draw {number + 1}"
            given = _nudged(narrow if number % 2 else inputs, draw)
            made.append(self._pass(name, given, moved, MEMBERS[number % len(MEMBERS)], wanted))
        return made

    def _narrow(self, dtype: str, arithmetic: str) -> dict[str, Array]:
        """Inputs rounded to a format; as they are where they are too large for it, which the results will show."""
        try:
            return converted(rounded(self.case, dtype), arithmetic)
        except CaseError:
            return converted(self.case, arithmetic)

    def _pass(
        self, name: str, inputs: Mapping[str, Array], found: Sequence[Recorded], way: Arithmetic, wanted: Wanted | None = None
    ) -> Pass:
        reader = Reader(name, trace_loop.leading(self.case), found, None if wanted is None else self._ops(wanted))
        with np.errstate(all="ignore"):
            trace_loop.walk(self.case, inputs, reader, way=way, begin=reader.begin)
            if self.cut is not None:
                self._chunks(inputs, reader, way, self.cut, wanted)
            adjoints = [each for each in found if each.op.startswith(PREFIX)]
            if wanted is not None and not any(op.startswith(PREFIX) for op in wanted):
                adjoints = []
            if adjoints:
                reader.made.values.update(expected(self.case, inputs, reader.made.taken, adjoints, way))
                reader.made.counts.update(
                    {each.op: counts for each in adjoints if (counts := reader.made.counts.get(each.op[len(PREFIX) :]))}
                )
        return reader.made

    def _ops(self, wanted: Wanted) -> dict[str, set[int | None]]:
        """The ops of the loop that have to be evaluated for what is wanted, at which tokens."""
        found: dict[str, set[int | None]] = {}
        for name, tokens in wanted.items():
            each = self.found[name]
            own = tokens if each.labels is None else [t - 1 for t in tokens if t]
            found.setdefault(each.into, set()).update(own)
        return found

    def _chunks(self, inputs: Mapping[str, Array], reader: Reader, way: Arithmetic, cut: Chunks, wanted: Wanted | None) -> None:
        """What chunk tensors should be, beside the ops of the loop (REPLAY-20)."""
        values, counts = reader.made.values, reader.made.counts
        asked = set(self.found) if wanted is None else set(wanted)
        for name in ("chunk/M", "chunk/S"):
            if name in asked:
                op = name.removeprefix("chunk/")
                start = initial(self.case, inputs, op, next(iter(reader.made.taken[op].values())))
                pairs = [(t, fresh) for t, fresh in zip(cut.starts, cut.fresh, strict=False) if wanted is None or t in wanted[name]]
                values[name] = {t: start if fresh else values[op][t - 1] for t, fresh in pairs}
        if "chunk/E" in asked:
            values["chunk/E"], counts["chunk/E"] = values["residual"], counts["residual"]
        if "chunk/A" in asked:
            sequence = trace_loop.prepared(self.case, inputs, reader, way)
            rows = system(sequence, way, cut)
            shape = self.found["chunk/A"].values.shape
            lead = trace_loop.leading(self.case)
            values["chunk/A"] = {
                t: rows[(slice(None),) * lead + (t,)].reshape(shape[:lead] + shape[lead + 1 :]) for t in range(shape[lead])
            }


def _moved(each: Recorded, arithmetic: str, draw: np.random.Generator) -> Array:
    """Values that may have been there before they were recorded: within half a unit, and a whole one where nothing was rounded.

    A compiler may fuse an op with the next, so that the next reads what was never rounded. Below the smallest normal number
    units stay as large as they are there; what is exactly 0 stays, since any direction would be near it.
    """
    _, bits, least = FORMATS[each.dtype]
    same = bits >= FORMATS[arithmetic][1]
    reach = 2.0 ** -(FORMATS[arithmetic][1] if same else bits + 1)
    size = np.abs(each.values)
    with np.errstate(all="ignore"):
        most = reach * np.sign(each.values) * np.maximum(size, 2.0**least)
        return (each.values + most * draw.uniform(-1.0, 1.0, size.shape)).astype(FORMATS[arithmetic][0])


def _nudged(inputs: Mapping[str, Array], draw: np.random.Generator) -> dict[str, Array]:
    """Tokens and parameters moved by up to a unit in the last place, for the rounding inside maps, norms and gates (TOL-3).

    Gates stay: they may stand at the end of their range.
    """
    return {name: _within(value, draw) if name.startswith(NUDGED) else value for name, value in inputs.items()}


def _within(value: Array, draw: np.random.Generator) -> Array:
    found: Array = (value * (1.0 + np.finfo(value.dtype).eps * draw.uniform(-1.0, 1.0, value.shape))).astype(value.dtype)
    return found


def stored(value: Array, dtype: str) -> np.ndarray[Any, Any]:
    """A member's value as it would have been recorded, in float64."""
    with np.errstate(over="ignore"):
        return np.asarray(value).astype(FORMATS[dtype][0]).astype(np.float64)
