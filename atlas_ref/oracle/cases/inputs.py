"""The inputs of a case in the dtype of the arithmetic, and the limit of their size.

Source: CASE-22, BACKEND-10.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np

from atlas_ref.oracle.cases.case import Case, CaseError
from atlas_ref.oracle.registry import SUBJECTS

DTYPES: dict[str, Any] = {"float64": np.float64, "float32": np.float32}

#: Formats that inputs may be rounded to, for an implementation that works in them.
STORED: dict[str, Any] = {**DTYPES, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}

#: Numbers in one array that are evaluated at most, 2 GiB in float64.
LARGEST = 2**28

#: The widest window that is evaluated: what stands in it takes time, however few tokens there are.
WIDEST = 1_000_000


def check_dtype(where: str, dtype: Any, available: Iterable[str] = STORED) -> None:
    """Refuse a dtype that is none of those available.

    Raises:
        CaseError: says where, and which are.
    """
    if not isinstance(dtype, str) or dtype not in available:
        raise CaseError(f"{where}: dtype {dtype!r} is not available; {', '.join(available)} are")


def convert(case: Case, dtype: str) -> dict[str, Any]:
    """Every floating input in `dtype`, and masks as they are.

    Conversion is exact where `dtype` is not narrower.

    Raises:
        CaseError: an entry that is finite and beyond `dtype`.
    """
    return {
        name: value if value.dtype.kind in "biu" else _as(name, value, DTYPES[dtype], case)
        for name, value in case.inputs.items()
    }


def _as(name: str, value: np.ndarray[Any, Any], kind: Any, case: Case) -> np.ndarray[Any, Any]:
    if value.dtype == ml_dtypes.bfloat16:
        value = value.astype(np.float32)  # which holds it exactly
    with np.errstate(over="ignore"):
        result = value.astype(kind)
    if (np.isfinite(value) & ~np.isfinite(result)).any():
        raise CaseError(
            f"{case.name}: {name}: has entries up to {np.abs(value).max():.3g}, which "
            f"{np.dtype(kind)} cannot hold"
        )
    return result


def round_inputs(case: Case, dtype: str) -> Case:
    """The case with every floating input rounded to `dtype` (CASE-22).

    An implementation that works in this format sees it so.

    Raises:
        CaseError: a dtype that does not exist; an entry that is finite and beyond it.
    """
    check_dtype(case.name, dtype)
    inputs = {
        name: value if value.dtype.kind in "biu" else _as(name, value, STORED[dtype], case)
        for name, value in case.inputs.items()
    }
    return case.replaced(inputs=inputs)


def same(theirs: np.ndarray[Any, Any], own: np.ndarray[Any, Any] | None) -> bool:
    """Whether an input in a result file is the case's own (SRC-3).

    Any floating format that holds a rounding of it will do.
    """
    if own is None or theirs.shape != own.shape:
        return False
    kinds = (theirs.dtype, own.dtype)
    if all(kind.name in STORED for kind in kinds):
        narrow = min(kinds, key=lambda kind: kind.itemsize)
        with np.errstate(all="ignore"):
            return bool(np.array_equal(theirs.astype(narrow), own.astype(narrow)))
    return theirs.dtype.kind != "c" and bool(
        np.array_equal(theirs.astype(np.float64), own.astype(np.float64))
    )


def check_size(case: Case) -> None:
    """Refuse what no machine holds, or what takes too long, before any work (CASE-2).

    Raises:
        CaseError: the window is too wide, or how many numbers one array would need.
    """
    for part in SUBJECTS[case.header.rule].parts(case):
        subject = SUBJECTS[part.header.rule]
        if (most := subject.numbers(part.header, part.inputs)) > LARGEST:
            raise CaseError(
                f"{case.name}: {subject.needs(part)} an array of {most} numbers, at most {LARGEST} "
                "are evaluated"
            )
        if part.header.window > WIDEST:
            raise CaseError(
                f"{case.name}: window: must be at most {WIDEST} to be evaluated, found "
                f"{part.header.window}"
            )
