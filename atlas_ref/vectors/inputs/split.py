"""A call cut in two at a token, the second fed with results of the first (CONV-37, CONV-38,
VEC-10).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case, CaseError, make
from atlas_ref.oracle.evaluate import Results, evaluate
from atlas_ref.oracle.family.facts import facts
from atlas_ref.oracle.sweep.cut import cut
from atlas_ref.rules import FAMILY
from atlas_ref.vectors.inputs import parts

#: Results of one call that are inputs of the next, and their names there.
RESUMES = {
    "out/M": "in/M0",
    "out/S": "in/S0",
    **{
        f"out/{name}": f"in/{name}"
        for name in ("M_ref", "window_k", "window_v", "window_gate_before", "window_residual")
    },
    "out/window_momentum": "in/window_momentum",
}

Tensors = dict[str, np.ndarray[Any, Any]]


def places(case: Case) -> list[int]:
    """Tokens before which the call may be cut: the second, the middle one and the last.

    Where a case says which cuts there are, they are the nearest of those. There are none where a cut
    shows by definition. A read of the call's end shows it (CONV-38), and
    so does a reset after the cut, which restores the second call's first state.
    """
    if case.convention.read == "call_end":
        return []
    own = parts.calls(case)
    if own is not None and not own.returns:
        return _places_of_chunks(case)
    T = tokens(case) if own is not None or case.header.rule in FAMILY else 0
    free = [t for t in range(1, T) if own is None or own.cuts(case, t)]
    nearest = {min(free, key=lambda t: abs(t - place)) for place in (1, T // 2, T - 1) if free}
    cuts = sorted(nearest)
    resets = np.nonzero(case.inputs["in/reset"])[0].tolist() if "in/reset" in case.inputs else []
    least = 1 if own is None else 0  # a reset at the cut is the start of a call, of another memory
    return [t for t in cuts if not any(reset >= t + least for reset in resets)]


def tokens(case: Case) -> int:
    """Tokens of a call, each of which may have several steps."""
    return facts(case).tokens if parts.calls(case) is None else parts.tokens_of(case)


def in_two(case: Case, place: int) -> tuple[Case, Case]:
    """The call before a token, and the call from it on, which starts from the results of the
    first.
    """
    head = _part(case, range(place))
    return head, resumed(case, evaluate(head), range(place, tokens(case)))


def resumed(case: Case, before: Results, tokens: range, *, lost: tuple[str, ...] = ()) -> Case:
    """The call over some tokens that goes on from results.

    Args:
        lost: names of results, or `phase`, that are not carried over: a mistake.
    """
    if parts.calls(case) is not None:
        return parts.part(case, tokens, before, lost)
    candidate = cut(case, "T", tokens)
    assert candidate is not None
    tensors: Tensors = {
        name: value for name, value in candidate.tensors.items() if name not in RESUMES.values()
    }
    tensors |= {
        name: before.tensors[out]
        for out, name in RESUMES.items()
        if out in before.tensors and out not in lost
    }
    if "out/window_residual" in lost and "in/window_k" in tensors:  # a case cannot do without
        tensors["in/window_residual"] = np.zeros_like(before.tensors["out/window_residual"])
    header = {key: value for key, value in candidate.header.items() if key != "phase"}
    if "phase" in before.header and "phase" not in lost:
        header["phase"] = before.header["phase"]
    if "schedule" in before.header:
        header["schedule"] = before.header["schedule"]
    return make(header, tensors, name=case.name)


def _places_of_chunks(case: Case) -> list[int]:
    """Cuts of a deep memory or a TNT: none where a call ends a chunk or begins a document."""
    own = case.header.parameters or {}
    if own.get("unfinished") == "flush" or "batch" in own.values():
        return []
    T = facts(case).tokens
    return sorted(place for place in {1, T // 2, T - 1} if 0 < place < T)


def _part(case: Case, tokens: range) -> Case:
    if parts.calls(case) is not None:
        return parts.part(case, tokens)
    candidate = cut(case, "T", tokens)
    if candidate is None:
        raise CaseError(f"{case.name}: has no tokens to be cut at")
    return make(candidate.header, candidate.tensors, name=case.name)


def joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> Tensors:
    """Results of both calls as those of one: y of both, and the last states of the second."""
    return {**second, "out/y": np.concatenate([first["out/y"], second["out/y"]], axis=-2)}
