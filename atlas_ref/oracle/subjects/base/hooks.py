"""What rooms above the subjects compute of one memory, of Newton-Schulz and of a feature map.

Loops op by op (DEEPCASE-12), features (SRC-21), what kernels tend to miss (CASE-27), and cuts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atlas_ref.oracle.subjects.base.calls import Calls
from atlas_ref.oracle.subjects.base.deferred import defer
from atlas_ref.oracle.subjects.subject import Traced

if TYPE_CHECKING:
    from atlas_ref.oracle.cases.case import Case

features = defer("cases.features:of_one")
missed = defer("family.departures:missed_features")


#: Results of one call that are inputs of the next, and their names there (CONV-38).
RESUMES = {
    "out/M": "in/M0",
    "out/S": "in/S0",
    **{
        f"out/{name}": f"in/{name}"
        for name in ("M_ref", "window_k", "window_v", "window_gate_before", "window_residual")
    },
    "out/window_momentum": "in/window_momentum",
}

#: First states that a case may lack -> the input in their place, "" for zeros (CASE-6).
BLANK = {"in/M0": "", "in/S0": "", "in/M_ref": "in/M0"}

CALLS = Calls(
    cut=defer("sweep.cut:some_tokens"),
    left=lambda name: RESUMES.get(name, ""),
    begins=lambda name: name in RESUMES.values(),
    returns=True,
    may_reset=True,
    blank=BLANK.get,
)


def _leading(case: Case) -> int:
    return 2 if case.header.level == "token" else int(case.inputs["in/k"].ndim) - 2


MEMORY = Traced(
    ops=defer("replay.ops:of_memory"),
    run=defer("replay.loop:of_memory"),
    leading=_leading,
    given=defer("replay.ops:feature_ops"),
    has_chunks=True,
)

NEWTON_SCHULZ = Traced(
    ops=defer("replay.ops:of_newton_schulz"),
    run=defer("replay.loop:of_newton_schulz"),
    leading=lambda case: int(case.inputs["in/G"].ndim) - 2,
)

FEATURE_MAP = Traced(
    ops=defer("replay.ops:of_feature_map"),
    run=defer("replay.loop:of_feature_map"),
    leading=lambda case: int(case.inputs["in/x"].ndim) - 1,
)
