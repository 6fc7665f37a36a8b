"""The subject schedule: several requests served by calls, and the states that these leave.

Specified in specs/schedules.md (SCHED-7 to SCHED-11).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from atlas_ref import backend
from atlas_ref.oracle.cases.case import Case, make
from atlas_ref.oracle.cases.tensor_spec import Tensor
from atlas_ref.oracle.program.reading import Reading
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.serving import draw, mistakes, parameters, plan
from atlas_ref.oracle.serving.law import truth
from atlas_ref.oracle.serving.parameters import Parameters
from atlas_ref.oracle.serving.server import Server
from atlas_ref.oracle.subjects.base import checked, facts
from atlas_ref.oracle.subjects.base.search import READINGS
from atlas_ref.oracle.subjects.subject import Rounding, Searched, Subject
from atlas_ref.types import Array

RESULTS = re.compile(r"out/(y|state\d+/r\d+/(M|S|window))")
STATE = re.compile(r"out/state\d+/r\d+/(M|S|window)")
CLAUSES = {"out": "SCHED-8"}


def _tensors(own: Parameters) -> dict[str, Tensor]:
    """Inputs of a case, in order (SCHED-7)."""
    each = {name: " d_in" if of_channel else "" for name, of_channel in own.of.gates.items()}
    low = {"g": (None, 0.0), "beta": (0.0, None), "mu": (0.0, None), "eta": (0.0, None)}
    tables = [{"in/x": Tensor("requests T channels")}]
    for prefix, axes, need in (
        ("", "requests heads T", "yes"),
        ("draft_", "rows heads", "no drafts"),
        ("pad_", "heads", "0"),
    ):
        if prefix:
            front = {"draft_": "rows channels", "pad_": "channels"}[prefix]
            tables.append({f"in/{prefix}x": Tensor(front, need)})
        for name, channel in each.items():
            least, most = low.get(name, (None, None))
            tables.append({f"in/{prefix}{name}": Tensor(axes + channel, need, least, most)})
    tables.append({f"in/{name}": Tensor("heads") for name in own.of.weights})
    tables.append({"in/conv_w": Tensor("channels taps")} if own.conv else {})
    return {name: tensor for table in tables for name, tensor in table.items()}


def _inputs(header: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs in order; refuse what does not carry the schedule out (SCHED-7).

    Raises:
        ValueError: names the tensor or the step, what was found and what is needed.
    """
    own = parameters.parse(header)
    table = _tensors(own)
    by = "parameters"
    sizes = {"heads": (own.heads, by), "d_in": (own.d_in, by), "channels": (own.channels, by)}
    sizes |= {"taps": (own.conv, by)} if own.conv else {}
    ordered = checked.check_inputs(
        header,
        inputs,
        checked.header_convention(header),
        lambda header, convention, names: (table, {}),
        sizes=sizes,
        check=_check_drafts,
    )
    plan.check(own, ordered)
    return ordered


def _check_drafts(header: Any, inputs: Mapping[str, Any]) -> None:
    """Refuse drafted rows without their gates."""
    own = parameters.parse(header)
    names = [f"in/draft_{name}" for name in ("x", *own.of.gates)]
    there = [name for name in names if name in inputs]
    for name in names if there else ():
        if name not in inputs:
            raise ValueError(f"{name}: missing beside {there[0]}")


def _draw(
    request: Any, header: Any, generator: Any, d_phi: int
) -> tuple[dict[str, Array], tuple[int, ...]]:
    """Random inputs that carry the schedule out (SCHED-11).

    Raises:
        ValueError: a cotangent, of which there is none here.
    """
    if request.cotangent:
        raise ValueError("cotangent: rule schedule has no gradients; leave it out")
    return draw.draw(parameters.parse(header), request.tokens, generator), ()


