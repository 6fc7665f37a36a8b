"""The subject cms: a block of frequency levels as the cases of its levels, and the schedule of one
memory.

Written from the clauses (CASE-30 to CASE-33, PULSE-2, CMS-6, CMS-7), not from `atlas_ref.levels`,
which knows nothing of cases.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from atlas_ref.conventions import resolve
from atlas_ref.oracle.subjects.subject import (
    BLOCK,
    LEVEL,
    LONGEST,
    Legal,
    Position,
    Rounding,
    Subject,
)
from atlas_ref.types import Array, bind_dims
from tape import ops

#: What every level of a block shares, and what a block has beside its levels.
SHARED = ("in/x", "in/reset")
OWN = {"in/x": "B T d_model", "in/logits": "k", "in/reset": "T", "in/y_bar": "B H T d_out"}


def active(schedule: Any, tokens: int) -> Array:
    """Mask (T, k) of the tokens at which each level writes: step mod period is 0 (PULSE-2)."""
    steps = schedule.first_step + np.arange(tokens)
    return np.stack([steps % period == 0 for period in schedule.periods], axis=-1)


def with_schedule(header: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs with `in/active` from the schedule of the case (CASE-30).

    Raises:
        ValueError: an `in/active` that says something else; a step that results could not name.
    """
    sequence = inputs.get("in/x" if header.level == "token" else "in/k")
    if header.schedule is None or sequence is None or len(sequence.shape) < 2:
        return dict(inputs)
    if len(str(header.schedule.first_step + sequence.shape[-2])) > LONGEST:
        step = header.schedule.first_step
        raise ValueError(
            f"schedule.first_step: {step}, the step after {sequence.shape[-2]} tokens has "
            f"more than {LONGEST} digits"
        )
    mask = active(header.schedule, sequence.shape[-2])[:, header.schedule.level].astype(np.uint8)
    file_mask = inputs.get("in/active")
    if (
        file_mask is not None
        and file_mask.shape == mask.shape
        and file_mask.dtype.kind in "bu"
        and (file_mask != mask).any()
    ):
        t = int(np.argmax(file_mask != mask))
        raise ValueError(
            f"in/active: {int(file_mask[t])} at token {t}, where the schedule says {mask[t]}; "
            "leave it out, or the schedule"
        )
    return {**inputs, "in/active": mask if file_mask is None else file_mask}


# -- a block ---------------------------------------------------------------------------------------


def count(header: Any) -> int:
    return len(header.levels or ())


def inputs_of(header: Any, inputs: Mapping[str, Any], number: int) -> dict[str, Any]:
    """The inputs that one level would have as a case of its own (CASE-32)."""
    prefix = f"in/level{number}/"
    own = {
        "in/" + name.removeprefix(prefix): value
        for name, value in inputs.items()
        if name.startswith(prefix)
    }
    return with_schedule(
        header.of_level(number),
        {**{name: inputs[name] for name in SHARED if name in inputs}, **own},
    )


def parts(case: Any) -> list[Any]:
    """The levels of a valid block as cases of their own; any other case alone."""
    if case.header.rule != BLOCK:
        return [case]
    cases = []
    for number in range(count(case.header)):
        header = case.header.of_level(number)
        convention = resolve(header.convention, rule=header.rule, level="token")
        inputs = inputs_of(case.header, case.inputs, number)
        cases.append(
            case.replaced(header=header, convention=convention, inputs=inputs, recorded={})
        )
    return cases


