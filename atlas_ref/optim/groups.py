"""Groups of parameters, each with its own optimiser and period, under one clipping.

Specified in specs/optim.md (OPTIM-26 to OPTIM-31).
"""

from __future__ import annotations

import functools
import operator
import re
from collections import Counter
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any, Self

import numpy as np
from pydantic import Field, model_validator

from atlas_ref import backend
from atlas_ref.messages import no_such
from atlas_ref.optim import OPTIMISERS, module_of, tensors
from atlas_ref.optim.clip import Config as Clip
from atlas_ref.optim.clip import scaled
from atlas_ref.optim.tensors import Tensors, settled
from atlas_ref.types import Array, Count, Frozen

if TYPE_CHECKING:
    Optimiser = tensors.Settings
else:  # the settings of any optimiser, told apart by their kind
    Optimiser = Annotated[
        functools.reduce(operator.or_, (each.module.Config for each in OPTIMISERS.values())),
        Field(discriminator="kind"),
    ]


class Group(Frozen):
    """Parameters that one optimiser moves (OPTIM-26, OPTIM-28).

    Attributes:
        name: of the group.
        optimiser: its settings; None where parameters stay as they are.
        names: patterns of names that it takes, with * for anything.
        but: patterns of names that it leaves.
        matrices: True for matrices alone, False for all others alone, None for both. A matrix has
            two axes or more, and the last two are longer than 1.
        period: number of outer steps after which it moves; until then gradients are added up.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_ -]+$")]
    optimiser: Optimiser | None
    names: tuple[str, ...] = ("*",)
    but: tuple[str, ...] = ()
    matrices: bool | None = None
    period: Count = 1

    def takes(self, name: str, shape: tuple[int, ...]) -> bool:
        """Whether a parameter belongs here, where no group before takes it (OPTIM-26)."""
        matrix = len(shape) >= 2 and min(shape[-2:]) > 1
        return (
            self.matrices in (None, matrix)
            and any(fnmatchcase(name, each) for each in self.names)
            and not any(fnmatchcase(name, each) for each in self.but)
        )


class Config(Frozen):
    """Groups in their order, and the clipping before them (OPTIM-26, OPTIM-27)."""

    groups: Annotated[tuple[Group, ...], Field(min_length=1)]
    clip: Clip | None = None

    @model_validator(mode="after")
    def _possible(self) -> Self:
        name, count = Counter(group.name for group in self.groups).most_common(1)[0]
        if count > 1:
            raise ValueError(f"groups: two are called {name!r}")
        return self

    @property
    def moving(self) -> tuple[Group, ...]:
        """The groups whose parameters move."""
        return tuple(group for group in self.groups if group.optimiser is not None)


class State(Frozen):
    """What moves from one outer step to the next (OPTIM-26, OPTIM-28).

    Attributes:
        states: name of a group -> state of its optimiser.
        waiting: name of a group -> sums of gradients; empty where none wait.
        waits: name of a group -> number of gradients in each sum.
        norm: of all gradients of the last outer step before clipping; None before the first, and
            without clipping.
    """

    states: dict[str, Any]
    waiting: dict[str, dict[str, Any]]
    waits: dict[str, int]
    norm: float | None = None


def assigned(config: Config, params: Any) -> dict[str, tuple[str, ...]]:
    """Name of a group -> names of its parameters (OPTIM-26).

    Raises:
        ValueError: a parameter of no group, or a group without a parameter.
    """
    return _assigned(config, tensors.named(params, "params").tensors)


def _assigned(config: Config, params: Mapping[str, Array]) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {group.name: [] for group in config.groups}
    for name, p in params.items():
        group = next((each for each in config.groups if each.takes(name, p.shape)), None)
        if group is None:
            raise ValueError(
                f"params.{name}: shape {p.shape}, no group takes it; groups are {', '.join(found)}"
            )
        found[group.name].append(name)
    for name, taken in found.items():
        if not taken:
            raise ValueError(f"groups.{name}: no parameter is left for it")
    return {name: tuple(taken) for name, taken in found.items()}


def init(config: Config, params: Any) -> State:
    """The state before the first outer step (OPTIM-26).

    Raises:
        ValueError: names the parameter or the group that cannot be.
    """
    own = tensors.named(params, "params").tensors
    taken = _assigned(config, own)
    states = {
        group.name: module_of(group.optimiser).init(group.optimiser, _of(own, taken[group.name]))
        for group in config.moving
    }
    return State.trusted(
        states=states,
        waiting={name: {} for name in states},
        waits=dict.fromkeys(states, 0),
        norm=None,
    )


def update(
    config: Config,
    state: State,
    params: Any,
    grads: Any,
    step: int,
    *,
    active: Mapping[str, bool] | None = None,
) -> tuple[Any, State]:
    """One outer step: clip, add up what waits, move the groups that are active (OPTIM-26 to
    OPTIM-30).

    Args:
        params, grads: nests of arrays of one structure.
        step: number of the outer step, from 0; a group is active where it is a multiple of the
            period.
        active: name of a group -> whether it is active, in place of its period.

    Returns:
        (params, state) after it.

    Raises:
        ValueError: names the tensor or the group, what was found and what is needed.
    """
    tensors.check_step(step)
    own, given = tensors.named(params, "params"), tensors.named(grads, "grads").tensors
    taken = _assigned(config, own.tensors)
    given, norm = _ready(config, taken, own.tensors, given)
    now = _active(config, step, active)
    new, after = dict(own.tensors), _Parts(state)
    for group in config.moving:
        name = group.name
        part = _of(given, taken[name])
        if not now[name]:
            after.wait(name, part)
            continue
        total = _added(state.waiting[name], part)
        new |= after.move(group, _of(own.tensors, taken[name]), total, step)
    return own.build(new), after.state(norm)


def flush(config: Config, state: State, params: Any, step: int) -> tuple[Any, State]:
    """Apply at last all that waits, at the end of a run (OPTIM-30).

    Args:
        step: number of the outer step whose rate is taken.

    Returns:
        (params, state) after it; both as they are where nothing waits.

    Raises:
        ValueError: names the tensor, what was found and what is needed.
    """
    tensors.check_step(step)
    own = tensors.named(params, "params")
    taken = _assigned(config, own.tensors)
    new, after = dict(own.tensors), _Parts(state)
    for group in config.moving:
        if state.waits[group.name]:
            part = _of(own.tensors, taken[group.name])
            new |= after.move(group, part, state.waiting[group.name], step)
    return own.build(new), after.state(state.norm)


class _Parts:
    """The parts of a state that an outer step makes anew."""

    def __init__(self, before: State) -> None:
        self.states, self.waiting = dict(before.states), dict(before.waiting)
        self.waits = dict(before.waits)

    def wait(self, name: str, grads: Tensors) -> None:
        """Add gradients to the sum; copies, since a loop may write its next ones into the arrays."""
        before = self.waiting[name]
        self.waiting[name] = (
            _added(before, grads)
            if before
            else {each: settled(np.copy(g)) for each, g in grads.items()}
        )
        self.waits[name] += 1

    def move(self, group: Group, params: Tensors, grads: Tensors, step: int) -> Tensors:
        """The parameters of a group after its update, which it counts itself (OPTIM-29)."""
        module, name = module_of(group.optimiser), group.name
        new, self.states[name] = module.update(
            group.optimiser, self.states[name], params, grads, step
        )
        self.waiting[name], self.waits[name] = {}, 0
        found: Tensors = new
        return found

    def state(self, norm: float | None) -> State:
        return State.trusted(states=self.states, waiting=self.waiting, waits=self.waits, norm=norm)


def _of(whole: Mapping[str, Array], names: tuple[str, ...]) -> Tensors:
    return {name: whole[name] for name in names}


def _ready(
    config: Config, taken: Mapping[str, tuple[str, ...]], own: Tensors, given: Tensors
) -> tuple[Tensors, float | None]:
    """Gradients of the groups that move, checked and clipped, and their norm (OPTIM-27)."""
    names = [name for group in config.moving for name in taken[group.name]]
    tensors.require_known(own, given)
    moving = {name: given[name] for name in names if name in given}
    tensors.check_gradients(_of(own, tuple(names)), moving)
    return (moving, None) if config.clip is None else scaled(config.clip, moving)


def _active(config: Config, step: int, asked: Mapping[str, bool] | None) -> dict[str, bool]:
    """Whether each group moves at this step (OPTIM-28)."""
    now = {group.name: step % group.period == 0 for group in config.moving}
    for name, value in (asked or {}).items():
        if name not in now:
            raise ValueError(f"active: {no_such('group', name, now)}")
        now[name] = bool(value)
    return now


def _added(waiting: Mapping[str, Array], part: Tensors) -> Tensors:
    if not waiting:
        return part
    return {name: settled(waiting[name] + g) for name, g in part.items()}


# -- states as tensors of a file -------------------------------------------------------------------


def tensors_of(state: State) -> dict[str, np.ndarray[Any, Any]]:
    """A state as tensors on the host: group/count, group/slot/parameter, group/waits,
    group/waiting/parameter (OPTIM-31).
    """
    found: dict[str, Any] = {}
    for name, own in state.states.items():
        found |= tensors.tensors_of(own, f"{name}/")
        found[f"{name}/waits"] = np.array(state.waits[name], np.int64)
        for each, x in state.waiting[name].items():
            found[f"{name}/waiting/{each}"] = backend.of(x).to_host(x)
    return found


def of_tensors(config: Config, params: Any, saved: Mapping[str, Any]) -> State:
    """The state of a file, for these parameters, in the backend in use (OPTIM-31).

    Raises:
        ValueError: names the tensor or the group that is missing, unknown, misshapen, of another
            dtype or not finite.
    """
    like, own = init(config, params), tensors.named(params, "params").tensors
    taken = _assigned(config, own)
    for each in saved:
        if each.partition("/")[0] not in like.states:
            known = no_such("group", each.partition("/")[0], like.states)
            raise ValueError(f"{each}: {known}")
    states, waiting, waits = {}, {}, {}
    for group in config.moving:
        name = group.name
        part = {key: x for key, x in saved.items() if key.startswith(f"{name}/")}
        sums = {key: x for key, x in part.items() if re.match(r"[^/]*/wait(s$|ing/)", key)}
        needed = {f"{name}/waits": np.array(0, np.int64)}
        if int(sums.get(f"{name}/waits", 0)):
            needed |= {
                f"{name}/waiting/{each}": backend.of(own[each]).to_host(own[each])
                for each in taken[name]
            }
        tensors.check_tensors(needed, sums)
        rest = {key: x for key, x in part.items() if key not in sums}
        states[name] = tensors.of_tensors(like.states[name], rest, f"{name}/")
        waits[name] = int(sums[f"{name}/waits"])
        place = backend.current().from_host
        waiting[name] = {
            each: settled(place(np.array(sums[f"{name}/waiting/{each}"])))
            for each in (taken[name] if waits[name] else ())
        }
    return State.trusted(states=states, waiting=waiting, waits=waits, norm=None)
