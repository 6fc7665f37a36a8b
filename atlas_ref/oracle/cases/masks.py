"""Cases whose masks differ by row, as one case for each mask that rows share (CONV-68)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from atlas_ref.oracle.cases.case import Case, CaseError
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.parts import rows
from atlas_ref.types import Array

#: Masks of a case.
MASKS = ("in/active", "in/reset")

#: First words of the axes of tensors that have rows.
OF_ROWS = ("...", "gate", "B")


def by_row(
    case: Case,
    inputs: Mapping[str, Array],
    call: Callable[[Mapping[str, Array]], dict[str, Array]],
) -> dict[str, Array]:
    """Results of inputs, by a program that has one mask for all rows (CONV-68).

    Args:
        call: results of inputs whose masks are of all rows, each with rows in front.
    """
    parts = rows.groups({name: inputs[name] for name in MASKS if name in inputs})
    if not parts:
        return call(inputs)
    subject = SUBJECTS[case.header.rule]
    table, _ = subject.legal(case.header, case.convention, {*inputs})
    own = {name for name in inputs if name in table and table[name].axes.split()[0] in OF_ROWS}
    each = []
    for part in parts:
        taken = {name: part.take(x) if name in own else x for name, x in inputs.items()}
        each.append(call({**taken, **part.masks}))
    return {name: rows.join(parts, [one[name] for one in each]) for name in each[0]}


def refuse_rows(case: Case, what: str) -> None:
    """Refuse a case of the family whose masks differ by row, of a tool that takes one for all (CASE-7).

    Raises:
        CaseError: names the mask, its shape, the tool, and what to give it.
    """
    if not SUBJECTS[case.header.rule].has_sequence:
        return
    for name in MASKS:
        mask = case.inputs.get(name)
        if mask is not None and mask.ndim > 1:
            raise CaseError(
                f"{case.name}: {name}: shape {mask.shape}, and {what} takes a mask of all rows; "
                "give it the rows of the batch that share their masks"
            )


def mask_axes(name: str, mask: Any, sizes: Mapping[str, Any]) -> bool:
    """Whether a mask is one of each row of a batch; refuse another shape (CONV-68).

    Args:
        sizes: axis -> its size and who says so, of the tensors before.

    Raises:
        ValueError: names the mask, its shape and what is needed.
    """
    if len(mask.shape) == 1 or "T" not in sizes:
        return False
    lead = sizes["..."][0] if "..." in sizes else tuple(sizes[n][0] for n in "BH" if n in sizes)
    shapes = rows.mask_shapes(tuple(lead), sizes["T"][0])
    if len(shapes) == 1:  # there is no axis of rows, and the table says what is needed
        return False
    if tuple(mask.shape) not in shapes:
        words = " or ".join(map(str, shapes))
        raise ValueError(f"{name}: shape {tuple(mask.shape)}, expected {words}")
    return True
