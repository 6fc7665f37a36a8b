"""Mistakes of a network in the place of the momentum (DEEPCASE-15).

Source: DEEP-37, DEEP-38. Those of a momentum gate are those of other memories (`write`, `tokens`).
"""

from __future__ import annotations

from atlas_ref.oracle.deep.context import DeepContext
from atlas_ref.oracle.deep.readings.conditions import writes
from atlas_ref.oracle.program.hook import by, within
from atlas_ref.oracle.program.reading import Reading
from atlas_ref.types import Array
from tape import ops


def _has_network(context: DeepContext) -> bool:
    return context.settings.deep_momentum is not None and writes(context)


def _transpose_square(x: Array, axes: int) -> Array:
    """Square matrices transposed."""
    square = axes == 2 and x.shape[-1] == x.shape[-2]
    return ops.swapaxes(x, -1, -2) if square else x


MOMENTA: tuple[Reading, ...] = (
    Reading(
        "network mapped before it learned",
        "the network of the momentum mapped each gradient before it learned of it",
        matters=_has_network,
        settings={"learns_first": False},
    ),
    Reading(
        "objective without its half",
        "the network of the momentum learned by |p - u|^2",
        matters=lambda context: (
            _has_network(context) and context.settings.deep_momentum.objective == "l2"
        ),
        ops={"slope": within(lambda compute, p, u: 2.0 * compute(p, u))},
    ),
    Reading(
        "objective as a mean",
        "the network of the momentum learned by the mean over the entries",
        matters=_has_network,
        ops={"slope": within(lambda compute, p, u: compute(p, u) / u.shape[-1])},
    ),
    Reading(
        "network of unit gradients",
        "the network of the momentum learned of gradients of length 1",
        matters=_has_network,
        ops={
            "slope": within(
                lambda compute, p, u: compute(
                    p, u / ops.sqrt(ops.sum(u * u, axis=-1, keepdims=True))
                )
            )
        },
    ),
    Reading(
        "entries column by column",
        "the network of the momentum had the entries of square matrices column by column",
        matters=lambda context: (
            _has_network(context)
            and any(_is_square(context, name) for name in context.settings.fast)
        ),
        ops={"network/entries": by(_transpose_square)},
    ),
)


def _is_square(context: DeepContext, name: str) -> bool:
    shape = context.inputs[f"in/memory/{name}"].shape
    return len(shape) > 1 and shape[-1] == shape[-2] > 1
