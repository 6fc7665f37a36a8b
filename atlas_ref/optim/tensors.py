"""Parameters, gradients and states of optimisers as named tensors, and what each call checks.

Specified in specs/optim.md (OPTIM-1 to OPTIM-5).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field

from atlas_ref import backend
from atlas_ref.messages import meant
from atlas_ref.optim.schedule import Schedule
from atlas_ref.types import Array, Frozen
from tape import TapeError, Variable
from tape.nested import flatten

Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]
#: Share of what was before, of a mean over steps.
Share = Annotated[float, Field(ge=0, lt=1)]
Tensors = dict[str, Array]


class Settings(Frozen):
    """What every optimiser has (OPTIM-1).

    Attributes:
        rate: at factor 1 of the schedule; there is no universal default.
        schedule: of the factor.
        decay: of weights.
    """

    rate: Number
    schedule: Schedule = Schedule()
    decay: Number = 0.0

    def rate_at(self, step: int) -> float:
        """The rate of an outer step, counted from 0 (OPTIM-6)."""
        return self.rate * self.schedule.factor(step)


class State(Frozen):
    """What moves from one update to the next (OPTIM-1).

    Attributes:
        count: updates so far.
        slots: name of a quantity, such as m -> name of a parameter -> its array.
    """

    count: Annotated[int, Field(ge=0)] = 0
    slots: dict[str, dict[str, Any]] = {}


class Moment(NamedTuple):
    """The numbers of one update that all parameters share.

    Attributes:
        rate: of this step.
        number: of the update, from 1.
    """

    rate: float
    number: int


class Named(NamedTuple):
    """A nest of arrays: its tensors by name, and the function that puts others in their places."""

    tensors: Tensors
    build: Callable[[Mapping[str, Array]], Any]


#: Quantities that a rule keeps of one parameter.
Slots = Callable[[Any, str, Array], tuple[str, ...]]
#: The update of one parameter: (config, moment, parameter, gradient, its slots) -> (parameter,
#: slots).
One = Callable[[Any, Moment, Array, Array, Tensors], tuple[Array, Tensors]]


def name_of(path: str) -> str:
    """The name of a tensor by its path in a nest (OPTIM-2): `.blocks[0]['W']` gives blocks.0.W."""
    return re.sub(r"\['([^']*)'\]|\[(\w+)\]", r".\1\2", path).removeprefix(".")


def named(tree: Any, where: str) -> Named:
    """The arrays of a model, dict or tuple by their names (OPTIM-2).

    Args:
        where: params or grads, which an error names.

    Raises:
        ValueError: a bare array, a variable, a number, another dtype than float32 or float64, two
            tensors of one name, or arrays of two backends.
    """
    try:
        leaves, paths, build = flatten(tree, where)
    except TapeError as error:
        raise ValueError(str(error)) from None
    names = [name_of(path) for path in paths]
    for name, leaf in zip(names, leaves, strict=True):
        _require_plain(f"{where}.{name}" if name else where, name, leaf)
    tensors = dict(zip(names, leaves, strict=True))
    if len(tensors) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{where}.{twice}: two tensors have this name")
    backend.require_one({f"{where}.{name}": x for name, x in tensors.items()})
    return Named(tensors, lambda new: build([new[name] for name in names]))


def _require_plain(place: str, name: str, leaf: Any) -> None:
    """Refuse what is no plain array of float32 or float64 with a name (OPTIM-2, OPTIM-4)."""
    if isinstance(leaf, Variable):
        raise ValueError(
            f"{place}: recorded on a tape; an optimiser runs after the backward, on plain arrays"
        )
    kind = getattr(getattr(leaf, "dtype", None), "name", type(leaf).__name__)
    if kind not in ("float32", "float64"):
        raise ValueError(f"{place}: {kind}, an array of float32 or float64 is needed")
    if not name:
        raise ValueError(
            f"{place}: a bare array has no name, a dict or a model of arrays is needed"
        )


def check_gradients(params: Mapping[str, Array], grads: Mapping[str, Array]) -> None:
    """Refuse gradients that are not those of the parameters (OPTIM-3).

    Raises:
        ValueError: names the tensor that is missing, unknown, misshapen, of another dtype or
            backend, or not finite.
    """
    for name in params:
        if name not in grads:
            raise ValueError(f"grads.{name}: missing, every parameter needs a gradient")
    require_known(params, grads)
    for name, p in params.items():
        g = grads[name]
        if g.shape != p.shape:
            raise ValueError(f"grads.{name}: shape {g.shape}, the parameter has {p.shape}")
        if g.dtype != p.dtype:
            raise ValueError(f"grads.{name}: {g.dtype}, the parameter is {p.dtype}")
        backend.require_one({f"params.{name}": p, f"grads.{name}": g})
    require_finite(grads, "grads")


def require_known(params: Mapping[str, Array], grads: Mapping[str, Array]) -> None:
    """Refuse a gradient whose name no parameter has (OPTIM-3)."""
    for name in grads:
        if name not in params:
            raise ValueError(f"grads.{name}: no parameter has this name{meant(name, params)}")


def require_finite(tensors: Mapping[str, Array], where: str) -> None:
    """Refuse infinities and nan, with one wait for a device (OPTIM-3).

    Raises:
        ValueError: names the tensor, the entry and its place.
    """
    flags = [np.isfinite(x).all() for x in tensors.values()]
    if not flags or backend.truth(functools.reduce(np.logical_and, flags)):
        return
    for name, x in tensors.items():
        found = backend.of(x).to_host(x)
        bad = np.argwhere(~np.isfinite(found))
        if len(bad):
            place = tuple(int(i) for i in bad[0])
            raise ValueError(
                f"{where}.{name}: every entry must be finite, found {found[place]} at {place}"
            )


def check_step(step: Any) -> None:
    """Refuse what is no number of an outer step (OPTIM-6)."""
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ValueError(f"step: {step!r}, a whole number from 0 is needed")


# -- what the rules share --------------------------------------------------------------------------


def start(config: Any, params: Any, slots: Slots) -> State:
    """The state before the first update: zeros for every slot of every parameter (OPTIM-1).

    Raises:
        ValueError: names the parameter that cannot be optimised.
    """
    own = named(params, "params").tensors
    require_finite(own, "params")
    found: dict[str, Tensors] = {}
    for name, p in own.items():
        for slot in slots(config, name, p):
            found.setdefault(slot, {})[name] = settled(np.zeros_like(p))
    return State.trusted(count=0, slots=found)


def updated(
    config: Any, state: State, params: Any, grads: Any, step: int, slots: Slots, one: One
) -> tuple[Any, State]:
    """One update of every parameter by a rule, from checked arguments (OPTIM-1, OPTIM-3).

    Raises:
        ValueError: names the tensor, what was found and what is needed.
    """
    check_step(step)
    own, given = named(params, "params"), named(grads, "grads").tensors
    check_gradients(own.tensors, given)
    moment = Moment(config.rate_at(step), state.count + 1)
    new: Tensors = {}
    after: dict[str, Tensors] = {}
    for name, p in own.tensors.items():
        held = held_by(state, name, p, slots(config, name, p))
        p, kept = one(config, moment, p, given[name], held)
        new[name] = settled(p)
        for slot, x in kept.items():
            after.setdefault(slot, {})[name] = settled(x)
    return own.build(new), State.trusted(count=moment.number, slots=after)


def held_by(state: State, name: str, p: Array, slots: tuple[str, ...]) -> Tensors:
    """The slots of one parameter.

    Raises:
        ValueError: a state of other parameters or of another rule.
    """
    held = {}
    for slot in slots:
        x = state.slots.get(slot, {}).get(name)
        if x is None:
            raise ValueError(f"state.{slot}.{name}: missing; the state is of other parameters")
        if x.shape != p.shape or x.dtype != p.dtype:
            raise ValueError(
                f"state.{slot}.{name}: {x.dtype} {x.shape}, the parameter is {p.dtype} {p.shape}"
            )
        held[slot] = x
    return held


def settled(x: Any) -> Array:
    """A result as an array that cannot be changed, where its backend protects arrays."""
    if not backend.on_host(x):
        return x
    x = np.asarray(x)
    x.flags.writeable = False
    return x


# -- states as tensors of a file -------------------------------------------------------------------


def tensors_of(state: State, start: str = "") -> dict[str, np.ndarray[Any, Any]]:
    """A state as tensors on the host: count, and slot/parameter for each array (OPTIM-5).

    Args:
        start: of every name, such as the name of a group with a slash.
    """
    found = {f"{start}count": np.array(state.count, np.int64)}
    for slot, arrays in state.slots.items():
        for name, x in arrays.items():
            found[f"{start}{slot}/{name}"] = backend.of(x).to_host(x)
    return found


def of_tensors(like: State, tensors: Mapping[str, Any], start: str = "") -> State:
    """The state of a file, in the backend in use (OPTIM-5).

    Args:
        like: the state before the first update, which says what is needed.
        start: of every name.

    Raises:
        ValueError: names the tensor that is missing, unknown, misshapen, of another dtype or not
            finite.
    """
    needed = tensors_of(like, start)
    check_tensors(needed, {name: x for name, x in tensors.items() if name.startswith(start)})
    place = backend.current().from_host
    slots = {
        slot: {name: settled(place(np.array(tensors[f"{start}{slot}/{name}"]))) for name in arrays}
        for slot, arrays in like.slots.items()
    }
    return State(count=int(tensors[f"{start}count"]), slots=slots)


def check_tensors(needed: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
    """Refuse tensors of a file that are not those that are needed (OPTIM-5)."""
    for name in needed:
        if name not in tensors:
            raise ValueError(f"{name}: missing in the saved state")
    for name, x in tensors.items():
        if name not in needed:
            raise ValueError(f"{name}: unknown in the saved state{meant(name, needed)}")
        want = needed[name]
        if x.dtype != want.dtype or x.shape != want.shape:
            raise ValueError(f"{name}: {x.dtype} {x.shape}, {want.dtype} {want.shape} is needed")
        if x.dtype.kind == "i" and x < 0:
            raise ValueError(f"{name}: {int(x)}, a count is at least 0")
    require_finite({name: x for name, x in tensors.items() if x.dtype.kind == "f"}, "state")
