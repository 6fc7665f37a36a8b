"""A mistake, and a program that makes it: the family of rules, wrong at one place (VEC-16, IDENT-17).

A mistake is another case (`case`), or is planted into the inputs of the loop (`inputs`), into what
decides its control flow (`structure`), into a quantity at a named place of the loop (`touch`), or into Newton-Schulz. A
mistake of the backward pass is a touch that returns its argument and has a wrong backward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.cases.case import Case, differentiable
from atlas_ref.oracle.cases.inputs import convert
from atlas_ref.oracle.cases.tensor_spec import phi_of
from atlas_ref.oracle.cases.tensors import main_result
from atlas_ref.oracle.evaluate import WEIGHED
from atlas_ref.oracle.family import family, prepare, steps
from atlas_ref.oracle.family.arithmetic import Arithmetic
from atlas_ref.oracle.family.state import Inputs, Structure
from atlas_ref.oracle.norms import round_to
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.subjects import memory
from atlas_ref.oracle.subjects.subject import Rounding
from atlas_ref.parts import feature_maps
from atlas_ref.parts.newton_schulz import NewtonSchulz
from atlas_ref.types import Array
from tape import vjp

Results = dict[str, Array]

#: The arithmetic of the kernels: term by term, so that no library's order of a sum shows.
WAY = Arithmetic("first to last", "forward")


class Seen(NamedTuple):
    """A case with all that decides whether a mistake can be made in it."""

    case: Case
    structure: Structure
    inputs: Inputs

    @property
    def tokens(self) -> int:
        return int(self.inputs.keys.shape[-2])

    @property
    def square(self) -> bool:
        return bool(self.inputs.M0.shape[-1] == self.inputs.M0.shape[-2])

    @property
    def heads(self) -> int:
        return int(np.prod(self.inputs.M0.shape[:-2], dtype=int))

    @property
    def momentum(self) -> bool:
        return self.inputs.momentum is not None and self.inputs.S0 is not None

    @property
    def history(self) -> int:
        return 0 if self.inputs.window_keys is None else int(self.inputs.window_keys.shape[-2])


class Hooks(NamedTuple):
    """Changes of one run of the loop that share what they have seen.

    Attributes:
        inputs: called with the inputs of the loop, before it starts.
        touch: by place of `family.Touch`.
        values: see `family.Values`.
    """

    inputs: Callable[[Inputs], Inputs] | None = None
    touch: Mapping[str, Callable[[Array], Array]] = {}
    values: family.Values | None = None


class Mistake(NamedTuple):
    """A mistake of an implementation.

    Attributes:
        words: the mistake in words, for a reader.
        made_in: whether it can be made in a case; one that cannot is void there.
        grad: it is in the backward pass, so that gradients are what shows it.
        tensors, structure, inputs, touch, newton_schulz: where it is planted; touch by place of
            `family.Touch`, newton_schulz from (arithmetic, matrix, settings).
        convention: the axes that the kernel runs under, where it does something else in their place.
        hooks: makes the changes of one run, where they share what they see.
        learned: names of constants of the case that it has gradients of.
        mapped: the feature map in the place of the case's, from (settings, tensors, x).
        program: the results of a case in a format of arithmetic, in the place of the loop's.
        whole: reads depend on tokens behind them, or on how many there are.
        case: the case that such a program computes, from that which it was given; identify and
            replay try these before others (IDENT-14, IDENT-15).
        columns: whether its retain gate scales columns of M, one gate per key channel.
        feature: the tensor or key that it treats otherwise; "" for a habit of kernels.
        said: what follows on "as if", where `words` do not.
    """

    name: str
    words: str
    made_in: Callable[[Seen], bool]
    grad: bool = False
    tensors: Callable[[Results], Results] | None = None
    structure: Callable[[Structure], Structure] | None = None
    inputs: Callable[[Inputs], Inputs] | None = None
    touch: Mapping[str, Callable[[Array], Array]] | None = None
    newton_schulz: Callable[[Arithmetic, Array, NewtonSchulz], Array] | None = None
    convention: Mapping[str, Any] = {}
    hooks: Callable[[], Hooks] | None = None
    learned: tuple[str, ...] = ()
    mapped: Callable[[Any, Mapping[str, Array], Array], Array] | None = None
    program: Callable[[str], Results] | None = None
    whole: bool = False
    case: Callable[[Case], Case] | None = None
    columns: bool = False
    feature: str = ""
    said: str = ""

    @property
    def as_if(self) -> str:
        """What follows on "as if"."""
        return self.said or self.words


def see(case: Case, arithmetic: str = "float32") -> Seen | None:
    """A case with its structure and inputs as the loop has them; None for a rule without a
    sequence.
    """
    if not SUBJECTS[case.header.rule].has_sequence:
        return None
    prepared = prepare.Prepared(case.header, convert(case, arithmetic), way=WAY)
    return Seen(
        case, prepare.structure(case.convention, case.header), prepared.stack([case.convention])
    )


def compute(case: Case, mistake: Mistake | None, dtype: str) -> Results:
    """Results of a kernel with a mistake, in float32 arithmetic, rounded to `dtype`.

    For a mistake of the backward pass they include gradients.

    Args:
        case: with inputs as the kernel has them, see `inputs.round_inputs`.
        mistake: None for the kernel as it should be.
    """
    if mistake is not None and mistake.case is not None:
        case = mistake.case(case)
    inputs = convert(case, "float32")
    rounding = Rounding(WAY, _same, _same, None)

    def forward(chosen: Mapping[str, Array]) -> Results:
        return run({**inputs, **chosen}, case, rounding, () if mistake is None else (mistake,))

    with np.errstate(all="ignore"):
        if mistake is not None and mistake.program is not None:
            results = mistake.program("float32")
        elif mistake is None or not mistake.grad:
            results = forward({})
        else:
            names = [*differentiable(case), *mistake.learned]
            outputs, pullback = vjp(forward, {name: inputs[name] for name in names})
            bars = {name: inputs[bar] for name, bar in WEIGHED.items() if bar in inputs}
            (gradients,) = pullback(
                {name: bars.get(name, np.zeros_like(value)) for name, value in outputs.items()}
            )
            results = {**outputs} | {
                "grad/" + name.removeprefix("in/"): np.asarray(g) for name, g in gradients.items()
            }
        return {name: round_to(np.asarray(value), dtype) for name, value in results.items()}


def _same(x: Array) -> Array:
    return x


def run(
    inputs: Mapping[str, Array], case: Case, rounding: Rounding, chosen: Sequence[Mistake] = ()
) -> Results:
    """Results of a case under at most one mistake, in any rounding (TOL-3).

    Args:
        inputs: of one dtype, or tape variables.
    """
    planted = chosen[0] if chosen else Mistake("", "", lambda _: True)
    c, way = case.convention.replaced(**planted.convention), rounding.way

    def orthogonalise(S: Array, t: int = 0) -> Array:
        orthogonal = planted.newton_schulz or steps.newton_schulz
        return orthogonal(way, rounding.argument(S), c.newton_schulz_settings)

    inputs = inputs if planted.tensors is None else planted.tensors(dict(inputs))
    subject = SUBJECTS[case.header.rule]
    if subject.needs_newton_schulz:
        return {main_result(case.header): orthogonalise(inputs[subject.argument])}
    if not subject.has_tokens:
        phi, x, settings = phi_of(inputs), inputs[subject.argument], case.header.feature_map
        return {main_result(case.header): (planted.mapped or feature_maps.apply)(settings, phi, x)}
    prepared = prepare.Prepared(case.header, inputs, way=way, touch=rounding.touch)
    structure, stacked = prepare.structure(c, case.header), prepared.stack([c])
    structure = structure if planted.structure is None else planted.structure(structure)
    stacked = stacked if planted.inputs is None else planted.inputs(stacked)
    hooks = Hooks() if planted.hooks is None else planted.hooks()
    stacked = stacked if hooks.inputs is None else hooks.inputs(stacked)
    places: Mapping[str, Callable[[Array], Any]] = {**(planted.touch or {}), **hooks.touch}

    def touch(place: str, x: Array) -> Array:
        return places[place](x) if place in places else x

    outputs = family.run(
        structure,
        stacked,
        orthogonalise,
        way=way,
        store=rounding.store,
        touch=touch,
        hook=None if hooks.values is None else family.value_hook(hooks.values),
    )
    results = memory.name_results(case, outputs)
    if "out/M_ref" in results and not (c.frozen_reference or c.read == "chunk_start"):
        del results["out/M_ref"]
    return results
