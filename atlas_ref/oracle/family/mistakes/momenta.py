"""Mistakes of a momentum that is an average, or that a large gradient makes forget.

Source: VEC-25.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from atlas_ref.oracle.family.mistake import Mistake, Seen
from atlas_ref.oracle.family.state import Inputs
from atlas_ref.types import Array
from tape import ops

SUM = {"momentum_kind": "sum"}


def _always(at: Seen) -> bool:
    return True


def _times(factor: Array, x: Array) -> Array:
    return factor if x is None else factor * x


def _share(inputs: Inputs) -> Array:
    """One minus the momentum."""
    return 1.0 - inputs.momentum


def _entering(factor: Callable[[Inputs], Array]) -> Callable[[Inputs], Inputs]:
    """Inputs whose gradient enters the momentum with another factor."""
    return lambda inputs: inputs._replace(a=_times(factor(inputs), inputs.a))


def _first_whole(inputs: Inputs) -> Array:
    share = _share(inputs)
    return ops.concatenate([ops.ones_like(share[..., :1, :, :]), share[..., 1:, :, :]], axis=-3)


def _share_before(inputs: Inputs) -> Array:
    share = _share(inputs)
    return ops.concatenate([share[..., :1, :, :], share[..., :-1, :, :]], axis=-3)


def _on_the_write(inputs: Inputs) -> Inputs:
    return inputs._replace(b=_times(_share(inputs), inputs.b))


def _swap(inputs: Inputs) -> Inputs:
    return inputs._replace(momentum=_share(inputs), a=_times(inputs.momentum, inputs.a))


def _correct(inputs: Inputs) -> Inputs:
    """The write is divided by what the weights of an average from 0 sum to."""
    total = 1.0 - np.cumprod(inputs.momentum, axis=-3)
    return _entering(_share)(inputs)._replace(b=_times(1.0 / total, inputs.b))


def _of_the_window(inputs: Inputs) -> Inputs:
    return inputs._replace(weights=inputs.weights * _share(inputs))


def _hold_momentum(inputs: Inputs) -> Inputs:
    held = ops.stop_gradient(inputs.momentum)
    return _entering(_share)(inputs)._replace(momentum=held)


def _over_momenta(at: Seen) -> bool:
    """Whether the window is over momenta, under one gate for all rows."""
    return at.structure.order == "momentum_then_window" and at.inputs.momentum.shape[-2] == 1


def _without_resets(at: Seen) -> bool:
    return not bool(at.inputs.reset[1:].any())


AVERAGE: tuple[Mistake, ...] = (
    Mistake(
        "average on the write",
        "one minus the momentum multiplies what enters the memory",
        _always,
        inputs=_on_the_write,
    ),
    Mistake(
        "average without its factor at first",
        "the first gradient enters the average whole",
        _always,
        inputs=_entering(_first_whole),
    ),
    Mistake(
        "average by the momentum of the token before",
        "the gradient is multiplied by one minus the momentum of the token before",
        lambda at: at.tokens > 1,
        inputs=_entering(_share_before),
    ),
    Mistake(
        "average with both weights swapped",
        "the momentum multiplies the gradient, and one minus it S",
        _always,
        inputs=_swap,
    ),
    Mistake(
        "average corrected for its start",
        "the average is divided by one minus the product of the momenta, as Adam does",
        _without_resets,
        inputs=_correct,
    ),
    Mistake(
        "average of the window",
        "one minus the momentum multiplies the sum over the window",
        _over_momenta,
        inputs=_of_the_window,
    ),
    Mistake(
        "weight of the gradient held fixed",
        "the momentum gets nothing from the gradient's weight",
        _always,
        True,
        inputs=_entering(lambda inputs: 1.0 - ops.stop_gradient(inputs.momentum)),
    ),
    Mistake(
        "weight of S held fixed",
        "the momentum gets nothing from the weight of S",
        _always,
        True,
        inputs=_hold_momentum,
    ),
)


def mistakes(at: Seen) -> list[Mistake]:
    """Mistakes of the momentum of a case, each in a kernel of a momentum that is a sum."""
    if at.case.convention.momentum_kind != "average" or not at.momentum:
        return []
    return [each._replace(convention=SUM) for each in AVERAGE if each.made_in(at)]


def words_by_name() -> dict[str, str]:
    """Mistakes in words, by name."""
    return {each.name: each.words for each in AVERAGE}
