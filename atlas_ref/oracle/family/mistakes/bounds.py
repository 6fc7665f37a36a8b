"""Mistakes of the bounds of gates and step sizes, in values and in derivatives.

Source: VEC-25.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from atlas_ref.oracle.family.mistake import Mistake, Seen
from atlas_ref.oracle.family.state import Inputs
from atlas_ref.parts.gates import bounded
from atlas_ref.parts.straight import straight
from atlas_ref.types import Array
from tape import ops

#: A gate's value and its bounds -> what a kernel has in the place of the bounded value.
Wrong = Callable[[Array, float, float], Array]


class Kind(NamedTuple):
    """A mistake of the bounds of one gate; {} in name and words stands for the gate.

    Attributes:
        only: the gate that it can be made of; "" for both.
    """

    name: str
    words: str
    wrong: Wrong
    grad: bool = False
    only: str = ""


def _right(u: Array, least: float, greatest: float) -> Array:
    return bounded(u, (least, greatest))


def _by(limits: tuple[float, float]) -> Wrong:
    """The value under other bounds."""
    return lambda u, least, greatest: _right(u, *limits)


def _on_the_logarithm(u: Array, least: float, greatest: float) -> Array:
    return ops.exp(_right(ops.log(u), least, greatest))


def _of_the_multiplier(u: Array, least: float, greatest: float) -> Array:
    return 1.0 - _right(1.0 - u, least, greatest)


def _keep_within(u: Array, least: float, greatest: float) -> Array:
    """The bounded value, whose derivative is 1 on a bound."""
    below, above = ops.less(u, least), ops.greater(u, greatest)
    return ops.where(below, least, ops.where(above, greatest, u))


def _kept_at_the_least(u: Array, least: float, greatest: float) -> Array:
    """The bounded value, whose derivative is 1 on the least value alone."""
    return ops.where(ops.less(u, least), least, _right(u, 0.5 * least, greatest))


def _kept_at_the_greatest(u: Array, least: float, greatest: float) -> Array:
    """The bounded value, whose derivative is 1 on the greatest value alone."""
    return ops.where(ops.greater(u, greatest), greatest, _right(u, least, 2.0 * greatest))


#: Kernels that have a derivative on a bound, where no computed gate is exactly.
ON_A_BOUND = (_keep_within, _kept_at_the_least, _kept_at_the_greatest)


def _of_those_beyond(u: Array, least: float, greatest: float) -> Array:
    """The bounded value, with the cotangents of what is beyond a bound and of nothing else."""
    value = _right(u, least, greatest)
    return ops.where(ops.equal(value, u), ops.stop_gradient(u), straight(u, value))


def _of_the_bounded_sigmoid(u: Array, least: float, greatest: float) -> Array:
    """The bounded value, with the slope of a sigmoid that has it everywhere."""
    plain = ops.stop_gradient(u)
    value = _right(plain, least, greatest)
    return straight(u * (value * (1.0 - value) / (plain * (1.0 - plain))), value)


KINDS = (
    Kind(
        "least {} ignored",
        "the {} has no least value",
        lambda u, least, greatest: ops.minimum(greatest, u),
    ),
    Kind(
        "greatest {} ignored",
        "the {} has no greatest value",
        lambda u, least, greatest: ops.maximum(least, u),
    ),
    Kind("bounds of the logarithm of {}", "the bounds hold the log of the {}", _on_the_logarithm),
    Kind(
        "bounds of the multiplier",
        "the bounds of what is forgotten hold what is kept",
        _of_the_multiplier,
        only="retain",
    ),
    Kind(
        "bounds of {} passed straight through",
        "a {} beyond a bound gets its cotangent",
        lambda u, least, greatest: straight(u, _right(u, least, greatest)),
        True,
    ),
    Kind(
        "cotangent kept on a bound of {}",
        "a {} on a bound gets its cotangent",
        _keep_within,
        True,
    ),
    Kind(
        "cotangent kept on the least {}",
        "a {} on its least value gets its cotangent",
        _kept_at_the_least,
        True,
    ),
    Kind(
        "cotangent kept on the greatest {}",
        "a {} on its greatest value gets its cotangent",
        _kept_at_the_greatest,
        True,
    ),
    Kind(
        "bounded {} held fixed",
        "no {} gets a cotangent",
        lambda u, least, greatest: ops.stop_gradient(_right(u, least, greatest)),
        True,
    ),
    Kind(
        "mask of {} turned round",
        "a {} has a cotangent beyond its bounds alone",
        _of_those_beyond,
        True,
    ),
    Kind(
        "slope of the bounded {}",
        "the slope of the {} is that of a sigmoid at the bounded value",
        _of_the_bounded_sigmoid,
        True,
        only="retain",
    ),
)

SWAPPED = "bounds of retain and step size swapped"
IN_THE_ERROR = "bounds not in the decay of the residual"
AFTER = "bounds in the decay of the residual alone"
MOMENTUM = "momentum bounded as retain"


def words_by_name() -> dict[str, str]:
    """Mistakes in words, by name."""
    words = {
        each.name.format(gate): each.words.format(gate)
        for each in KINDS
        for gate in ("retain", "step size")
        if each.only in ("", gate)
    }
    return words | {
        SWAPPED: "the bounds of retain hold step sizes, and those of step sizes retain",
        IN_THE_ERROR: "the residual sees a memory that decays by a retain without bounds",
        AFTER: "the bounds hold where the residual decays, and not where the memory does",
        MOMENTUM: "the bounds of retain hold the momentum too",
    }


def mistakes(at: Seen) -> list[Mistake]:
    """Mistakes of the bounds of a case, each in a kernel that has no others."""
    bounds = _bounds(at)
    words, listed = words_by_name(), []
    for gate in bounds:
        for kind in KINDS:
            if not _made_in(at, kind, gate):
                continue
            name = kind.name.format(gate)
            wrongs = dict.fromkeys(bounds, _right) | {gate: kind.wrong}
            listed.append(_plant(at, name, words[name], wrongs, grad=kind.grad))
    if len(bounds) == 2:
        retain, step = bounds["retain"], bounds["step size"]
        other = {"retain": step, "step size": retain}
        swapped = {each: _by(limits) for each, limits in other.items()}
        listed.append(_plant(at, SWAPPED, words[SWAPPED], swapped))
    right: dict[str, Wrong] = dict.fromkeys(bounds, _right)
    if "retain" in bounds and at.inputs.decay is not None:
        for name, kept in ((IN_THE_ERROR, "decay"), (AFTER, "retain")):
            listed.append(_plant(at, name, words[name], right, kept=kept))
    if "retain" in bounds and at.momentum:
        held = bounded(at.inputs.momentum, bounds["retain"])
        if not bool((held == at.inputs.momentum).all()):
            listed.append(
                Mistake(
                    MOMENTUM,
                    words[MOMENTUM],
                    _always,
                    inputs=lambda inputs: inputs._replace(
                        momentum=bounded(inputs.momentum, bounds["retain"])
                    ),
                )
            )
    return listed


def _always(at: Seen) -> bool:
    return True


def _bounds(at: Seen) -> dict[str, tuple[float, float]]:
    """The bounds of a case, by gate, where a kernel's step size is a factor of its own."""
    c = at.case.convention
    found = {}
    if c.retain_bounds != "none" and at.inputs.retain is not None:
        found["retain"] = c.retain_bounds
    plain = c.direction == "descent" and c.rate != "split" and c.momentum_kind != "average"
    if c.step_bounds != "none" and plain and (at.inputs.a is not None or at.inputs.b is not None):
        found["step size"] = c.step_bounds
    return found


