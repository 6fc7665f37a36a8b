"""Place of an error in a sequence: its size by token, and the first entry beyond its tolerance."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.tensor_spec import of_call
from atlas_ref.oracle.cases.tensors import bare
from atlas_ref.oracle.judge.verdicts import First, Profile
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.subjects.memory_tensors import PROJECTED, TOKEN

#: Cells that a long sequence is shown in; each shows the largest of its tokens.
CELLS = 128

Numbers = np.ndarray[Any, Any]


class Allowed(NamedTuple):
    """Error that PASS allows a token: its largest entry, and its root mean square."""

    max: float
    rms: float


def token_axis(case: Case, name: str) -> int | None:
    """Axis of the tokens, counted from the last one.

    None for a state, a parameter or a rule without a sequence.
    """
    subject = SUBJECTS[case.header.rule]
    if of_call(name) in subject.along:
        return subject.axis
    if not name.startswith("grad/"):
        return None
    key = "in/" + name.removeprefix("grad/")
    axes = {**PROJECTED, **TOKEN}.get(bare(key), (None, None))[1]
    if axes is None or not SUBJECTS[case.header.rule].has_tokens:
        return None
    if axes.axes == "gate":
        rows = case.inputs["in/k" if "in/k" in case.inputs else "in/x"]  # hgrn has no key (RECUR-3)
        return -2 if case.inputs[key].ndim == rows.ndim else -1
    words = axes.axes.split()
    return words.index("T") - len(words) if "T" in words else None


def by_token(gap: Numbers, axis: int | None, allowed: Allowed) -> Numbers:
    """Error over what is allowed, by token (SRC-13).

    One number for a tensor without tokens.
    """
    rows = [gap] if axis is None else np.moveaxis(gap, axis, 0)
    return np.array(
        [
            max(_over(np.max(row, initial=0.0), allowed.max), _over(_rms(row), allowed.rms))
            for row in rows
        ]
    )


def _over(error: float, allowed: float) -> float:
    """Error over what is allowed; NaN counts as infinity, since `max` would lose it."""
    if error == 0.0:
        return 0.0
    ratio = error / allowed if allowed > 0.0 else np.inf
    return float(ratio) if ratio == ratio else float("inf")


def profile(tokens: Numbers, axis: int | None) -> Profile:
    """Numbers per token in cells (SRC-13)."""
    if axis is None:
        return Profile((float(tokens[0]),), 0)
    width = max(1, -(-len(tokens) // CELLS))
    return Profile(
        tuple(float(tokens[i : i + width].max()) for i in range(0, len(tokens), width)), width
    )


def first_wrong(
    gap: Numbers, axis: int | None, tokens: Numbers, got: Numbers, want: Numbers
) -> First | None:
    """The worst entry of the first token beyond what is allowed (SRC-12).

    Where none is beyond, that of the worst token. None for an empty tensor.
    """
    if not gap.size:
        return None
    token, inside = None, gap
    if axis is not None:
        token = int(np.argmax(tokens > 1.0)) if (tokens > 1.0).any() else int(np.argmax(tokens))
        inside = np.full(gap.shape, -1.0)
        keep: tuple[Any, ...] = (..., slice(token, token + 1), *[slice(None)] * (-axis - 1))
        inside[keep] = gap[keep]
    index = tuple(
        int(i)
        for i in np.unravel_index(
            int(np.argmax(np.where(np.isnan(inside), np.inf, inside))), gap.shape
        )
    )
    return First(token, index, float(got[index]), float(want[index]))


def _rms(x: Numbers) -> float:
    """The root mean square, at any scale."""
    top = float(np.max(x, initial=0.0))
    return top * float(np.sqrt(np.mean((x / top) ** 2))) if 0.0 < top < np.inf else top
