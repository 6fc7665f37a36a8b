"""A call cut in two at a token, the second fed with results of the first (CONV-37, CONV-38,
VEC-10).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case, CaseError, make
from atlas_ref.oracle.cases.masks import MASKS
from atlas_ref.oracle.drawing import Candidate
from atlas_ref.oracle.evaluate import Results, evaluate
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.subjects.base.calls import Calls
from atlas_ref.oracle.sweep.first import tokens_of

Tensors = dict[str, np.ndarray[Any, Any]]

#: Keys of the header of results that say where the next call stands (CASE-13, CASE-30, RECUR-13).
COUNTED = ("schedule", "parameters")


def places(case: Case) -> list[int]:
    """Tokens before which the call may be cut: the second, the middle one and the last.

    Where a case says which cuts there are, they are the nearest of those. There are none where a cut
    shows by definition. A read of the call's end shows it (CONV-38), and
    so does a reset after the cut, which restores the second call's first state.
    """
    calls = SUBJECTS[case.header.rule].calls
    if calls is None or uncut(case):
        return []
    T = tokens_of(case)
    if not calls.returns:
        return sorted(place for place in {1, T // 2, T - 1} if 0 < place < T)
    free = [t for t in range(1, T) if calls.may_cut(case, t)]
    cuts = sorted({min(free, key=lambda t: abs(t - place)) for place in (1, T // 2, T - 1) if free})
    return [t for t in cuts if not resets_behind(case, t)]


def uncut(case: Case) -> str:
    """Why no cut of a call gives what one call gives; "" where some may."""
    if case.convention.read == "call_end":
        return "reads are of the end of a call, so that each call has others"
    if case.has_sequences:
        return "each sequence of in/sequences is a call already"
    if case.has_snapshots:
        return "in/states_after counts tokens of one call"
    calls, own = SUBJECTS[case.header.rule].calls, case.header.parameters or {}
    if calls is None:
        return f"{case.title} has no tokens that calls share"
    if not calls.returns and (own.get("unfinished") == "flush" or "batch" in own.values()):
        return "a call of this case ends a chunk or begins a document"
    by_row = any(case.inputs[name].ndim > 1 for name in MASKS if name in case.inputs)
    if by_row and SUBJECTS[case.header.rule].has_sequence:
        return "rows of this case have masks of their own, and a state has one count for all"
    return ""


def resets_behind(case: Case, token: int) -> bool:
    """Whether a reset behind a cut would go back to the first state of the second call (CONV-33)."""
    calls = SUBJECTS[case.header.rule].calls
    if calls is None or not calls.returns or "in/reset" not in case.inputs:
        return False
    return bool(np.any(case.inputs["in/reset"][..., token + calls.may_reset :]))


def in_two(case: Case, place: int) -> tuple[Case, Case]:
    """The call before a token, and the call from it on, which starts from the results of the
    first.
    """
    head = part(case, range(place))
    return head, resume(case, evaluate(head), range(place, tokens_of(case)))


def resume(case: Case, before: Results, tokens: range, *, lost: tuple[str, ...] = ()) -> Case:
    """The call over some tokens that goes on from results.

    Args:
        lost: names of results, or `phase`, that are not carried over: a mistake.
    """
    calls, candidate = _cut(case, tokens)
    tensors: Tensors = {
        name: value for name, value in candidate.tensors.items() if not calls.begins(name)
    }
    tensors |= {
        calls.left(out): value
        for out, value in before.tensors.items()
        if calls.left(out) and out not in lost
    }
    if "out/window_residual" in lost and "in/window_k" in tensors:  # a case cannot do without
        tensors["in/window_residual"] = np.zeros_like(before.tensors["out/window_residual"])
    header = {key: value for key, value in candidate.header.items() if key != "phase"}
    if "phase" in before.header and "phase" not in lost:
        header["phase"] = before.header["phase"]
    header |= {name: before.header[name] for name in COUNTED if name in before.header}
    return make(header, tensors, name=case.name)


def part(case: Case, tokens: range) -> Case:
    """Some tokens of a call, from the state of the call."""
    _, candidate = _cut(case, tokens)
    return make(candidate.header, candidate.tensors, name=case.name)


def _cut(case: Case, tokens: range) -> tuple[Calls, Candidate]:
    calls = SUBJECTS[case.header.rule].calls
    candidate = None if calls is None else calls.cut(case, tokens)
    if calls is None or candidate is None:
        raise CaseError(f"{case.name}: has no tokens to be cut at")
    return calls, candidate


def join(first: Mapping[str, Any], second: Mapping[str, Any]) -> Tensors:
    """Results of both calls as those of one: y of both, and the last states of the second."""
    return {**second, "out/y": np.concatenate([first["out/y"], second["out/y"]], axis=-2)}
