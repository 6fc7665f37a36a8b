"""Passes over a case in which every op reads recorded inputs: the truth, and each member of the
ensemble.

Specified in specs/replay.md (REPLAY-11, REPLAY-12).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.cases.case import Case, CaseError
from atlas_ref.oracle.cases.inputs import convert, round_inputs
from atlas_ref.oracle.family.arithmetic import MEMBERS, PLAIN, Arithmetic
from atlas_ref.oracle.family.state import State
from atlas_ref.oracle.norms import FORMATS
from atlas_ref.oracle.replay.adjoints import PREFIX, expected_adjoints
from atlas_ref.oracle.replay.chunks import Chunks, initial, system
from atlas_ref.oracle.replay.loop import run_ops
from atlas_ref.oracle.replay.recorded import Recorded
from atlas_ref.oracle.replay.sequence import leading, prepare
from atlas_ref.types import Array

#: Members with recorded inputs that are moved within the rounding that recording may have hidden
#: (REPLAY-12), and the same where those leave a doubt (REPLAY-13).
DRAWS, MORE_DRAWS = 16, 48

#: Inputs that maps, norms and gates are computed from.
NUDGED: tuple[str, ...] = (
    "in/k",
    "in/v",
    "in/q",
    "in/x",
    "in/G",
    "in/param/",
    "in/phi/",
    "in/proj",
)
NUDGED += ("in/memory/", "in/state/keys", "in/state/values", "in/state/weights/")

#: Recorded ops that are the state before a chunk (REPLAY-20).
STATES = ("chunk/M", "chunk/S")


class Pass(NamedTuple):
    """One pass: op -> token (None for all tokens at once) -> value.

    Attributes:
        values: of every op, computed. inputs: what later ops read, recorded where that exists.
        counts: which entries have an influence, where not all have.
    """

    name: str
    values: dict[str, dict[int | None, Any]]
    inputs: dict[str, dict[int | None, Any]]
    counts: dict[str, dict[int | None, Any]]


class Reader:
    """The hooks of a pass: store an op's computed value, return the recorded one to the loop."""

    def __init__(
        self, name: str, lead: int, trace: Sequence[Recorded], requests: Requests | None
    ) -> None:
        self.lead, self.requests = lead, requests
        self.recorded: dict[str, Recorded] = {}
        self.states: dict[str, Recorded] = {}
        for each in trace:
            if each.op in STATES:
                self.states[each.into] = each
            elif each.into and not (
                each.tensor.startswith("chunk/") and each.into in self.recorded
            ):
                self.recorded[each.into] = each
        self.result = Pass(name, {}, {}, {})

    def __call__(
        self, op: str, t: int | None, compute: Callable[..., Array], *args: Any, counts: Any = None
    ) -> Array:
        recorded = self.recorded.get(op)
        value = (
            None
            if recorded is None
            else recorded.values
            if t is None
            else recorded.at(t, self.lead)
        )
        if (
            value is None
            or self.requests is None
            or (op in self.requests and (t is None or t in self.requests[op]))
        ):
            result = compute(*args)
            self.result.values.setdefault(op, {})[t] = result
            value = result if value is None else value
        if counts is not None:
            self.result.counts.setdefault(op, {})[t] = counts
        self.result.inputs.setdefault(op, {})[t] = value
        return value

    def begin(self, t: int, state: State) -> State:
        """Continue from a chunk's recorded first states, unless recorded token by token.

        Source: REPLAY-20.
        """
        for op, each in self.states.items():
            if each.labels is not None and t in each.labels and op not in self.recorded:
                state = state._replace(**{op: each.of(each.labels.index(t), self.lead)})
        return state


#: Tokens at which a recorded op is to be evaluated, by op.
Requests = Mapping[str, Collection[int | None]]


