"""Answers of an implementation to a case, from any array library. Specified in specs/sources.md."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from atlas_ref.oracle.cases.case import Case, CaseError
from atlas_ref.oracle.cases.tensors import RESULTS
from atlas_ref.oracle.judge.verdicts import Verdict

#: Names that stand as they are; any other is a result without its `out/`.
PREFIXES = ("out/", "grad/", "trace/", "trace_grad/", "chunk/")


class Answer(NamedTuple):
    """The answer of an implementation to one case (SRC-1).

    Attributes:
        tensors: `out/...`, `grad/...` and perhaps `trace/...`; None where there is no answer.
        failure: why there is none, in one line.
        verdict: name of an absent answer: FAILED, NOT SUPPORTED or MISSING.
    """

    tensors: dict[str, np.ndarray[Any, Any]] | None
    failure: str | None = None
    verdict: Verdict = "FAILED"

    @classmethod
    def no_answer(cls, why: str) -> Answer:
        """The answer of a crash, garbage or a time-out."""
        return cls(None, why, "FAILED")

    @classmethod
    def no_support(cls, why: str = "") -> Answer:
        """The answer of an implementation that does not support this case."""
        return cls(None, why or "the implementation does not support this case", "NOT SUPPORTED")


#: Anything that answers cases: results recorded elsewhere, a function, a program.
Source = Callable[[Case], Answer]


class Garbage(ValueError):
    """An answer that holds no arrays."""


def full_name(name: str, *, known: bool = True) -> str:
    """The full name of a result: `out/y` for `y`, `grad/k` for itself (SRC-6).

    Args:
        known: whether it must be a result of some rule.

    Raises:
        CaseError: no result of any rule, with those that exist.
    """
    from atlas_ref.oracle.schema.schema import is_result  # which asks every subject

    full = name if name.startswith(PREFIXES) else f"out/{name}"
    if known and full.startswith(("out/", "grad/")) and not is_result(full):
        raise CaseError(
            f"{name}: no rule has such a result; results are {', '.join(RESULTS)}, and grad/ "
            "before an input's name"
        )
    return full


def tensors(answer: Any, *, known: bool = True) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays by their full names, from the answer of a function (SRC-6).

    Args:
        known: whether each must be a result of some rule.

    Raises:
        Garbage: no mapping of names to arrays.
        CaseError: a name that no rule has.
    """
    if not isinstance(answer, Mapping):
        raise Garbage(f"a dict of arrays is needed, found {type(answer).__name__}")
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for name, value in answer.items():
        if not isinstance(name, str):
            raise Garbage(f"names of results are strings, found {name!r:.60}")
        full = full_name(name, known=known)
        if full in arrays:
            raise Garbage(f"{full} is handed over twice")
        arrays[full] = array(name, value)
    return arrays


def array(name: str, value: Any) -> np.ndarray[Any, Any]:
    """A NumPy array from an object with `__array__` or `__dlpack__`, in its own dtype (SRC-7).

    bfloat16 is one of them.

    Raises:
        Garbage: it has neither, or does not hand its numbers over.
    """
    try:
        if _is_torch(value):
            return _from_torch(value)
        if hasattr(value, "__array__"):
            result = np.array(value)
        elif hasattr(value, "__dlpack__"):
            result = np.array(np.from_dlpack(value))
        else:
            raise Garbage(
                f"{name}: an array with __array__ or __dlpack__ is needed, found "
                f"{type(value).__name__}"
            )
    except Garbage:
        raise
    except Exception as error:
        raise Garbage(
            f"{name}: cannot be read as an array: {type(error).__name__}: {error}"
        ) from None
    if result.dtype.kind not in "fiubc" and result.dtype.name not in (
        "bfloat16",
        "float8_e4m3fn",
        "float8_e5m2",
    ):
        raise Garbage(f"{name}: an array of numbers is needed, found dtype {result.dtype}")
    return result


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(torch, "Tensor", ()))


def _from_torch(value: Any) -> np.ndarray[Any, Any]:
    """A NumPy array from a torch tensor of any device, with or without a recorded gradient."""
    torch = sys.modules["torch"]
    plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if plain.dtype == torch.bfloat16:
        return np.array(plain.view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
    return np.array(plain.numpy())