def checked(
    header: Any, inputs: Mapping[str, Any], build: Callable[[Any, dict[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """Check that every level of a block is a valid case and all agree (CASE-32).

    Returns the inputs in order.

    Args:
        build: the checked inputs of one such case.

    Raises:
        ValueError: in the words of a level's own case, with the level named; a tensor that no level
            has.
    """
    _check_names(header, inputs)
    sizes: dict[str, Any] = {"k": (count(header), "levels")}
    tensors: dict[str, Any] = {}
    for number in range(count(header)):
        own = _checked_level(header, inputs, number, build)
        alone = {name: value for name, value in own.items() if name not in (*SHARED, "in/active")}
        tensors |= {
            f"in/level{number}/{name.removeprefix('in/')}": value for name, value in alone.items()
        }
        for name, axes in (
            ("param/W_K", f"H d_in{number} d_model"),
            ("param/W_V", "H d_out d_model"),
        ):
            bind_dims(f"in/level{number}/{name}", own[f"in/{name}"].shape, axes, sizes)
    shared = {name: inputs[name] for name in OWN if name in inputs}
    for name, value in shared.items():
        bind_dims(name, value.shape, OWN[name], sizes)
    _check_alone(shared)
    return {**shared, **tensors}


def _check_names(header: Any, inputs: Mapping[str, Any]) -> None:
    last = count(header) - 1
    for name in inputs:
        level = LEVEL.match(name)
        if name not in OWN and (level is None or level[2] not in map(str, range(count(header)))):
            names = f"{', '.join(OWN)} and in/level0/... to in/level{last}/..."
            raise ValueError(
                f"{name}: unknown tensor for rule {BLOCK} with {last + 1} levels; it has {names}"
            )
        if level is not None and f"in/{name[level.end() :]}" in (*OWN, "in/active"):
            raise ValueError(
                f"{name}: not part of this case: in/x, in/reset and in/y_bar are shared, the "
                "schedule says who is active"
            )
    for name in ("in/x", "in/logits"):
        if name not in inputs:
            raise ValueError(f"{name}: missing, axes ({', '.join(OWN[name].split())}) are needed")


def _checked_level(
    header: Any, inputs: Mapping[str, Any], number: int, build: Any
) -> dict[str, Any]:
    try:
        result: dict[str, Any] = build(header.of_level(number), inputs_of(header, inputs, number))
    except ValueError as error:
        text = re.sub(r"\bin/(?!x\b|reset\b|active\b)", f"in/level{number}/", str(error))
        raise ValueError(text if text.startswith("in/") else f"levels[{number}]: {text}") from None
    return result


def _check_alone(shared: Mapping[str, Any]) -> None:
    """Check dtype and range of tensors that belong to no level.

    The levels have checked the rest.
    """
    for name in ("in/logits", "in/y_bar"):
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


def results(
    inputs: Mapping[str, Array],
    case: Any,
    run: Callable[[Mapping[str, Array], Any, int], Mapping[str, Array]],
) -> dict[str, Array]:
    """`out/...` of a block: those of every level, and their reads combined (CASE-33).

    Args:
        run: results of one level as a case of its own.
    """
    reads: list[Array] = []
    outputs: dict[str, Array] = {}
    for number, part in enumerate(parts(case)):
        out = run(inputs_of(case.header, inputs, number), part, number)
        reads.append(out["out/y"])
        outputs |= {
            f"out/level{number}/{name.removeprefix('out/')}": value
            for name, value in out.items()
            if name != "out/y"
        }
    return {"out/y": combined(case.header, inputs["in/logits"], reads), **outputs}


def combined(header: Any, logits: Array, reads: list[Array]) -> Array:
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


def subject(memory: Mapping[str, Subject]) -> Subject:
    """The subject of a block, from the subjects of its levels.

    Args:
        memory: name of a rule -> its subject.
    """

    def evaluate(
        inputs: Mapping[str, Array], case: Any, form: str, chunk: int | None
    ) -> tuple[dict[str, Array], Position]:
        positions: list[int | None] = []

        def one(own: Mapping[str, Array], part: Any, number: int) -> dict[str, Array]:
            out, position = memory[part.header.rule].evaluate(own, part, form, chunk)
            positions.append(position if isinstance(position, int) else None)
            return out

        return results(inputs, case, one), positions

    def plain(inputs: Mapping[str, Array], case: Any, rounding: Rounding) -> dict[str, Array]:
        return results(
            inputs, case, lambda own, part, _: memory[part.header.rule].plain(own, part, rounding)
        )

    def legal(header: Any, convention: Any, names: set[str]) -> Legal:
        raise ValueError(f"rule {BLOCK}: each level has a table of its own")

    return Subject(
        name=BLOCK,
        result="out/y",
        cotangent="in/y_bar",
        clauses={"out": "CMS-6", "grad": "CMS-15"},
        legal=legal,
        evaluate=evaluate,
        plain=plain,
        has_axes=False,
        instead="atlas-ref levels makes a case of each level",
    )
