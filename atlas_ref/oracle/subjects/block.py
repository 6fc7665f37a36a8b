"""The subject cms: a block of frequency levels as the cases of its levels.

Written from the clauses (CASE-31 to CASE-33, CASE-36, CASE-37, CMS-6, CMS-7), not from
`atlas_ref.levels`, which knows nothing of cases.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.conventions import resolve
from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.levels import SHARED, active, check_step, count, inputs_of, parts
from atlas_ref.oracle.cases.tensor_spec import BLOCK, LEVEL, Position, phi_of
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.subjects.base import facts, hooks
from atlas_ref.oracle.subjects.base.deferred import defer
from atlas_ref.oracle.subjects.levels import learned, nested
from atlas_ref.oracle.subjects.levels.calls import Call, Evaluate
from atlas_ref.oracle.subjects.levels.header import check_header
from atlas_ref.oracle.subjects.subject import Rounding, Subject
from atlas_ref.parts import feature_maps
from atlas_ref.rules import FAMILY
from atlas_ref.types import Array, bind_dims
from tape import ops

#: What a block has beside its levels.
OWN = {"in/x": "B T d_model", "in/logits": "k", "in/reset": "T", "in/y_bar": "B H T d_out"}

CLAUSES = {
    "out": "CMS-6",
    "grad": "CMS-15",
    **{name.replace("in/", "grad/", 1): "CMS-21" for name in learned.GATES},
}

#: Results that are the state of a level (TOL-8).
STATES = re.compile(r"out/level\d+/(M|S|M_ref|window_momentum)")


def own_axes(header: Any) -> dict[str, str]:
    """Tensors that a block has beside those of its levels, and their axes (CASE-32, CASE-37)."""
    gates = header.schedule is not None and header.schedule.learned is not None
    return {**OWN, **(learned.GATES if gates else {})}


def entanglement(header: Any) -> str:
    """Why no level of a block is a case of its own; "" where each is (CASE-33, CASE-36, CASE-37)."""
    if header.nested:
        return "contexts of nested levels begin from each other, so none is a case of its own"
    if header.schedule.learned is not None:
        return "under schedule.learned each row writes at tokens of its own, which no case states"
    return ""


def _check_form(memory: Mapping[str, Subject], case: Case, form: str, chunk: int | None) -> None:
    """Refuse a form that a level does not have, or gates that decide who writes (CASE-37)."""
    schedule = case.header.schedule
    learns = schedule is not None and schedule.learned is not None
    if learns and (form != "sequential" or chunk is not None):
        raise ValueError(
            f"form {form}: under schedule.learned each token is written alone, sequential "
            "computes it"
        )
    for number, level in enumerate(parts(case)):
        try:
            memory[level.header.rule].check_form(level, form, chunk)
        except ValueError as error:
            raise ValueError(f"level{number}: {error}") from None


def _void(case: Case) -> dict[str, str]:
    """Settings of every level that cannot matter in it (CASE-18)."""
    return {
        f"level{number}.{axis}": why
        for number, level in enumerate(parts(case))
        for axis, why in level.void.items()
    }


def _clause(memory: Mapping[str, Subject], header: Any, name: str) -> str:
    """The clause about a result of the block, or of one of its levels."""
    level = LEVEL.match(name)
    if level is None:
        return facts.clause(CLAUSES, name)
    return memory[header.levels[int(level[2])].rule].clause(header, name)


def _features(case: Case) -> set[str]:
    """Names of the features of a block, and of any level (SRC-21)."""
    return {name for each in (case, *parts(case)) for name in hooks.features(each)}


def _check_levels(
    memory: Mapping[str, Subject], header: Any, inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """Check that every level of a block is a valid case and all agree (CASE-32).

    Returns the inputs in order.

    Args:
        memory: name of a rule -> its subject.

    Raises:
        ValueError: in the words of a level's own case, with the level named; a tensor that no level
            has.
    """
    _check_names(header, inputs)
    sizes: dict[str, Any] = {"k": (count(header), "levels")}
    tensors: dict[str, Any] = {}
    columns: list[int] = []
    for number in range(count(header)):
        own = _checked_level(memory, header, inputs, number)
        alone = {name: value for name, value in own.items() if name not in (*SHARED, "in/active")}
        tensors |= {
            f"in/level{number}/{name.removeprefix('in/')}": value for name, value in alone.items()
        }
        for name, axes in (
            ("param/W_K", f"H d_in{number} d_model"),
            ("param/W_V", "H d_out d_model"),
        ):
            bind_dims(f"in/level{number}/{name}", own[f"in/{name}"].shape, axes, sizes)
        columns.append(
            feature_maps.d_phi(
                header.levels[number].feature_map, own["in/param/W_K"].shape[-2], phi_of(own)
            )
        )
    axes_of = own_axes(header)
    shared = {name: inputs[name] for name in axes_of if name in inputs}
    for name, value in shared.items():
        bind_dims(name, value.shape, axes_of[name], sizes)
    _check_alone(shared)
    _check_together(header, columns, sizes["T"][0])
    return {**shared, **tensors}


def _check_together(header: Any, columns: list[int], tokens: int) -> None:
    """Check what levels must be that are nested, or that gates let write (CASE-36, CASE-37)."""
    conventions = [
        resolve(level.convention, rule=level.rule, level="token") for level in header.levels
    ]
    if header.nested:
        nested.check_levels(conventions, columns)
    if header.schedule.learned is not None:
        check_step(header.schedule, tokens)
        for number, convention in enumerate(conventions):
            learned.check_level(number, FAMILY[header.levels[number].rule], convention)


def _check_names(header: Any, inputs: Mapping[str, Any]) -> None:
    last, own = count(header) - 1, own_axes(header)
    for name in inputs:
        level = LEVEL.match(name)
        if name not in own and (level is None or level[2] not in map(str, range(count(header)))):
            names = f"{', '.join(own)} and in/level0/... to in/level{last}/..."
            raise ValueError(
                f"{name}: unknown tensor for rule {BLOCK} with {last + 1} levels; it has {names}"
            )
        if level is not None and f"in/{name[level.end() :]}" in (*OWN, "in/active"):
            raise ValueError(
                f"{name}: not part of this case: in/x, in/reset and in/y_bar are shared, the "
                "schedule says who is active"
            )
    for name in own:
        if name not in inputs and name not in ("in/reset", "in/y_bar"):
            raise ValueError(f"{name}: missing, axes ({', '.join(own[name].split())}) are needed")


def _checked_level(
    memory: Mapping[str, Subject], header: Any, inputs: Mapping[str, Any], number: int
) -> dict[str, Any]:
    level = header.of_level(number)
    try:
        return memory[level.rule].checked(level, inputs_of(header, inputs, number))
    except ValueError as error:
        text = re.sub(r"\bin/(?!x\b|reset\b|active\b)", f"in/level{number}/", str(error))
        raise ValueError(text if text.startswith("in/") else f"levels[{number}]: {text}") from None


def _check_alone(shared: Mapping[str, Any]) -> None:
    """Check dtype and range of tensors that belong to no level.

    The levels have checked the rest.
    """
    for name in ("in/logits", "in/y_bar", *learned.GATES):
        if name not in shared:
            continue
        kind = shared[name].dtype.name
        if kind not in ("float64", "float32", "bfloat16", "float16"):
            raise ValueError(
                f"{name}: dtype {kind}, float64, float32, bfloat16 or float16 is needed"
            )
        numbers = shared[name].astype(np.float64)
        if not np.isfinite(numbers).all():
            at = tuple(int(i) for i in np.argwhere(~np.isfinite(numbers))[0])
            raise ValueError(f"{name}: entries must be finite, found {numbers[at]} at {at}")


class Means(NamedTuple):
    """How levels are computed: by their rules, or plainly.

    Attributes:
        level: over all tokens.
        context: of nested levels.
        document: under a learned schedule.
        rounding: of a plain evaluation.
    """

    level: Evaluate
    context: nested.Run
    document: learned.Run
    rounding: Rounding | None = None


def results(
    inputs: Mapping[str, Array], case: Case, by: Means
) -> tuple[dict[str, Array], list[Position]]:
    """`out/...` of a block, and where levels end in their spans (CASE-33).

    The results are those of every level, and their reads combined.
    """
    outputs: dict[str, Array] = {}
    found = _of_levels(inputs, case, by)
    for number, (out, _) in enumerate(found):
        outputs |= {
            f"out/level{number}/{name.removeprefix('out/')}": value
            for name, value in out.items()
            if name != "out/y"
        }
    reads = [out["out/y"] for out, _ in found]
    y = combine(case.header, inputs["in/logits"], reads)
    return {"out/y": y, **outputs}, [position for _, position in found]


def _of_levels(
    inputs: Mapping[str, Array], case: Case, by: Means
) -> list[tuple[dict[str, Array], Position]]:
    """Results of each level: apart, nested, or where gates decide who writes."""
    header = case.header
    assert header.schedule is not None
    calls = [
        Call(inputs_of(header, inputs, number), part) for number, part in enumerate(parts(case))
    ]
    if not entanglement(header):
        return [by.level(*call) for call in calls]
    calls = [call.without("in/reset") for call in calls]
    reset = case.inputs.get("in/reset")
    if header.nested:
        writes = active(header.schedule, calls[0].tokens)
        return nested.results(calls, header.schedule.periods, writes, reset, by.context)
    share = learned.shares(inputs, header.schedule, by.rounding)
    return learned.results(calls, share, reset, by.document)


def combine(header: Any, logits: Array, reads: list[Array]) -> Array:
    """The reads, weighed by a softmax over the levels that count at each token (CMS-6, CMS-7).

    Tokens with the same levels are computed at once.
    """
    assert header.schedule is not None
    tokens = reads[0].shape[-2]
    counting = (
        active(header.schedule, tokens)
        if header.combine == "masked"
        else np.ones((tokens, len(reads)), bool)
    )
    pieces, order = [], []
    for row in np.unique(counting, axis=0):
        where = np.nonzero((counting == row).all(axis=1))[0]
        chosen = np.nonzero(row)[0]
        weights = ops.softmax(ops.index(logits, chosen))
        total = weights[0] * ops.index(reads[chosen[0]], (..., where, slice(None)))
        for place, number in enumerate(chosen[1:], start=1):
            total = total + weights[place] * ops.index(reads[number], (..., where, slice(None)))
        pieces.append(total)
        order.append(where)
    back = np.argsort(np.concatenate(order))
    return (
        pieces[0]
        if len(pieces) == 1
        else ops.index(ops.concatenate(pieces, axis=-2), (..., back, slice(None)))
    )


def no_verdict(case: Case, dtype: str) -> str:
    """Why results in a format have no verdict; "" where they have (CASE-37)."""
    schedule = case.header.schedule
    return "" if schedule is None or schedule.learned is None else learned.no_decision(case, dtype)


def subject(memory: Mapping[str, Subject]) -> Subject:
    """The subject of a block, from the subjects of its levels.

    Args:
        memory: name of a rule -> its subject.
    """

    def evaluate(
        inputs: Mapping[str, Array], case: Case, form: str, chunk: int | None
    ) -> tuple[dict[str, Array], Position]:
        def one(own: Mapping[str, Array], part: Any) -> tuple[dict[str, Array], Position]:
            return memory[part.header.rule].evaluate(own, part, form, chunk)

        by = Means(one, nested.by_calls(one), learned.by_calls(one))
        found, positions = results(inputs, case, by)
        return found, [each if isinstance(each, int) else None for each in positions]

    def plain(inputs: Mapping[str, Array], case: Case, rounding: Rounding) -> dict[str, Array]:
        def one(own: Mapping[str, Array], part: Any) -> tuple[dict[str, Array], Position]:
            return memory[part.header.rule].plain(own, part, rounding), None

        by = Means(one, nested.plainly(rounding), learned.plainly(rounding), rounding)
        return results(inputs, case, by)[0]

    return Subject(
        name=BLOCK,
        cotangent="in/y_bar",
        clauses=CLAUSES,
        evaluate=evaluate,
        plain=plain,
        check_header=check_header,
        checked=partial(_check_levels, memory),
        clause=partial(_clause, memory),
        numbers=lambda header, inputs: 0,  # beside its levels
        void=_void,
        has_levels=True,
        parts=parts,
        states=STATES,
        features=_features,
        missed=defer("report.levels:missed_features"),
        check_form=partial(_check_form, memory),
        instead="atlas-ref levels makes a case of each level",
        why_nothing=entanglement,
        undecided=no_verdict,
    )


SUBJECT = subject(SUBJECTS)