class Passes:
    """Passes over one case and its recorded ops.

    Args:
        trace: the recorded ops by name, from `recorded_ops`.
        cut: how chunk tensors are cut; None without any.
        chosen: readings of a subject that has its own.
    """

    def __init__(
        self,
        case: Case,
        trace: Mapping[str, Recorded],
        cut: Chunks | None,
        chosen: tuple[Any, ...] = (),
    ) -> None:
        self.case, self.trace, self.cut, self.chosen = case, trace, cut, chosen

    def truth(self, requests: Requests | None = None) -> Pass:
        """Every op in float64 on recorded inputs, or some of those recorded (REPLAY-11)."""
        inputs = convert(self.case, "float64")
        return self._pass("truth", inputs, list(self.trace.values()), PLAIN, requests)

    def members(self, dtype: str, requests: Requests) -> list[Pass]:
        """The same in every legal arithmetic of a format, on inputs that round to the recorded ones
        (REPLAY-12).

        Args:
            dtype: the narrowest format of the trace, or the one that the implementation is stated
                to work in.
            requests: names of `trace` with the tokens at which they are evaluated; no other
                recorded op is.
        """
        arithmetic = "float64" if dtype == "float64" else "float32"
        kind = FORMATS[arithmetic][0]
        inputs = convert(self.case, arithmetic)
        with np.errstate(over="ignore"):
            exact = [each._replace(values=each.values.astype(kind)) for each in self.trace.values()]
        members = [self._pass(way.name, inputs, exact, way, requests) for way in MEMBERS]
        return members + self.draw(dtype, requests, range(DRAWS))

    def draw(self, dtype: str, requests: Requests, numbers: Iterable[int]) -> list[Pass]:
        """Members with inputs moved within what recording hides, one for each number of a draw.

        Arguments are those of `members` (REPLAY-12).
        """
        arithmetic = "float64" if dtype == "float64" else "float32"
        inputs = convert(self.case, arithmetic)
        narrow = self._narrow(dtype, arithmetic)
        members = []
        for number in numbers:
            draw = np.random.Generator(np.random.Philox(number))
            perturbed = [
                each._replace(values=_move(each, arithmetic, draw)) for each in self.trace.values()
            ]
            name = f"inputs within their rounding, draw {number + 1}"
            nearby = _nudge(narrow if number % 2 else inputs, draw)
            way = MEMBERS[number % len(MEMBERS)]._replace(expanded=number >= DRAWS)
            members.append(self._pass(name, nearby, perturbed, way, requests))
        return members

    def _narrow(self, dtype: str, arithmetic: str) -> dict[str, Array]:
        """Inputs rounded to a format; unrounded where too large, as results will show."""
        try:
            return convert(round_inputs(self.case, dtype), arithmetic)
        except CaseError:
            return convert(self.case, arithmetic)

    def _pass(
        self,
        name: str,
        inputs: Mapping[str, Array],
        trace: Sequence[Recorded],
        way: Arithmetic,
        requests: Requests | None = None,
    ) -> Pass:
        reader = Reader(
            name, leading(self.case), trace, None if requests is None else self._ops(requests)
        )
        with np.errstate(all="ignore"):
            begin = None if self.cut is None else reader.begin
            run_ops(self.case, inputs, reader, way=way, begin=begin, chosen=self.chosen)
            if self.cut is not None:
                self._chunks(inputs, reader, way, self.cut, requests)
            adjoints = [each for each in trace if each.op.startswith(PREFIX)]
            if requests is not None and not any(op.startswith(PREFIX) for op in requests):
                adjoints = []
            if adjoints:
                reader.result.values.update(
                    expected_adjoints(
                        self.case, inputs, reader.result.inputs, adjoints, way, self.chosen
                    )
                )
                reader.result.counts.update(
                    {
                        each.op: counts
                        for each in adjoints
                        if (counts := reader.result.counts.get(each.op[len(PREFIX) :]))
                    }
                )
        return reader.result

    def _ops(self, requests: Requests) -> dict[str, set[int | None]]:
        """The ops of the loop to evaluate for some requests, each with its tokens."""
        ops: dict[str, set[int | None]] = {}
        for name, tokens in requests.items():
            each = self.trace[name]
            own = [t - 1 for t in tokens if t] if each.op in STATES else tokens
            ops.setdefault(each.into, set()).update(own)
        return ops

    def _chunks(
        self,
        inputs: Mapping[str, Array],
        reader: Reader,
        way: Arithmetic,
        cut: Chunks,
        requests: Requests | None,
    ) -> None:
        """Add the expected chunk tensors to the ops of the loop (REPLAY-20)."""
        values, counts = reader.result.values, reader.result.counts
        names = set(self.trace) if requests is None else set(requests)
        for name in ("chunk/M", "chunk/S"):
            if name in names:
                op = name.removeprefix("chunk/")
                start = initial(
                    self.case, inputs, op, next(iter(reader.result.inputs[op].values()))
                )
                pairs = [
                    (t, fresh)
                    for t, fresh in zip(cut.starts, cut.fresh, strict=False)
                    if requests is None or t in requests[name]
                ]
                values[name] = {t: start if fresh else values[op][t - 1] for t, fresh in pairs}
        if "chunk/E" in names:
            values["chunk/E"], counts["chunk/E"] = values["residual"], counts["residual"]
        if "chunk/A" in names:
            way = way._replace(printed=True)
            rows = system(self.case, *prepare(self.case, inputs, reader, way), way, cut)
            shape = self.trace["chunk/A"].values.shape
            lead = leading(self.case)
            values["chunk/A"] = {
                t: rows[(slice(None),) * lead + (t,)].reshape(shape[:lead] + shape[lead + 1 :])
                for t in range(shape[lead])
            }


def _move(each: Recorded, arithmetic: str, draw: np.random.Generator) -> Array:
    """Values that recording may have rounded to these.

    They are within half a unit, and within a whole one where the format is that of the arithmetic:
    a compiler may fuse an op with the next, which then reads an unrounded value. Below the smallest
    normal number units stay as large as there. An exact 0 stays, since any direction would be near
    it.
    """
    _, bits, least = FORMATS[each.dtype]
    same = bits >= FORMATS[arithmetic][1]
    reach = 2.0 ** -(FORMATS[arithmetic][1] if same else bits + 1)
    size = np.abs(each.values)
    with np.errstate(all="ignore"):
        most = reach * np.sign(each.values) * np.maximum(size, 2.0**least)
        return (each.values + most * draw.uniform(-1.0, 1.0, size.shape)).astype(
            FORMATS[arithmetic][0]
        )


def _nudge(inputs: Mapping[str, Array], draw: np.random.Generator) -> dict[str, Array]:
    """Tokens and parameters, each moved by up to a unit in the last place (TOL-3).

    This stands for the rounding inside maps, norms and gates. Gates stay: they may stand at the end
    of their range.
    """
    return {
        name: _within(value, draw) if name.startswith(NUDGED) else value
        for name, value in inputs.items()
    }


def _within(value: Array, draw: np.random.Generator) -> Array:
    result: Array = (
        value * (1.0 + np.finfo(value.dtype).eps * draw.uniform(-1.0, 1.0, value.shape))
    ).astype(value.dtype)
    return result


def store(value: Array, dtype: str) -> np.ndarray[Any, Any]:
    """A value rounded to the format of a recorded op, in float64."""
    with np.errstate(over="ignore"):
        return np.asarray(value).astype(FORMATS[dtype][0]).astype(np.float64)
