"""What a member of rule recurrence declares: its program, its rule, words of recordings (RECUR-6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from atlas_ref.oracle.cases.tensor_spec import Tensor
from atlas_ref.oracle.program.context import TRANSPOSED, Context, Inputs
from atlas_ref.oracle.program.program import Program, Setting
from atlas_ref.types import Array

#: Axes of the matrices of a state, as the rule has them or transposed.
Layout = Literal["(d_out, d_in)", "(d_in, d_out)"]

#: Tensors that every member has beside its own.
SHARED = {
    "in/active": Tensor("T", "1", mask=True),
    "in/reset": Tensor("T", "0", mask=True),
    "in/y_bar": Tensor("... T d_out", "no gradients"),
}


class Member(NamedTuple):
    """One member (RECUR-6).

    Attributes:
        source: code that it is taken from.
        program: tensors, states, settings, the plain loop with its mistakes, draws.
        evaluate: (inputs, settings) -> results, by the rule.
        words: word of a recorded tensor -> name without `in/`; those of states bare.
        counts: word of a recorded parameter -> setting.
        flat: name without `in/` -> axis of one that a recording has more.
    """

    source: str
    program: Program
    evaluate: Callable[[Inputs, Any], dict[str, Array]]
    words: Mapping[str, str]
    counts: Mapping[str, str] = {}
    flat: Mapping[str, int] = {}


def in_layout(settings: Any, M: Array) -> Array:
    """A matrix of the state from the layout of the case to that of the rule, or back."""
    return M.swapaxes(-1, -2) if settings.state_layout == TRANSPOSED else M


# -- settings that several members have --------------------------------------------------------------


def _has_one_layout(context: Context) -> bool:
    """Whether the given first matrices have the shape of both layouts, or there are none."""
    states = [name for name in context.matrices if name in context.shapes]
    square = all(context.shapes[name][-1] == context.shapes[name][-2] for name in states)
    given = any(f"in/{name}{end}" in context.inputs for name in states for end in ("0", "_bar"))
    return square or not given


QUERY_SCALE = Setting("query_scale", (1, "1/sqrt(d_in)"), (None, None, 1, "1/sqrt(d_in)"))
STATE_LAYOUT = Setting(
    "state_layout",
    ("(d_out, d_in)", TRANSPOSED),
    ("(d_out, d_in)", TRANSPOSED),
    matters=_has_one_layout,
)
