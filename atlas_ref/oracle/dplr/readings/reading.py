"""Other readings of a case of rule dplr: a setting changed, or one mistake (DPLRCASE-9)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from atlas_ref.oracle.dplr import formulas, loop, parameters, plain_formulas
from atlas_ref.oracle.dplr.context import Context, same
from atlas_ref.oracle.dplr.hook import Take, Wrap, computed
from atlas_ref.oracle.subjects.subject import Rounding
from atlas_ref.types import Array
from tape import ops

if TYPE_CHECKING:
    from atlas_ref.oracle.cases.case import Case

Inputs = dict[str, Array]

#: Tensors that weigh an erase or a write, by the formula of the erase.
RATES = {
    "error": ("beta",),
    "gates": ("erase_gate", "write_gate"),
    "kk": ("a",),
    "momentum": ("beta", "eta"),
}


#: Results of a program from inputs.
Compute = Callable[[Inputs], Inputs]

#: A program that computes results by another one: (computation, settings, inputs).
Around = Callable[[Compute, Context, Inputs], Inputs]


class Reading(NamedTuple):
    """What a program does otherwise.

    Attributes:
        name: of the reading: a setting with its value, or the mistake.
        words: what follows on "as if"; "" for a setting.
        change: the settings and their values, as `identify` states them; empty for a mistake.
        before: the same settings with the values of the case.
        grad: it is in the backward pass, so that gradients alone show it.
        parameters: settings of the case with their values.
        ops: op -> what stands in its place; beside ops, points of the loop that are none of a trace:
            `hook.Hook.point`.
        inputs: what the inputs are changed into.
        formula: the mistake of a formula of gates or step sizes.
        raw: what the inputs of a formula are changed into.
        around: what the program does with a computation of the rule, which it may call more than
            once, as for parts of its tokens.
        whole: reads depend on tokens behind them, or on how many there are.
        backward: the reading is that of the backward pass alone: values are right.
    """

    name: str
    words: str = ""
    change: Mapping[str, Any] = {}
    before: Mapping[str, Any] = {}
    grad: bool = False
    parameters: Mapping[str, Any] = {}
    ops: Mapping[str, Wrap] = {}
    inputs: Callable[[Inputs], Inputs] | None = None
    formula: str = ""
    raw: Callable[[Inputs], Inputs] | None = None
    around: Around | None = None
    whole: bool = False
    backward: bool = False


def read(
    case: Case, inputs: Mapping[str, Array], chosen: Sequence[Reading], rounding: Any = None
) -> Context:
    """Settings and inputs of a case under some readings at once.

    Args:
        rounding: of what a formula makes; None where numbers are not looked at.
    """
    params, raw = parameters.parsed(case.header), dict(inputs)
    for each in chosen:
        params = params.replaced(**each.parameters)
        raw = raw if each.raw is None else each.raw(raw)
    tensors = raw
    if params.gate_formula is not None or params.beta_formula is not None:
        mistake = next((each.formula for each in chosen if each.formula), "")
        if rounding is None:
            raw = {name: _wide(x) for name, x in raw.items()}
        touch = same if rounding is None else rounding.touch
        tensors = plain_formulas.computed(params, raw, touch, mistake)
    for each in chosen:
        tensors = tensors if each.inputs is None else each.inputs(tensors)
    return Context(params, tensors, raw={n: x for n, x in raw.items() if n in formulas.RAW})


def _wide(x: Any) -> Any:
    """An array of numbers in float64, in which every op is."""
    return x if x.dtype.kind in "biu" else x.astype(np.float64)


def run(
    inputs: Mapping[str, Array],
    case: Case,
    rounding: Rounding,
    chosen: Sequence[Reading],
    *,
    take: Take = computed,
) -> dict[str, Array]:
    """Results of a case under some readings, as `Subject.plain` has them (DPLRCASE-9).

    Args:
        take: the hook of a trace (DPLRCASE-11).
    """
    if any(each.backward for each in chosen):
        forward = [each for each in chosen if not each.backward]
        other = [each._replace(backward=False) for each in chosen]
        values, slopes = (run(inputs, case, rounding, some, take=take) for some in (forward, other))
        return {name: _with_slope(x, slopes[name]) for name, x in values.items()}
    context, wraps = read(case, inputs, chosen, rounding), dict[str, list[Wrap]]()
    for each in chosen:
        for op, wrap in each.ops.items():
            wraps.setdefault(op, []).append(wrap)

    def compute(x: Inputs) -> Inputs:
        return loop.results(Context(context.params, x, rounding), wraps, take)

    whole: Compute = compute
    for each in chosen:
        whole = whole if each.around is None else partial(each.around, whole, context)
    return whole(dict(context.tensors))


def _with_slope(x: Array, other: Array) -> Array:
    """A value with the derivative of another one."""
    return ops.stop_gradient(x) + (other - ops.stop_gradient(other))
