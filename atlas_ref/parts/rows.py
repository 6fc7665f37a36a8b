"""Rows of a batch whose masks differ, each as a row with one mask.

A rule has one mask for all rows of a call. A call whose rows have masks of their own is one call for
each mask that rows share, and results are put back in their rows. Specified in specs/conventions.md
(CONV-68).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.types import Array
from tape import ops

#: Masks of tokens.
MASKS = ("active", "reset")


class Group(NamedTuple):
    """Rows that share their masks.

    Attributes:
        lead: the axes of rows, which are in front of every array that has rows.
        places: which rows these are, counted over these axes.
        masks: name -> (T,), the mask that they share.
    """

    lead: tuple[int, ...]
    places: np.ndarray[Any, Any]
    masks: dict[str, Any]

    def take(self, x: Array) -> Array:
        """These rows of an array (*lead, ...), along one axis."""
        count = int(np.prod(self.lead))
        flat = ops.reshape(x, (count, *x.shape[len(self.lead) :]))
        return flat if len(self.places) == count else ops.index(flat, self.places)


def groups(masks: Mapping[str, Any]) -> list[Group]:
    """Rows by the masks that they share, in the order of their first rows (CONV-68).

    Args:
        masks: name -> (*lead, T), or (T,) of all rows; none may be None.

    Returns:
        no group where every mask is of all rows.
    """
    by_row = {name: np.asarray(mask) for name, mask in masks.items() if len(mask.shape) > 1}
    if not by_row:
        return []
    lead = next(iter(by_row.values())).shape[:-1]
    flat = {name: mask.reshape(-1, mask.shape[-1]) for name, mask in by_row.items()}
    alike: dict[tuple[bytes, ...], list[int]] = {}
    for row in range(int(np.prod(lead))):
        alike.setdefault(tuple(mask[row].tobytes() for mask in flat.values()), []).append(row)
    return [
        Group(lead, np.array(rows), {name: mask[rows[0]] for name, mask in flat.items()})
        for rows in alike.values()
    ]


def join(parts: Sequence[Group], each: Sequence[Array]) -> Array:
    """An array of all rows (*lead, ...), from those of every group."""
    whole = each[0] if len(each) == 1 else ops.concatenate(list(each), axis=0)
    if len(each) > 1:
        whole = ops.index(whole, np.argsort(np.concatenate([part.places for part in parts])))
    return ops.reshape(whole, (*parts[0].lead, *whole.shape[1:]))


def mask_shapes(lead: tuple[int, ...], T: int) -> tuple[tuple[int, ...], ...]:
    """Shapes of a mask: of all rows, and where there are axes beside that of heads, of each (CONV-68)."""
    return ((T,), (*lead[:-1], T)) if len(lead) > 1 else ((T,),)


def check_masks(tokens: Any, lead: tuple[int, ...], T: int) -> None:
    """Refuse a mask that is neither of all rows nor of the rows of a batch (CONV-68).

    Args:
        lead: leading axes of values, the last of them heads.

    Raises:
        ValueError: names the mask, its dtype and shape, and what is needed.
    """
    shapes = mask_shapes(lead, T)
    for name in MASKS:
        mask = getattr(tokens, name)
        if mask is not None and (
            np.shape(mask) not in shapes or np.asarray(mask).dtype != np.bool_
        ):
            raise ValueError(
                f"{name}: {np.asarray(mask).dtype} of shape {np.shape(mask)}, expected bool of "
                f"shape {' or '.join(map(str, shapes))}"
            )


def require_one(tokens: Any, T: int) -> None:
    """Refuse masks by row, of a rule that takes one for all rows (CONV-68).

    Raises:
        ValueError: names the mask, its shape and the one needed.
    """
    for name in MASKS:
        mask = getattr(tokens, name)
        if mask is not None and np.ndim(mask) > 1:
            raise ValueError(
                f"{name}: shape {np.shape(mask)}, expected ({T},): one mask for all rows; take rows "
                "by themselves"
            )


def of_tokens(tokens: Any) -> list[Group]:
    """Rows of tokens by the masks that they share; none where every mask is of all rows."""
    given = {name: getattr(tokens, name) for name in MASKS}
    return groups({name: mask for name, mask in given.items() if mask is not None})


def run(
    parts: Sequence[Group],
    call: Callable[[Any, Any], tuple[Any, Array]],
    tokens: Any,
    state: Any,
    *,
    shared: Sequence[str] = (),
) -> tuple[Any, Array]:
    """A call as one call for each group of rows (CONV-68).

    Args:
        call: (tokens, state) -> (state, y), of rows that share their masks.
        shared: fields of tokens that are of all rows.

    Returns:
        state after the last token, y of all rows. A count of the state that is not one number for all
        rows, as of tokens in a window, is None, and no call takes such a state.
    """
    whole = {*shared, *MASKS}

    def of(part: Group, fields: Any, kept: set[str]) -> Any:
        own = {n: x for n, x in fields.__dict__.items() if n not in kept and hasattr(x, "shape")}
        return fields.replaced(**{name: part.take(x) for name, x in own.items()})

    found = [
        call(of(part, tokens, whole).replaced(**part.masks), of(part, state, set()))
        for part in parts
    ]
    after = found[0][0]
    fields: dict[str, Any] = {}
    for name, value in after.__dict__.items():
        each = [getattr(one, name) for one, _ in found]
        if hasattr(value, "shape"):
            fields[name] = join(parts, each)
        elif any(one != value for one in each):
            fields[name] = None
    return after.replaced(**fields), join(parts, [y for _, y in found])
