"""The ensemble: results of a case as plain evaluations in every legal arithmetic round them.

Source: TOL-3, TOL-7, TOL-8.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.inputs import convert
from atlas_ref.oracle.cases.tensors import seeds
from atlas_ref.oracle.evaluate import weighed_inputs, with_gradients
from atlas_ref.oracle.family.arithmetic import MEMBERS, PLAIN, Arithmetic
from atlas_ref.oracle.judge.states import judged_in
from atlas_ref.oracle.norms import FORMATS, round_to
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.subjects.subject import Rounding
from atlas_ref.types import Array

#: Relative change of the argument of Newton-Schulz by which its amplification is measured (TOL-5).
PROBE = 1e-9

Touch = Callable[[Array], Array]
Results = dict[str, Array]

#: Results of a case in one rounding: (inputs, case, rounding).
Plain = Callable[[Mapping[str, Array], Case, Rounding], Mapping[str, Array]]


def members(
    case: Case,
    dtype: str,
    *,
    state_dtype: str | None = None,
    states: bool = False,
    grad: bool = False,
    plain: Plain | None = None,
) -> dict[str, Results]:
    """Results of each member for a case, by the member's name.

    Results are in `dtype`; arithmetic is float64 for float64, and float32 for all others.

    Args:
        case: with inputs as both sides have them, see `inputs.round_inputs`.
        state_dtype: format that M and S are rounded to after every token.
        states: leave them in the format of the state, see `judged_in`.
        grad: also gradients.
        plain: in place of the subject's own, for another reading of the case.
    """
    arithmetic = "float64" if dtype == "float64" else "float32"
    inputs = convert(case, arithmetic)
    by_member: dict[str, Results] = {}
    for number, way in enumerate(MEMBERS):
        touch = _noise(number, FORMATS[arithmetic][1]) if number else None
        results = evaluate(
            case, inputs, way, touch=touch, state_dtype=state_dtype, grad=grad, plain=plain
        )
        by_member[way.name] = {
            name: round_to(
                np.asarray(value), judged_in(name, dtype, state_dtype) if states else dtype
            )
            for name, value in results.items()
        }
    return by_member


def exact(
    case: Case, *, grad: bool = False, plain: Plain | None = None, way: Arithmetic = PLAIN
) -> Results:
    """Results of the members' loops in float64, from which their rounding errors are measured.

    Source: TOL-3.

    Args:
        way: the arithmetic, where it shows in float64 as well.
    """
    return evaluate(case, convert(case, "float64"), way, grad=grad, plain=plain)


def amplification(
    case: Case,
    truths: Mapping[str, Array],
    *,
    grad: bool = False,
    plain: Plain | None = None,
) -> dict[str, float]:
    """Factor by which Newton-Schulz magnifies a relative change of its argument, for each result
    (TOL-5).

    At least 1.

    Args:
        truths: the results of `exact`.
    """
    if not any(
        part.convention.has_newton_schulz for part in SUBJECTS[case.header.rule].parts(case)
    ):
        return {}
    inputs = convert(case, "float64")
    factors: dict[str, float] = {}
    for seed in (1, 2):
        draw = np.random.Generator(np.random.Philox(seed))
        moved = evaluate(case, inputs, PLAIN, grad=grad, argument=_probe(draw), plain=plain)
        for name, value in moved.items():
            truth = np.asarray(truths[name], np.float64)
            size, change = float(np.linalg.norm(truth)), float(np.linalg.norm(value - truth))
            if size and np.isfinite(change):  # a uniform draw is 1/sqrt(3) of its bound
                factors[name] = max(factors.get(name, 1.0), math.sqrt(3.0) * change / size / PROBE)
    return factors


def _probe(draw: np.random.Generator) -> Touch:
    return lambda S: S * (1.0 + PROBE * draw.uniform(-1.0, 1.0, S.shape))


def evaluate(
    case: Case,
    inputs: Mapping[str, Array],
    way: Arithmetic,
    *,
    touch: Touch | None = None,
    argument: Touch | None = None,
    state_dtype: str | None = None,
    grad: bool = False,
    plain: Plain | None = None,
) -> Results:
    """The results of one member.

    Args:
        inputs: of one dtype.
        touch: rounding of mapped keys and queries and of computed gates.
        argument: change of every argument of Newton-Schulz.
    """

    def forward(variables: Mapping[str, Array]) -> Results:
        store = None if state_dtype is None else lambda x: round_to(x, state_dtype)
        rounding = Rounding(way, touch or _same, argument or _same, store)
        own = plain or SUBJECTS[case.header.rule].plain
        return dict(own({**inputs, **variables}, case, rounding))

    with np.errstate(all="ignore"):
        if not grad:
            return forward({})
        bars = seeds(case.header, inputs)
        inputs, names = weighed_inputs(case, inputs)
        results = with_gradients(forward, inputs, names, bars)
    return {
        name: np.asarray(value) if name.startswith("grad/") else value
        for name, value in results.items()
    }


def _same(x: Array) -> Array:
    return x


def _noise(seed: int, bits: int) -> Touch:
    """A rounding that moves each entry by at most one unit in its last place.

    A function other than a sum of products may round that much.
    """
    draw = np.random.Generator(np.random.Philox(seed))

    def touch(x: Array) -> Array:
        return x * (1.0 + 2.0**-bits * draw.uniform(-1.0, 1.0, x.shape)).astype(x.dtype)

    return touch
