"""The distance that one op may have from ours, on inputs that were recorded.

Specified in specs/tolerance.md (TOL-9).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from atlas_ref.conventions import Convention
from atlas_ref.oracle.family.arithmetic import MEMBERS
from atlas_ref.oracle.judge import op_steps
from atlas_ref.oracle.judge.tolerance import Tolerance, from_members
from atlas_ref.oracle.norms import FORMATS, round_to
from atlas_ref.parts.newton_schulz import NewtonSchulz
from atlas_ref.types import Array

#: Units in the last place of an op's scale that are always allowed: it is rounded once, when it is
#: recorded (TOL-9).
OP_FLOOR = 2

#: Draws from the half unit by which a recorded input may have been rounded (TOL-9).
DRAWS = 6


def op_tolerance(
    op: str,
    inputs: Mapping[str, Array],
    convention: Convention | NewtonSchulz,
    dtype: str,
    *,
    function: Callable[[Mapping[str, Array]], Array] | None = None,
    exact: tuple[str, ...] = (),
) -> Tolerance:
    """The tolerance of one op on its recorded inputs (TOL-9).

    Args:
        op: residual, gradient, S, X0, X1.., U, M or y, which are evaluated in every arithmetic (the
            names and shapes of their inputs are those of `op_steps.evaluate`); any other name needs
            `function`.
        inputs: inputs of the op, as recorded; leading axes, tokens among them, may stand in front.
        convention: the case's.
        dtype: format of the recorded tensors. Arithmetic is float64 for float64 and float32 for all
            others.
        function: the op itself, from inputs of one dtype, where it is none of the above.
        exact: names of inputs that are the case's own, and so were not rounded when they were
            recorded.
    """
    arithmetic = "float64" if dtype == "float64" else "float32"
    wide = {name: np.asarray(value, np.float64) for name, value in inputs.items()}
    narrow = {name: value.astype(FORMATS[arithmetic][0]) for name, value in wide.items()}
    is_op = function is None

    def evaluate(way: Any, values: Mapping[str, Array]) -> Array:
        return (
            op_steps.evaluate(op, values, convention, way) if function is None else function(values)
        )

    with np.errstate(all="ignore"):
        want = np.asarray(evaluate(MEMBERS[0], wide), np.float64)
        by_member = {way.name: evaluate(way, narrow) for way in (MEMBERS if is_op else MEMBERS[:1])}
        for number in range(DRAWS if is_op else DRAWS + 2):
            way = MEMBERS[number % len(MEMBERS)]
            by_member[f"inputs within half a unit, draw {number + 1}"] = evaluate(
                way, _redrawn(narrow, dtype, exact, number)
            )
        members = {
            member: round_to(np.asarray(value), dtype) for member, value in by_member.items()
        }
    return from_members(op, want, members, dtype, units=OP_FLOOR)


def _redrawn(
    inputs: Mapping[str, Array], dtype: str, exact: tuple[str, ...], seed: int
) -> dict[str, Array]:
    """Inputs that round to the recorded ones: anywhere within half a unit of the last place."""
    draw = np.random.Generator(np.random.Philox(seed))
    half = 2.0 ** -(FORMATS[dtype][1] + 1)
    return {
        name: value
        if name in exact
        else (value * (1.0 + half * draw.uniform(-1.0, 1.0, value.shape))).astype(value.dtype)
        for name, value in inputs.items()
    }
