"""Mistakes of a network in the place of the momentum (DEEPCASE-15).

Source: DEEP-37, DEEP-38. Those of a momentum gate are those of other memories (`write`, `tokens`).
"""

from __future__ import annotations

from atlas_ref.oracle.deep.readings.conditions import writes
from atlas_ref.oracle.deep.readings.reading import Reading, Seen, with_parts
from atlas_ref.types import Array
from tape import ops


def _has_network(at: Seen) -> bool:
    return at.s.deep_momentum is not None and writes(at)


def _turned(x: Array, axes: int) -> Array:
    """Square matrices transposed."""
    square = axes == 2 and x.shape[-1] == x.shape[-2]
    return ops.swapaxes(x, -1, -2) if square else x


MOMENTA: tuple[Reading, ...] = (
    Reading(
        "network mapped before it learned",
        "the network of the momentum mapped each gradient before it learned of it",
        made_in=_has_network,
        settings=lambda s: s._replace(learns_first=False),
    ),
    Reading(
        "objective without its half",
        "the network of the momentum learned by |p - u|^2",
        made_in=lambda at: _has_network(at) and at.s.deep_momentum.objective == "l2",
        ops={"slope": lambda compute, p, u: 2.0 * compute(p, u)},
    ),
    Reading(
        "objective as a mean",
        "the network of the momentum learned by the mean over the entries",
        made_in=_has_network,
        ops={"slope": lambda compute, p, u: compute(p, u) / u.shape[-1]},
    ),
    Reading(
        "network of unit gradients",
        "the network of the momentum learned of gradients of length 1",
        made_in=_has_network,
        ops={
            "slope": lambda compute, p, u: compute(
                p, u / ops.sqrt(ops.sum(u * u, axis=-1, keepdims=True))
            )
        },
    ),
    Reading(
        "entries column by column",
        "the network of the momentum had the entries of square matrices column by column",
        made_in=lambda at: _has_network(at) and any(_is_square(at, name) for name in at.s.fast),
        settings=with_parts(turned=_turned),
    ),
)


def _is_square(at: Seen, name: str) -> bool:
    shape = at.inputs[f"in/memory/{name}"].shape
    return len(shape) > 1 and shape[-1] == shape[-2] > 1