def _host(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Inputs where they can be cut: results of a schedule are computed call by call."""
    return {name: backend.of(x).to_host(x) for name, x in inputs.items()}


def _case(rule: str, header: Mapping[str, Any], inputs: Mapping[str, Array]) -> Case:
    return make({"schema": 1, "rule": rule, **header}, inputs)


def _by_rule(rule: str, header: Mapping[str, Any], inputs: Mapping[str, Array]) -> Any:
    case = _case(rule, header, inputs)
    return SUBJECTS[rule].evaluate(case.inputs, case, "sequential", None)[0]


def _evaluate(
    inputs: Mapping[str, Array], case: Case, form: str, chunk: int | None
) -> tuple[dict[str, Array], None]:
    return truth(parameters.parse(case.header), _host(inputs), _by_rule), None


def _run(
    inputs: Mapping[str, Array], case: Case, rounding: Rounding, chosen: Sequence[Reading] = ()
) -> dict[str, Array]:
    """A server in a legal arithmetic, with mistakes (SCHED-10)."""

    def by_loop(rule: str, header: Mapping[str, Any], given: Mapping[str, Array]) -> Any:
        each = _case(rule, header, given)
        return SUBJECTS[rule].plain(each.inputs, each, rounding)

    return Server(parameters.parse(case.header), _host(inputs), by_loop, chosen).results()


def _plain(inputs: Mapping[str, Array], case: Case, rounding: Rounding) -> dict[str, Array]:
    return _run(inputs, case, rounding)


def _in_time(case: Case, rows: Sequence[Any]) -> list[Any]:
    """Verdicts with the place of the first wrong result in time (SCHED-9).

    A state has the number of the last read before it, and the first wrong result its step, request
    and token in words.
    """
    rest = re.compile(r"out/state(\d+)/r(\d+)/(\w+)")
    own = parameters.parse(case.header)
    places, given = plan.places(own), {each.number: each for each in parameters.steps(own)}
    found, first = [], (len(places), 1, "", "")
    for row in rows:
        matched = rest.fullmatch(row.tensor)
        wrong, when, words = row.verdict not in ("PASS", "UNDECIDABLE"), None, ""
        if matched:
            step = int(matched[1])
            before = sum(place.step.number <= step for place in places)
            when = (max(before - 1, 0), 1)
            words = f"{given[step].words}, request {matched[2]}, state {matched[3]}"
            if row.first is not None:
                row = row._replace(first=row.first._replace(token=when[0]))
        elif row.first is not None and row.first.token is not None:
            when, words = (row.first.token, 0), f"{places[row.first.token].words}, y"
        if wrong and when is not None and (not first[3] or when < first[:2]):
            first = (*when, words, row.tensor)
        found.append(row)
    told = [
        row._replace(why="; ".join(each for each in (row.why, first[2]) if each))
        if row.tensor == first[3]
        else row
        for row in found
    ]
    return sorted(told, key=lambda row: bool(first[3]) and row.tensor != first[3])


SUBJECT = Subject(
    name="schedule",
    cotangent="in/y_bar",
    clauses=CLAUSES,
    evaluate=_evaluate,
    plain=_plain,
    check_header=parameters.check_header,
    checked=_inputs,
    clause=lambda header, name: facts.clause(CLAUSES, name),
    numbers=lambda header, inputs: int(inputs["in/x"].size),
    results=RESULTS,
    shape=lambda header, inputs: (0, 0),
    no_loss=lambda header, inputs: "a schedule has no gradients",
    complete=True,
    draw=_draw,
    presets=draw.PRESETS,
    sample=draw.PRESETS["full"].parameters,
    has_parameters=True,
    instead="atlas-ref eval, check, identify and tolerance take a schedule",
    axis=-3,
    in_time=_in_time,
    states=STATE,
    search=READINGS,
    searched=Searched(
        settings=lambda case, chosen=(): [],
        departures=lambda case, chosen=(): list(mistakes.of_case(parameters.parse(case.header))),
        presets=lambda case: {},
        run=_run,
        keeps=lambda case, each: True,
        named={},
        word="schedule",
    ),
)
