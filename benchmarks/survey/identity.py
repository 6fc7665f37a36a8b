"""Identification of the convention behind an implementation's results.

One case is drawn for each, small and without anything that would hide an axis: from states that are
not symmetric, with gates that vary, one matrix of Newton-Schulz below every eps. It states the
adapter's convention; `identify` compares the answer with ours under that and under every convention
up to two changes from it or from a preset. MATCH says that one alone explains the answer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from atlas_ref.conventions import resolve
from atlas_ref.oracle.cases.case import Case, CaseError, make
from atlas_ref.oracle.cases.inputs import round_inputs
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.identify.answer import Identification
from atlas_ref.oracle.identify.identify import identify
from atlas_ref.oracle.identify.stated import setting
from atlas_ref.oracle.judge.answers import Source
from atlas_ref.oracle.sources.sources import respond

WIDTH, TOKENS, SEED = 5, 8, 11

#: Factor of the matrix that lies below every eps.
TINY = 1e-9


class Found(NamedTuple):
    """The result of the search, in words that a table can hold.

    Attributes:
        verdict: of `identify`.
        convention: the match, or the nearest.
        own: whether that is the adapter's.
        undecided: axes that the answer cannot tell.
        searched: conventions compared.
    """

    verdict: str
    convention: str
    own: bool
    undecided: tuple[str, ...]
    searched: int


def identified(implementation: Any, source: Source | None = None) -> Found:
    """The convention behind its answer on a drawn case, in the finest format that it computes
    in.

    Args:
        source: what answers for it, where that is not this process.

    Raises:
        CaseError: it has no answer.
    """
    dtype = implementation.dtypes[-1]
    case = round_inputs(drawn(implementation), dtype)
    answer = respond(implementation, case) if source is None else source(case)
    if answer.tensors is None:
        raise CaseError(f"{implementation.label}: {answer.failure}")
    tensors = {name: _wide(value) for name, value in answer.tensors.items()}
    result = identify(case, tensors, dtype=dtype)
    words = "" if result.match is None else setting(result.match.convention)
    if (
        result.preset is not None
        and result.match is not None
        and result.preset != result.match.convention.get("preset")
    ):
        words += f" (as {result.preset})"
    return Found(
        result.verdict, words, _is(implementation, result), tuple(result.undecided), result.searched
    )


def _is(implementation: Any, result: Identification) -> bool:
    """Whether the match is the adapter's convention."""
    if result.match is None:
        return False
    rule = implementation.rule
    return resolve(result.match.convention, rule=rule) == resolve(
        implementation.convention, rule=rule
    )


def drawn(implementation: Any) -> Case:
    """A case that its answer can be searched on."""
    sizes = {"d_in": WIDTH, "d_out": WIDTH, "seed": SEED, "convention": implementation.convention}
    if implementation.rule == "newton_schulz":
        case = new(Request(rule="newton_schulz", heads=3, **sizes))
        return make(
            case.header.plain(),
            {"in/G": case.inputs["in/G"] * np.array([1, 1, TINY])[:, None, None]},
            name="drawn",
        )
    case = new(Request(rule=implementation.rule, tokens=TOKENS, heads=1, **sizes))
    inputs = {name.removeprefix("in/"): value for name, value in case.inputs.items()}
    inputs = {
        name: value
        for name, value in inputs.items()
        if name not in ("M0", "S0") or name in implementation.states
    }
    if implementation.prepare is not None:
        inputs, _ = implementation.prepare(inputs)
    return make(
        case.header.plain(), {f"in/{name}": value for name, value in inputs.items()}, name="drawn"
    )


def _wide(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A result, of 16 bits in float32."""
    return value.astype(np.float32) if value.dtype.itemsize == 2 else value
