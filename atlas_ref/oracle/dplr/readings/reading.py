"""Other readings of a case of rule dplr: a setting changed, or one mistake (DPLRCASE-9)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.dplr import formulas, loop, parameters, plain_formulas
from atlas_ref.oracle.dplr.parameters import Parameters
from atlas_ref.oracle.dplr.program import Program, Take, as_it_is, computed
from atlas_ref.oracle.subjects.subject import Rounding
from atlas_ref.types import Array
from tape import ops

Inputs = dict[str, Array]

#: The gate, or its log.
GATES = ("in/retain", "in/log_retain")

#: Tensors that weigh an erase or a write, by the formula of the erase.
RATES = {
    "error": ("beta",),
    "gates": ("erase_gate", "write_gate"),
    "kk": ("a",),
    "momentum": ("beta", "eta"),
}


class Seen(NamedTuple):
    """Settings and inputs, which decide what readings can be made.

    Attributes:
        inputs: those of the rule, with gates and step sizes that a formula makes.
        raw: those that a formula makes them of.
    """

    own: Parameters
    inputs: Mapping[str, Any]
    raw: Mapping[str, Any] = {}

    @property
    def tokens(self) -> int:
        return int(self.inputs["in/q"].shape[-2])

    @property
    def gate(self) -> str:
        """The tensor of the gate; "" where there is none."""
        return next((name for name in GATES if name in self.inputs), "")

    @property
    def gate_word(self) -> str:
        """The tensor of the gate, or what a formula makes, in messages."""
        return self.gate if self.own.gate_formula is None else "the log gate"

    @property
    def gated(self) -> bool:
        return self.own.of.gated == "heads" or bool(self.gate)

    @property
    def by_channel(self) -> bool:
        """Whether each key channel has a gate of its own."""
        rank = len(self.inputs["in/v"].shape)
        return bool(self.gate) and len(self.inputs[self.gate].shape) == rank

    @property
    def erases(self) -> bool:
        return self.own.of.erase not in ("none", "given") or "in/erase_read" in self.inputs

    @property
    def square(self) -> bool:
        return bool(self.inputs["in/k"].shape[-1] == self.inputs["in/v"].shape[-1])


#: Results of a program from inputs.
Compute = Callable[[Inputs], Inputs]

#: A program that computes results by another one: (computation, settings, inputs).
Around = Callable[[Compute, Seen, Inputs], Inputs]


class Reading(NamedTuple):
    """What a program does otherwise.

    Attributes:
        name: of the reading: a setting with its value, or the mistake.
        words: what follows on "as if"; "" for a setting.
        change: the settings and their values, as `identify` states them; empty for a mistake.
        before: the same settings with the values of the case.
        grad: it is in the backward pass, so that gradients alone show it.
        parameters: settings of the case with their values.
        program: fields of `Program` with their values.
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
    program: Mapping[str, Any] = {}
    inputs: Callable[[Inputs], Inputs] | None = None
    formula: str = ""
    raw: Callable[[Inputs], Inputs] | None = None
    around: Around | None = None
    whole: bool = False
    backward: bool = False


def read(
    case: Case, inputs: Mapping[str, Array], chosen: Sequence[Reading], rounding: Any = None
) -> Seen:
    """Settings and inputs of a case under some readings at once.

    Args:
        rounding: of what a formula makes; None where numbers are not looked at.
    """
    own, raw = parameters.parsed(case.header), dict(inputs)
    for each in chosen:
        own = own.replaced(**each.parameters)
        raw = raw if each.raw is None else each.raw(raw)
    tensors = raw
    if own.gate_formula is not None or own.beta_formula is not None:
        mistake = next((each.formula for each in chosen if each.formula), "")
        if rounding is None:
            raw = {name: _wide(x) for name, x in raw.items()}
        touch = as_it_is if rounding is None else rounding.touch
        tensors = plain_formulas.computed(own, raw, touch, mistake)
    for each in chosen:
        tensors = tensors if each.inputs is None else each.inputs(tensors)
    return Seen(own, tensors, {n: x for n, x in raw.items() if n in formulas.RAW})


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
    at, program = read(case, inputs, chosen, rounding), dict[str, Any]()
    for each in chosen:
        program |= each.program
    whole = Program(at.own, **program, take=take)
    compute: Compute = partial(_computed, whole, rounding)
    for each in chosen:
        compute = compute if each.around is None else partial(each.around, compute, at)
    return compute(dict(at.inputs))


def _computed(program: Program, rounding: Rounding, inputs: Inputs) -> Inputs:
    return loop.run_program(program, inputs, rounding)


def _with_slope(x: Array, other: Array) -> Array:
    """A value with the derivative of another one."""
    return ops.stop_gradient(x) + (other - ops.stop_gradient(other))
