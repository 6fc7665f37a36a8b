"""The outer optimiser of a run, as groups of `optim`.

Specified in specs/train.md (TRAIN-9, TRAIN-24).
"""

from __future__ import annotations

from typing import Any

from atlas_ref.messages import in_one_line
from atlas_ref.optim import DEFAULT, OPTIMISERS, clip, flat, groups, presets
from atlas_ref.optim.schedule import Schedule
from atlas_ref.train.settings import Settings

#: Eps of the norm that divides, as PyTorch's clipping has it.
EPS = 1e-6

#: Rate of hidden matrices under an optimiser of matrices, where none is stated.
HIDDEN_RATE = 0.02


def optimiser(settings: Settings, learnt: tuple[str, ...] | None = None) -> groups.Config:
    """Groups, schedule and clipping of a run (TRAIN-9, TRAIN-23).

    Args:
        learnt: patterns of parameters that alone are learnt; None for all.

    Raises:
        ValueError: names the setting that is wrong.
    """
    with in_one_line():
        found = _groups(settings)
        if learnt is None:
            return found
        stays = groups.Group(name="stays", optimiser=None, but=learnt)
        return groups.Config(groups=(stays, *found.groups), clip=found.clip)


def schedule(settings: Settings) -> Schedule:
    """Warm-up, then a factor that falls to its floor at the last step (TRAIN-9)."""
    own, steps = settings.optimiser, settings.steps
    warmup = min(100, steps // 100) if own.warmup is None else own.warmup
    if own.schedule == "constant":
        return Schedule(warmup=warmup)
    return Schedule(kind=own.schedule, warmup=warmup, steps=steps, floor=own.floor)


def _groups(settings: Settings) -> groups.Config:
    own, falls = settings.optimiser, schedule(settings)
    facts = OPTIMISERS[own.name]
    public = settings.model.model == "atlas-mag" and settings.model.memory
    decay = own.decay if own.decay is not None else 0.1 if public else 0.01
    if own.hidden_rate is not None and not facts.matrices:
        raise ValueError(f"hidden_rate: {own.name} has one rate for all parameters")
    limit = clip.Config(limit=own.clip, eps=EPS) if own.clip else None
    rule = flat.Config(
        rate=own.rate,
        schedule=falls,
        b2=0.95 if public else 0.99,
        decay=decay,
        in_place=True,
    )
    last: Any = rule
    if own.name != DEFAULT:
        rate = (own.hidden_rate or HIDDEN_RATE) if facts.matrices else own.rate
        last = facts.module.Config(rate=rate, schedule=falls, decay=decay, **(facts.run or {}))
    if facts.matrices:
        found, last = presets.matrices(last, rule).groups, rule
    else:
        found = (groups.Group(name=own.name, optimiser=last),)
    if own.by_level:
        found = (*_levels(settings.model.periods, found, last), *found)
    if public and settings.model.preset in (None, presets.ATLAS_MAG):
        found = (presets.MEMORIES, *found)
    return groups.Config(groups=found, clip=limit)


def _levels(
    periods: tuple[int, ...], found: tuple[groups.Group, ...], last: Any
) -> tuple[groups.Group, ...]:
    """Groups of the parameters of each level, which wait for its period (TRAIN-24).

    Args:
        found: the groups of all parameters; the first that takes hidden matrices says how.
        last: settings of the optimiser of all else.

    Raises:
        ValueError: a model without levels.
    """
    if not periods:
        raise ValueError("by_level: has no effect without periods")
    hidden = next((group for group in found if group.name == "hidden"), None)
    own: list[groups.Group] = []
    for i, period in enumerate(periods):
        fields: dict[str, Any] = {"names": (f"*.levels.{i}.*",), "period": period}
        if hidden is not None:
            matrices: dict[str, Any] = {
                "optimiser": hidden.optimiser,
                "but": hidden.but,
                "matrices": True,
            }
            own.append(groups.Group(name=f"level {i} hidden", **matrices, **fields))
        own.append(groups.Group(name=f"level {i}", optimiser=last, **fields))
    return tuple(own)
