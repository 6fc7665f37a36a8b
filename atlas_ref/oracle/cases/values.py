"""Checks of the numbers of an input tensor: its dtype, and its range."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from atlas_ref.messages import meant
from atlas_ref.oracle.cases.tensor_spec import Tensor

FLOATING = ("float64", "float32", "bfloat16", "float16")
WHOLE = ("int64", "int32")


def check_values(key: str, value: np.ndarray[Any, Any], tensor: Tensor) -> None:
    """Refuse an input of another dtype, or with an entry that is not finite or out of range (CASE-16).

    Raises:
        ValueError: names the tensor, the entry and what is needed.
    """
    kind = value.dtype.name
    if tensor.mask:
        if kind not in ("bool", "uint8"):
            raise ValueError(f"{key}: dtype {kind}, bool or uint8 is needed")
        check_entries(key, value, ~np.isin(value, (0, 1)), "must be 0 or 1")
        return
    if tensor.whole:
        if kind not in WHOLE:
            raise ValueError(f"{key}: dtype {kind}, int64 or int32 is needed")
        numbers = value
    else:
        if kind not in FLOATING:
            raise ValueError(
                f"{key}: dtype {kind}, float64, float32, bfloat16 or float16 is needed"
            )
        numbers = value.astype(np.float64)
        check_entries(key, numbers, ~np.isfinite(numbers), "must be finite")
    if tensor.low is not None:
        check_entries(key, numbers, numbers < tensor.low, f"must be at least {tensor.low:g}")
    if tensor.high is not None:
        check_entries(key, numbers, numbers > tensor.high, f"must be at most {tensor.high:g}")


def check_log(key: str, value: np.ndarray[Any, Any]) -> None:
    """Refuse a log of a gate that is above 0 or no number; -inf is the log of 0.

    Raises:
        ValueError: names the tensor, the entry and what is needed.
    """
    check_values(key, np.where(np.isneginf(value), 0, value).astype(value.dtype), Tensor(""))
    check_entries(key, value, value > 0, "must be at most 0")


def check_entries(
    key: str, value: np.ndarray[Any, Any], bad: np.ndarray[Any, Any], words: str
) -> None:
    """Refuse the first bad entry.

    Raises:
        ValueError: names the tensor, the entry and its place.
    """
    if bad.any():
        at = tuple(int(i[0]) for i in np.nonzero(bad)) if bad.ndim else ()
        raise ValueError(f"{key}: entries {words}, found {value[at]} at {at}")


def refuse_unknown(
    inputs: Iterable[str], tensors: Mapping[str, Tensor], refused: Mapping[str, str], who: str
) -> None:
    """Refuse a tensor that a case may not hold.

    Args:
        refused: names that other cases have, each with the reason.
        who: what the tensors are of, as a message goes on.

    Raises:
        ValueError: names the tensor, and the nearest one that there is.
    """
    for name in inputs:
        if name in refused:
            raise ValueError(f"{name}: not part of this case: {refused[name]}")
        if name not in tensors:
            raise ValueError(f"{name}: unknown tensor for {who}{meant(name, tensors)}")


def check_sizes(sizes: Mapping[str, Any], free: str) -> None:
    """Refuse an axis without places, but those whose names begin with one of some letters.

    Raises:
        ValueError: names the tensor that has it.
    """
    for axis, (size, by) in sizes.items():
        for each in size if isinstance(size, tuple) else (size,):
            if each < 1 and axis[0] not in free:
                raise ValueError(f"{by}: axis {axis} has size 0, at least 1 is needed")


def check_front(
    name: str, found: tuple[int, ...], own: tuple[int, ...], lead: tuple[int, ...]
) -> None:
    """Refuse a tensor of other axes than its own, perhaps with those of some rows in front.

    Raises:
        ValueError: names the tensor, its shape and what is needed.
    """
    front = found[: len(found) - len(own)] if len(found) >= len(own) else ()
    fits = found == (*front, *own) and len(front) <= len(lead)
    if not fits or any(a not in (1, b) for a, b in zip(front[::-1], lead[::-1], strict=False)):
        raise ValueError(
            f"{name}: shape {found}, expected {own}, or leading axes in front that broadcast "
            f"against {lead}"
        )


def key_heads(lead: tuple[int, ...], groups: int) -> tuple[int, ...]:
    """Leading axes of keys where groups of value heads share one.

    Args:
        lead: leading axes of in/v, the heads last.
        groups: value heads of a key head.

    Raises:
        ValueError: heads that are no whole groups.
    """
    if groups == 1:
        return lead
    if not lead or lead[-1] % groups:
        raise ValueError(
            f"in/v: leading axes {lead}, expected whole groups of parameters.groups = {groups}"
        )
    return (*lead[:-1], lead[-1] // groups)