def _made_in(at: Seen, kind: Kind, gate: str) -> bool:
    if kind.only not in ("", gate):
        return False
    if kind.wrong is _of_the_multiplier:
        return bool(at.case.convention.gate == "forget")
    if at.case.header.level == "token":
        return kind.wrong not in ON_A_BOUND
    return kind.wrong is not _of_the_bounded_sigmoid


def _plant(
    at: Seen,
    name: str,
    words: str,
    wrongs: dict[str, Wrong],
    *,
    grad: bool = False,
    kept: str = "",
) -> Mistake:
    """A kernel without bounds, whose gates are changed where it uses them.

    Args:
        kept: the use of retain that is not changed: decay or retain.
    """
    forgets, bounds = at.case.convention.gate == "forget", _bounds(at)

    def multiplier(x: Array) -> Array:
        if not forgets:
            return wrongs["retain"](x, *bounds["retain"])
        return 1.0 - wrongs["retain"](1.0 - x, *bounds["retain"])

    def change(inputs: Inputs) -> Inputs:
        if "retain" in wrongs:
            uses = [use for use in ("retain", "decay") if use != kept]
            inputs = inputs._replace(
                **{
                    use: multiplier(getattr(inputs, use))
                    for use in uses
                    if getattr(inputs, use) is not None
                }
            )
        if "step size" in wrongs:
            wrong, limits = wrongs["step size"], bounds["step size"]
            uses = [use for use in ("a", "b") if getattr(inputs, use) is not None]
            inputs = inputs._replace(**{use: wrong(getattr(inputs, use), *limits) for use in uses})
        return inputs

    off = {"retain": "retain_bounds", "step size": "step_bounds"}
    return Mistake(
        name,
        words,
        _always,
        grad,
        inputs=change,
        convention={off[gate]: "none" for gate in wrongs},
    )
