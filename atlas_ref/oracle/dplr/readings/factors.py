"""Constant factors of results and inputs that a program has too often or not at all (DPLRCASE-25)."""

from __future__ import annotations

import math
from collections.abc import Iterator

from atlas_ref.oracle.dplr.context import DplrContext
from atlas_ref.oracle.program import changes
from atlas_ref.oracle.program.changes import Inputs
from atlas_ref.oracle.program.reading import Around, Compute, Reading
from atlas_ref.types import Array
from tape import ops

#: Tensors that a factor may be on: results, and inputs of the rule. A factor of the query is that
#: of the read, and one of a beta that doubles it is a mistake of its own.
TARGETS = ("out/y", "out/M", "in/v", "in/M0", "in/S0", "in/k", "in/beta", "in/eta", "in/log_retain")


#: Factor of the first memory of a sequence that adapters put in front of packed ones, so that a
#: state taken from another sequence shows.
GUARD = 4.0


def _factors(context: DplrContext) -> dict[str, float]:
    """Constants in words, each number once."""
    d_in, d_out = context.inputs["in/k"].shape[-1], context.inputs["in/v"].shape[-1]
    words = {"2": 2.0, "1/2": 0.5, "-1": -1.0}
    for name, size in (("d_in", d_in), ("d_out", d_out)):
        root = math.sqrt(size)
        words |= {f"sqrt({name})": root, f"1/sqrt({name})": 1 / root, f"1/{name}": 1 / size}
    found: dict[str, float] = {}
    for word, value in words.items():
        if value != 1.0 and not any(math.isclose(value, each) for each in found.values()):
            found[word] = value
    return found


def mistakes(context: DplrContext) -> Iterator[Reading]:
    """A factor of one tensor, and what is counted twice."""
    for name in TARGETS:
        if name.startswith("in/") and name not in context.inputs:
            continue
        for word, value in _factors(context).items():
            if name == "in/log_retain" and value < 0:
                continue
            said = f"{name} was multiplied by {word}"
            if name.startswith("out/"):
                yield Reading(said, said, around=_of_result(name, value))
            else:
                change = changes.change_tensor(name, changes.times(value))
                yield Reading(said, said, inputs=change)
    for name in ("in/beta", "in/eta"):
        if name in context.inputs:
            said = f"{name} was under a sigmoid once more"
            yield Reading(said, said, inputs=changes.change_tensor(name, _sigmoid))
    if "in/M0" in context.inputs:
        if "in/reset" in context.inputs:
            said = (
                f"a packed sequence started from the state of another ({GUARD:g} in/M0, that of the "
                "guard that kernels.Kernel puts in front)"
            )
            yield Reading(said, said, inputs=changes.change_tensor("in/M0", changes.times(GUARD)))
        said = "in/M0 was added to out/M once more"
        yield Reading(said, said, around=_with_first)
        said = "what is left of in/M0 was added to out/M once more"
        yield Reading(said, said, around=_with_rest)


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + ops.exp(-x))


def _of_result(name: str, factor: float) -> Around:
    def around(compute: Compute, context: DplrContext, inputs: Inputs) -> Inputs:
        found = compute(inputs)
        return {**found, name: factor * found[name]}

    return around


def _with_first(compute: Compute, context: DplrContext, inputs: Inputs) -> Inputs:
    """The last memory plus the first one as it is."""
    found = compute(inputs)
    return {**found, "out/M": found["out/M"] + inputs["in/M0"]}


def _with_rest(compute: Compute, context: DplrContext, inputs: Inputs) -> Inputs:
    """The last memory plus what the transitions leave of the first one, which is linear in it."""
    found, without = compute(inputs), compute(changes.without("in/M0")(inputs))
    return {**found, "out/M": 2 * found["out/M"] - without["out/M"]}
