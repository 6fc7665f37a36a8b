"""Gates of queries and reads: how far a query is moved, and how much a memory's read counts.

Specified in specs/tnt.md (TNT-24).
"""

from __future__ import annotations

from typing import Annotated

from atlas_ref.forms.tnt.config import Config
from atlas_ref.types import Array, Dims, Frozen
from tape import ops


class Gates(Frozen):
    """Gates of one memory, a number for each token (TNT-24).

    Attributes:
        query (..., T): g of (1 - g) q + g P q, under gate given of its projection.
        read (..., T): the factor of its read, under combine gated.
    """

    query: Annotated[Array, Dims("... T", optional=True)] = None
    read: Annotated[Array, Dims("... T", optional=True)] = None


def given(
    config: Config, gates: Gates | tuple[Gates, ...] | None, shape: tuple[int, ...]
) -> tuple[Gates, ...]:
    """The gates of each memory, which its settings take and no others.

    Args:
        gates: of all memories, or one each. Shared ones reach the memories that take them.
        shape: (..., T) of the tokens.

    Raises:
        ValueError: names the gate that is missing, given in vain, or of another shape.
    """
    count = len(config.memories)
    shared = not isinstance(gates, tuple)
    each = gates if isinstance(gates, tuple) else (gates or Gates(),) * count
    if len(each) != count:
        raise ValueError(f"gates: {len(each)}, expected one of each of {count} memories")
    taken = [
        {"query": memory.projection.gate == "given", "read": config.combine == "gated"}
        for memory in config.memories
    ]
    found = []
    for i, (own, takes) in enumerate(zip(each, taken, strict=True)):
        arrays = {}
        for name, needed in takes.items():
            value = getattr(own, name)
            useful = any(other[name] for other in taken) if shared else needed
            _check(f"gates[{i}].{name}", value, shape, needed=needed, useful=useful)
            arrays[name] = value if needed else None
        found.append(Gates.trusted(**arrays))
    return tuple(found)


def _check(where: str, value: Array, shape: tuple[int, ...], *, needed: bool, useful: bool) -> None:
    if value is None and needed:
        raise ValueError(f"{where}: missing, but the settings ask for it")
    if value is not None and not useful:
        raise ValueError(f"{where}: given, but the settings ask for none")
    if value is not None and value.shape != shape:
        raise ValueError(f"{where}: shape {value.shape}, expected {shape}")


def cut(gates: Gates, first: int, last: int) -> Gates:
    """Gates of tokens first to last."""
    return Gates.trusted(
        **{
            name: None if value is None else value[..., first:last]
            for name, value in gates.__dict__.items()
        }
    )


def weighed(y: Array, gates: Gates) -> Array:
    """A memory's read (..., T, d_out) times its gate, if it has one."""
    return y if gates.read is None else ops.expand_dims(gates.read, -1) * y
