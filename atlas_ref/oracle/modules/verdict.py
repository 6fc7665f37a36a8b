"""The verdict on one recorded value: its module, the first wrong entry, and the nearest reading.

Specified in specs/modules.md (MODULES-10, MODULES-11).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from pydantic import ValidationError

from atlas_ref.messages import first_problem
from atlas_ref.oracle.judge.arrays import judged
from atlas_ref.oracle.judge.tolerance import PASS
from atlas_ref.oracle.modules.graph import LABELS, Graph, Route, Value
from atlas_ref.oracle.modules.tolerance import Truth
from atlas_ref.types import Array

#: The clause of the backward of a model, and what its tensors have in their names.
BACKWARD, GRAD = "MODULES-20", "/grad/"


class Verdict(NamedTuple):
    """The result of a replay for one recorded value (MODULES-10).

    Attributes:
        module: that received or returned it. tensor: its name in the file.
        verdict: PASS, MARGINAL, WRONG or UNDECIDABLE.
        fault: where the mistake lies: the module, or "between a and b".
        place: first wrong entry in words: call, batch row, token, head and index.
        entry: the same, as indices of the tensor.
        got, expected: the entries there.
        ratio: error over tolerance, PASS up to 2. basis: where the tolerance comes from.
        together: modules that were not recorded, and so were evaluated with it.
        clause: where the computation is defined.
        nearest: readings under which it would be right; "" where none was found or looked for.
        inside: of a memory's cell: the first wrong step of the rule, or what to record.
        why: in words, where numbers do not say it.
    """

    module: str
    tensor: str
    verdict: str
    fault: str
    place: str = ""
    entry: tuple[int, ...] = ()
    got: float | None = None
    expected: float | None = None
    ratio: float | None = None
    basis: str = ""
    together: tuple[str, ...] = ()
    clause: str = ""
    nearest: str = ""
    inside: str = ""
    why: str = ""

    @property
    def key(self) -> str:
        return self.tensor.removeprefix("modules/")


def verdict_on(
    graph: Graph, key: str, got: Array, truth: Truth, way: Route, *, back: bool = False
) -> Verdict:
    """The verdict on a recorded value, or on a recorded cotangent (MODULES-10, MODULES-20).

    Args:
        way: from what was taken as recorded. back: whether it is a cotangent.
    """
    value, row = graph.values[key], judged("", key, got, truth.want, truth.tolerance)
    together, index = _together(graph, value, way), row.place or ()
    alike = got.shape == truth.want.shape
    if row.verdict != "PASS" and alike:
        index = _first_wrong(value, got, truth, index, back=back)
    at = (alike and got.size) or None
    fault = _fault_of_backward if back else _fault
    return Verdict(
        module=value.module,
        tensor=f"modules/{grad_name(key) if back else key}",
        verdict=row.verdict,
        fault=fault(graph, value, way.known, together),
        place=place_of(graph, value, index, got.shape),
        entry=index,
        got=at and float(got[index]),
        expected=at and float(truth.want[index]),
        ratio=row.ratio,
        basis=row.basis,
        together=together,
        clause=BACKWARD if back else value.clause,
        why=row.why,
    )


def undecidable(graph: Graph, key: str, why: str, *, back: bool = False) -> Verdict:
    """The verdict on a value, or on its cotangent, that cannot be computed again."""
    module = graph.values[key].module
    tensor, fault = (grad_name(key), f"backward of {module}") if back else (key, module)
    return Verdict(module, f"modules/{tensor}", "UNDECIDABLE", fault, why=why)


def grad_name(key: str) -> str:
    """The name of a cotangent, MODULE/grad/in/x, from the key of its value (MODULES-20)."""
    module, _, port = key.partition("/")
    return f"{module}{GRAD}{port}"


def refusal(error: ValueError) -> str:
    """The words of a refusal, in one line."""
    if isinstance(error, ValidationError):
        return first_problem(error)
    return str(error)


def _together(graph: Graph, value: Value, way: Route) -> tuple[str, ...]:
    """Modules that recorded nothing on the way, and so were computed together with it."""
    modules = {each: graph.values[each].module for each in (*way.between, *way.known)}
    recorded = {value.module, *(modules[each] for each in way.known)}
    parts = [modules[each] for each in way.between if graph.values[each].kind == "output"]
    return tuple(each for each in dict.fromkeys(parts) if each not in recorded)


def _fault(graph: Graph, value: Value, known: tuple[str, ...], together: tuple[str, ...]) -> str:
    """The module that computes the value, or the two between which it was passed on."""
    if value.kind == "output":
        return value.module
    before = dict.fromkeys(graph.values[each].module for each in known)
    before.pop(value.module, None)
    if not before:
        return value.module
    first = " and ".join(before)
    middle = f" ({', '.join(together)} not recorded)" if together else ""
    ending = "/out/" in value.key
    return f"between {first} and {'the end of ' if ending else ''}{value.module}{middle}"


def _fault_of_backward(
    graph: Graph, value: Value, known: tuple[str, ...], together: tuple[str, ...]
) -> str:
    """The module whose backward gives it, or the modules between which it came back."""
    after = dict.fromkeys(graph.values[each].module for each in known)
    if "/in/" in value.key and list(after) == [value.module]:
        return f"backward of {value.module}"
    middle = f" ({', '.join(together)} not recorded)" if together else ""
    after.pop(value.module, None)
    return f"backward between {value.module} and {' and '.join(after) or value.module}{middle}"


def _first_wrong(
    value: Value, got: Array, truth: Truth, worst: tuple[int, ...], *, back: bool
) -> tuple[int, ...]:
    """Index of the first wrong entry in the order of tokens; backward takes the last one first."""
    gap = np.abs(got.astype(np.float64) - truth.want)
    wrong = ~(gap <= PASS * truth.tolerance.max)
    if not wrong.any() or not wrong.ndim:
        return worst if wrong.ndim else ()
    names, places = letters(value), np.argwhere(wrong)
    tokens = places[:, names.index("T")] if "T" in names else places[:, 0]
    order = np.lexsort((*places.T[::-1], -tokens if back and "T" in names else tokens))
    return tuple(int(i) for i in places[order[0]])


def letters(value: Value) -> list[str]:
    """Letters of the axes of a value."""
    return [each.partition("=")[0] for each in value.axes.split()]


def place_of(graph: Graph, value: Value, index: tuple[int, ...], shape: tuple[int, ...]) -> str:
    """An index in words: call 1 (its token 0), batch row 0, token 5, head 1, index 3."""
    words = []
    for letter, i in zip(letters(value), index, strict=False):
        word = f"{LABELS[letter]} {i}"
        if letter == "T" and graph.calls:
            spans = graph.spans(shape[letters(value).index("T")])
            call = next(n for n, (first, last) in enumerate(spans) if first <= i < last)
            word += f" (call {call}, its token {i - spans[call][0]})"
        words.append(word)
    return ", ".join(words)
